"""The loop: steps, what is due after them, interruption, the end."""

from __future__ import annotations

import math
import time
from typing import Any

import torch

from littlelm import registry
from littlelm.callbacks.base import Callback
from littlelm.data.prefetch import Prefetcher
from littlelm.errors import UserError
from littlelm.optim import schedule
from littlelm.optim.clip import clip_grad_norm
from littlelm.train.header import write_summary
from littlelm.train.interrupt import Interrupt
from littlelm.train.run import TrainingRun
from littlelm.train.step import StepRunner


class Trainer:
    """Runs a `TrainingRun` from `run.state.step` to its end, or to the next interrupt."""

    def __init__(self, run: TrainingRun, runner: StepRunner, resumed: bool):
        self.run = run
        self.runner = runner
        self.resumed = resumed
        config = run.config
        self.schedules = {"lr": registry.build(config.scheduler)}
        if config.momentum_scheduler is not None:
            self.schedules["momentum"] = registry.build(config.momentum_scheduler)
        if config.weight_decay_scheduler is not None:
            self.schedules["weight_decay"] = registry.build(config.weight_decay_scheduler)
        # Recording first, then the save, then whatever is slow or fragile (invariant checkpoint_before_eval).
        self.ordered: list[Callback] = sorted(run.callbacks.values(), key=lambda callback: callback.phase)
        self.fired_at = {id(callback): 0.0 for callback in self.ordered}
        self.clock = 0.0  # seconds of the main process, equal on all ranks
        self.bad_steps = 0
        self.rows = config.global_batch_rows // run.world.size
        self.first_row = run.rank * self.rows
        self.batches = Prefetcher(run.loader, self.first_row, self.first_row + self.rows, run.micro_batch_rows)

    def train(self, interrupt: Interrupt) -> None:
        """Train to the end. After an interrupt the state is saved and `run.interrupted` is set."""
        run = self.run
        run.interrupt = interrupt
        try:
            for callback in self.ordered:
                callback.on_start(run)
            if self.resumed and run.state.step > 0:
                self.fire(first_phase=Callback.CHECKPOINT)  # what came after the save happens again; the save is there
            while run.state.step < run.total_steps and not run.interrupted:
                stop = self.step(interrupt)
                run.interrupted = stop and run.state.step < run.total_steps
                # Interrupted, save at once: whatever comes after a save is due again when the run goes on.
                self.fire(Callback.RECORD, Callback.RECORD if run.interrupted else Callback.PRESENT)
            run.save_checkpoint()
            for callback in self.ordered:
                callback.on_end(run)
            if not run.interrupted:
                write_summary(run, run.last_records.get("eval", {}))
        except BaseException as error:
            for callback in self.ordered:
                try:
                    callback.on_error(run, error)
                except Exception as second:  # the first error is the one to tell
                    run.console.print(f"then {type(callback).__name__}.on_error failed too: {second}", markup=False)
            raise
        finally:
            self.batches.close()

    def fire(self, first_phase: int, last_phase: int = Callback.PRESENT) -> None:
        """Call every callback of these phases that is due at this step."""
        run = self.run
        for callback in self.ordered:
            if not first_phase <= callback.phase <= last_phase:
                continue
            every = callback.every
            if every is None:
                continue
            elapsed = self.clock - self.fired_at[id(callback)]
            if every.due(run.state.step, run.tokens_per_step, run.total_steps, elapsed):
                self.fired_at[id(callback)] = self.clock
                if callback.phase >= Callback.EVALUATE and run.state.step == run.total_steps:
                    run.save_checkpoint()  # the end is saved before it is looked at, whatever is due
                callback.on_due(run)

    def step(self, interrupt: Interrupt) -> bool:
        """One optimizer step and its record. Returns whether any process was asked to stop."""
        run, runner, optimizer = self.run, self.runner, self.run.optimizer
        step, first_row, rows = run.state.step, self.first_row, self.rows
        part = "compile" if runner.first and runner.compiled else "train"
        started, waited = time.perf_counter(), 0.0
        with run.ledger.part(part):
            num_targets = run.loader.num_targets(step)
            optimizer.zero_grad(set_to_none=True)
            nll = torch.zeros((), device=run.device)
            for begin in range(first_row, first_row + rows, run.micro_batch_rows):
                end = begin + run.micro_batch_rows
                waiting = time.perf_counter()
                with run.ledger.part("data_wait"):
                    inputs, targets = (torch.from_numpy(each) for each in self.batches.batch(step, begin, end))
                waited += time.perf_counter() - waiting
                if run.device.type == "cuda":
                    inputs = inputs.pin_memory().to(run.device, non_blocking=True)
                    targets = targets.pin_memory().to(run.device, non_blocking=True)
                nll += runner.micro_step(inputs, targets, num_targets, last=end == first_row + rows)
            norm = float(clip_grad_norm(run.model.parameters(), run.config.train.max_grad_norm))
            total_nll, wants_stop, clock = run.world.sum(
                [float(nll), float(interrupt.requested), time.monotonic() if run.is_main else 0.0]
            )
            loss = total_nll / num_targets
            schedule.apply(optimizer, step, run.total_steps, **self.schedules)
            healthy = math.isfinite(loss) and math.isfinite(norm)
            if healthy:
                optimizer.step()
        self._count_bad_step(healthy, loss, norm)
        seconds = time.perf_counter() - started
        self.clock += clock - self._last_clock if self._last_clock else 0.0
        self._last_clock = clock
        run.state.step += 1
        run.state.tokens += run.tokens_per_step
        run.metrics = self._metrics(loss, norm, seconds, waited, healthy)
        run.record("train", run.metrics)
        return wants_stop > 0

    _last_clock = 0.0

    def _count_bad_step(self, healthy: bool, loss: float, norm: float) -> None:
        """A non-finite step is skipped; too many in a row end the run (the last checkpoint is untouched)."""
        limit = self.run.config.train.max_bad_steps
        self.bad_steps = 0 if healthy else self.bad_steps + 1
        if self.bad_steps > limit:
            raise UserError(
                f"step {self.run.state.step + 1}: the loss is {loss} and the gradient norm {norm}, "
                f"{self.bad_steps} steps in a row (train.max_bad_steps is {limit}); nothing of them was applied. "
                "Lower the learning rate, lengthen the warm-up, or go on from an earlier checkpoint in "
                f"{self.run.checkpoints}"
            )

    def _metrics(self, loss: float, norm: float, seconds: float, waited: float, healthy: bool) -> dict[str, Any]:
        run = self.run
        tokens_per_second = run.tokens_per_step / seconds
        metrics: dict[str, Any] = {
            "loss": loss,
            "grad_norm": norm,
            **_hyperparameters(run.optimizer.param_groups),
            "tokens_per_second": tokens_per_second,
            "step_seconds": seconds,
            "data_wait_seconds": waited,
            "data_wait_share": waited / seconds,
        }
        if run.peak_flops:
            metrics["mfu"] = run.flops_per_token * tokens_per_second / (run.peak_flops * run.world.size)
        if run.usd_per_hour is not None:
            metrics["usd"] = run.ledger.usd()
        if not healthy:
            metrics["skipped"] = True
        return metrics


def _hyperparameters(groups: list[dict[str, Any]]) -> dict[str, float]:
    """Learning rate, momentum and weight decay as applied: of the matrices where there are any, and by role."""
    result: dict[str, float] = {}
    main = next((group for group in groups if group.get("role") == "matrix"), groups[0])
    for name in ("lr", "momentum", "weight_decay"):
        if name in main:
            result[name] = float(main[name])
    for group in groups:
        result[f"lr_{group['role']}"] = float(group["lr"])
    return result
