"""`little-lm config show`: the resolved file, every default explicit, the origin of each value beside it."""

from __future__ import annotations

from typing import Any

import yaml

from littlelm.config.nodes import Node, PlainDumper


def _scalar(value: Any) -> str:
    text = yaml.dump(value, Dumper=PlainDumper, default_flow_style=True, width=10_000, allow_unicode=True).strip()
    return text.removesuffix("\n...").removesuffix("...").strip()


def render(tree: Node) -> str:
    """YAML text that loads to the same config; comments give the origin of each value, aligned."""
    lines: list[tuple[str, str]] = []
    _mapping(tree, 0, lines)
    column = min(max((len(text) for text, _ in lines), default=0), 76) + 2
    return "\n".join(f"{text:<{column}}# {origin}" if origin else text for text, origin in lines) + "\n"


def _mapping(node: Node, indent: int, lines: list[tuple[str, str]]) -> None:
    for key, child in node.value.items():
        _entry(f"{' ' * indent}{key}:", child, indent, lines)


def _entry(head: str, node: Node, indent: int, lines: list[tuple[str, str]]) -> None:
    if isinstance(node.value, dict) and node.value:
        lines.append((head, ""))
        _mapping(node, indent + 2, lines)
    elif isinstance(node.value, list) and any(isinstance(item.value, (dict, list)) for item in node.value):
        lines.append((head, ""))
        for item in node.value:
            first = len(lines)
            if isinstance(item.value, dict) and item.value:
                _mapping(item, indent + 4, lines)
                text, origin = lines[first]
                lines[first] = (" " * (indent + 2) + "- " + text.lstrip(), origin)
            else:
                lines.append((f"{' ' * (indent + 2)}- {_scalar(item.plain())}", str(item.origin)))
    else:
        lines.append((f"{head} {_scalar(node.plain())}", str(node.origin)))
