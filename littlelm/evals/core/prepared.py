"""All rows of all tasks, rendered and tokenized once, and kept: a second evaluation maps them into memory.

    <cache_dir>/core/<key>/tokens.npy     uint32, the tokens of every item: what its rows share, then each row's rest
    <cache_dir>/core/<key>/tables.npz     where each item and row lies, its span, its gold answer
    <cache_dir>/core/<key>/prepared.json  what it was made from; written last

The key is a digest of the bundle's contents, the tokenizer and max_per_task. Rows are kept whole: what a model's
context cuts off is decided later (`cuts`), so models of different contexts share one preparation.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from littlelm.data.hub.locks import locked
from littlelm.errors import UserError
from littlelm.evals.core import rendering, sampling
from littlelm.evals.core.bundle import Bundle, Task, item_texts
from littlelm.evals.core.spans import Rows, Tokens, common_prefix, spans_of
from littlelm.filesystem import disk, make_directories, sync_directory

SCHEMA_VERSION = 1
_ITEMS_AT_A_TIME = 256
_BEGINNING = 300  # characters; longer than what the templates of a task have in common
_TABLES = (
    "task_items", "gold", "file_index", "prefix_at", "prefix_length", "item_rows", "rest_at", "rest_length",
    "span_start", "starts", "starts_at", "cluster",
)  # fmt: skip


@dataclass
class PreparedRows:
    """Token rows of every item of every task. Items and rows are numbered through, task after task.

    Args:
        tasks: the tasks.
        tokens: uint32, flat.
        task_items: (tasks + 1,) first item of each task.
        gold: (items,) the right option, 0 for lm.
        file_index: (items,) the item's place in its file.
        prefix_at, prefix_length: (items,) the tokens that all rows of the item share.
        item_rows: (items + 1,) first row of each item.
        rest_at, rest_length: (rows,) the tokens of a row after the shared ones.
        span_start: (rows,) first scored token; the span ends with the row.
        starts, starts_at: bytes at which each item's examples and its own text begin; (items + 1,) where they lie.
        cluster: (items,) the same number for items on the same text (questions on one story).
        key: digest of what this was made from.
        seconds: what making it took; of an earlier process when it was found.
        found: whether it was there already.
    """

    tasks: list[Task]
    tokens: NDArray[np.uint32]
    task_items: NDArray[np.int64]
    gold: NDArray[np.int64]
    file_index: NDArray[np.int64]
    prefix_at: NDArray[np.int64]
    prefix_length: NDArray[np.int64]
    item_rows: NDArray[np.int64]
    rest_at: NDArray[np.int64]
    rest_length: NDArray[np.int64]
    span_start: NDArray[np.int64]
    starts: NDArray[np.int64]
    starts_at: NDArray[np.int64]
    cluster: NDArray[np.int64]
    key: str
    seconds: float
    found: bool

    @property
    def num_items(self) -> int:
        return len(self.gold)

    @property
    def num_rows(self) -> int:
        return len(self.rest_at)

    def row(self, row: int, item: int) -> Tokens:
        """Tokens of a row of `item`, uint32, BOS first, nothing cut."""
        prefix = self.tokens[self.prefix_at[item] : self.prefix_at[item] + self.prefix_length[item]]
        rest = self.tokens[self.rest_at[row] : self.rest_at[row] + self.rest_length[row]]
        return np.concatenate((prefix, rest))

    @property
    def row_item(self) -> NDArray[np.int64]:
        """(rows,) the item of each row."""
        return np.repeat(np.arange(self.num_items), np.diff(self.item_rows))

    @property
    def row_length(self) -> NDArray[np.int64]:
        """(rows,) tokens of each row, nothing cut."""
        return self.prefix_length[self.row_item] + self.rest_length

    @property
    def item_task(self) -> NDArray[np.int64]:
        """(items,) the task of each item."""
        return np.repeat(np.arange(len(self.tasks)), np.diff(self.task_items))

    def name(self, item: int) -> str:
        """How an item is called in messages."""
        task = int(np.searchsorted(self.task_items, item, side="right")) - 1
        return f"{self.tasks[task].label}, item {item - self.task_items[task]} (line {self.file_index[item] + 1})"


def asked_items(bundle: Bundle, task: Task, max_per_task: int | None) -> list[tuple[int, dict[str, Any]]]:
    """(place in the file, item) of a task in the order asked. Raises UserError for a faulty or too short task."""
    items = sampling.shuffled(list(enumerate(bundle.items(task))), max_per_task)
    sampling.check_enough(task.label, len(items), task.shots, max_per_task)
    return items


def check_counts(bundle: Bundle, max_per_task: int | None) -> None:
    """Raise UserError with every fault of the bundle and of max_per_task, one a line, before anything is prepared."""
    bundle.check_items()
    faults = []
    for task in bundle.tasks:
        try:
            asked_items(bundle, task, max_per_task)
        except UserError as error:
            faults.append(str(error))
    if faults:
        raise UserError("\n".join(faults))


def prepare_rows(
    bundle: Bundle,
    tokenizer: Any,
    cache_dir: Path,
    max_per_task: int | None = None,
    say: Callable[[str], None] = lambda message: None,
) -> PreparedRows:
    """Render and tokenize every row, or find them in the cache. One process at a time makes them.

    Raises:
        UserError: the bundle is faulty, or an item's continuation has no tokens of its own.
    """
    started = time.perf_counter()
    bundle.check_files()
    content = [SCHEMA_VERSION, bundle.fingerprint, tokenizer.fingerprint, tokenizer.bos_id, max_per_task]
    key = hashlib.sha256(json.dumps(content).encode()).hexdigest()
    directory = cache_dir / "core" / key[:24]
    with locked(directory.with_name(f".{directory.name}.lock")):
        found = (directory / "prepared.json").is_file()
        if not found:
            check_counts(bundle, max_per_task)
            count = sum(len(asked_items(bundle, task, max_per_task)) for task in bundle.tasks)
            say(f"preparing {count:,} items of {len(bundle.tasks)} tasks (kept in {directory})")
            tokens, tables = _make(bundle, tokenizer, max_per_task)
            _write(directory, tokens, tables, {"schema_version": SCHEMA_VERSION, "made_from": content})
        bundle.forget()
    tokens = np.load(directory / "tokens.npy", mmap_mode="r")
    with np.load(directory / "tables.npz") as file:
        tables = {name: file[name] for name in _TABLES}
    seconds = time.perf_counter() - started
    return PreparedRows(tasks=bundle.tasks, tokens=tokens, key=key, seconds=seconds, found=found, **tables)


def rows_of(
    bundle: Bundle, task: Task, tokenizer: Any, max_per_task: int | None
) -> Iterator[tuple[int, list[int], Rows]]:
    """(place in the file, where its examples begin in bytes, its rows), item after item in the order asked."""
    items = asked_items(bundle, task, max_per_task)
    shown = [rendering.shot(task, item) for _, item in items]
    for begin in range(0, len(items), _ITEMS_AT_A_TIME):
        part = range(begin, min(begin + _ITEMS_AT_A_TIME, len(items)))
        rendered = []
        for index in part:
            shots = [shown[i] for i in sampling.shots_of(index, len(items), task.shots)] if task.shots else []
            rendered.append(rendering.render_after(task, items[index][1], shots))
        texts = [text for one in rendered for text in (*one.rows, *([one.without] if one.without is not None else []))]
        encoded = iter(tokenizer.encode_batch(texts))
        bos = np.array([tokenizer.bos_id], dtype=np.uint32)
        for index, one in zip(part, rendered, strict=True):
            rows = [np.concatenate((bos, next(encoded))).astype(np.uint32) for _ in one.rows]
            without = None if one.without is None else np.concatenate((bos, next(encoded))).astype(np.uint32)
            place = items[index][0]
            yield place, one.starts, spans_of(task, rows, without, f"{task.label}, item {index} (line {place + 1})")


def _make(bundle: Bundle, tokenizer: Any, max_per_task: int | None) -> tuple[Tokens, dict[str, NDArray[np.int64]]]:
    pieces: list[Tokens] = []
    columns: dict[str, list[int]] = {name: [] for name in _TABLES}
    for name in ("task_items", "item_rows", "starts_at"):
        columns[name].append(0)
    size = 0
    for task in bundle.tasks:
        items = bundle.items(task)
        for place, starts, rows in rows_of(bundle, task, tokenizer, max_per_task):
            shared = common_prefix(rows.tokens)
            columns["file_index"].append(place)
            columns["gold"].append(items[place]["gold"] if task.type != "lm" else 0)
            columns["cluster"].append(_cluster(task, items[place]))
            columns["prefix_at"].append(size)
            columns["prefix_length"].append(shared)
            pieces.append(rows.tokens[0][:shared])
            size += shared
            for row, start in zip(rows.tokens, rows.starts, strict=True):
                columns["rest_at"].append(size)
                columns["rest_length"].append(len(row) - shared)
                columns["span_start"].append(start)
                pieces.append(row[shared:])
                size += len(row) - shared
            columns["item_rows"].append(len(columns["rest_at"]))
            columns["starts"].extend(starts)
            columns["starts_at"].append(len(columns["starts"]))
        columns["task_items"].append(len(columns["gold"]))
    tables = {name: np.asarray(values, dtype=np.int64) for name, values in columns.items()}
    return np.concatenate(pieces), tables


def _cluster(task: Task, item: dict[str, Any]) -> int:
    """A number that items of a task share when their texts begin alike: a story, and then one of several questions."""
    beginning = item_texts(task, item)[0][:_BEGINNING].encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.sha256(beginning).digest()[:8], "big") >> 1


def _write(directory: Path, tokens: Tokens, tables: dict[str, NDArray[np.int64]], described: dict[str, Any]) -> None:
    """Write it under another name and rename it: a killed process leaves nothing that looks whole."""
    temporary = directory.with_name(f".{directory.name}.tmp")
    if temporary.exists():
        shutil.rmtree(temporary)
    make_directories(temporary)
    np.save(temporary / "tokens.npy", tokens)
    np.savez(temporary / "tables.npz", **tables)  # type: ignore[arg-type]
    (temporary / "prepared.json").write_text(json.dumps(described, indent=1) + "\n", encoding="utf-8")
    if directory.exists():
        shutil.rmtree(directory)
    disk.rename(temporary, directory)
    sync_directory(directory.parent)
