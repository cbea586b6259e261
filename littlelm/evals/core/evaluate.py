"""Evaluating a model: prepare, cut, plan, compute, decide. What the command and the callback call."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from littlelm.errors import UserError
from littlelm.evals.configs import CoreEvalConfig, JsonlEvalConfig
from littlelm.evals.core.bundle import Bundle, Files, Task, open_bundle
from littlelm.evals.core.cuts import Cuts, cut_rows
from littlelm.evals.core.engine import GRAINS, PACK_TOKENS, evaluation_mode, longer_context, run_packs
from littlelm.evals.core.estimate import choose_items
from littlelm.evals.core.packs import GRAIN, Pack, RowTokens, plan_packs
from littlelm.evals.core.prepared import PreparedRows, prepare_rows
from littlelm.evals.core.reference import evaluate_reference
from littlelm.evals.core.results import CoreResult, costs_by_task, summarise
from littlelm.evals.core.scores import Decision, TokenScores, decide_options, decide_tokens, mean_loss

Say = Callable[[str], None]


@dataclass
class Ready:
    """Everything that is known before the model is needed."""

    bundle: Bundle
    prepared: PreparedRows
    cuts: Cuts
    rows: RowTokens
    items: NDArray[np.int64]
    limit: int
    seconds: float


class CoreEvaluation:
    """The evaluation `core`: built with its config; `prepare` before training, `evaluate` as often as wanted.

    Args:
        config: what to evaluate and how.
    """

    def __init__(self, config: CoreEvalConfig | JsonlEvalConfig):
        self.config: Any = config
        self._ready: Ready | None = None
        self._plans: dict[int, list[Pack]] = {}

    def prepare(
        self, tokenizer: Any, context: int, cache_dir: Path, say: Say = lambda message: None, full: bool = False
    ) -> Ready:
        """Fetch the bundle, render and tokenize every row, decide what is cut and what is asked. Needs no model.

        Args:
            tokenizer: the model's.
            context: tokens that the model reads; `max_length` of the config may lower it.
            full: evaluate everything even where the config has a budget.

        Raises:
            UserError: whatever is wrong with the bundle, the settings, or a row under policy `error`.
        """
        started = time.perf_counter()
        config = self.config
        bundle = self._open(cache_dir, say)
        limit = min(context, config.max_length or context)
        prepared = prepare_rows(bundle, tokenizer, cache_dir, config.max_per_task, say)
        cuts = cut_rows(prepared, limit, config.policy, tokenizer.token_bytes)
        rows = RowTokens(prepared, cuts)
        items = np.arange(prepared.num_items)
        if config.budget is not None and not full:
            items = choose_items(rows, config.budget)
        self._plans.clear()
        self._tokenizer = tokenizer
        self._ready = Ready(bundle, prepared, cuts, rows, items, limit, time.perf_counter() - started)
        return self._ready

    def _open(self, cache_dir: Path, say: Say) -> Bundle:
        config = self.config
        if config.bundle is None:
            raise UserError(
                "no bundle is given: name a directory, a zip or a URL with its sha256 in nanochat's layout "
                "(its eval_bundle.zip), with `--bundle` or the key `bundle`"
            )
        bundle = open_bundle(config.bundle, cache_dir, config.sha256, say)
        return bundle if config.tasks is None else bundle.select(config.tasks)

    def evaluate(
        self,
        model: Any,
        world: Any = None,
        progress: Callable[[int, int], None] = lambda done, total: None,
        described: dict[str, Any] | None = None,
    ) -> CoreResult:
        """Evaluate a model; call `prepare` first. Every process of `world` must call it, and gets the same result.

        Args:
            world: the processes (`rank`, `size`); None: this one alone.
            progress: hears tokens done and in all.
            described: what is evaluated, kept with the settings: name, step.
        """
        ready = self._ready
        if ready is None:
            raise RuntimeError("call prepare() before evaluate()")
        started = time.perf_counter()
        device = model.head_weight.device.type
        size = self.config.pack_tokens or PACK_TOKENS.get(device, PACK_TOKENS["cpu"])
        seconds = {"prepare": ready.seconds, "plan": 0.0}
        if self.config.engine == "reference":
            decisions, costs = self._reference(model, ready, progress)
        else:
            if size not in self._plans:
                self._plans[size] = plan_packs(ready.rows, ready.items.tolist(), size, GRAINS.get(device, GRAIN))
            packs = self._plans[size]
            seconds["plan"] = time.perf_counter() - started
            run = run_packs(model, ready.rows, packs, pad_id=self._tokenizer.bos_id, world=world, progress=progress)
            decisions = decide(ready.prepared, ready.items, run.scores)
            costs = costs_by_task(ready.prepared, ready.rows, packs, run.seconds)
        settings = self._settings(ready, model, described or {})
        result = summarise(ready.prepared, ready.cuts, ready.rows, ready.items, decisions, costs, settings)
        seconds["evaluate"] = time.perf_counter() - started - seconds["plan"]
        result.seconds = seconds
        return result

    def _settings(self, ready: Ready, model: Any, described: dict[str, Any]) -> dict[str, Any]:
        whole = len(ready.items) == ready.prepared.num_items
        return {
            **described,
            "bundle": ready.bundle.files.where,
            "bundle_fingerprint": ready.bundle.fingerprint,
            "tokenizer_fingerprint": self._tokenizer.fingerprint,
            "max_per_task": self.config.max_per_task,
            "policy": self.config.policy,
            "limit": ready.limit if self.config.policy != "none" else None,
            "budget": None if whole else self.config.budget,
            "engine": self.config.engine,
            "dtype": str(model.compute_dtype).removeprefix("torch."),
            "baselines": "v1 and v2",
        }

    def _reference(
        self, model: Any, ready: Ready, progress: Callable[[int, int], None]
    ) -> tuple[dict[int, Decision], dict[int, tuple[int, float]]]:
        """Evaluate with the oracle, on this process alone."""
        prepared, rows = ready.prepared, ready.rows
        first = {task.label: int(item) for task, item in zip(prepared.tasks, prepared.task_items, strict=False)}
        number = {task.label: index for index, task in enumerate(prepared.tasks)}
        chosen: dict[str, set[int]] = {task.label: set() for task in prepared.tasks}
        item_task = prepared.item_task
        for item in ready.items.tolist():
            label = prepared.tasks[int(item_task[item])].label
            chosen[label].add(item - first[label])
        total = int(rows.length[np.isin(rows.row_item, ready.items)].sum())
        decisions: dict[int, Decision] = {}
        costs: dict[int, tuple[int, float]] = {}
        done = 0
        longest = int(rows.length.max())
        limit = None if self.config.policy == "none" else ready.limit
        with evaluation_mode(model), longer_context(model, longest):
            before = time.perf_counter()
            for found in evaluate_reference(
                model, ready.bundle, self._tokenizer, limit, self.config.max_per_task, chosen.get
            ):
                now = time.perf_counter()
                task = number[found.task.label]
                tokens = len(found.tokens) * max(found.ends)
                known = costs.get(task, (0, 0.0))
                costs[task] = (known[0] + tokens, known[1] + now - before)
                decisions[first[found.task.label] + found.index] = found.decision
                done += sum(found.ends)
                progress(done, total)
                before = now
        return decisions, costs


class JsonlEvaluation(CoreEvaluation):
    """The evaluation `jsonl`: one task of the user's own, in a file."""

    def _open(self, cache_dir: Path, say: Say) -> Bundle:
        config: JsonlEvalConfig = self.config
        path = Path(config.file).expanduser()
        guessing = (config.baseline, config.baseline)
        task = Task(config.label, config.type, config.shots, config.delimiter, *guessing, path.name)
        return Bundle(Files(path.parent), [task])


def decide(prepared: PreparedRows, items: NDArray[np.int64], scores: TokenScores) -> dict[int, Decision]:
    """The decision of each item from the losses of its rows; rows without a loss have an empty span."""
    position = {row: number for number, row in enumerate(scores.rows.tolist())}
    item_task = prepared.item_task
    decisions = {}
    for item in items.tolist():
        numbers = [position.get(row) for row in range(prepared.item_rows[item], prepared.item_rows[item + 1])]
        if prepared.tasks[int(item_task[item])].type == "lm":
            assert numbers[0] is not None  # the span of an lm row is never empty
            place = scores.of(numbers[0])
            decisions[item] = decide_tokens(scores.losses[place], scores.right[place], scores.gap[place])
            continue
        empty = np.empty(0, np.float32)
        losses = [mean_loss(empty if number is None else scores.losses[scores.of(number)]) for number in numbers]
        decisions[item] = decide_options(losses, int(prepared.gold[item]))
    return decisions
