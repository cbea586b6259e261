"""A bundle: the tasks of a benchmark and their items, in nanochat's layout, as a directory, a zip or a URL.

core.yaml              the tasks: label, file, number of examples shown, type, delimiter
eval_data/             their items, one JSON object a line
eval_meta_data.csv     optional: items and the accuracy of guessing, by task
MANIFEST.json          optional: items and digest of each file, for a bundle that is a part of the original
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import yaml

from littlelm.errors import UserError
from littlelm.evals.core.baselines import ITEMS, V1, V2
from littlelm.evals.core.fetch import fetch
from littlelm.filesystem import sha256_of_file
from littlelm.registry import did_you_mean

TaskType = Literal["choice", "schema", "lm"]
TYPES: dict[str, TaskType] = {"multiple_choice": "choice", "schema": "schema", "language_modeling": "lm"}
_FIELDS: dict[TaskType, tuple[str, ...]] = {
    "choice": ("query", "choices", "gold"),
    "schema": ("context_options", "continuation", "gold"),
    "lm": ("context", "continuation"),
}


@dataclass(frozen=True)
class Task:
    """One task of a bundle.

    Args:
        label: its name.
        type: choice: rows differ in their end; schema: in their beginning; lm: one row, its end must be predicted.
        shots: solved examples shown before each item.
        delimiter: between what is given and what is scored.
        baseline_v1, baseline_v2: accuracy of guessing, percent, of the two published tables.
        path: its file in the bundle.
        counts: numbers of items the file may have; empty: any.
        sha256: leading hex digits of the file's digest where the bundle states it, else empty.
    """

    label: str
    type: TaskType
    shots: int
    delimiter: str
    baseline_v1: float
    baseline_v2: float
    path: str
    counts: tuple[int, ...] = ()
    sha256: str = ""


class Files:
    """Files below a directory."""

    def __init__(self, root: Path):
        self.root = root
        self.where = str(root)

    def read(self, name: str) -> bytes:
        """Bytes of a file. Raises FileNotFoundError."""
        return (self.root / name).read_bytes()


class ZipFiles(Files):
    """Files of a zip, below the directory in it that holds core.yaml."""

    def __init__(self, path: Path):
        self.where = str(path)
        try:
            self._zip = zipfile.ZipFile(path)
        except (zipfile.BadZipFile, OSError) as error:
            raise self._damaged(error) from None
        found = [name for name in self._zip.namelist() if name.split("/")[-1] == "core.yaml"]
        nearest = min(found, key=lambda name: (name.count("/"), name), default="core.yaml")
        self._prefix = nearest[: -len("core.yaml")]

    def read(self, name: str) -> bytes:
        try:
            return self._zip.read(self._prefix + name)
        except KeyError:
            raise FileNotFoundError(name) from None
        except (zipfile.BadZipFile, zlib.error, OSError, EOFError, NotImplementedError, RuntimeError) as error:
            raise self._damaged(error) from None

    def _damaged(self, error: Exception) -> UserError:
        return UserError(f"{self.where}: is no readable zip ({error}); fetch it again, and pin its sha256")


class Bundle:
    """Tasks and their items. Nothing is read before it is asked for; digests are of contents, not of packaging."""

    def __init__(self, files: Files, tasks: Sequence[Task]):
        self.files = files
        self.tasks = list(tasks)
        self._raw: dict[str, bytes] = {}
        self._digests: dict[str, str] = {}
        self._items: dict[str, list[dict[str, Any]]] = {}

    @cached_property
    def fingerprint(self) -> str:
        """sha256 (hex) over what decides every row: the tasks' settings and the bytes of their files."""
        digest = hashlib.sha256()
        for task in self.tasks:
            settings = [task.label, task.type, task.shots, task.delimiter, self.digest(task)]
            digest.update(json.dumps(settings).encode() + b"\n")
        return digest.hexdigest()

    def digest(self, task: Task) -> str:
        """sha256 (hex) of a task's file. Raises UserError when a file is missing or not the one the bundle states."""
        if task.path not in self._digests:
            self._digests[task.path] = hashlib.sha256(self._bytes(task)).hexdigest()
        digest = self._digests[task.path]
        if task.sha256 and not digest.startswith(task.sha256):
            raise UserError(
                f"{self._place(task)}: its sha256 is {digest[:16]}, the bundle's MANIFEST.json says {task.sha256}; the "
                "file was changed, get the bundle again"
            )
        return digest

    def items(self, task: Task) -> list[dict[str, Any]]:
        """Items of a task in the order of the file, checked.

        choice: query, choices, gold. schema: context_options, continuation, gold. lm: context, continuation.

        Raises:
            UserError: the file is missing, has the wrong number of items, or an item is not as its type demands.
        """
        if task.path not in self._items:
            lines = self._bytes(task).split(b"\n")
            self._items[task.path] = [self._parse(task, n, line) for n, line in enumerate(lines, 1) if line.strip()]
        items = self._items[task.path]
        if not items:
            raise UserError(f"{self._place(task)}: holds no items")
        if task.counts and len(items) not in task.counts:
            expected = " or ".join(f"{count:,}" for count in task.counts)
            raise UserError(
                f"{self._place(task)}: {task.label} has {len(items):,} items, {expected} are expected; get the whole "
                "file (a part of it must be declared in the bundle's MANIFEST.json)"
            )
        return items

    def select(self, labels: Sequence[str]) -> Bundle:
        """The bundle with these tasks only, in the bundle's order. Raises UserError for an unknown label."""
        known = [task.label for task in self.tasks]
        for label in labels:
            if label not in known:
                raise UserError(f"{self.files.where}: has no task '{label}'{did_you_mean(label, known)}")
        return Bundle(self.files, [task for task in self.tasks if task.label in labels])

    def check_files(self) -> None:
        """Check that every file is there and the one that is meant; the items too when one is not.

        Raises UserError with every fault of the bundle, one a line.
        """
        if self._faults(self.digest):
            self.check_items()

    def check_items(self) -> None:
        """Read and check every task. Raises UserError with every fault of the bundle, one a line."""
        faults = {**self._faults(self.items), **self._faults(self.digest)}
        if faults:
            raise UserError("\n".join(faults))

    def _faults(self, work: Callable[[Task], object]) -> dict[str, None]:
        faults: dict[str, None] = {}  # each once, in order: two tasks may share a file
        for task in self.tasks:
            try:
                work(task)
            except UserError as error:
                faults[str(error)] = None
        return faults

    def forget(self) -> None:
        """Release the texts; they are read again when asked for."""
        self._raw.clear()
        self._items.clear()

    def _bytes(self, task: Task) -> bytes:
        if task.path not in self._raw:
            try:
                self._raw[task.path] = self.files.read(task.path)
            except OSError as error:
                missing = isinstance(error, FileNotFoundError)
                raise UserError(
                    f"{self._place(task)}: {'no such file' if missing else error.strerror}, but it is named for "
                    f"the task {task.label}; the bundle is not whole, get it again"
                ) from None
        return self._raw[task.path]

    def _place(self, task: Task) -> str:
        return f"{self.files.where}/{task.path}"

    def _parse(self, task: Task, line_number: int, line: bytes) -> dict[str, Any]:
        where = f"{self._place(task)}:{line_number}"
        try:
            item = json.loads(line)
        except ValueError as error:
            raise UserError(f"{where}: is no JSON ({error})") from None
        if not isinstance(item, dict):
            raise UserError(f"{where}: an item is a JSON object, this is a {type(item).__name__}")
        for field in _FIELDS[task.type]:
            if field not in item:
                raise UserError(f"{where}: an item of the type {task.type} needs '{field}'; it has {', '.join(item)}")
        if fault := _fault(task.type, item):
            raise UserError(f"{where}: {fault}")
        return item


