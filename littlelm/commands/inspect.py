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
from littlelm.train.configs import RunConfig, load_run


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
    console = Console(soft_wrap=False)
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
