"""metrics.jsonl: one JSON object a line, without a seam across restarts."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, TextIO

from littlelm.callbacks.base import Callback, Run
from littlelm.filesystem import write_atomically, writing


def json_line(record: dict[str, Any]) -> str:
    """A record as strict JSON: NaN and infinities, which JSON lacks, become null."""
    clean = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in record.items()}
    return json.dumps(clean, allow_nan=False, ensure_ascii=False) + "\n"


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """All whole records of a metrics.jsonl; the torn last line of a killed process is left out.

    Lines end at \\n and nothing else (text may hold other separators, such as U+2028), and a line may be torn within
    a character: hence bytes.
    """
    records = []
    for line in path.read_bytes().split(b"\n") if path.exists() else []:
        try:
            record = json.loads(line)
        except ValueError:  # not JSON, or not UTF-8
            continue
        if isinstance(record, dict):
            records.append(record)
    return records


def records_up_to(records: list[dict[str, Any]], step: int) -> list[dict[str, Any]]:
    """What stays when a run goes on from the checkpoint of `step`.

    Everything up to that step. What came after its save (evaluations, samples) happens again where it is still due;
    where it is not, in a run that was prolonged, the old record is the only one.
    """
    return [r for r in records if r["step"] <= step] if step > 0 else []


class MetricsCallback(Callback):
    """See `MetricsConfig`."""

    file: TextIO | None = None

    def on_start(self, run: Run) -> None:
        if not run.is_main:
            return
        self.path = run.directory / "metrics.jsonl"
        self.start_step = run.state.step
        kept = records_up_to(read_metrics(self.path), self.start_step)
        # Kinds of records that the step we go on from has and may get a second time.
        self.replaceable = {r["kind"] for r in kept if r["step"] == self.start_step and r["kind"] != "train"}
        self._rewrite(kept)

    def _rewrite(self, records: list[dict[str, Any]]) -> None:
        if self.file is not None:
            self.file.close()
        with writing(self.path):
            write_atomically(self.path, "".join(map(json_line, records)).encode())
            self.file = self.path.open("a", encoding="utf-8")

    def _forget(self, kind: str) -> None:
        """Take out the records of a kind at the step we went on from: they come again."""
        self.replaceable.discard(kind)
        self._rewrite([r for r in read_metrics(self.path) if r["step"] != self.start_step or r["kind"] != kind])

    def on_record(self, run: Run, record: dict[str, Any]) -> None:
        if self.file is None or not self.wants(run, record):
            return
        if record["step"] == self.start_step and record["kind"] in self.replaceable:
            self._forget(record["kind"])
        with writing(self.path):
            self.file.write(json_line(record))
            self.file.flush()

    def on_end(self, run: Run) -> None:
        if self.file is not None:
            self.file.close()
            self.file = None

    def on_error(self, run: Run, error: BaseException) -> None:
        self.on_end(run)
