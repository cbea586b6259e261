"""What is said before the first step and after the last: the choices made, and the next command to type."""

from __future__ import annotations

import json
import os
from typing import Any

from littlelm.filesystem import write_atomically, writing
from littlelm.train.run import TrainingRun
from littlelm.units import flops, human

SUMMARY_SCHEMA_VERSION = 1


def print_header(run: TrainingRun, resumed: bool) -> None:
    """Model, length, device and precision, each choice with its reason."""
    config, say = run.config, run.console.print
    total = sum(run.parameters_by_role.values())
    by_role = ", ".join(f"{human(count)} {role}" for role, count in run.parameters_by_role.items())
    accumulation = config.global_batch_rows // (run.micro_batch_rows * run.world_size)
    where = f"{run.world_size} x {run.device.type}"
    say(f"model: {human(total)} parameters ({by_role})")
    say(
        f"run: {run.total_steps} steps x {run.tokens_per_step} tokens = {human(run.total_tokens)} tokens; "
        f"{flops(run.flops_per_token)} a token, {flops(run.flops_per_token * run.total_tokens)} in all"
    )
    say(f"batch: {run.micro_batch_rows} rows x {accumulation} passes on {where}")
    say(f"precision: {run.precision.reason}")
    if run.peak_flops:
        say(f"peak: {flops(run.peak_flops)}/s a process ({run.peak_source})")
    if run.usd_per_hour is not None:
        say(f"price: {run.usd_per_hour:.2f} USD an hour in all")
    if config.train.compile and run.state.step < run.total_steps:
        say("compiling the step; the first one takes longer")
    verb = f"going on from step {run.state.step}" if resumed else "starting"
    say(f"{verb} in {run.directory}")


def write_summary(run: TrainingRun, evaluation: dict[str, Any]) -> None:
    """summary.json: the result of a complete run in one small file; its presence says that the run is complete."""
    if not run.is_main:
        return
    summary = {
        "schema_version": SUMMARY_SCHEMA_VERSION,
        "step": run.state.step,
        "tokens": run.state.tokens,
        "parameters": sum(run.parameters_by_role.values()),
        "loss": run.metrics.get("loss"),
        "evaluation": evaluation,
        "seconds": run.ledger.elapsed_seconds(),
        "usd": None if run.usd_per_hour is None else run.ledger.usd(),
    }
    path = run.directory / "summary.json"
    with writing(path):
        write_atomically(path, json.dumps(summary, indent=2).encode() + b"\n")


def print_footer(run: TrainingRun, evaluation: dict[str, Any]) -> None:
    """The result and what to type next."""
    say = run.console.print
    if "bits_per_byte" in evaluation:
        say(f"bits per byte: {evaluation['bits_per_byte']:.4f} on {run.validation.num_rows} validation rows")
    say(f"weights: {run.checkpoints / f'step-{run.state.step:08}'}/model.safetensors")
    report = run.directory / "report.html"
    if report.exists():
        say(f"report: {report}")
    prompt = "The meaning of life is"
    say(f'next: little-lm sample {os.fspath(run.directory)} --prompt "{prompt}"')
