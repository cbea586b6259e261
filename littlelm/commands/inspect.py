"""Commands that look and change nothing: config, components, model, schedule. Free of torch."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from littlelm import registry
from littlelm.config import show
from littlelm.config.diff import diff
from littlelm.config.schema import describe_component, json_schema
from littlelm.config.validate import describe_class
from littlelm.errors import UserError
from littlelm.plan.cost import Plan, plan
from littlelm.train.configs import RunConfig, load_run

_PICTURES = (".png", ".svg", ".pdf")


def make_console() -> Console:
    """For tables: as wide as the terminal, and wide enough for every column where there is none (a pipe, a file)."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=160)


def show_config(file: Path, overrides: list[str]) -> None:
    sys.stdout.write(show.render(load_run(file, overrides).tree))


def show_schema(out: Path | None) -> None:
    text = json.dumps(json_schema(RunConfig), indent=2) + "\n"
    if out is None:
        sys.stdout.write(text)
        return
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"{out}: cannot be written: {error.strerror}") from None
    print(f"{out}: name it in a run file's first line: # yaml-language-server: $schema={out}")


def show_components(kind: str | None, name: str | None) -> None:
    console = make_console()
    contracts = registry.kinds()
    if kind is None:
        table = Table("kind", "names", "contract", box=None, pad_edge=False, header_style="bold")
        for each, contract in contracts.items():
            table.add_row(each, ", ".join(registry.names(each)), contract)
        console.print(table)
        return
    if kind not in contracts:
        raise UserError(f"unknown kind '{kind}'{registry.did_you_mean(kind, list(contracts))}")
    if name is None:
        console.print(f"[bold]{kind}[/]: {contracts[kind]}\n")
        for each in registry.names(kind):
            console.print(f"[bold]{each}[/]  {describe_class(registry.entry(kind, each).config)}")
        return
    config = registry.entry(kind, name).config
    console.print(f"[bold]{kind} {name}[/]: {describe_class(config)}\n")
    table = Table("key", "type", "default", "meaning", box=None, pad_edge=False, header_style="bold")
    for row in describe_component(config):
        table.add_row(*(_escape(cell) for cell in row))
    console.print(table)


def _escape(text: str) -> str:
    return text.replace("[", "\\[")


def planned_vocab_size(config: RunConfig) -> int:
    """The vocabulary of the run, from the configs alone. Raises UserError when only the tokenizer's file would tell."""
    if getattr(config.model, "vocab_size", None) is not None:
        return int(config.model.vocab_size)  # type: ignore[attr-defined]
    return int(config.tokenizer.planned_vocab_size())  # type: ignore[attr-defined]


def show_model(file: Path, overrides: list[str]) -> None:
    from littlelm.model.configs import round_up
    from littlelm.plan.flops import FORMULA
    from littlelm.plan.parameters import matmul_parameters, parameter_rows

    config = load_run(file, overrides).config
    if config.model.name != "transformer":
        raise UserError(
            f"`little-lm model` counts the built-in transformer; this file's model is '{config.model.name}'"
        )
    model: Any = config.model
    vocab_size = planned_vocab_size(config)
    made = plan(config, vocab_size)
    console = make_console()
    table = Table("tensor", "role", "shape", "tensors", "parameters", "share", box=None, header_style="bold")
    for column in table.columns[3:]:
        column.justify = "right"
    for row in parameter_rows(model, vocab_size):
        shape = " x ".join(map(str, row.shape))
        share = f"{row.parameters / made.total_parameters:.1%}"
        table.add_row(row.name, row.role, shape, str(row.count), f"{row.parameters:,}", share)
    console.print(table)
    roles = Table("role", "parameters", "share", box=None, header_style="bold")
    roles.columns[1].justify = roles.columns[2].justify = "right"
    for role, count in made.parameters.items():
        roles.add_row(role, f"{count:,}", f"{count / made.total_parameters:.1%}")
    roles.add_row("[bold]all[/]", f"[bold]{made.total_parameters:,}[/]", "")
    console.print(roles)
    padded = round_up(vocab_size, model.pad_vocab_multiple)
    console.print(
        f"layers {model.num_hidden_layers}, heads {model.num_attention_heads}/{model.kv_heads} x "
        f"{model.width_of_head}, MLP {model.mlp} {model.mlp_width}, vocabulary {vocab_size:,} padded to {padded:,}"
    )
    console.print(f"parameters in matrix products: {matmul_parameters(model, vocab_size):,}")
    console.print(
        f"FLOPs per token at context {config.data.sequence_length}: {made.flops.total:.4g} "
        f"({made.flops.matmul:.4g} products + {made.flops.attention:.4g} attention)\n  = {FORMULA}"
    )
    console.print(f"run: {made.total_tokens:,} tokens, {made.total_flops:.3g} FLOP")


