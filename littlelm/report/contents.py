"""What a run directory holds, read for the report. Free of torch; everything but config.yaml may be missing."""

from __future__ import annotations

import json
import math
import statistics
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from littlelm.callbacks.metrics import read_metrics
from littlelm.errors import UserError
from littlelm.train.configs import RunConfig, load_run

_KNOWN_SCHEMA = 1


@dataclass(frozen=True)
class Part:
    """Time and money of one part of the run, over all its sessions; `usd` is None where no session had a price."""

    name: str
    seconds: float
    usd: float | None


@dataclass
class RunContents:
    """The files of a run, and what follows from them.

    Attributes:
        directory: as given, so that commands shown are those the user would type.
        config: None when config.yaml no longer loads (a plugin that moved); `config_problem` says why.
        environment: environment.json, `{}` without it.
        sessions: of ledger.json, one a process.
        records: of metrics.jsonl, in order.
    """

    directory: Path
    config_text: str
    config: RunConfig | None = None
    config_problem: str = ""
    environment: dict[str, Any] = field(default_factory=dict)
    sessions: list[dict[str, Any]] = field(default_factory=list)
    records: list[dict[str, Any]] = field(default_factory=list)

    @property
    def facts(self) -> dict[str, Any]:
        """What the machine decided and the records are to be read with: peak, precision, processes."""
        return self.environment.get("run") or {}

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        return [record for record in self.records if record.get("kind") == kind]

    @cached_property
    def train(self) -> list[dict[str, Any]]:
        return self.of_kind("train")

    @cached_property
    def evals(self) -> list[dict[str, Any]]:
        """Evaluations that measured something (a NaN is null in the file)."""
        return [record for record in self.of_kind("eval") if record.get("bits_per_byte") is not None]

    @cached_property
    def cores(self) -> list[dict[str, Any]]:
        """Evaluations of CORE, estimates too."""
        return [record for record in self.of_kind("core") if record.get("core_v1") is not None]

    @property
    def name(self) -> str:
        return self.config.run.name if self.config is not None else self.directory.resolve().name

    @property
    def step(self) -> int:
        """Optimizer steps done, as far as recorded."""
        return max((record["step"] for record in self.records), default=0)

    @property
    def tokens(self) -> int:
        return max((record["tokens"] for record in self.records), default=0)

    @property
    def total_steps(self) -> int | None:
        return None if self.config is None else self.config.total_steps

    @property
    def complete(self) -> bool:
        return self.total_steps is not None and self.step >= self.total_steps

    @property
    def parameters(self) -> int | None:
        return self.facts.get("parameters")

    @property
    def world_size(self) -> int:
        return int(self.facts.get("world_size", 1))

    def median(self, key: str) -> float | None:
        """Over training steps, which makes the slow first step of each session count for one; None without any."""
        values = [record[key] for record in self.train if isinstance(record.get(key), (int, float))]
        return statistics.median(values) if values else None

    @cached_property
    def parts(self) -> list[Part]:
        """Largest first; the seconds add up to the whole."""
        seconds: dict[str, float] = {}
        usd: dict[str, float] = {}
        for session in self.sessions:
            price = session.get("usd_per_hour")
            for name, nanoseconds in session["parts_ns"].items():
                seconds[name] = seconds.get(name, 0.0) + nanoseconds / 1e9
                if price is not None:
                    usd[name] = usd.get(name, 0.0) + nanoseconds / 3.6e12 * price
        parts = [Part(name, value, usd.get(name)) for name, value in seconds.items()]
        return sorted(parts, key=lambda part: part.seconds, reverse=True)

    @property
    def seconds(self) -> float:
        return math.fsum(part.seconds for part in self.parts)

    @property
    def killed_sessions(self) -> int:
        """Earlier sessions that never closed; the newest may only be under way."""
        return sum(not session.get("closed", True) for session in self.sessions[:-1])

    @property
    def usd(self) -> float | None:
        priced = [part.usd for part in self.parts if part.usd is not None]
        return math.fsum(priced) if priced else None


def find_run_directory(path: Path) -> Path:
    """The run directory for itself, its checkpoints/ or one of these. Raises UserError for anything else."""
    if path.parent.name == "checkpoints" and (path / "manifest.json").is_file():
        path = path.parent
    if path.name == "checkpoints" and not (path / "config.yaml").exists():
        path = path.parent
    if not path.is_dir():
        raise UserError(f"{path}: no such run directory; `little-lm train FILE` makes one under runs/")
    if not (path / "config.yaml").is_file():
        raise UserError(f"{path}: no run directory: it holds no config.yaml; a run lies under runs/<name> by default")
    return path


def _read_json(path: Path) -> dict[str, Any]:
    """A JSON object, `{}` when the file is missing. Raises UserError when it is damaged or of a later version."""
    if not path.exists():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read: {error}; move it away to get a report without it") from None
    if not isinstance(content, dict):
        raise UserError(f"{path}: holds no JSON object; move it away to get a report without it")
    if content.get("schema_version", _KNOWN_SCHEMA) > _KNOWN_SCHEMA:
        raise UserError(f"{path}: written by a later version of little-lm; update little-lm to read it")
    return content


def read_run(path: Path) -> RunContents:
    """Read a run directory, finished or not. Raises UserError when it is none, or holds a damaged file."""
    directory = find_run_directory(path)
    try:
        config_text = (directory / "config.yaml").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{directory / 'config.yaml'}: cannot be read: {error}") from None
    contents = RunContents(
        directory,
        config_text=config_text,
        environment=_read_json(directory / "environment.json"),
        sessions=_read_json(directory / "ledger.json").get("sessions", []),
        records=read_metrics(directory / "metrics.jsonl"),
    )
    try:
        contents.config = load_run(directory / "config.yaml").config
    except UserError as error:
        contents.config_problem = str(error)
    return contents
