"""A user's mistake is one clear message with exit code 2: no traceback, nothing half written."""

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import little_lm

from littlelm.commands.train import run_training
from littlelm.errors import UserError
from littlelm.train.ledger import Ledger
from littlelm.train.trainer import Trainer


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        (
            "optimizer.matrix.momentun=0.9",
            "unknown key 'momentun' in optimizer.matrix (muon); did you mean 'momentum'?",
        ),
        ("run.steps=many", "run.steps: expected a whole number, got 'many'"),
        ("optimizer=adamm", "unknown optimizer 'adamm'; did you mean 'adamw'?"),
        ("model.num_attention_heads=3", "num_attention_heads"),
        ("data.sequence_length=128", "is longer than model.max_position_embeddings 64"),
        ("train.global_batch_tokens=500", "no multiple of data.sequence_length 64; nearest: 448 or 512"),
        ("train.micro_batch=3", "does not divide the 8 rows"),
        ("data.sources=[{text: {files: [/nowhere/*.txt]}}]", "/nowhere/*.txt"),
        ("train.global_batch_tokens=64M", "train.global_batch_tokens"),
        ("model.vocab_size=999", "999"),
        ("run.resume=must", "holds no checkpoint"),
        ("run.tokens=1M", "exactly one of them; both are given"),
        (f"run.seed={2**63}", "run.seed"),
        ("data.sources=[{text: {files: ['~nosuchuser/*.txt']}}]", "~"),
        ("run.dir=~nosuchuser/run", "a path begins with ~ and a name that is no user here"),
        ("plugins=[nowhere.py]", "plugin 'nowhere.py': no such file"),
    ],
)
def test_a_bad_value_is_one_clear_error(tiny, tmp_path, override, expected):
    done = little_lm("train", tiny, "--set", override)
    assert done.returncode == 2, done.stderr
    assert expected in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()


def test_a_missing_file_is_named():
    done = little_lm("train", "nowhere.yaml")
    assert done.returncode == 2
    assert "nowhere.yaml: no such file" in done.stderr


def test_an_empty_corpus_is_an_error(tiny, tmp_path):
    (tmp_path / "empty.txt").write_text("")
    done = little_lm("train", tiny, "--set", f"data.sources=[{{text: {{files: ['{tmp_path}/empty.txt']}}}}]")
    assert done.returncode == 2
    assert "no documents" in done.stderr or "empty" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_damaged_checkpoint_is_named_and_not_passed_over(tiny, tmp_path):
    assert little_lm("train", tiny).returncode == 0
    newest = sorted((tmp_path / "run" / "checkpoints").glob("step-*"))[-1] / "model.safetensors"
    data = bytearray(newest.read_bytes())
    data[-5] ^= 1
    newest.write_bytes(data)
    for command in (["train", tiny, "--set", "run.steps=30"], ["sample", tmp_path / "run", "--prompt", "x"]):
        done = little_lm(*command)
        assert done.returncode == 2, done.stderr
        assert "model.safetensors" in done.stderr
        assert "Traceback" not in done.stderr


def test_another_tokenizer_than_the_checkpoints_is_refused(tiny, tmp_path):
    assert little_lm("train", tiny, "--set", "run.steps=5").returncode == 0
    tokenizer = tmp_path / "run" / "tokenizer"
    shutil.rmtree(tokenizer)
    from littlelm import registry

    out = tmp_path / "other"
    corpus = tmp_path / "text.txt"
    corpus.write_text("the quick brown fox jumps over the lazy dog " * 20)
    done = little_lm("tokenizer", "train", corpus, "--vocab-size", "270", "--out", out / "tokenizer.json")
    assert done.returncode == 0, done.stderr
    other = registry.build(registry.entry("tokenizer", "bpe").config(path=str(out / "tokenizer.json")))
    other.save(tokenizer)
    done = little_lm("sample", tmp_path / "run", "--prompt", "x")
    assert done.returncode == 2
    assert "fingerprint" in done.stderr or "tokenizer" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["config", "show", "configs/demo.yaml"],
        ["config", "schema"],
        ["config", "diff", "configs/demo.yaml", "configs/little-3.8b.yaml"],
        ["components"],
        ["components", "optimizer", "muon"],
        ["model", "configs/little-3.8b.yaml"],
    ],
)
def test_looking_does_not_import_torch(arguments):
    code = (
        "import sys; from littlelm.cli import main\n"
        f"sys.argv = ['little-lm', *{arguments!r}]\n"
        "try: main()\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        "heavy = [name for name in ('torch', 'pyarrow', 'transformers', 'matplotlib') if name in sys.modules]\n"
        "assert not heavy, heavy"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root, check=False)
    assert done.returncode == 0, done.stderr


def test_brackets_without_end_are_one_clear_error(tmp_path):
    (tmp_path / "deep.yaml").write_text("run: " + "[" * 3000 + "]" * 3000)
    done = little_lm("config", "show", tmp_path / "deep.yaml")
    assert done.returncode == 2
    assert "deep.yaml: nested too deeply to be read" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_second_process_in_a_run_directory_is_refused(tiny, tmp_path):
    assert little_lm("train", tiny).returncode == 0
    lock = os.open(tmp_path / "run", os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")}
    done = little_lm("train", tiny, "--set", "run.steps=30")
    os.close(lock)
    assert done.returncode == 2
    assert "another process trains in this directory" in done.stderr
    assert "Traceback" not in done.stderr
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")}


def test_a_tokenizer_is_not_written_over_its_text(tmp_path):
    (tmp_path / "text.txt").write_text("some text")
    (tmp_path / "link.txt").symlink_to(tmp_path / "text.txt")
    done = little_lm("tokenizer", "train", tmp_path / "text.txt", "--out", tmp_path / "link.txt")
    assert done.returncode == 2
    assert "is one of the files to train on" in done.stderr
    assert (tmp_path / "text.txt").read_text() == "some text"


def test_the_directory_of_checkpoints_stands_for_its_run(tiny, tmp_path):
    assert little_lm("train", tiny).returncode == 0
    done = little_lm("sample", tmp_path / "run" / "checkpoints", "--prompt", "The", "--max-new-tokens", "4")
    assert done.returncode == 0, done.stderr
    assert "(step 20)" in done.stderr


def test_a_plugin_given_on_the_command_line_is_loaded(tiny, tmp_path):
    (tmp_path / "mine.py").write_text(
        "from littlelm.config.base import ComponentConfig\n"
        "from littlelm.registry import register\n"
        "class FlatConfig(ComponentConfig):\n"
        '    """Always 1."""\n'
        "@register('scheduler', 'flat', config=FlatConfig)\n"
        "class Flat:\n"
        "    def __init__(self, config): pass\n"
        "    def __call__(self, step, total_steps): return 1.0\n"
    )
    done = little_lm("config", "show", tiny, "--set", "plugins=[mine.py]", "--set", "scheduler=flat", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "name: flat" in done.stdout


def test_a_ledger_that_cannot_be_closed_does_not_hide_the_first_error(tiny, monkeypatch, capsys):
    def fail(*arguments):
        raise RuntimeError("the first error")

    def full(ledger):
        raise UserError("ledger.json: cannot be written: no space left")

    monkeypatch.setattr(Trainer, "train", fail)
    monkeypatch.setattr(Ledger, "close", full)
    with pytest.raises(RuntimeError, match="the first error"):
        run_training(tiny, [])
    assert "then ledger.json: cannot be written: no space left" in capsys.readouterr().out
