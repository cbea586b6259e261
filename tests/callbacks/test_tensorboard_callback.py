"""TensorBoard files: every number a curve, no double points after a restart, no TensorFlow."""

import errno
import math
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
from fake_run import FakeRun

from littlelm.callbacks.configs import TensorBoardConfig
from littlelm.callbacks.tensorboard import TensorBoardCallback
from littlelm.errors import UserError


def start(tmp_path, step=0, **options):
    run = FakeRun(tmp_path)
    run.state.step = step
    callback = TensorBoardCallback(TensorBoardConfig(**options))
    callback.on_start(run)
    return run, callback


def read(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    return events


def test_numbers_become_curves_over_steps_and_samples_text(tmp_path):
    run, callback = start(tmp_path)
    for step in range(1, 4):
        callback.on_record(run, run.advance(step, lr_matrix=0.1, skipped=True, loss=math.nan if step == 2 else 1.0))
    callback.on_record(run, {"kind": "eval", "step": 3, "bits_per_byte": 1.5, "validation_sha256": "ab"})
    callback.on_record(run, {"kind": "sample", "step": 3, "prompt": "One", "text": " two"})
    callback.on_end(run)
    events = read(tmp_path)
    scalars = set(events.Tags()["scalars"])
    assert {"train/loss", "train/lr_matrix", "train/tokens_per_second", "eval/bits_per_byte"} <= scalars
    assert not scalars & {"train/step", "train/tokens", "train/seconds", "train/skipped", "eval/validation_sha256"}
    assert [event.step for event in events.Scalars("train/loss")] == [1, 2, 3]
    assert "sample/One/text_summary" in events.Tags()["tensors"]


def test_resuming_leaves_one_point_a_step(tmp_path):
    run, callback = start(tmp_path)
    for step in range(1, 6):
        callback.on_record(run, run.advance(step))
    callback.writer.flush()  # killed here
    run, callback = start(tmp_path, step=3)
    for step in range(4, 8):
        callback.on_record(run, run.advance(step))
    callback.on_end(run)
    assert [event.step for event in read(tmp_path).Scalars("train/loss")] == [1, 2, 3, 4, 5, 6, 7]


def test_every_thins_training_records_only(tmp_path):
    run, callback = start(tmp_path, every=5)
    for step in range(1, 11):
        callback.on_record(run, run.advance(step))
    callback.on_record(run, {"kind": "eval", "step": 9, "bits_per_byte": 1.0})
    callback.on_error(run, RuntimeError("what was written stays readable"))
    events = read(tmp_path)
    assert [event.step for event in events.Scalars("train/loss")] == [5, 10]
    assert [event.step for event in events.Scalars("eval/bits_per_byte")] == [9]


def test_an_installed_tensorflow_is_not_imported(tmp_path):
    (tmp_path / "tensorflow").mkdir()
    (tmp_path / "tensorflow" / "__init__.py").write_text("raise SystemExit('tensorflow was imported')\n")
    code = (
        "from littlelm.callbacks.tensorboard import summary_writer_class\n"
        f"writer = summary_writer_class()({str(tmp_path / 'events')!r})\n"
        "writer.add_scalar('a', 1.0, 1)\n"
        "writer.add_text('b', 'c', 1)\n"
        "writer.close()\n"
    )
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert list((tmp_path / "events").iterdir())


def test_a_full_disk_is_a_user_error(tmp_path):
    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    run, callback = start(tmp_path)
    callback.on_end(run)
    callback.writer = SimpleNamespace(add_scalar=full, close=full)
    for call in (lambda: callback.on_record(run, run.advance(1)), lambda: callback.on_end(run)):
        with pytest.raises(UserError, match=r"tensorboard: cannot be written: No space left on device"):
            call()
    callback.on_error(run, RuntimeError())  # nothing is left to close
