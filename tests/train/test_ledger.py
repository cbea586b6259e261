"""Time and money are split into named parts whose sum is the whole."""

import json
import os
import random
import signal
import threading
import time

import pytest

from littlelm import filesystem
from littlelm.errors import UserError
from littlelm.train.ledger import Ledger


class Clock:
    """Nanoseconds that pass only when told to."""

    now = 1_000

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.now += round(seconds * 1e9)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.json"


def make(path, price, clock):
    return Ledger(path, price, clock, write_seconds=None)


def spend(ledger, clock):
    """1 s outside, 5 s of train around 0.25 s of data_wait, 0.5 s outside."""
    clock.sleep(1)
    with ledger.part("train"):
        clock.sleep(2)
        with ledger.part("data_wait"):
            clock.sleep(0.25)
        clock.sleep(3)
    clock.sleep(0.5)


def seconds(ledger):
    return {name: value for name, (value, _) in ledger.summary().items()}


def wander(ledger, clock, chooser, depth=0):
    """Enter and leave parts at random, some by an exception, for odd numbers of nanoseconds."""
    for _ in range(chooser.randint(1, 4)):
        clock.now += chooser.randint(0, 10**12)
        try:
            with ledger.part(chooser.choice(["train", "data_wait", "evaluate", "checkpoint", "sample"])):
                clock.now += chooser.randint(0, 10**12)
                if depth < 4:
                    wander(ledger, clock, chooser, depth + 1)
                if chooser.random() < 0.2:
                    raise RuntimeError
        except RuntimeError:
            pass
        if chooser.random() < 0.2:
            ledger.summary()
            ledger.write()


def test_dollars_add_up(path, clock):
    """Over nested parts, exceptions, restarts, kills, prices and lost work: the parts are the whole, to the ns."""
    chooser = random.Random(0)
    known, dollars = 0, 0.0  # what the clock said while a session was running
    for price in (3.6, 2.9, None, 23.2):
        ledger = make(path, price, clock)
        began = clock.now
        wander(ledger, clock, chooser)
        ledger.move("train", "lost", chooser.random() * 100)
        ledger.write()
        known += clock.now - began
        dollars += (clock.now - began) / 3.6e12 * (price or 0)
        parts, whole = ledger.parts_ns()
        assert sum(parts.values()) == whole == ledger.elapsed_ns() == known
        summary = ledger.summary()
        assert {name: value for name, (value, _) in summary.items()} == {name: ns / 1e9 for name, ns in parts.items()}
        assert sum(usd or 0 for _, usd in summary.values()) == ledger.usd() == pytest.approx(dollars, rel=1e-12)
        clock.sleep(5000)  # until the next process nothing is counted
    assert parts["lost"] > 0
    assert [sum(session["parts_ns"].values()) > 0 for session in json.loads(path.read_text())["sessions"]] == [True] * 4


def test_parts_pause_the_part_around_them_and_each_session_keeps_its_price(path, clock):
    first = make(path, 3.6, clock)
    spend(first, clock)
    first.write()
    second = make(path, 7.2, clock)
    spend(second, clock)
    assert seconds(second) == {"startup": 2.0, "train": 10.0, "data_wait": 0.5, "other": 1.0}
    assert second.elapsed_seconds() == 13.5
    assert second.summary()["train"][1] == pytest.approx(5 * 0.001 + 5 * 0.002)
    assert second.usd() == pytest.approx(6.75 * 0.001 + 6.75 * 0.002)


def test_without_a_price_there_are_seconds_and_no_dollars(clock):
    ledger = make(None, None, clock)
    spend(ledger, clock)
    assert ledger.summary()["train"] == (5.0, None)
    assert ledger.usd() == 0.0


def test_a_part_that_raises_is_counted_and_left(clock):
    ledger = make(None, None, clock)
    with pytest.raises(RuntimeError), ledger.part("evaluate"):
        clock.sleep(2)
        raise RuntimeError
    clock.sleep(1)
    assert ledger.summary() == {"startup": (1.0, None), "evaluate": (2.0, None)}


