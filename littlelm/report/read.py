"""What the report shows, read from a run's directory."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from littlelm.callbacks.metrics import read_metrics
from littlelm.errors import UserError


@dataclass(frozen=True)
class RunFiles:
    """The contents of a run directory; what a run has not written yet is empty."""

    directory: Path
    config_text: str
    environment: dict[str, Any]
    records: list[dict[str, Any]]
    sessions: list[dict[str, Any]]

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        return [record for record in self.records if record["kind"] == kind]

    def parts(self) -> dict[str, tuple[float, float | None]]:
        """Part -> (seconds, USD) over all sessions, largest first."""
        total: dict[str, tuple[float, float | None]] = {}
        for session in self.sessions:
            price = session.get("usd_per_hour")
            for name, nanoseconds in session["parts_ns"].items():
                seconds, usd = total.get(name, (0.0, None))
                more = None if price is None else nanoseconds / 3.6e12 * price
                total[name] = (seconds + nanoseconds / 1e9, usd if more is None else (usd or 0.0) + more)
        return dict(sorted(total.items(), key=lambda item: -item[1][0]))


def _json(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except ValueError as error:
        raise UserError(f"{path}: cannot be read: {error}") from None


def read_run(directory: Path) -> RunFiles:
    """Read a run directory. Raises UserError when it is none."""
    if not (directory / "config.yaml").is_file():
        raise UserError(f"{directory}: is no run directory (it holds no config.yaml); `little-lm train FILE` makes one")
    return RunFiles(
        directory,
        (directory / "config.yaml").read_text(encoding="utf-8"),
        _json(directory / "environment.json"),
        read_metrics(directory / "metrics.jsonl"),
        _json(directory / "ledger.json").get("sessions", []),
    )
