"""`little-lm eval core | compare`: CORE of a trained model or of a Hugging Face directory, and what two results say."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from littlelm.errors import UserError

CACHE = Path("~/.cache/little-lm")
BUNDLE_VARIABLE = "LITTLE_LM_CORE_BUNDLE"


@dataclass
class Subject:
    """What is evaluated: a model, its tokenizer, how it is called, where results go."""

    model: Any
    tokenizer: Any
    context: int
    described: dict[str, Any]
    results: Path
    cache_dir: Path


def load_subject(place: Path, device: str, dtype: str | None) -> Subject:
    """Load a run directory, one of its checkpoints, or a Hugging Face directory.

    Raises:
        UserError: it is none of them, or cannot be read.
    """
    import torch

    from littlelm.train import distributed

    if (place / "config.json").is_file():
        from littlelm.evals.core.hf_tokenizer import HFTokenizer
        from littlelm.model.hf import load_hf_directory

        tokenizer = HFTokenizer(place)
        model = load_hf_directory(place).to(distributed.pick_device(device)).eval()
        if tokenizer.vocab_size > model.vocab_size:
            raise UserError(
                f"{place}: tokenizer.json has {tokenizer.vocab_size} tokens, the model {model.vocab_size}; they do not "
                "belong together"
            )
        described: dict[str, Any] = {"model": str(place), "step": None}
        subject = Subject(
            model, tokenizer, model.config.max_position_embeddings, described, place / "evals" / "core",
            CACHE.expanduser(),
        )  # fmt: skip
    else:
        from littlelm.train.load_model import load_model

        loaded = load_model(place, device)
        run = loaded.checkpoint.parent.parent
        # Positions beyond the trained length are untrained, whatever the tables would allow.
        context = min(loaded.model.config.max_position_embeddings, loaded.config.data.sequence_length)
        described = {"model": str(run), "step": loaded.step}
        subject = Subject(
            loaded.model, loaded.tokenizer, context, described, run / "evals" / f"core-{loaded.checkpoint.name}",
            Path(loaded.config.data.cache_dir).expanduser(),
        )  # fmt: skip
    if dtype is not None:
        subject.model.compute_dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[dtype]
    return subject


def evaluate_core(
    place: Path, options: dict[str, Any], device: str, dtype: str | None, out: Path | None, cache_dir: Path | None
) -> None:
    """Evaluate, print the table, write results.json, records.parquet and core.png.

    Args:
        options: keys of `eval core`, as given.
    """
    from littlelm.train.malloc import raise_malloc_thresholds

    raise_malloc_thresholds()  # before torch allocates anything
    from littlelm.evals.core.evaluate import CoreEvaluation
    from littlelm.evals.core.files import write_result
    from littlelm.evals.core.tables import result_lines, result_table
    from littlelm.train import distributed

    config = _config(options)
    subject = load_subject(place, device, dtype)
    world = distributed.start(subject.model.head_weight.device)
    try:
        console = Console(quiet=not world.is_main, highlight=False, width=None if os.isatty(1) else 200)
        evaluation = CoreEvaluation(config)
        say = lambda message: console.print(message, markup=False)  # noqa: E731
        evaluation.prepare(subject.tokenizer, subject.context, cache_dir or subject.cache_dir, say)
        with _progress(console) as progress:
            result = evaluation.evaluate(subject.model, world, progress, subject.described)
        if not world.is_main:
            return
        directory = out or _directory(subject.results, result.settings)
        write_result(result, directory)
        console.print(result_table(result))
        for line in result_lines(result):
            console.print(line, markup=False)
        _draw_beside(directory)
        console.print(f"{directory}: results.json, records.parquet, core.png", markup=False)
    finally:
        distributed.stop()


def _config(options: dict[str, Any]) -> Any:
    from littlelm.evals.configs import CoreEvalConfig

    given = {name: value for name, value in options.items() if value is not None}
    given.setdefault("bundle", os.environ.get(BUNDLE_VARIABLE))
    if given["bundle"] is None:
        raise UserError(
            f"--bundle: none is given; name a directory, a zip, or a URL with its --sha256, in the layout of "
            f"nanochat's eval_bundle.zip, or set {BUNDLE_VARIABLE}"
        )
    try:
        return CoreEvalConfig(**given)
    except ValidationError as error:
        faults = [f"{'.'.join(map(str, fault['loc'])) or 'eval core'}: {fault['msg']}" for fault in error.errors()]
        raise UserError("\n".join(faults).replace("Value error, ", "")) from None


def _directory(base: Path, settings: dict[str, Any]) -> Path:
    """Results of other settings lie beside each other, not over each other."""
    parts = [
        f"max{settings['max_per_task']}" if settings["max_per_task"] is not None else "",
        f"budget{settings['budget']:g}" if settings["budget"] is not None else "",
        settings["policy"] if settings["policy"] != "crop_left" else "",
        settings["engine"] if settings["engine"] != "packed" else "",
    ]
    return base.with_name("-".join([base.name, *filter(None, parts)]))


def _draw_beside(directory: Path) -> None:
    """The picture of a result, beside those of earlier checkpoints that were evaluated alike."""
    from littlelm.evals.core.compare import differences
    from littlelm.evals.core.files import read_result
    from littlelm.evals.core.picture import draw

    def step(path: Path) -> int:
        found = re.search(r"step-(\d+)", path.name)
        return int(found[1]) if found else -1

    newest = read_result(directory)
    results = [(directory.name, newest)]
    for path in sorted(directory.parent.glob("core*/results.json"), key=lambda path: step(path.parent)):
        if path.parent != directory and step(path.parent) >= 0:
            other = read_result(path.parent)
            if not differences(newest, other):
                results.append((path.parent.name, other))
    results.sort(key=lambda pair: step(Path(pair[0])))
    results = results[-4:] if results[-1][0] == directory.name else [*results[-3:], (directory.name, newest)]
    unique = dict(results)
    draw(list(unique.values()), list(unique), directory / "core.png")


class _progress:
    """A bar on a terminal, nothing elsewhere."""

    def __init__(self, console: Console):
        self._bar = Progress(
            TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"),
            TimeRemainingColumn(), console=console, transient=True, disable=not console.is_terminal,
        )  # fmt: skip

    def __enter__(self) -> Callable[[int, int], None]:
        self._bar.__enter__()
        task = self._bar.add_task("evaluating", total=None)
        return lambda done, total: self._bar.update(task, completed=done, total=total)

    def __exit__(self, *error: Any) -> None:
        self._bar.__exit__(*error)


def compare_results(first: Path, second: Path, untruncated: bool, out: Path | None, as_json: bool) -> None:
    """Print what the difference of two results is worth."""
    from littlelm.evals.core.compare import compare, comparison_lines, comparison_table
    from littlelm.evals.core.files import read_result
    from littlelm.evals.core.picture import draw

    results = (read_result(first), read_result(second))
    comparison = compare(*results, untruncated)
    if as_json:
        print(json.dumps(comparison.as_dict(), indent=1))
    else:
        console = Console(highlight=False, width=None if os.isatty(1) else 200)
        console.print(f"A: {first}\nB: {second}", markup=False)
        console.print(comparison_table(comparison))
        for line in comparison_lines(comparison):
            console.print(line, markup=False)
    if out is not None:
        draw(results, [str(first), str(second)], out)


def run_harness(
    place: Path, tasks: list[str], shots: int | None, limit: int | None, device: str, dtype: str | None,
    include_path: Path | None, out: Path | None,
) -> None:  # fmt: skip
    """Run tasks of lm-evaluation-harness, print its table, write its results as JSON.

    Raises:
        UserError: the harness is not installed, or does not know a task.
    """
    from littlelm.train.malloc import raise_malloc_thresholds

    raise_malloc_thresholds()
    from littlelm.evals.harness import LittleLM, run_tasks

    model = LittleLM(place, device=device, dtype=dtype)
    results, table = run_tasks(model, tasks, shots, limit, include_path)
    print(table)
    if model.truncated:
        print(
            f"{model.truncated:,} rows lost their beginning, {model.tokens_cut:,} tokens in all, to fit into "
            f"{model.max_length:,} tokens"
        )
    results["little_lm"] = {"rows_cut": model.truncated, "tokens_cut": model.tokens_cut, "context": model.max_length}
    path = out or place / "evals" / f"harness-{'-'.join(tasks)[:60].replace('/', '_')}.json"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(results, indent=1, default=str) + "\n", encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror}; give another place with --out") from None
    print(path)
