"""Training as a whole: what it says, what it leaves behind, and that it learns."""

import json
import math
import os
from collections import Counter

from conftest import little_lm

from littlelm.commands.train import run_training


def records(directory, kind):
    lines = (directory / "metrics.jsonl").read_text().splitlines()
    return [record for record in map(json.loads, lines) if record["kind"] == kind]


def test_a_run_says_its_choices_and_leaves_a_whole_directory(tiny, tmp_path):
    done = little_lm("train", tiny, "--set", "budget.usd_per_gpu_hour=1.0", "--set", "callbacks.tensorboard=true")
    assert done.returncode == 0, done.stderr
    for said in [
        "model: ",
        "precision: compute fp32, as the file says",
        "price: 1.00 USD",
        "bits per byte",
        "next: little-lm",
    ]:
        assert said in done.stdout
    found = {path.name for path in (tmp_path / "run").iterdir()}
    assert found == {
        "config.yaml", "environment.json", "metrics.jsonl", "ledger.json", "summary.json", "tokenizer", "checkpoints",
        "tensorboard", "report.html",
    }  # fmt: skip
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["step"] == 20
    assert summary["evaluation"]["bits_per_byte"] == records(tmp_path / "run", "eval")[-1]["bits_per_byte"]


def test_it_learns(tiny, tmp_path, corpus):
    """Sixty steps: from a uniform guess over 257 bytes to less than knowing how often each letter comes."""
    overrides = ["run.steps=60", "callbacks.eval.every=30", "callbacks.sample=false", "callbacks.report=false"]
    assert run_training(tiny, overrides) == 0
    counts = Counter("".join(path.read_text() for path in corpus.glob("*.txt")))
    total = sum(counts.values())
    letters_alone = -sum(count / total * math.log(count / total) for count in counts.values())  # nats a byte
    losses = [record["loss"] for record in records(tmp_path / "run", "train")]
    assert abs(losses[0] - math.log(257)) < 0.1
    assert losses[-1] < letters_alone - 0.2
    assert records(tmp_path / "run", "eval")[-1]["bits_per_byte"] < (letters_alone - 0.2) / math.log(2)


def test_gradient_accumulation_changes_nothing_but_rounding(tiny, tmp_path):
    runs = {}
    for rows in (1, 8):
        overrides = [f"train.micro_batch={rows}", f"run.dir={tmp_path}/{rows}", "run.steps=8", "callbacks.report=false"]
        assert run_training(tiny, overrides) == 0
        runs[rows] = [record["loss"] for record in records(tmp_path / str(rows), "train")]
    assert all(abs(a - b) < 1e-5 for a, b in zip(runs[1], runs[8], strict=True))


def test_bf16_weights_rounded_stochastically_resume_bitwise(tiny, tmp_path):
    """A constant schedule, so that a run of ten steps and one of five prolonged to ten are the same run."""
    options = [
        "precision.master=bf16_stochastic", "precision.compute=bf16", "callbacks.report=false", "scheduler=constant",
    ]  # fmt: skip
    assert run_training(tiny, [*options, f"run.dir={tmp_path}/whole", "run.steps=10"]) == 0
    for steps in (5, 10):
        assert run_training(tiny, [*options, f"run.dir={tmp_path}/halves", f"run.steps={steps}"]) == 0
    name = "checkpoints/step-00000010"
    for file in ("model.safetensors", "optimizer.safetensors", "rng.safetensors"):
        assert (tmp_path / "whole" / name / file).read_bytes() == (tmp_path / "halves" / name / file).read_bytes()


def test_without_a_compiler_it_goes_on_in_eager_mode_and_says_so(tiny, tmp_path):
    environment = {**os.environ, "CXX": "/bin/false", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    done = little_lm("train", tiny, "--set", "train.compile=true", "--set", "run.steps=3", env=environment)
    assert done.returncode == 0, done.stderr
    assert "torch.compile failed, going on in eager mode" in done.stdout
    assert len(records(tmp_path / "run", "train")) == 3


def test_a_loss_that_is_not_finite_is_skipped_and_then_stops_the_run(tiny, tmp_path):
    done = little_lm("train", tiny, "--set", "optimizer.default.lr=1e30", "--set", "optimizer.matrix.lr=1e30")
    assert done.returncode == 2
    assert "nothing of them was applied. Lower the learning rate" in done.stderr
    assert "Traceback" not in done.stderr
    skipped = [record for record in records(tmp_path / "run", "train") if record.get("skipped")]
    assert len(skipped) == 3
