"""Download, tokenize, pack: every shard goes through as soon as it can, all three at once.

Threads fetch raw files (or finished shards from a store), worker processes tokenize and pack, the main thread hands
shards on. What is fetched but not yet tokenized is bounded, so a slow tokenizer does not fill the disk.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from littlelm.data.shards import ShardWriter, read_entry
from littlelm.data.sources.base import Source, Unit
from littlelm.data.store import Store
from littlelm.data.workers import Workers

FETCHES = 4  # at a time, unless the source says otherwise


@dataclass
class SourceShards:
    """The shards of one source: `units[i]` becomes shard i of `directory`."""

    source: Source
    key: str
    directory: Path
    units: list[Unit]
    entries: dict[int, dict[str, Any]] = field(default_factory=dict)

    def name(self, index: int) -> str:
        return f"{index:05}"


Job = tuple[Callable[..., Any], tuple[Any, ...]]
Pack = Callable[[SourceShards, int], Job | None]


class Pipeline:
    """Makes shards that are not there. `pack` gives the job that is to follow a shard, or None."""

    def __init__(self, workers: Workers, console: Console, store: Store | None = None) -> None:
        self.workers = workers
        self.console = console
        self.store = store
        self.peak_memory = 0
        self.text_bytes = 0
        self.tokens = 0

    def run(self, wanted: Iterable[tuple[SourceShards, int]], pack: Pack | None = None) -> None:
        """Make the wanted shards and what follows them. Raises what the first failing job raised."""
        done: list[tuple[SourceShards, int]] = []
        missing: deque[tuple[SourceShards, int]] = deque()
        for shards, index in wanted:
            if index not in shards.entries:
                entry = read_entry(shards.directory, shards.name(index))
                if entry is not None:
                    shards.entries[index] = entry
            (done if index in shards.entries else missing).append((shards, index))
        _remove_leftovers(done, missing)
        jobs = [job for shards, index in done if pack is not None and (job := pack(shards, index)) is not None]
        if missing or jobs:
            _Run(self, missing, pack, len(jobs)).run(jobs)

    def run_jobs(self, jobs: list[Job]) -> None:
        """Run jobs of packing alone."""
        if jobs:
            _Run(self, deque(), None, len(jobs)).run(jobs)


def _remove_leftovers(done: Iterable[tuple[SourceShards, int]], missing: Iterable[tuple[SourceShards, int]]) -> None:
    """Delete raw files that are not to be kept, and whose deletion a kill prevented."""
    needed = {id(shards.units[index].remote) for shards, index in missing}
    for shards, index in done:
        remote = shards.units[index].remote
        if remote is not None and not getattr(shards.source, "keep_raw", True) and id(remote) not in needed:
            if remote.local.exists():
                remote.remove()


class _Run:
    """One pass of the pipeline over the shards that are missing."""

    def __init__(self, pipeline: Pipeline, missing: deque[tuple[SourceShards, int]], pack: Pack | None, jobs: int):
        self.pipeline = pipeline
        self.workers = pipeline.workers
        self.missing = missing
        self.pack = pack
        self.remote = any(shards.units[i].remote is not None for shards, i in missing) or (
            pipeline.store is not None and bool(missing)
        )
        self.fetching: dict[Future[Any], tuple[SourceShards, int]] = {}
        self.writing: dict[Future[Any], tuple[SourceShards, int]] = {}
        self.packing: set[Future[Any]] = set()
        self.putting: dict[Future[Any], tuple[SourceShards, int]] = {}
        self.stopped = False
        self.left_of_file: dict[int, int] = {}
        for shards, index in missing:
            remote = shards.units[index].remote
            if remote is not None:
                self.left_of_file[id(remote)] = self.left_of_file.get(id(remote), 0) + 1
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[detail]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        console = pipeline.console
        self.progress = Progress(*columns, console=console, transient=True, disable=console.quiet)
        raw = {id(r): r.size for s, i in missing if (r := s.units[i].remote) is not None and not r.is_here()}
        self.fetch_bar = self._bar("download", sum(raw.values())) if raw else None
        self.write_bar = self._bar(f"tokenize, {self.workers.count} processes", len(missing)) if missing else None
        self.pack_bar = self._bar("pack", jobs + (len(missing) if pack is not None else 0)) if pack or jobs else None

    def _bar(self, name: str, total: int) -> TaskID:
        return self.progress.add_task(name, total=total, detail="")

    def run(self, jobs: list[Job]) -> None:
        parallel = max([FETCHES, *(getattr(s.source, "parallel_downloads", 0) for s, _ in self.missing)])
        limit = 2 * self.workers.count + parallel  # fetched or being fetched, or being tokenized
        with self.progress, ThreadPoolExecutor(parallel, thread_name_prefix="fetch") as threads:
            try:
                for work, arguments in jobs:
                    self.packing.add(self.workers.submit(work, *arguments))
                while self.missing or self.fetching or self.writing or self.packing or self.putting:
                    while self.missing and len(self.fetching) + len(self.writing) < limit:
                        shards, index = self.missing.popleft()
                        if self.remote:
                            self.fetching[threads.submit(self._fetch, shards, index)] = (shards, index)
                        else:
                            self._write(shards, index)
                    everything = [*self.fetching, *self.writing, *self.packing, *self.putting]
                    for future in wait(everything, return_when=FIRST_COMPLETED).done:
                        self._finish(future, threads)
            except BaseException:
                self.stopped = True
                threads.shutdown(wait=False, cancel_futures=True)
                raise

    def _fetch(self, shards: SourceShards, index: int) -> dict[str, Any] | None:
        """In a thread: the finished shard from the store, or the raw file (then None)."""
        if self.pipeline.store is not None:
            entry = self.pipeline.store.get(shards.key, shards.name(index), shards.directory)
            if entry is not None:
                return entry
        remote = shards.units[index].remote
        if remote is not None and not remote.is_here():
            remote.fetch(self._fetched)
        return None

    def _fetched(self, count: int) -> None:
        if self.stopped:
            raise InterruptedError("another shard failed, or the user stopped")  # ends the thread's download
        if self.fetch_bar is not None:
            task = self.progress.tasks[self.progress.task_ids.index(self.fetch_bar)]
            speed = f"{task.speed / 1e6:.1f} MB/s" if task.speed else ""
            self.progress.update(self.fetch_bar, advance=count, detail=f"{task.completed / 1e9:.2f} GB {speed}")

    def _write(self, shards: SourceShards, index: int) -> None:
        unit = shards.units[index]
        future = self.workers.submit(ShardWriter.write, unit.part, shards.directory, shards.name(index))
        self.writing[future] = (shards, index)

    def _finish(self, future: Future[Any], threads: ThreadPoolExecutor) -> None:
        if future in self.fetching:
            shards, index = self.fetching.pop(future)
            entry = future.result()
            if entry is None:
                self._write(shards, index)
            else:
                self._shard_is_there(shards, index, entry)
        elif future in self.writing:
            shards, index = self.writing.pop(future)
            entry, memory = future.result()
            self.pipeline.peak_memory = max(self.pipeline.peak_memory, memory)
            self.pipeline.text_bytes += entry["text_bytes"]
            self.pipeline.tokens += entry["tokens"]
            self._shard_is_there(shards, index, entry)
            if self.pipeline.store is not None:
                put = threads.submit(self.pipeline.store.put, shards.key, entry, shards.directory)
                self.putting[put] = (shards, index)
        elif future in self.putting:
            del self.putting[future]
            future.result()
        else:
            self.packing.discard(future)
            future.result()
            if self.pack_bar is not None:
                self.progress.update(self.pack_bar, advance=1)

    def _shard_is_there(self, shards: SourceShards, index: int, entry: dict[str, Any]) -> None:
        shards.entries[index] = entry
        remote = shards.units[index].remote
        if remote is not None:
            self.left_of_file[id(remote)] -= 1
            if self.left_of_file[id(remote)] == 0 and not getattr(shards.source, "keep_raw", True):
                remote.remove()
        if self.write_bar is not None:
            task = self.progress.tasks[self.progress.task_ids.index(self.write_bar)]
            elapsed = max(task.elapsed or 0.0, 1e-3)
            done = self.pipeline
            detail = (
                f"{task.completed + 1:.0f}/{task.total:.0f} shards, {done.text_bytes / elapsed / 1e6:.1f} MB/s, "
                f"{done.tokens / elapsed / 1e6:.2f}M tokens/s, {done.peak_memory / 1e9:.2f} GB a process"
            )
            self.progress.update(self.write_bar, advance=1, detail=detail)
        if self.pack is not None:
            job = self.pack(shards, index)
            if job is not None:
                work, arguments = job
                self.packing.add(self.workers.submit(work, *arguments))
            elif self.pack_bar is not None:
                self.progress.update(self.pack_bar, advance=1)
