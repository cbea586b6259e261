"""`little-lm config diff A B`: differences of resolved values, not of text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from littlelm.config.nodes import DEFAULT, Node

MISSING = "(absent)"


@dataclass(frozen=True)
class Difference:
    """One key whose resolved value differs; `MISSING` where a side has no such key."""

    key: str
    before: Any
    after: Any
    before_origin: str
    after_origin: str


def diff(before: Node, after: Node) -> list[Difference]:
    """All differences between two resolved trees, in the order of the keys."""
    found: list[Difference] = []
    _walk(before, after, "", found)
    return found


def brief(node: Node) -> str:
    """A component in short: its name and the values that were written by hand, `adamw {lr: 0.002}`."""
    if isinstance(node.value, list):
        return f"[{', '.join(brief(item) for item in node.value)}]"
    if not isinstance(node.value, dict):
        return str(node.plain())
    written = {key: child for key, child in node.value.items() if key != "name" and _by_hand(child)}
    body = f"{{{', '.join(f'{key}: {brief(child)}' for key, child in written.items())}}}" if written else ""
    name = node.value["name"].plain() if "name" in node.value else ""
    return f"{name} {body}".strip() or "{}"


def _by_hand(node: Node) -> bool:
    if isinstance(node.value, dict):
        return any(_by_hand(child) for child in node.value.values())
    return node.origin != DEFAULT


def _component_name(node: Node | None, path: str) -> str | None:
    """The name of a component's node, None for anything else (the section `run` has a name too, and is none)."""
    if node is None or not isinstance(node.value, dict) or "name" not in node.value or path == "run":
        return None
    return str(node.value["name"].plain())


def _children(node: Node | None) -> dict[str, Node]:
    if node is None:
        return {}
    if isinstance(node.value, dict):
        return dict(node.value)
    if isinstance(node.value, list) and any(isinstance(item.value, (dict, list)) for item in node.value):
        return {str(index): item for index, item in enumerate(node.value)}
    return {}


def _walk(before: Node | None, after: Node | None, path: str, found: list[Difference]) -> None:
    names = _component_name(before, path), _component_name(after, path)
    if before is not None and after is not None and None not in names and names[0] != names[1]:
        # Two components in one place: their keys do not compare.
        found.append(Difference(path, brief(before), brief(after), str(before.origin), str(after.origin)))
        return
    left, right = _children(before), _children(after)
    if left or right:
        for key in [*left, *(key for key in right if key not in left)]:
            _walk(left.get(key), right.get(key), f"{path}.{key}" if path else key, found)
        return
    a = before.plain() if before is not None else MISSING
    b = after.plain() if after is not None else MISSING
    if a != b or isinstance(a, bool) != isinstance(b, bool):
        origins = [str(node.origin) if node is not None else "" for node in (before, after)]
        found.append(Difference(path, a, b, *origins))
