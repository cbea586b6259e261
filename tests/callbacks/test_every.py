"""`every:` of callbacks: which steps are due."""

import pytest
from pydantic import ValidationError

from littlelm.callbacks.configs import EvalConfig
from littlelm.callbacks.every import Every


def due_steps(text, total_steps, tokens_per_step=4096):
    every = Every.parse(text)
    return [step for step in range(1, total_steps + 1) if every.due(step, tokens_per_step, total_steps, 0.0)]


@pytest.mark.parametrize(
    ("text", "amount", "unit"),
    [
        (100, 100, "steps"), ("100", 100, "steps"), ("100 steps", 100, "steps"), ("1 step", 1, "steps"),
        ("1_000 steps", 1000, "steps"), ("10M tokens", 10_000_000, "tokens"), ("1.5B tokens", 1_500_000_000, "tokens"),
        ("500k tokens", 500_000, "tokens"), ("4096 tokens", 4096, "tokens"), ("5%", 5, "percent"),
        ("0.5 %", 0.5, "percent"), ("90s", 90, "seconds"), ("30m", 1800, "seconds"), ("2h", 7200, "seconds"),
        ("1.5h", 5400, "seconds"),
    ],
)  # fmt: skip
def test_every_form_is_understood(text, amount, unit):
    assert Every.parse(text) == Every(amount, unit)


@pytest.mark.parametrize("text", ["", "often", "5 apples", "-5", "10M", "0x10", "5%%", "1e3", True, 1.5, None, [5]])
def test_other_forms_are_refused_with_examples(text):
    with pytest.raises(ValueError, match=r"100.*10M tokens.*5%.*30m"):
        Every.parse(text)


@pytest.mark.parametrize(
    ("text", "message"), [(0, "greater than 0"), ("0%", "greater than 0"), ("1.5 steps", "whole"), ("101%", "100%")]
)
def test_periods_that_cannot_be_are_refused_with_the_reason(text, message):
    with pytest.raises(ValueError, match=message):
        Every.parse(text)


def test_a_config_keeps_the_period_as_written_and_checks_it():
    assert EvalConfig(every="5%").every == "5%"
    assert EvalConfig(every=7).every == 7
    for wrong in ("sometimes", 1.5, True):
        with pytest.raises(ValidationError, match="is no period"):
            EvalConfig(every=wrong)


@pytest.mark.parametrize("total_steps", [20, 21, 60, 97, 1000, 61989])
def test_five_percent_is_exactly_twenty_times_the_last_step_included(total_steps):
    steps = due_steps("5%", total_steps)
    assert len(steps) == 20
    assert steps[-1] == total_steps


@pytest.mark.parametrize("percent", [0.1, 1, 3, 7, 10, 12.5, 30, 100])
def test_percent_is_due_when_that_part_of_the_run_is_done(percent):
    for total_steps in (100, 337, 1000):
        # The k-th firing is the first step at or after k * percent of the run, in exact integers.
        wanted = {-(-round(k * percent * 10) * total_steps // 1000) for k in range(1, int(100 / percent) + 1)}
        assert due_steps(f"{percent}%", total_steps) == sorted(wanted | {total_steps})


@pytest.mark.parametrize(("period", "tokens_per_step"), [(10_000, 4096), (4096, 4096), (100_000, 4096), (5, 4096)])
def test_tokens_count_crossings_where_a_step_does_not_divide_them(period, tokens_per_step):
    wanted = [s for s in range(1, 500) if s * tokens_per_step // period > (s - 1) * tokens_per_step // period]
    assert due_steps(f"{period} tokens", 500, tokens_per_step) == [*wanted, 500]


def test_tokens_stay_exact_at_the_scale_of_a_large_run():
    every = Every.parse("1B tokens")
    steps = [s for s in range(60_000, 61_989) if every.due(s, 2**20, 61_989, 0.0)]
    assert steps == [s for s in range(60_000, 61_989) if s * 2**20 // 10**9 > (s - 1) * 2**20 // 10**9]


def test_steps_are_due_at_multiples_and_at_the_end():
    assert due_steps(4, 10) == [4, 8, 10]
    assert due_steps(100, 10) == [10]


def test_wall_time_is_due_when_it_has_passed_and_at_the_end():
    every = Every.parse("30m")
    assert not every.due(5, 4096, 10, 1799.0)
    assert every.due(5, 4096, 10, 1800.0)
    assert every.due(10, 4096, 10, 1.0)
