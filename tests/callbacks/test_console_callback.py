"""What the terminal shows."""

import io
import math

import pytest
from fake_run import FakeRun
from rich.console import Console

from littlelm.callbacks.configs import ConsoleConfig
from littlelm.callbacks.console import ConsoleCallback, duration


def start(tmp_path, terminal=False, width=200, step=0, **options):
    run = FakeRun(tmp_path, console=Console(file=io.StringIO(), force_terminal=terminal, width=width, highlight=False))
    run.state.step = step
    callback = ConsoleCallback(ConsoleConfig(**options))
    callback.on_start(run)
    return run, callback


def test_without_a_terminal_lines_are_plain_and_come_at_their_period(tmp_path):
    run, callback = start(tmp_path, plain_seconds=3600)
    for step in range(1, 11):
        callback.on_record(run, run.advance(step))
    printed = run.printed().splitlines()
    assert [line.split(" | ")[0] for line in printed] == ["step 1/10 10%", "step 10/10 100%"]
    assert "\x1b" not in run.printed()


def test_a_line_holds_loss_rate_speed_utilisation_norm_and_dollars(tmp_path):
    run, callback = start(tmp_path, smoothing=0.5)
    callback.on_record(run, run.advance(1, mfu=0.123, usd=4.5))
    for fact in ("loss 4.0000 (4.0000)", "lr 2.00e-02", "1,000 tok/s", "MFU 12.3%", "|g| 0.50", "$4.50", "ETA"):
        assert fact in run.printed()
    callback.on_record(run, run.advance(10, loss=2.0))
    last = run.printed().splitlines()[-1]
    assert "loss 2.6667 (2.0000)" in last  # (0.25 * 4 + 0.5 * 2) / 0.75
    assert "$" not in last and "MFU" not in last


def test_a_loss_that_is_not_finite_is_said_and_does_not_spoil_the_mean(tmp_path):
    run, callback = start(tmp_path)
    callback.on_record(run, run.advance(1))
    callback.on_record(run, run.advance(2, loss=math.nan, skipped=True))
    callback.on_record(run, run.advance(10, loss=4.0))
    assert "step 2: loss nan, gradient norm 0.5: step skipped" in run.printed()
    assert "loss 4.0000 (4.0000)" in run.printed().splitlines()[-1]


@pytest.mark.parametrize("terminal", [False, True])
def test_evaluations_samples_and_checkpoints_are_lines_of_their_own(tmp_path, terminal):
    run, callback = start(tmp_path, terminal=terminal)
    callback.on_record(run, {"kind": "eval", "step": 5, "bits_per_byte": 1.25, "loss": 3.0, "seconds_spent": 2.0})
    callback.on_record(run, {"kind": "sample", "step": 5, "prompt": "[red]One", "text": " [/red] two\n"})
    callback.on_record(run, {"kind": "checkpoint", "step": 5, "path": "runs/x", "seconds_spent": 0.5})
    callback.on_record(run, {"kind": "of a plugin", "step": 5})
    callback.on_end(run)
    for line in ("1.2500 bits per byte", r"'[red]One' -> ' [/red] two\n'", "saved runs/x (0.5 s)"):
        assert line in run.printed()


def test_a_narrow_terminal_cuts_the_live_lines_and_wraps_none(tmp_path):
    run, callback = start(tmp_path, terminal=True, width=50)
    record = run.advance(3, mfu=0.5, usd=12.0)
    callback.on_record(run, record)
    shown = Console(file=io.StringIO(), width=50)
    shown.print(callback._lines(run, record))
    callback.on_end(run)
    lines = shown.file.getvalue().splitlines()
    assert len(lines) == 2
    assert all(len(line) <= 50 for line in lines)


@pytest.mark.parametrize("ending", ["on_end", "on_error"])
def test_the_terminal_is_put_back_at_the_end_and_after_an_error(tmp_path, ending):
    run, callback = start(tmp_path, terminal=True)
    callback.on_record(run, run.advance(1))
    getattr(callback, ending)(*((run,) if ending == "on_end" else (run, RuntimeError("no"))))
    assert callback.live is None
    assert run.printed().rindex("\x1b[?25h") > run.printed().rindex("\x1b[?25l")  # the cursor is shown again
    callback.on_record(run, {"kind": "checkpoint", "step": 1, "path": "x", "seconds_spent": 0.0})


def test_an_error_before_the_start_leaves_nothing_to_put_back(tmp_path):
    ConsoleCallback(ConsoleConfig()).on_error(FakeRun(tmp_path), RuntimeError("no"))


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00"), (61, "1:01"), (3661, "1:01:01"), (154_800, "43:00:00")])
def test_durations_read_as_a_clock(seconds, text):
    assert duration(seconds) == text