def show_diff(before: Path, after: Path) -> None:
    console = make_console()
    one, two = load_run(before), load_run(after)
    differences = diff(one.tree, two.tree)
    if not differences:
        console.print("no difference: both files resolve to the same run")
        return
    table = Table("key", before.name, after.name, box=None, pad_edge=False, header_style="bold")
    for item in differences:
        table.add_row(item.key, _escape(str(item.before)), _escape(str(item.after)))
    console.print(table)
    plans = [_plan_if_known(each.config) for each in (one, two)]
    console.print()
    effects = Table("what it does", before.name, after.name, "change", box=None, pad_edge=False, header_style="bold")
    for column in effects.columns[1:]:
        column.justify = "right"
    for name, unit, values in _effects(plans[0], plans[1]):
        cells = ["unknown" if value is None else f"{value:,.4g}{unit}" for value in values]
        left, right = values
        change = f"{right / left:.3g}x" if left and right is not None and left != right else "="
        effects.add_row(name, *cells, "" if None in values else change)
    console.print(effects)
    own = [each.config.model.name for each, made in zip((one, two), plans, strict=True) if made is None]
    if own:
        console.print(f"unknown: only the built-in transformer can be planned, and not {', '.join(own)}", markup=False)
    if any(made is not None and made.usd is None for made in plans):
        console.print("time and dollars need budget.gpu and budget.usd_per_gpu_hour in both files")


def _plan_if_known(config: RunConfig) -> Plan | None:
    """The plan, None for a model of the user's own: what that takes is known to nobody before it is built."""
    return plan(config, planned_vocab_size(config)) if config.model.name == "transformer" else None


def _effects(one: Plan | None, two: Plan | None) -> list[tuple[str, str, tuple[float | None, float | None]]]:
    def both(value: Any) -> tuple[float | None, float | None]:
        return None if one is None else value(one), None if two is None else value(two)

    def state(each: Plan) -> float | None:
        known = [value for value in each.bytes.values() if value is not None]
        return sum(known) / 2**30 if len(known) == len(each.bytes) else None

    return [
        ("parameters", "", both(lambda each: each.total_parameters)),
        ("FLOPs per token", "", both(lambda each: each.flops.total)),
        ("tokens", "", both(lambda each: each.total_tokens)),
        ("FLOPs", "", both(lambda each: each.total_flops)),
        ("weights, gradients, optimizer", " GiB", both(state)),
        ("training time", " h", both(lambda each: None if each.seconds is None else each.seconds / 3600)),
        ("price", " USD", both(lambda each: each.usd)),
    ]


def plot_schedules(file: Path, overrides: list[str], out: Path | None) -> None:
    from littlelm.optim.schedule import plot_schedule, render_schedule

    if out is not None and out.suffix.lower() not in _PICTURES:
        raise UserError(f"--out {out}: the name must end in one of {', '.join(_PICTURES)}")
    config = load_run(file, overrides).config
    named: dict[str, Any] = {f"learning rate ({config.scheduler.name})": registry.build(config.scheduler)}
    for name in ("momentum", "weight_decay"):
        scheduler = getattr(config, f"{name}_scheduler")
        if scheduler is not None:
            named[f"{name.replace('_', ' ')} ({scheduler.name})"] = registry.build(scheduler)
    print(render_schedule(named, config.total_steps))
    if out is not None:
        try:
            print(f"\n{plot_schedule(named, config.total_steps, out)}")
        except OSError as error:
            raise UserError(f"--out {out}: cannot be written: {error.strerror}") from None
