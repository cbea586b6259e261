"""Results on disk: JSON that tools for lm-evaluation-harness read, and a table of items.

results.json      `results`, `versions`, `n-shot`, `n-samples`, ... as lm-evaluation-harness writes them, tasks named
                  core_<label>; and under `core` what it has no place for
records.parquet   one row for each item
"""

from __future__ import annotations

import dataclasses
import json
import math
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from littlelm import __version__
from littlelm.errors import UserError
from littlelm.evals.core.results import CoreResult, TaskResult
from littlelm.filesystem import make_directories, write_atomically

SCHEMA_VERSION = 1
RESULTS, RECORDS = "results.json", "records.parquet"


def as_json(result: CoreResult) -> dict[str, Any]:
    """The content of results.json; NaN, which JSON does not know, becomes null."""
    named = {f"core_{task.label}": task for task in result.tasks}
    results: dict[str, dict[str, Any]] = {}
    for name, task in named.items():
        results[name] = {
            "alias": name,
            "acc,none": task.accuracy,
            "acc_stderr,none": task.error,
            "acc_centered_v1,none": task.centred[0],
            "acc_centered_v1_stderr,none": task.centred_error[0],
            "acc_centered_v2,none": task.centred[1],
            "acc_centered_v2_stderr,none": task.centred_error[1],
        }
    results[result.name] = {
        "alias": result.name,
        "core_v1,none": result.core[0],
        "core_v1_stderr,none": result.core_error[0],
        "core_v2,none": result.core[1],
        "core_v2_stderr,none": result.core_error[1],
    }
    content = {
        "schema_version": SCHEMA_VERSION,
        "results": results,
        "group_subtasks": {result.name: list(named)},
        "configs": {
            name: {
                "task": name,
                "num_fewshot": task.shots,
                "output_type": "multiple_choice" if task.type != "lm" else "loglikelihood",
                "metadata": {"version": 1, "baseline_v1": task.baseline[0], "baseline_v2": task.baseline[1]},
            }
            for name, task in named.items()
        },
        "versions": dict.fromkeys([*named, result.name], 1),
        "n-shot": {name: task.shots for name, task in named.items()},
        "higher_is_better": {name: {"acc": True} for name in named},
        "n-samples": {name: {"original": task.of, "effective": task.n} for name, task in named.items()},
        "config": {
            "model": "little_lm",
            "model_args": str(result.settings.get("model", "")),
            "model_dtype": result.settings["dtype"],
            "limit": result.settings["max_per_task"],
        },
        "date": time.time(),
        "total_evaluation_time_seconds": str(sum(result.seconds.values())),
        "core": {
            "little_lm_version": __version__,
            "settings": result.settings,
            "seconds": result.seconds,
            "flips": result.flips,
            "tasks": [dataclasses.asdict(task) for task in result.tasks],
        },
    }
    cleaned: dict[str, Any] = _without_nan(content)
    return cleaned


def write_result(result: CoreResult, directory: Path) -> None:
    """Write results.json and records.parquet. Raises UserError when the directory cannot be written."""
    try:
        make_directories(directory)
        pq.write_table(as_table(result), directory / RECORDS)
        text = json.dumps(as_json(result), indent=1, allow_nan=False) + "\n"
        write_atomically(directory / RESULTS, text.encode())
    except OSError as error:
        raise UserError(f"{directory}: cannot be written: {error.strerror}; give another place with --out") from None


def as_table(result: CoreResult) -> pa.Table:
    """The items as a table."""
    return pa.table(result.records, schema=_SCHEMA)


_SCHEMA = pa.schema(
    [
        ("task", pa.string()), ("item", pa.int32()), ("line", pa.int32()), ("cluster", pa.int64()),
        ("gold", pa.int16()), ("chosen", pa.int16()), ("correct", pa.bool_()), ("margin", pa.float64()),
        ("tie", pa.bool_()), ("nan", pa.bool_()), ("losses", pa.list_(pa.float64())), ("tokens_cut", pa.int32()),
        ("shots_lost", pa.int16()), ("text_cut", pa.bool_()),
    ]
)  # fmt: skip


def read_result(place: Path) -> CoreResult:
    """Read back what `write_result` wrote; of a directory of several results (a run) the last one.

    Raises:
        UserError: there is none, or it cannot be read.
    """
    directory = find_result(place)
    try:
        content = json.loads((directory / RESULTS).read_text(encoding="utf-8"))
        version, core = content["schema_version"], content["core"]
        if version != SCHEMA_VERSION:
            raise UserError(
                f"{directory / RESULTS}: its schema is {version}, this version of little-lm reads {SCHEMA_VERSION}; "
                "evaluate again"
            )
        tasks = [_task(entry) for entry in core["tasks"]]
        name = "core_est" if core["settings"]["budget"] is not None else "core"
        total = content["results"][name]
        result = CoreResult(
            settings=core["settings"],
            tasks=tasks,
            records=pq.read_table(directory / RECORDS).to_pydict(),
            core=(total["core_v1,none"], total["core_v2,none"]),
            core_error=(_number(total["core_v1_stderr,none"]), _number(total["core_v2_stderr,none"])),
            flips=core["flips"],
            seconds=core["seconds"],
        )
    except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as error:
        raise UserError(f"{directory}: holds no whole CORE result ({error!r}); evaluate again") from None
    return result


def find_result(place: Path) -> Path:
    """The directory that holds results.json: `place`, or the newest below `place`/evals. Raises UserError."""
    if place.name == RESULTS:
        place = place.parent
    if (place / RESULTS).is_file():
        return place
    found = [path.parent for path in (place / "evals").glob(f"core*/{RESULTS}")]
    if not found:
        raise UserError(f"{place}: holds no CORE result; `little-lm eval core {place}` makes one")
    return max(found, key=lambda directory: (directory / RESULTS).stat().st_mtime_ns)


def _task(entry: dict[str, Any]) -> TaskResult:
    for name in ("baseline", "centred", "centred_error"):
        entry[name] = tuple(_number(value) for value in entry[name])
    for name in ("error", "clustered_error"):
        entry[name] = _number(entry[name])
    return TaskResult(**entry)


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nan(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
