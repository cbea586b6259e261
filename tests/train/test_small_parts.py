"""Random state, interrupts, micro-batches, resuming: the small parts of training."""

import json
import os
import random
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from littlelm.commands.train import command_line
from littlelm.errors import UserError
from littlelm.train import micro_batch, rng
from littlelm.train.environment import describe_environment, recorded_peak
from littlelm.train.interrupt import Interrupt
from littlelm.train.tensor_file import read_tensors, write_tensors


def draw():
    return random.random(), np.random.rand(3).tolist(), torch.rand(3).tolist(), np.random.randn()


def test_every_generator_continues_where_it_was():
    rng.seed_everything(5)
    draw()
    state = rng.capture()
    expected = draw()
    draw()
    rng.restore(state)
    assert draw() == expected
    assert all(tensor.dtype == torch.uint8 for tensor in state.values())


def test_random_state_goes_through_a_file(tmp_path):
    rng.seed_everything(6)
    random.gauss(0, 1)  # Python and numpy each keep half of a pair of normals
    np.random.randn()
    write_tensors(tmp_path / "rng.safetensors", rng.capture())
    expected = draw(), random.gauss(0, 1)
    rng.restore(read_tensors(tmp_path / "rng.safetensors"))
    assert (draw(), random.gauss(0, 1)) == expected


def test_an_incomplete_random_state_is_refused():
    state = rng.capture()
    del state["numpy"]
    with pytest.raises(UserError, match="lacks numpy"):
        rng.restore(state)


class Clock:
    """Seconds that pass only when told to."""

    now = 0.0

    def __call__(self):
        return self.now


def test_the_first_signal_asks_and_the_second_insists(capfd):
    before = signal.getsignal(signal.SIGINT)  # a shell's background job has SIGINT ignored
    clock = Clock()
    with Interrupt(clock) as interrupt:
        assert (interrupt.requested, interrupt.signal_name) == (False, None)
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupt.requested
        assert (interrupt.signal_number, interrupt.signal_name) == (signal.SIGINT, "SIGINT")
        clock.now += 0.1
        os.kill(os.getpid(), signal.SIGINT)  # the same press, delivered twice by a launcher
        clock.now += 1
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert capfd.readouterr().err == "\nSIGINT: saving after this step (Ctrl-C again to stop at once)\n"
    assert signal.getsignal(signal.SIGINT) is before


def test_sigterm_asks_as_often_as_it_comes_and_other_ranks_are_silent(capfd, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    before = signal.getsignal(signal.SIGTERM)
    clock = Clock()
    with Interrupt(clock) as interrupt:
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGTERM)
            clock.now += 10
        assert (interrupt.requested, interrupt.signal_name) == (True, "SIGTERM")
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert capfd.readouterr().err == ""
    assert signal.getsignal(signal.SIGTERM) is before


def test_outside_the_main_thread_no_handler_is_touched():
    before = signal.getsignal(signal.SIGINT)

    def enter():
        with Interrupt() as interrupt:
            return interrupt.requested, signal.getsignal(signal.SIGINT)

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(enter).result() == (False, before)


def test_micro_batch_divides_the_rows_and_fits():
    gib = 2**30
    assert micro_batch.auto_micro_batch(48, 1024, gib, 20 * gib, "cuda")[0] == 12
    assert micro_batch.auto_micro_batch(48, 1024, 100 * gib, gib, "cuda")[0] == 1
    chosen, reason = micro_batch.auto_micro_batch(64, 512, 1, gib, "cpu")
    assert chosen * 512 <= 8192
    assert "CPU" in reason
    assert micro_batch.next_smaller(48, 12) == 8
    assert micro_batch.next_smaller(48, 1) is None
    with pytest.raises(UserError, match="possible: 1, 2, 4, 8"):
        micro_batch.check_micro_batch(8, 3)
    with pytest.raises(UserError, match="shared equally by 3 processes"):
        micro_batch.rows_per_rank(8, 3)


def git(directory, *arguments):
    command = ["git", "-c", "user.name=x", "-c", "user.email=x@example.org", *arguments]
    subprocess.run(command, cwd=directory, check=True, capture_output=True)


def test_environment_names_versions_machine_and_commit(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    found = describe_environment()
    assert found["packages"]["torch"] == torch.__version__
    assert found["cpu"]["threads"] >= 1
    assert (found["git_commit"], found["git_dirty"]) == (None, None)  # no repository
    assert json.loads(json.dumps(found)) == found
    (tmp_path / "a").write_text("1")
    git(tmp_path, "init")
    assert describe_environment()["git_commit"] is None  # no commit yet
    git(tmp_path, "add", "a")
    git(tmp_path, "commit", "-m", "a")
    (tmp_path / "untracked").write_text("")
    clean = describe_environment()
    assert len(clean["git_commit"]) == 40
    assert clean["git_dirty"] is False
    (tmp_path / "a").write_text("2")
    assert describe_environment()["git_dirty"] is True
    monkeypatch.setenv("PATH", "")  # no git at all
    assert describe_environment()["git_commit"] is None


def test_the_peak_measured_first_stays_while_hardware_and_dtype_do(tmp_path):
    cpu, fp32 = torch.device("cpu"), torch.float32
    assert recorded_peak(tmp_path, cpu, fp32) is None
    source = "measured float32 matrix product, 1 threads"
    written = {**describe_environment(), "run": {"peak_flops": 5e9, "peak_source": source}}
    (tmp_path / "environment.json").write_text(json.dumps(written))
    assert recorded_peak(tmp_path, cpu, fp32) == (5e9, source)
    assert recorded_peak(tmp_path, cpu, torch.bfloat16) is None
    for change in ({"model": "another"}, {"torch_threads": 4096}):
        (tmp_path / "environment.json").write_text(json.dumps(written | {"cpu": written["cpu"] | change}))
        assert recorded_peak(tmp_path, cpu, fp32) is None
    (tmp_path / "environment.json").write_text("{torn")
    assert recorded_peak(tmp_path, cpu, fp32) is None


def test_the_command_to_go_on_with_is_the_one_that_was_typed(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["cli.py", "train", "a b.yaml"])
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    assert command_line() == "little-lm train 'a b.yaml'"
    for name, value in (("TORCHELASTIC_RUN_ID", "x"), ("GROUP_WORLD_SIZE", "1"), ("LOCAL_WORLD_SIZE", "8")):
        monkeypatch.setenv(name, value)
    assert command_line() == "torchrun --standalone --nproc-per-node=8 -m littlelm.cli train 'a b.yaml'"
    monkeypatch.setenv("GROUP_WORLD_SIZE", "2")
    assert command_line().startswith("torchrun --nnodes=2 <rendezvous options as before> --nproc-per-node=8 -m ")
