"""CORE during the run."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from littlelm.callbacks.base import Callback, Run
from littlelm.callbacks.configs import CoreCallbackConfig
from littlelm.evals.core.evaluate import CoreEvaluation
from littlelm.evals.core.files import write_result


class CoreCallback(Callback):
    """Estimates CORE from a share of its tokens when due, and evaluates all of it at the end of the run.

    The bundle is fetched, rendered and tokenized before training starts, and never during it.
    """

    phase = Callback.EVALUATE

    def __init__(self, config: CoreCallbackConfig) -> None:
        super().__init__(config)
        self.evaluation = CoreEvaluation(config)
        self._arguments: tuple[Any, int, Path] | None = None

    def prepare(self, config: Any, tokenizer: Any, say: Callable[[str], None]) -> None:
        """Fetch, render, tokenize. Raises UserError for whatever is wrong with the bundle."""
        length = config.data.sequence_length
        context = min(length, getattr(config.model, "max_position_embeddings", None) or length)
        self._arguments = (tokenizer, context, Path(config.data.cache_dir).expanduser())
        self.evaluation.prepare(*self._arguments, say)

    def on_due(self, run: Run) -> None:
        started = time.perf_counter()
        is_end = run.state.step == run.total_steps
        with run.ledger.part("evaluate"):
            if is_end and self.config.budget is not None and self.config.full_at_end:
                assert self._arguments is not None
                self.evaluation.prepare(*self._arguments, full=True)
            described = {"model": str(run.directory), "step": run.state.step}
            result = self.evaluation.evaluate(run.model, run.world, described=described)
            if run.is_main:
                name = f"{result.name}-step-{run.state.step:08}".replace("_", "-")
                write_result(result, run.directory / "evals" / name)
        record = {
            "name": result.name,
            "core_v1": result.core[0],
            "core_v1_error": result.core_error[0],
            "core_v2": result.core[1],
            "core_v2_error": result.core_error[1],
            "items": sum(task.n for task in result.tasks),
            "rows_cut": sum(task.rows_cut for task in result.tasks),
            **{f"centred_{task.label}": task.centred[0] for task in result.tasks},
        }
        run.record("core", {**record, "seconds_spent": time.perf_counter() - started})
