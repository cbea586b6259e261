"""From a checked config to a run that is ready to step: data, process group, model, optimizer, checkpoint."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch
from rich.console import Console

from littlelm import registry
from littlelm.callbacks.metrics import read_metrics
from littlelm.config.load import dump
from littlelm.data.prepare import prepare
from littlelm.errors import UserError
from littlelm.filesystem import write_atomically, writing
from littlelm.model.configs import TransformerConfig
from littlelm.plan.flops import flops_per_token, formula_of
from littlelm.plan.memory import activation_bytes_per_row
from littlelm.plan.peak import peak_of_device
from littlelm.train import distributed, micro_batch, rng
from littlelm.train.checkpoint import Checkpoint, latest_checkpoint, load_checkpoint
from littlelm.train.configs import RunConfig
from littlelm.train.distributed import World
from littlelm.train.environment import describe_environment, recorded_peak
from littlelm.train.ledger import Ledger
from littlelm.train.resume import check_state, compare_configs
from littlelm.train.run import TrainingRun, TrainState
from littlelm.train.run_lock import RunLock
from littlelm.train.step import StepRunner


@dataclass
class Ready:
    """A run, what steps it, and whether it goes on from a checkpoint."""

    run: TrainingRun
    runner: StepRunner
    resumed: bool


def find_checkpoint(config: RunConfig, directory: Path) -> Path | None:
    """The checkpoint to go on from, by `run.resume`. Raises UserError when the key forbids what is there."""
    found = latest_checkpoint(directory / "checkpoints") if directory.exists() else None
    if config.run.resume == "must" and found is None:
        raise UserError(f"run.resume is must, but {directory} holds no checkpoint; check run.dir, or use auto")
    if config.run.resume == "never" and directory.exists() and any(directory.iterdir()):
        raise UserError(f"run.resume is never, but {directory} is not empty; choose another run.dir or use auto")
    return found


def is_complete(config: RunConfig, directory: Path) -> bool:
    """Whether this very run has reached its end before, evaluations included: then nothing is touched.

    Raises UserError when the directory holds a run of another config.
    """
    path = latest_checkpoint(directory / "checkpoints") if (directory / "summary.json").is_file() else None
    if path is None or config.run.resume == "never":
        return False
    if json.loads((directory / "summary.json").read_text(encoding="utf-8"))["step"] < config.total_steps:
        return False  # of a shorter run that was prolonged
    checkpoint = load_checkpoint(path, verify=False)
    compare_configs(checkpoint.config_text, config, path)
    return int(checkpoint.state["step"]) >= config.total_steps


def make_run_directory(directory: Path, config: RunConfig, lock: RunLock) -> None:
    """Create the run's directory with the resolved config, and take its lock.

    Raises UserError when it cannot be written, or another process was faster.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock.take()
        (directory / "checkpoints").mkdir(exist_ok=True)
        (directory / "config.yaml").write_text(dump(config), encoding="utf-8")
    except OSError as error:
        raise UserError(f"{directory}: cannot be written: {error.strerror}; choose another run.dir") from None


def build_model(config: RunConfig, vocab_size: int, precision: Any, device: torch.device) -> Any:
    """The model with its initial weights on `device`, master weights in the precision's dtype."""
    with torch.device("meta"):
        model = registry.build(config.model, vocab_size)
    model = model.to(dtype=precision.master_dtype).to_empty(device=device)
    model.init_weights(torch.Generator().manual_seed(config.run.seed))
    model.compute_dtype = precision.compute_dtype
    return model