def _fault(kind: TaskType, item: dict[str, Any]) -> str | None:
    """What is wrong with the values of an item, or None."""
    options: list[Any] = []
    if kind != "lm":
        name = "choices" if kind == "choice" else "context_options"
        options = item[name]
        if not isinstance(options, list) or len(options) < 2 or not all(isinstance(option, str) for option in options):
            return f"'{name}' must be a list of two or more texts"
        gold = item["gold"]
        if not isinstance(gold, int) or isinstance(gold, bool) or not 0 <= gold < len(options):
            return f"'gold' is {gold!r}, it must be a number from 0 to {len(options) - 1}"
    for field in ("query", "context", "continuation"):
        if field in _FIELDS[kind] and not isinstance(item[field], str):
            return f"'{field}' must be a text"
    scored = options if kind == "choice" else [item["continuation"]]
    if any(not text.strip() for text in scored):
        return "the continuation is empty, so nothing would be scored; remove the item"
    return None


def item_texts(task: Task, item: dict[str, Any]) -> list[str]:
    """The pieces of text of an item, as they stand in its file: what is asked, and each answer."""
    if task.type == "choice":
        return [item["query"], *item["choices"]]
    if task.type == "schema":
        return [*item["context_options"], item["continuation"]]
    return [item["context"], item["continuation"]]


