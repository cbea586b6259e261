"""`every:` of callbacks: steps, tokens, percent of the run, or wall time; and the last step in any case."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

_FORM = re.compile(r"\s*([0-9][0-9_]*(?:\.[0-9]+)?)\s*(%|steps?|tokens?|[kMB]\s*tokens?|s|m|h)?\s*$")
_SECONDS = {"s": 1, "m": 60, "h": 3600}
_SCALES = {"k": 10**3, "M": 10**6, "B": 10**9}


@dataclass(frozen=True)
class Every:
    """A period. `due` is a pure function of the step, except for wall time."""

    amount: float
    unit: Literal["steps", "tokens", "percent", "seconds"]

    @staticmethod
    def parse(value: str | int) -> Every:
        """`100`, `100 steps`, `10M tokens`, `5%`, `90s`, `30m`, `2h`. Raises ValueError with these examples."""
        match = _FORM.match(str(value))
        if not match or isinstance(value, bool) or not isinstance(value, (int, str)):
            raise ValueError(
                f"'{value}' is no period; write steps (100), tokens (10M tokens), percent of the run (5%) or wall "
                "time (30m)"
            )
        amount, unit = float(match[1].replace("_", "")), (match[2] or "steps").replace(" ", "")
        if amount <= 0:
            raise ValueError(f"'{value}': a period must be greater than 0; to switch a callback off, set it to false")
        if unit == "%":
            if amount > 100:
                raise ValueError(f"'{value}' is more than the whole run; 100% is once, at its end")
            return Every(amount, "percent")
        if unit in _SECONDS:
            return Every(amount * _SECONDS[unit], "seconds")
        if unit.rstrip("s") == "step":
            if not amount.is_integer():
                raise ValueError(f"'{value}': steps come in whole numbers")
            return Every(amount, "steps")
        return Every(amount * _SCALES.get(unit[0], 1), "tokens")

    def due(self, step: int, tokens_per_step: int, total_steps: int, seconds_since_last: float) -> bool:
        """Whether completing `step` crossed a multiple of the period; wall time: whether it has passed.

        The last step is always due, so that a period that does not divide the run never leaves its end unmeasured.
        Crossing counts, not hitting: with 4,096 tokens a step, `10000 tokens` is due at steps 3, 5, 8, ...
        """
        if step == total_steps:
            return True
        if self.unit == "seconds":
            return seconds_since_last >= self.amount
        if self.unit == "percent":
            return self._count(100.0 * step / total_steps) > self._count(100.0 * (step - 1) / total_steps)
        scale = tokens_per_step if self.unit == "tokens" else 1
        return self._count(float(step * scale)) > self._count(float((step - 1) * scale))

    def _count(self, position: float) -> int:
        return int(position / self.amount + 1e-9)  # 3 * 100 / 60 must not fall short of 5


def _check(value: Any) -> Any:
    Every.parse(value)
    return value


EveryField = Annotated[int | str, BeforeValidator(_check)]
"""`100`, `10M tokens`, `5%` or `30m`, kept as written."""
