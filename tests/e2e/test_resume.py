"""A run that is killed, interrupted or continued ends exactly as one that was left alone."""

import json
import shutil
import signal
import subprocess
import sys
import time

import pytest
from conftest import little_lm
from safetensors.numpy import load_file

from littlelm.commands.train import run_training
from littlelm.train.run import TrainingRun

DETERMINISTIC = ("step", "tokens", "loss", "lr", "grad_norm", "momentum", "weight_decay", "bits_per_byte", "text")


def metrics(directory):
    """Every record, without what depends on the clock."""
    records = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    return [{"kind": r["kind"], **{k: r[k] for k in DETERMINISTIC if k in r}} for r in records]


def weights(directory):
    """All tensors of the final checkpoint, by file and name."""
    last = sorted((directory / "checkpoints").glob("step-*"))[-1]
    return {(file.name, name): array for file in last.glob("*.safetensors") for name, array in load_file(file).items()}


def assert_same_run(left, right):
    a, b = weights(left), weights(right)
    assert a.keys() == b.keys()
    for key in a:
        assert a[key].tobytes() == b[key].tobytes(), f"{key} differs"
    assert metrics(left) == metrics(right)


def wait_for_step(process, directory, step):
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()
        path = directory / "metrics.jsonl"
        if path.exists() and f'"step": {step},' in path.read_text().replace('"step":', '"step": ').replace("  ", " "):
            return
        time.sleep(0.005)
    raise AssertionError(f"step {step} never came")


def start(file, *overrides):
    options = [item for override in overrides for item in ("--set", override)]
    command = [sys.executable, "-m", "littlelm.cli", "train", str(file), *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.fixture
def undisturbed(tiny, tmp_path):
    directory = tmp_path / "undisturbed"
    done = little_lm("train", tiny, "--set", f"run.dir={directory}")
    assert done.returncode == 0, done.stderr
    return directory


def test_resume_is_bitwise(tiny, tmp_path, undisturbed):
    """20 steps == 12 + kill -9 + the same command: weights, optimizer, RNG and metrics, atol = rtol = 0."""
    process = start(tiny)
    wait_for_step(process, tmp_path / "run", 12)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not (tmp_path / "run" / "summary.json").exists()
    again = little_lm("train", tiny)
    assert again.returncode == 0, again.stderr
    assert_same_run(tmp_path / "run", undisturbed)


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_saves_at_the_step_boundary_and_says_how_to_go_on(tiny, tmp_path, undisturbed, sent):
    process = start(tiny)
    wait_for_step(process, tmp_path / "run", 7)
    process.send_signal(sent)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + sent, errors
    assert "little-lm train" in output
    assert "Traceback" not in errors
    again = little_lm("train", tiny)
    assert again.returncode == 0, again.stderr
    assert_same_run(tmp_path / "run", undisturbed)


def test_a_complete_run_is_left_alone(tiny, undisturbed):
    before = (undisturbed / "metrics.jsonl").read_bytes()
    again = little_lm("train", tiny, "--set", f"run.dir={undisturbed}")
    assert again.returncode == 0
    assert "is complete" in again.stdout
    assert (undisturbed / "metrics.jsonl").read_bytes() == before


def test_a_changed_config_is_refused_and_a_longer_run_goes_on(tiny, undisturbed):
    changed = little_lm("train", tiny, "--set", f"run.dir={undisturbed}", "--set", "optimizer.matrix.lr=0.5")
    assert changed.returncode == 2
    assert "optimizer.matrix.lr: 0.02 then, 0.5 now" in changed.stderr
    of_the_end = [record for record in metrics(undisturbed) if record["step"] == 20]
    seldom = ["--set", "callbacks.eval.every=15", "--set", "callbacks.sample.every=15"]
    longer = little_lm("train", tiny, "--set", f"run.dir={undisturbed}", "--set", "run.steps=22", *seldom)
    assert longer.returncode == 0, longer.stderr
    assert max(record["step"] for record in metrics(undisturbed)) == 22
    # Of what was measured at the old end, and is not due there any more, nothing is lost.
    after = [record for record in metrics(undisturbed) if record["step"] == 20]
    assert {record["kind"] for record in of_the_end} == {"train", "checkpoint", "eval", "sample"}
    assert sorted(map(str, after)) == sorted(map(str, of_the_end))


def test_a_run_is_resumed_by_its_directory_from_anywhere(tiny, tmp_path, undisturbed):
    (tmp_path / "elsewhere").mkdir()
    done = little_lm("train", undisturbed, "--set", "run.steps=22", cwd=tmp_path / "elsewhere")
    assert done.returncode == 0, done.stderr
    assert max(record["step"] for record in metrics(undisturbed)) == 22
    assert json.loads((undisturbed / "summary.json").read_text())["step"] == 22


def test_a_refused_resume_leaves_the_run_as_it_was(tiny, tmp_path, corpus):
    """Other text gives another data fingerprint; the directory must still be whole afterwards."""
    own = tmp_path / "own"
    shutil.copytree(corpus, own)
    source = ["--set", f"data.sources=[{{text: {{files: ['{own}/*.txt']}}}}]"]
    assert little_lm("train", tiny, *source, "--set", "run.steps=5").returncode == 0
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir() if path.is_file()}
    (own / "more.txt").write_text("Something new.\n")
    done = little_lm("train", tiny, *source, "--set", "run.steps=9")
    assert done.returncode == 2
    assert "changed since this checkpoint" in done.stderr
    assert {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir() if path.is_file()} == before


COUNTING = """
import os, signal
from littlelm.callbacks.base import Callback
from littlelm.config.base import ComponentConfig
from littlelm.registry import register

class CountingConfig(ComponentConfig):
    "Writes down each step, and interrupts the run once."
    every: int = 1

@register("callback", "counting", config=CountingConfig)
class Counting(Callback):
    def on_due(self, run):
        with open(run.directory / "counted", "a") as file:
            file.write(f"{run.state.step}\\n")
        if run.state.step == 7:
            os.kill(os.getpid(), signal.SIGINT)
"""


def test_a_callback_that_comes_before_the_save_misses_no_step(tiny, tmp_path):
    (tmp_path / "counting.py").write_text(COUNTING)
    tiny.write_text("plugins: [counting.py]\n" + tiny.read_text() + "  counting: {every: 1}\n")
    assert little_lm("train", tiny, "--set", "run.steps=10").returncode == 130
    again = little_lm("train", tiny, "--set", "run.steps=10")
    assert again.returncode == 0, again.stderr
    assert (tmp_path / "run" / "counted").read_text().split() == list(map(str, range(1, 11)))


def test_what_a_resume_at_the_last_step_and_in_another_dtype_has_to_say(tiny, tmp_path, monkeypatch, capsys):
    assert run_training(tiny, ["run.steps=2"]) == 0
    summary = tmp_path / "run" / "summary.json"
    loss = json.loads(summary.read_text())["loss"]
    assert loss > 0
    summary.unlink()  # as if killed just before
    capsys.readouterr()
    assert run_training(tiny, ["run.steps=2"]) == 0
    assert json.loads(summary.read_text())["loss"] == loss
    assert "activations" not in capsys.readouterr().out
    # Where the dtype is `auto`, another machine may choose another one.
    whole = TrainingRun.state_dict
    monkeypatch.setattr(TrainingRun, "state_dict", lambda run: {**whole(run), "compute_dtype": "bfloat16"})
    assert run_training(tiny, ["run.steps=3"]) == 0
    assert "changed since the checkpoint: activations are bfloat16, and were float32" in capsys.readouterr().out