def test_time_outside_of_parts_is_startup_before_the_first_step_and_other_after_it(clock):
    ledger = make(None, None, clock)
    for name in ("prepare", "compile", "evaluate"):
        clock.sleep(1)
        with ledger.part(name):
            clock.sleep(10)
    clock.sleep(1)
    assert seconds(ledger) == {"startup": 2.0, "prepare": 10.0, "compile": 10.0, "other": 2.0, "evaluate": 10.0}


def test_lost_work_has_its_own_name_and_is_no_more_than_was_counted(path, clock):
    for _ in range(2):
        ledger = make(path, 3.6, clock)
        spend(ledger, clock)
        ledger.write()
    third = make(path, 3.6, clock)
    assert third.move("train", "lost", 7.0) == 7.0  # over two sessions
    assert (seconds(third)["train"], seconds(third)["lost"]) == (3.0, 7.0)
    assert third.move("train", "lost", 7.0) == 3.0
    assert (seconds(third)["train"], seconds(third)["lost"]) == (0.0, 10.0)
    assert third.elapsed_seconds() == 13.5


def test_a_killed_session_is_counted_up_to_its_last_write_and_known_as_killed(path, clock):
    child = os.fork()
    if child == 0:
        ledger = make(path, 3.6, clock)
        spend(ledger, clock)
        ledger.write()
        clock.sleep(100)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    second = make(path, 3.6, clock)
    assert second.elapsed_seconds() == 6.75
    assert second.killed_sessions == 1
    second.write()
    second.close()
    second.close()
    assert make(path, 3.6, clock).killed_sessions == 1


def test_the_file_is_written_while_the_training_thread_is_busy(path, clock):
    """A long part does not keep time from being written; the thread ends with the ledger."""
    others = threading.enumerate()
    ledger = Ledger(path, 3.6, clock, write_seconds=0.001)
    ledger.write()
    with ledger.part("evaluate"):
        clock.sleep(1000)
        deadline = time.monotonic() + 60
        while "evaluate" not in path.read_text():
            assert time.monotonic() < deadline
            time.sleep(0.001)
    ledger.close()
    assert "ledger" not in [thread.name for thread in threading.enumerate() if thread not in others]
    assert json.loads(path.read_text())["sessions"][0]["closed"] is True


def test_a_write_that_fails_is_made_up_for_by_the_next(path, clock, monkeypatch):
    ledger = make(path, 3.6, clock)
    ledger.write()
    spend(ledger, clock)
    with monkeypatch.context() as patch:
        patch.setattr(
            filesystem.Disk, "write", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device"))
        )
        with pytest.raises(UserError, match=r"ledger\.json: cannot be written: No space left"):
            ledger.write()
    assert make(path, 3.6, clock).elapsed_ns() == 0  # the old file is whole
    ledger.close()
    assert make(path, 3.6, clock).elapsed_seconds() == 6.75


def test_nothing_is_written_before_the_run_exists(tmp_path, clock):
    ledger = make(tmp_path / "run" / "ledger.json", None, clock)
    spend(ledger, clock)
    ledger.close()
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "content",
    [
        "", "{", "[]", "3", "{}", '{"schema_version": 1}', '{"schema_version": 1, "sessions": 3}',
        '{"schema_version": 1, "sessions": [{"started_unix": 0, "usd_per_hour": null, "parts_ns": {"train": 0.5}}]}',
        '{"schema_version": 1, "sessions": [{"started_unix": 0, "usd_per_hour": "x", "parts_ns": {}}]}',
        '{"schema_version": 1, "sessions": [{"started_unix": 0}]}',
        '{"schema_version": "1", "sessions": []}',
    ],
)  # fmt: skip
def test_an_unreadable_ledger_is_named_with_the_way_on(path, content):
    path.write_text(content)
    with pytest.raises(UserError, match=r"ledger\.json: is no ledger: .*move it away to start a new one"):
        Ledger(path, None)


def test_a_ledger_of_a_newer_format_is_refused(path):
    path.write_text('{"schema_version": 2, "sessions": []}')
    with pytest.raises(UserError, match="newer little-lm"):
        Ledger(path, None)
