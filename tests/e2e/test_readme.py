"""Every command the README and the guide show does what it says."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# A command that trains runs with these too: the same run, small enough for a test.
SMALL = (
    "--set run.steps=2 --set train.global_batch_tokens=1024 --set train.compile=false --set loss.compile=false "
    "--set model.hidden_size=32 --set model.num_hidden_layers=2 --set data.workers=1"
).split()


def commands(name):
    """The `little-lm ...` lines of a file's code blocks, without trailing comments."""
    text = (ROOT / name).read_text()
    blocks = re.findall(r"```(?:\w*)\n(.*?)```", text, flags=re.S)
    lines = [line.strip() for block in blocks for line in block.splitlines()]
    return [line.split("   #")[0].strip() for line in lines if line.startswith("little-lm ")]


@pytest.fixture(scope="module")
def home(tmp_path_factory, cache):
    """A directory with the shipped configs, where the commands run one after the other."""
    directory = tmp_path_factory.mktemp("home")
    shutil.copytree(ROOT / "configs", directory / "configs")
    return directory


def run(line, home, cache):
    words = shlex.split(line)[1:]
    if words[0] == "train":
        words += [*SMALL, "--set", f"data.cache_dir={cache}"]
    return subprocess.run(
        [sys.executable, "-m", "littlelm.cli", *words],
        cwd=home, capture_output=True, text=True, timeout=300, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)}, stdin=subprocess.DEVNULL,
    )  # fmt: skip


def test_every_readme_command_runs(home, cache):
    shown = [line for name in ("README.md", "docs/guide.md") for line in commands(name)]
    assert len(shown) > 8
    done = run("little-lm train configs/demo.yaml", home, cache)  # what `make demo` runs; the others look at its result
    assert done.returncode == 0, done.stderr
    for line in shown:
        done = run(line, home, cache)
        assert done.returncode == 0, f"{line}\n{done.stderr}"
        assert done.stdout, line


def test_the_makefile_runs_what_the_readme_says():
    makefile = (ROOT / "Makefile").read_text()
    assert "little-lm train configs/demo.yaml" in makefile
    assert "make test" in (ROOT / ".ci" / "run").read_text()
    assert "make demo" in (ROOT / "README.md").read_text()
