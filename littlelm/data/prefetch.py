"""Rows read ahead in a thread, so that a cold disk does not keep the step waiting.

Rows are a pure function of the step, so reading ahead is only that: what is asked for is looked up among what is read
already, and read at once when it is not there.

The thread is used only while reading takes a share of the time worth hiding. With the data in the page cache that is
0.03 % of a step, and on a CPU the thread would take its time from the step's own cores.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from littlelm.data.loader import Loader

Batch = tuple[NDArray[np.int64], NDArray[np.int64]]
Request = tuple[int, int, int]  # step, start, stop

_WORTH_HIDING = 0.005  # share of the time between two batches
_BATCHES_AHEAD = 64  # read ahead before it is tried again without


class Prefetcher:
    """Batches of a loader in the order in which one process asks for them: its rows of a step, a micro-batch at a time.

    `depth` micro-batches are read ahead. What the thread raises is raised where the batch is asked for.
    """

    def __init__(
        self,
        loader: Loader,
        start: int,
        stop: int,
        rows: int,
        depth: int = 4,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """The process reads rows [start, stop) of each step, `rows` at a time."""
        self.loader = loader
        self._span = (start, stop, rows)
        self._depth = depth
        self._clock = clock
        self._last = -math.inf  # when the batch before this one was handed over
        self._left = 0  # batches for which to read ahead
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
        """As `Loader.batch`; where reading takes long the next batches are begun to be read."""
        request = (step, start, stop)
        asked = self._clock()
        mine = self._ahead.pop(request, None)
        if mine is None:
            result = self.loader.batch(*request)
        else:
            self._begin(request)
            result = mine.result()
        given = self._clock()
        if given - asked > _WORTH_HIDING * (given - self._last):
            self._left = _BATCHES_AHEAD
        self._last = given
        if mine is None:
            self._begin(request)
        return result

    def _begin(self, request: Request) -> None:
        """Have the batches after `request` read, and forget others."""
        self._left = max(0, self._left - 1)
        depth = self._depth if self._left else 0
        wanted = [each for each, _ in zip(self._following(request), range(depth), strict=False)]
        for other in [key for key in self._ahead if key not in wanted]:
            self._ahead.pop(other).cancel()
        for each in wanted:
            if each not in self._ahead:
                self._ahead[each] = self._thread.submit(self.loader.batch, *each)

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(wait=True, cancel_futures=True)