def set_up(config: RunConfig, console: Console, ledger: Ledger, lock: RunLock) -> Ready:
    """Everything before the first step. All fetching and preparing happens before the process group exists."""
    directory = Path(config.run.dir).expanduser()
    device = distributed.pick_device(config.train.device)
    rows = micro_batch.rows_per_rank(config.global_batch_rows, distributed.environment_world_size())
    if config.train.micro_batch != "auto":
        micro_batch.check_micro_batch(rows, config.train.micro_batch)
    checkpoint_path = find_checkpoint(config, directory)
    # One process checks the digests for all of them: the bytes are the same.
    is_main = os.environ.get("RANK", "0") == "0"
    checkpoint = load_checkpoint(checkpoint_path, verify=is_main) if checkpoint_path is not None else None
    if checkpoint is not None and checkpoint_path is not None:
        for change in compare_configs(checkpoint.config_text, config, checkpoint_path):
            console.print(f"changed since the checkpoint: {change.key}: {change.before!r} -> {change.after!r}")
    with ledger.part("prepare"):
        # A run keeps the data it began with: prolonged, it reads it again rather than others in another order.
        rows_needed = config.train_rows
        if checkpoint is not None:
            rows_needed = checkpoint.state.get("train_rows", rows_needed)
        prepared = prepare(config.data, config.tokenizer, console, rows_needed)
        loader = prepared.train_loader(config.global_batch_rows, config.run.seed, config.total_steps, console.print)
        config = config.shortened(loader.total_steps)
        callbacks = {name: registry.build(each) for name, each in config.callbacks.items()}
        for callback in callbacks.values():
            callback.prepare(config, prepared.tokenizer, console.print)
    world = distributed.start(device)
    rng.seed_everything(config.run.seed)
    precision = registry.build(config.precision, device.type)
    model = build_model(config, prepared.vocab_size, precision, device)
    parameters = list(model.named_parameters())
    optimizer = registry.build(
        config.optimizer,
        parameters,
        model.parameter_roles(),
        stochastic_rounding=precision.stochastic_rounding,
        seed=config.run.seed,
        compute_dtype=precision.compute_dtype,
    )
    loss = registry.build(config.loss)
    runner = StepRunner(model, loss, world, config.train.compile, console.print)
    saved_rows = checkpoint.state["micro_batch_rows"] if checkpoint is not None else None
    chosen = choose_micro_batch(config, model, runner, world, rows, saved_rows, console)
    with ledger.part("startup"):
        known = recorded_peak(directory, device, precision.compute_dtype) if checkpoint is not None else None
        peak, peak_source = known or peak_of_device(device, precision.compute_dtype)
    run = TrainingRun(
        config=config,
        directory=directory,
        world=world,
        console=console,
        ledger=ledger,
        prepared=prepared,
        loader=loader,
        model=model,
        loss=loss,
        optimizer=optimizer,
        precision=precision,
        callbacks=callbacks,
        micro_batch_rows=chosen,
        parameters_by_role=count_by_role(model),
        flops_per_token=estimate_flops(config, model),
        peak_flops=peak,
        peak_source=peak_source,
    )
    if checkpoint is not None and checkpoint_path is not None:
        restore(run, checkpoint, checkpoint_path)
    if world.is_main:  # nothing of the user's can be wrong any more, and what the checkpoint needs is not overwritten
        make_run_directory(directory, config, lock)
        ledger.write()
        prepared.tokenizer.save(directory / "tokenizer")
        write_environment(run)
    return Ready(run, runner, checkpoint is not None)


def write_environment(run: TrainingRun) -> None:
    """environment.json: software, hardware, and what the records of this session are to be read with."""
    facts = {
        "parameters": sum(run.parameters_by_role.values()),
        "parameters_by_role": run.parameters_by_role,
        "flops_per_token": run.flops_per_token,
        "flops_formula": formula_of(run.config.model),
        "peak_flops": run.peak_flops,
        "peak_source": run.peak_source,
        "precision": run.precision.reason,
        "world_size": run.world.size,
        "micro_batch_rows": run.micro_batch_rows,
    }
    text = json.dumps({**describe_environment(), "run": facts}, indent=2) + "\n"
    path = run.directory / "environment.json"
    with writing(path):
        write_atomically(path, text.encode())


def count_by_role(model: Any) -> dict[str, int]:
    """Parameters of each role."""
    counts: dict[str, int] = {}
    roles = model.parameter_roles()
    for name, parameter in model.named_parameters():
        counts[roles[name]] = counts.get(roles[name], 0) + parameter.numel()
    return counts


def estimate_flops(config: RunConfig, model: Any) -> float:
    """FLOPs of a training token; for a model that is not ours 6 x its matrices and head, attention not counted."""
    if isinstance(config.model, TransformerConfig):
        return flops_per_token(config.model, model.vocab_size, config.data.sequence_length).total
    counts = count_by_role(model)
    return 6.0 * (counts.get("matrix", 0) + counts.get("head", 0))


