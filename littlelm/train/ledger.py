"""Where the time and the money went: wall-clock time split into named parts whose sum is the whole.

At every moment exactly one part is running, so the parts of a session add up to its length, in whole nanoseconds, by
construction. ledger.json holds one session for every process that worked on the run. A second thread rewrites it every
10 s, whatever the training thread is busy with, so a killed process is counted up to at most 10 s before its death; the
rest of its life, like the time between two processes, is unknown and counted nowhere (`closed` is false for it).
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from littlelm.errors import UserError
from littlelm.filesystem import write_atomically

SCHEMA_VERSION = 1
WRITE_SECONDS = 10.0
# What runs while no part is entered: `startup` before the first step, `other` from then on.
STARTUP, OTHER = "startup", "other"
_STEPS = ("compile", "train")
_NS_PER_HOUR = 3_600_000_000_000


@dataclass
class Session:
    """One process's time: nanoseconds by part."""

    started_unix: float
    usd_per_hour: float | None
    parts_ns: dict[str, int] = field(default_factory=dict)
    closed: bool = False

    def add(self, part: str, nanoseconds: int) -> None:
        self.parts_ns[part] = self.parts_ns.get(part, 0) + nanoseconds


class Ledger:
    """Partitions this process's time and, with a path, keeps it on disk beside that of the processes before it.

    Parts are entered from one thread only (the one that trains).

    Args:
        path: ledger.json, or None to keep nothing (every process but the main one). Nothing is written before the
            first `write`, so that a run which fails at once leaves no trace.
        usd_per_hour: price of all processes together, or None when unknown. Each session keeps its own.
        clock: nanoseconds, monotonic; tests bring their own.
        write_seconds: time between two writes; None: only `write` and `close` do.

    Raises UserError when the file is there and cannot be read, or is of a newer format.
    """

    def __init__(
        self,
        path: Path | None,
        usd_per_hour: float | None,
        clock: Callable[[], int] = time.monotonic_ns,
        write_seconds: float | None = WRITE_SECONDS,
    ):
        self.path = path
        self.usd_per_hour = usd_per_hour
        self.clock = clock
        self.write_seconds = write_seconds
        self.before = _read(path) if path is not None else []
        self.session = Session(time.time(), usd_per_hour)
        self.outside = STARTUP
        self.current: str | None = None  # the part entered last; None: outside of all
        self.begin = self.since = clock()
        self._lock = threading.Lock()  # of the numbers
        self._file_lock = threading.Lock()  # of the file, so that no thread waits for the disk to read the clock
        self._stop = threading.Event()
        self._writer: threading.Thread | None = None

    def _charge(self) -> int:
        """Add the time since the last call to the running part. Returns the length of this session so far, in ns."""
        now = self.clock()
        self.session.add(self.current or self.outside, now - self.since)
        self.since = now
        return now - self.begin

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Count what happens inside as `name`; a part around it pauses meanwhile."""
        with self._lock:
            self._charge()
            outer, self.current = self.current, name
            if name in _STEPS:
                self.outside = OTHER
        try:
            yield
        finally:
            with self._lock:
                self._charge()
                self.current = outer

    def move(self, source: str, target: str, seconds: float) -> float:
        """Count `seconds` of `source` as `target` ("lost"): work that a kill made to be done again.

        Takes them from the sessions before this one, newest first, and no more than they hold (a killed session was
        perhaps written before its last steps). Returns the seconds moved; the sum of all parts stays the same.
        """
        wanted = left = round(seconds * 1e9)
        with self._lock:
            for session in reversed(self.before):
                moved = min(left, session.parts_ns.get(source, 0))
                if moved > 0:
                    session.add(source, -moved)
                    session.add(target, moved)
                    left -= moved
        return (wanted - left) / 1e9

    def parts_ns(self) -> tuple[dict[str, int], int]:
        """Nanoseconds of all sessions by part, and their length, measured apart; the first sum up to the second."""
        with self._lock:
            whole = self._charge() + sum(sum(each.parts_ns.values()) for each in self.before)
            total: dict[str, int] = {}
            for session in [*self.before, self.session]:
                for name, nanoseconds in session.parts_ns.items():
                    total[name] = total.get(name, 0) + nanoseconds
        return total, whole

    def elapsed_ns(self) -> int:
        """Length of all sessions together, this one up to now."""
        return self.parts_ns()[1]

    def elapsed_seconds(self) -> float:
        """As `elapsed_ns`, in seconds."""
        return self.elapsed_ns() / 1e9

    def usd(self) -> float:
        """Price of all sessions so far, each at its own price; sessions without one count nothing."""
        return sum(usd or 0.0 for _, usd in self.summary().values())

    def summary(self) -> dict[str, tuple[float, float | None]]:
        """Part -> (seconds, USD), over all sessions. USD is None where no session with that part has a price."""
        with self._lock:
            self._charge()
            seconds: dict[str, int] = {}
            dollars: dict[str, float] = {}
            for session in [*self.before, self.session]:
                for name, nanoseconds in session.parts_ns.items():
                    seconds[name] = seconds.get(name, 0) + nanoseconds
                    if session.usd_per_hour is not None:
                        dollars[name] = dollars.get(name, 0.0) + nanoseconds / _NS_PER_HOUR * session.usd_per_hour
        return {name: (nanoseconds / 1e9, dollars.get(name)) for name, nanoseconds in seconds.items()}

    @property
    def killed_sessions(self) -> int:
        """Earlier sessions that ended without `close`: each lasted up to `WRITE_SECONDS` longer than is known."""
        return sum(not session.closed for session in self.before)

    def write(self) -> None:
        """Put all sessions on disk, this one up to now; from the first call on, a thread does so every 10 s.

        Raises UserError when the file cannot be written.
        """
        if self.path is None:
            return
        try:
            self._write()
        except OSError as error:
            raise UserError(f"{self.path}: cannot be written: {error.strerror}") from error
        if self._writer is None and self.write_seconds is not None:
            self._writer = threading.Thread(target=self._write_often, name="ledger", daemon=True)
            self._writer.start()

    def _write(self) -> None:
        assert self.path is not None
        with self._file_lock:
            with self._lock:
                self._charge()
                sessions = [asdict(session) for session in [*self.before, self.session]]
            content = {"schema_version": SCHEMA_VERSION, "sessions": sessions}
            write_atomically(self.path, json.dumps(content, indent=1).encode() + b"\n")
        self._written = True

    _written = False

    def _write_often(self) -> None:
        while not self._stop.wait(self.write_seconds):
            with contextlib.suppress(OSError):  # tried again in 10 s with nothing forgotten; `close` tells if it lasts
                self._write()

    def close(self) -> None:
        """Last write of a session that got as far as writing at all. May be called twice."""
        self._stop.set()
        if self._writer is not None:
            self._writer.join()
        if self._written and not self.session.closed:
            self.session.closed = True
            self.write_seconds = None
            self.write()


def _read(path: Path) -> list[Session]:
    try:
        content: Any = json.loads(path.read_text(encoding="utf-8"))
        version = content["schema_version"]
        if version > SCHEMA_VERSION:
            raise UserError(
                f"{path}: written by a newer little-lm (schema_version {version}; this one reads up to "
                f"{SCHEMA_VERSION}); update little-lm, or move the file away to start a new ledger"
            )
        sessions = [Session(**each) for each in content["sessions"]]
        for session in sessions:
            price = session.usd_per_hour
            whole = all(type(each) is int and each >= 0 for each in session.parts_ns.values())
            if not whole or not (price is None or isinstance(price, (int, float))):
                raise ValueError("parts_ns must be whole numbers of nanoseconds, usd_per_hour a number or null")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path}: is no ledger: {error}; move it away to start a new one") from None
    return sessions
