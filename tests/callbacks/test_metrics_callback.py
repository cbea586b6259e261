"""metrics.jsonl: strict JSON lines, no seam after a restart."""

import json
import math
from pathlib import Path

import pytest
from fake_run import FakeRun

from littlelm.callbacks.configs import MetricsConfig
from littlelm.callbacks.metrics import MetricsCallback, read_metrics, records_up_to
from littlelm.errors import UserError


def lines(directory):
    return [json.loads(line) for line in (directory / "metrics.jsonl").read_bytes().split(b"\n") if line]


def start(tmp_path, step=0, **options):
    run = FakeRun(tmp_path)
    run.state.step = step
    callback = MetricsCallback(MetricsConfig(**options))
    callback.on_start(run)
    return run, callback


def test_each_record_is_on_disk_when_it_is_recorded(tmp_path):
    run, callback = start(tmp_path)
    for step in range(1, 4):
        callback.on_record(run, run.advance(step))
        assert [record["step"] for record in lines(tmp_path)] == list(range(1, step + 1))
    callback.on_end(run)


def test_values_that_json_lacks_become_null(tmp_path):
    run, callback = start(tmp_path)
    callback.on_record(run, run.advance(1, loss=math.nan, grad_norm=-math.inf, lr=0.5))
    text = (tmp_path / "metrics.jsonl").read_text()
    assert "NaN" not in text and "Infinity" not in text
    assert lines(tmp_path)[0] | {"loss": None, "grad_norm": None, "lr": 0.5} == lines(tmp_path)[0]


def kinds(tmp_path):
    return [(record["kind"], record["step"]) for record in lines(tmp_path)]


def test_what_happens_again_on_resuming_replaces_what_it_was_and_the_rest_stays(tmp_path):
    run, callback = start(tmp_path)
    for step in range(1, 6):
        callback.on_record(run, run.advance(step))
        if step % 2 == 0:
            callback.on_record(run, {"kind": "eval", "step": step, "bits_per_byte": 1.0})
            for text in ("old", "older"):
                callback.on_record(run, {"kind": "sample", "step": step, "text": text})
    run, callback = start(tmp_path, step=4)
    two = [("train", 1), ("train", 2), ("eval", 2), ("sample", 2), ("sample", 2), ("train", 3), ("train", 4)]
    assert kinds(tmp_path) == [*two, ("eval", 4), ("sample", 4), ("sample", 4)]
    for text in ("new", "newer"):
        callback.on_record(run, {"kind": "sample", "step": 4, "text": text})
    assert [record["text"] for record in lines(tmp_path) if record["step"] == 4 and "text" in record] == [
        "new",
        "newer",
    ]
    callback.on_record(run, run.advance(5))
    assert kinds(tmp_path) == [*two, ("eval", 4), ("sample", 4), ("sample", 4), ("train", 5)]


def test_a_line_torn_within_a_character_is_left_out(tmp_path):
    run, callback = start(tmp_path)
    callback.on_record(run, run.advance(1))
    whole = json.dumps({"kind": "sample", "step": 1, "text": "né"}, ensure_ascii=False).encode()
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(path.read_bytes() + whole[: whole.index(b"\xc3") + 1])
    assert [record["step"] for record in read_metrics(path)] == [1]
    run, callback = start(tmp_path, step=1)
    callback.on_record(run, run.advance(2))
    assert [record["step"] for record in lines(tmp_path)] == [1, 2]


def test_text_with_unusual_line_separators_survives_a_restart(tmp_path):
    text = "a\u2028b\u2029c\x85d\x1ce\ff\r\ng"
    run, callback = start(tmp_path)
    run.state.step = 1
    callback.on_record(run, {"kind": "sample", "step": 1, "text": text})
    start(tmp_path, step=2)
    assert [record["text"] for record in read_metrics(tmp_path / "metrics.jsonl")] == [text]


def test_every_thins_training_records_only_and_keeps_the_last(tmp_path):
    run, callback = start(tmp_path, every=4)
    for step in range(1, 11):
        callback.on_record(run, run.advance(step))
    callback.on_record(run, {"kind": "eval", "step": 9})
    assert [record["step"] for record in lines(tmp_path)] == [4, 8, 10, 9]


def test_every_by_wall_time_keeps_a_record_when_the_time_has_passed(tmp_path):
    run, callback = start(tmp_path, every="30s")
    for step in range(1, 10):  # ten seconds each
        callback.on_record(run, run.advance(step))
    assert [record["step"] for record in lines(tmp_path)] == [3, 6, 9]


def test_other_processes_write_nothing(tmp_path):
    run = FakeRun(tmp_path, is_main=False)
    callback = MetricsCallback(MetricsConfig())
    callback.on_start(run)
    callback.on_record(run, run.advance(1))
    callback.on_end(run)
    assert list(tmp_path.iterdir()) == []


def test_records_up_to_zero_keeps_nothing_of_a_run_that_starts_over():
    assert records_up_to([{"kind": "train", "step": 1}, {"kind": "eval", "step": 1}], 0) == []


def test_a_full_disk_is_a_user_error(tmp_path):
    run, callback = start(tmp_path)
    callback.file = Path("/dev/full").open("w")
    with pytest.raises(UserError, match=r"metrics.jsonl: cannot be written: No space left on device"):
        callback.on_record(run, run.advance(1))