def open_bundle(
    source: str, cache_dir: Path, sha256: str | None = None, say: Callable[[str], None] = lambda message: None
) -> Bundle:
    """Open a bundle; one behind a URL is fetched into `cache_dir` first. The items are not read yet.

    Args:
        source: a directory, a zip, or the URL of a zip.
        cache_dir: where fetched bundles are kept.
        sha256: digest of the zip, 64 hex digits; a URL needs it.
        say: hears about retries.

    Raises:
        UserError: it cannot be had or read, or its core.yaml is not as it must be.
    """
    if sha256 is not None:
        sha256 = sha256.lower()
        if len(sha256) != 64 or set(sha256) - set("0123456789abcdef"):
            raise UserError(f"the bundle's sha256 must be 64 hex digits, not '{sha256}'")
    if source.startswith(("http://", "https://")):
        if sha256 is None:
            raise UserError(f"{source}: a bundle behind a URL needs its sha256, so that it cannot change unnoticed")
        path = fetch(source, sha256, cache_dir / "bundles", say)
        return _read(ZipFiles(path))
    path = Path(source).expanduser()
    if path.is_dir():
        if sha256 is not None:
            raise UserError(f"{path}: is a directory, and a sha256 is of a zip; give the zip, or no sha256")
        return _read(Files(path))
    if not path.is_file():
        raise UserError(f"{path}: no such bundle; give a directory with core.yaml, a zip of one, or its URL")
    if sha256 is not None and (found := sha256_of_file(path)[1]) != sha256:
        raise UserError(f"{path}: its sha256 is {found}, not the pinned {sha256}; get the file again")
    return _read(ZipFiles(path))


def _read(files: Files) -> Bundle:
    try:
        described = yaml.safe_load(files.read("core.yaml"))
        entries = described["icl_tasks"]
    except FileNotFoundError:
        raise UserError(f"{files.where}: holds no core.yaml, so it is no bundle") from None
    except (yaml.YAMLError, UnicodeDecodeError, KeyError, TypeError) as error:
        raise UserError(f"{files.where}/core.yaml: needs a list `icl_tasks` ({error})") from None
    if not isinstance(entries, list) or not entries:
        raise UserError(f"{files.where}/core.yaml: `icl_tasks` is no list of tasks")
    guessing, counts = _read_table(files)
    declared = _read_manifest(files)
    tasks = [_task(files.where, entry, guessing, counts, declared) for entry in entries]
    labels = [task.label for task in tasks]
    if len(set(labels)) < len(labels):
        twice = next(label for label in labels if labels.count(label) > 1)
        raise UserError(f"{files.where}/core.yaml: the task '{twice}' is there twice")
    return Bundle(files, tasks)


def _task(
    where: str, entry: Any, guessing: dict[str, float], counts: dict[str, int], declared: dict[str, dict[str, Any]]
) -> Task:
    place = f"{where}/core.yaml"
    if not isinstance(entry, dict) or not isinstance(entry.get("label"), str):
        raise UserError(f"{place}: a task is a mapping with a `label`, not {entry!r}")
    label = entry["label"]
    kind = entry.get("icl_task_type")
    if kind not in TYPES:
        raise UserError(f"{place}: {label}: unknown icl_task_type '{kind}'{did_you_mean(str(kind), list(TYPES))}")
    shots = entry.get("num_fewshot")
    shots = shots[0] if isinstance(shots, list) and len(shots) == 1 else shots
    if not isinstance(shots, int) or isinstance(shots, bool) or shots < 0:
        raise UserError(f"{place}: {label}: num_fewshot must be one number, 0 or more, not {shots!r}")
    path, delimiter = entry.get("dataset_uri"), entry.get("continuation_delimiter", " ")
    if not isinstance(path, str) or not isinstance(delimiter, str):
        raise UserError(f"{place}: {label}: `dataset_uri` and `continuation_delimiter` must be texts")
    manifest = declared.get(label, {})
    known = [count for count in (counts.get(label), ITEMS.get(label)) if count is not None]
    return Task(
        label=label,
        type=TYPES[kind],
        shots=shots,
        delimiter=delimiter,
        baseline_v1=V1.get(label, guessing.get(label, 0.0)),
        baseline_v2=V2.get(label, guessing.get(label, 0.0)),
        path=f"eval_data/{path}",
        counts=(manifest["n"],) if "n" in manifest else tuple(dict.fromkeys(known)),
        sha256=str(manifest.get("sha256", "")),
    )


def _read_table(files: Files) -> tuple[dict[str, float], dict[str, int]]:
    """Accuracy of guessing (percent) and number of items by label, from eval_meta_data.csv where there is one."""
    try:
        text = files.read("eval_meta_data.csv").decode("utf-8")
    except FileNotFoundError:
        return {}, {}
    except UnicodeDecodeError as error:
        raise UserError(f"{files.where}/eval_meta_data.csv: is no UTF-8 text ({error})") from None
    guessing: dict[str, float] = {}
    counts: dict[str, int] = {}
    for row in csv.DictReader(io.StringIO(text)):
        try:
            label = row["Eval Task"]
            if row["Random baseline"]:
                guessing[label] = float(row["Random baseline"])
            if row["#datapoints"]:
                counts[label] = int(row["#datapoints"])
        except (KeyError, ValueError, TypeError) as error:
            raise UserError(f"{files.where}/eval_meta_data.csv: cannot be read: {error!r}") from None
    return guessing, counts


def _read_manifest(files: Files) -> dict[str, dict[str, Any]]:
    try:
        entries = json.loads(files.read("MANIFEST.json"))
        return {entry["label"]: entry for entry in entries}
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{files.where}/MANIFEST.json: cannot be read: {error!r}") from None
