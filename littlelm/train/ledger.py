"""Where the time and the money went: wall-clock time split into named parts whose sum is the whole.

At every moment exactly one part is running, so the parts of a session add up to its length, in whole nanoseconds, by
construction. ledger.json keeps one session a process; what a killed process did after its last write (at most
`_WRITE_SECONDS`) is unknown and counted nowhere.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from littlelm.errors import UserError
from littlelm.train.filesystem import write_atomically

SCHEMA_VERSION = 1
_WRITE_SECONDS = 10.0
STARTUP = "startup"


class Ledger:
    """Partitions this process's time; with a path, keeps it on disk beside the sessions before it.

    Args:
        path: ledger.json, or None to keep nothing (every process but the main one). Nothing is written before the
            first `write`, so that a run which fails at once leaves no trace.
        usd_per_hour: price of all processes together, or None.
        clock: nanoseconds, monotonic; tests bring their own.
    """

    def __init__(self, path: Path | None, usd_per_hour: float | None, clock: Callable[[], int] = time.perf_counter_ns):
        self.path = path
        self.usd_per_hour = usd_per_hour
        self.clock = clock
        self.started_unix = time.time()
        self.parts: dict[str, int] = {}
        self.current = STARTUP
        self.begin = self.since = clock()
        self.before = self._read() if path is not None else []
        self.written = self.begin
        self.enabled = False

    def _read(self) -> list[dict[str, Any]]:
        if self.path is None or not self.path.exists():
            return []
        try:
            content = json.loads(self.path.read_text(encoding="utf-8"))
            return list(content["sessions"])
        except (ValueError, KeyError, OSError) as error:
            raise UserError(f"{self.path}: cannot be read: {error}; move it away to start a new ledger") from None

    def _switch(self, name: str) -> str:
        """Close the running part at this instant and start another. Returns the one that ran."""
        now = self.clock()
        self.parts[self.current] = self.parts.get(self.current, 0) + now - self.since
        self.since = now
        before, self.current = self.current, name
        return before

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Count what happens inside as `name`; a part around it pauses meanwhile."""
        outer = self._switch(name)
        try:
            yield
        finally:
            self._switch(outer)
            if self.enabled and self.clock() - self.written > _WRITE_SECONDS * 1e9:
                self.write()

    def move(self, source: str, target: str, seconds: float) -> None:
        """Count `seconds` of an earlier session's `source` as `target`: work that a kill made to be done again."""
        left = int(seconds * 1e9)
        for session in reversed(self.before):
            moved = min(left, session["parts_ns"].get(source, 0))
            if moved > 0:
                session["parts_ns"][source] -= moved
                session["parts_ns"][target] = session["parts_ns"].get(target, 0) + moved
                left -= moved

    def elapsed_ns(self) -> int:
        """Of all sessions."""
        earlier = sum(sum(session["parts_ns"].values()) for session in self.before)
        return int(earlier + self.clock() - self.begin)

    def elapsed_seconds(self) -> float:
        return self.elapsed_ns() / 1e9

    def usd(self) -> float:
        """Price of all sessions, each at its own price (0 for sessions without one)."""
        return sum(usd or 0.0 for _, usd in self.summary().values())

    def summary(self) -> dict[str, tuple[float, float | None]]:
        """Part -> (seconds, USD), over all sessions; the sums are those of the whole."""
        self._switch(self.current)
        sessions = [(each["parts_ns"], each.get("usd_per_hour")) for each in self.before]
        total: dict[str, tuple[float, float | None]] = {}
        for parts, price in [*sessions, (self.parts, self.usd_per_hour)]:
            for name, nanoseconds in parts.items():
                seconds, usd = total.get(name, (0.0, None))
                more = None if price is None else nanoseconds / 3.6e12 * price
                total[name] = (seconds + nanoseconds / 1e9, usd if more is None else (usd or 0.0) + more)
        return total

    def write(self) -> None:
        """Put all sessions on disk, this one up to now."""
        self.enabled = True
        if self.path is None:
            return
        self._switch(self.current)
        session = {"started_unix": self.started_unix, "usd_per_hour": self.usd_per_hour, "parts_ns": self.parts}
        content = {
            "schema_version": SCHEMA_VERSION,
            "usd_per_hour": self.usd_per_hour,
            "sessions": [*self.before, session],
        }
        write_atomically(self.path, json.dumps(content, indent=1).encode() + b"\n")
        self.written = self.clock()

    def close(self) -> None:
        """Last write of a session that got as far as writing at all."""
        if self.enabled:
            self.write()