def estimate_row_bytes(config: RunConfig, model: Any) -> int:
    """Bytes that one row's forward pass keeps; for a model that is not ours a guess of 256 KiB a token."""
    if isinstance(config.model, TransformerConfig):
        return activation_bytes_per_row(config.model, config.data.sequence_length, model.compute_dtype.itemsize)
    return config.data.sequence_length * 2**18


def choose_micro_batch(
    config: RunConfig, model: Any, runner: StepRunner, world: World, rows: int, saved_rows: int | None, console: Console
) -> int:
    """Rows of one pass. A resumed run keeps the number it had, since another one would round differently."""
    wanted = config.train.micro_batch
    if wanted != "auto":
        return micro_batch.check_micro_batch(rows, wanted)
    if saved_rows is not None and rows % saved_rows == 0:
        return saved_rows
    if world.device.type == "cuda":
        free = torch.cuda.mem_get_info(world.device)[0]
    else:
        free = psutil.virtual_memory().available // max(1, world.size)
    per_row = estimate_row_bytes(config, model)
    chosen, reason = micro_batch.auto_micro_batch(rows, config.data.sequence_length, per_row, free, world.device.type)
    if world.device.type == "cuda":
        chosen = probe_memory(config, runner, world, rows, chosen)
    if world.size > 1:  # free memory differs; evaluation deals its rows by this number
        least = torch.tensor(chosen, device=world.device)
        torch.distributed.all_reduce(least, op=torch.distributed.ReduceOp.MIN)
        chosen = int(least)
    if world.is_main:
        console.print(f"micro-batch: {chosen} of {rows} rows a process ({reason})")
    return chosen


def probe_memory(config: RunConfig, runner: StepRunner, world: World, rows: int, chosen: int) -> int:
    """CUDA: try one forward/backward and take the next smaller divisor until it fits; the ranks agree on the least."""
    length = config.data.sequence_length
    while True:
        try:
            tokens = torch.zeros((chosen, length), dtype=torch.int64, device=world.device)
            runner.probe(tokens, tokens)
            break
        except torch.OutOfMemoryError:
            smaller = micro_batch.next_smaller(rows, chosen)
            if smaller is None:
                raise UserError(
                    f"one row of {length} tokens does not fit into the GPU's memory; shorten data.sequence_length, "
                    "make the model smaller, or store weights in bf16 (precision.master: bf16)"
                ) from None
            chosen = smaller
        finally:
            runner.module.zero_grad(set_to_none=True)
            torch.cuda.empty_cache()
    return chosen


def seconds_after(metrics: Path, step: int) -> float:
    """Seconds of the training steps after `step` in metrics.jsonl: work that a kill made to be done again."""
    later = (r for r in read_metrics(metrics) if r["kind"] == "train" and r["step"] > step)
    return sum((r["step_seconds"] or 0.0) - (r["data_wait_seconds"] or 0.0) for r in later)


def restore(run: TrainingRun, checkpoint: Checkpoint, path: Path) -> None:
    """Put a checkpoint's weights, optimizer state, position and RNG into a run."""
    check_state(checkpoint.state, run.state_dict(), path)
    saved = checkpoint.tensors("model")
    parameters = dict(run.model.named_parameters())
    if saved.keys() != parameters.keys():
        odd = sorted(saved.keys() ^ parameters.keys())[:5]
        raise UserError(f"{path}: the weights' names do not match the model: {', '.join(odd)}")
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(saved[name])
    run.optimizer.load_state_tensors(checkpoint.tensors("optimizer"))
    rng.restore(checkpoint.tensors("rng"))
    if run.is_main:
        run.ledger.move("train", "lost", seconds_after(run.directory / "metrics.jsonl", checkpoint.state["step"]))
    run.state = TrainState(checkpoint.state["step"], checkpoint.state["tokens"])
    run.saved_step = run.state.step
    run.metrics = {"loss": checkpoint.state.get("loss")}
    then, now = checkpoint.state.get("compute_dtype"), run.state_dict()["compute_dtype"]
    if then not in (None, now):
        run.console.print(
            f"changed since the checkpoint: activations are {now}, and were {then}: {run.precision.reason}"
        )
