"""Time and money are split into named parts whose sum is the whole."""

import json

import pytest

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


def spend(ledger, clock):
    clock.sleep(1)
    with ledger.part("train"):
        clock.sleep(2)
        with ledger.part("data_wait"):
            clock.sleep(0.25)
        clock.sleep(3)
    clock.sleep(0.5)


def test_dollars_add_up(tmp_path, clock):
    """Parts, nested ones pausing the outer; over two sessions at two prices; the sums are the whole to the ns."""
    path = tmp_path / "ledger.json"
    first = Ledger(path, 3.6, clock)
    spend(first, clock)
    first.write()
    clock.sleep(1000)  # between two sessions nothing is counted
    second = Ledger(path, 7.2, clock)
    spend(second, clock)
    second.write()
    summary = second.summary()
    assert {name: seconds for name, (seconds, _) in summary.items()} == {"startup": 3.0, "train": 10.0, "data_wait": 0.5}
    assert sum(seconds for seconds, _ in summary.values()) == second.elapsed_seconds() == 13.5
    assert summary["train"][1] == pytest.approx(5 * 0.001 + 5 * 0.002)
    assert second.usd() == pytest.approx(6.75 * 0.001 + 6.75 * 0.002)
    stored = json.loads(path.read_text())
    assert [sum(session["parts_ns"].values()) for session in stored["sessions"]] == [6_750_000_000] * 2


def test_a_part_that_raises_is_counted_and_closed(tmp_path, clock):
    ledger = Ledger(None, None, clock)
    with pytest.raises(RuntimeError), ledger.part("evaluate"):
        clock.sleep(2)
        raise RuntimeError
    clock.sleep(1)
    assert ledger.summary() == {"startup": (1.0, None), "evaluate": (2.0, None)}


def test_lost_work_has_its_own_name(tmp_path, clock):
    path = tmp_path / "ledger.json"
    first = Ledger(path, 3.6, clock)
    spend(first, clock)
    first.write()
    second = Ledger(path, 3.6, clock)
    second.move("train", "lost", 2.0)
    summary = second.summary()
    assert summary["train"][0] == 3.0
    assert summary["lost"][0] == 2.0
    assert sum(seconds for seconds, _ in summary.values()) == second.elapsed_seconds()


def test_nothing_is_written_before_the_run_exists(tmp_path, clock):
    ledger = Ledger(tmp_path / "run" / "ledger.json", None, clock)
    spend(ledger, clock)
    ledger.close()
    assert not (tmp_path / "run").exists()


def test_an_unreadable_ledger_is_named(tmp_path):
    (tmp_path / "ledger.json").write_text("{")
    with pytest.raises(UserError, match=r"ledger\.json"):
        Ledger(tmp_path / "ledger.json", None)
