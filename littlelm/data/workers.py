"""Worker processes that write shards and plans. They end with the process that started them, however it ends."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any

import psutil

from littlelm.errors import UserError
from littlelm.tokenizers.base import usable_cores

WORKER_BYTES = 1_500_000_000  # memory one worker may need
_writer: Any = None


def _start(alive: Connection, writer: Any) -> None:
    """In a worker: keep the writer, and stop at once when the other end of `alive` closes."""
    global _writer
    _writer = writer

    def watch() -> None:
        multiprocessing.connection.wait([alive])
        os._exit(1)

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent too, which ends its workers
    threading.Thread(target=watch, daemon=True).start()


def _with_writer(work: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[Any, int]:
    assert _writer is not None
    return work(_writer, *arguments), peak_memory()


def peak_memory() -> int:
    """Bytes this process has held at most."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def worker_count(wanted: int | str) -> int:
    """Processes to use; `auto`: one a core, as far as memory goes."""
    if wanted != "auto":
        return int(wanted)
    return max(1, min(usable_cores(), int(psutil.virtual_memory().available) // WORKER_BYTES))


class Workers:
    """Runs `work(writer, *arguments)` in `count` processes, or in this one when `count` is 1.

    `writer`, mostly a `ShardWriter`, is what all jobs need; it is handed to each process once.

    Results come as (result, bytes of memory its process held at most). The processes start with the first job.
    """

    def __init__(self, writer: Any, count: int) -> None:
        self.writer = writer
        self.count = count
        self._pool: ProcessPoolExecutor | None = None
        self._ends: tuple[Connection, Connection] | None = None

    def submit(self, work: Callable[..., Any], *arguments: Any) -> Future[tuple[Any, int]]:
        """Start a job. With one process it is done when this returns; what it raises, the future raises."""
        if self.count == 1:
            future: Future[tuple[Any, int]] = Future()
            try:
                future.set_result((work(self.writer, *arguments), peak_memory()))
            except Exception as error:
                future.set_exception(error)
            return future
        if self._pool is None:
            # spawn: the parent may have started threads (torch, a progress bar) that must not be forked
            context = multiprocessing.get_context("spawn")
            alive, owner = context.Pipe(duplex=False)
            self._ends = (alive, owner)
            self._pool = ProcessPoolExecutor(self.count, context, initializer=_start, initargs=(alive, self.writer))
        return self._pool.submit(_with_writer, work, arguments)

    def __enter__(self) -> Workers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is None or self._ends is None:
            return
        alive, owner = self._ends
        if error is not None:
            owner.close()  # a shard may take minutes: do not wait for those that are being written
        self._pool.shutdown(wait=True, cancel_futures=True)
        owner.close()
        alive.close()
        if isinstance(error, BrokenProcessPool):
            raise UserError(
                "a process that prepares data was killed from outside, most often for want of memory; lower "
                f"data.workers (now {self.count}) or free memory, and run it again: it goes on at the next shard"
            ) from None
