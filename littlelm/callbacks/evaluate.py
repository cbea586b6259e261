"""Bits per byte during the run."""

from __future__ import annotations

import time

from littlelm.callbacks.base import Callback, Run
from littlelm.evals.bits_per_byte import evaluate_bits_per_byte


class EvalCallback(Callback):
    """Measures the validation set; the same number whatever the ranks and the micro-batch, but for rounding."""

    phase = Callback.EVALUATE

    def on_due(self, run: Run) -> None:
        started = time.perf_counter()
        with run.ledger.part("evaluate"):
            result = evaluate_bits_per_byte(
                run.model, run.loss, run.validation, run.tokenizer.token_bytes, run.micro_batch_rows, run.world
            )
        run.record("eval", {**result, "seconds_spent": time.perf_counter() - started})
