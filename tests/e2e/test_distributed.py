"""Two processes are one process, but for rounding."""

import json
import os
import socket
import subprocess
import sys

import pytest
from conftest import little_lm


def losses(directory):
    records = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    return [r["loss"] for r in records if r["kind"] == "train"], [
        r["bits_per_byte"] for r in records if r["kind"] == "eval"
    ]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def torchrun(file, *options):
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-addr", "127.0.0.1",
        "--master-port", str(free_port()), "-m", "littlelm.cli", "train", str(file), *options,
    ]  # fmt: skip
    return subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )


def test_the_loss_sequence_on_two_ranks_equals_that_on_one(tiny, tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    assert little_lm("train", tiny, "--set", f"run.dir={one}").returncode == 0
    done = torchrun(tiny, "--set", f"run.dir={two}", "--set", "train.micro_batch=2")
    assert done.returncode == 0, done.stderr
    for left, right in zip(losses(one), losses(two), strict=True):
        assert left == pytest.approx(right, abs=1e-5)
    assert len(losses(one)[0]) == 20


def test_a_run_may_go_on_with_another_number_of_processes(tiny, tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    assert little_lm("train", tiny, "--set", f"run.dir={one}").returncode == 0
    assert little_lm("train", tiny, "--set", f"run.dir={two}", "--set", "run.steps=20", timeout=120).returncode == 0
    done = torchrun(tiny, "--set", f"run.dir={two}", "--set", "run.steps=24")
    assert done.returncode == 0, done.stderr
    assert len(losses(two)[0]) == 24
