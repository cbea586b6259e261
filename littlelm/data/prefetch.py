"""Rows read ahead in a thread, so that a cold disk does not keep the step waiting.

Rows are a pure function of the step, so reading ahead is only that: what is asked for is looked up among what is read
already, and read at once when it is not there.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from littlelm.data.loader import Loader

Batch = tuple[NDArray[np.int64], NDArray[np.int64]]
Request = tuple[int, int, int]  # step, start, stop


class Prefetcher:
    """Batches of a loader in the order in which one process asks for them: its rows of a step, a micro-batch at a time.

    `depth` micro-batches are read ahead. What the thread raises is raised where the batch is asked for.
    """

    def __init__(self, loader: Loader, start: int, stop: int, rows: int, depth: int = 4) -> None:
        """The process reads rows [start, stop) of each step, `rows` at a time."""
        self.loader = loader
        self._span = (start, stop, rows)
        self._depth = depth
        self._ahead: dict[Request, Future[Batch]] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="read-ahead")

    def _following(self, request: Request) -> Iterator[Request]:
        step, begin, _ = request
        start, stop, rows = self._span
        while True:
            begin += rows
            if begin >= stop:
                step, begin = step + 1, start
            yield (step, begin, min(begin + rows, stop))

    def batch(self, step: int, start: int, stop: int) -> Batch:
        """As `Loader.batch`; the next batches are begun to be read."""
        request = (step, start, stop)
        mine = self._ahead.pop(request, None)
        wanted = [each for each, _ in zip(self._following(request), range(self._depth), strict=False)]
        for other in [key for key in self._ahead if key not in wanted]:
            self._ahead.pop(other).cancel()
        for each in wanted:
            if each not in self._ahead:
                self._ahead[each] = self._thread.submit(self.loader.batch, *each)
        return mine.result() if mine is not None else self.loader.batch(*request)

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(wait=True, cancel_futures=True)
