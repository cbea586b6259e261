"""`little-lm config diff A B`: differences of resolved values, not of text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from littlelm.config.nodes import Node

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


def _children(node: Node | None) -> dict[str, Node]:
    if node is None:
        return {}
    if isinstance(node.value, dict):
        return dict(node.value)
    if isinstance(node.value, list) and any(isinstance(item.value, (dict, list)) for item in node.value):
        return {str(index): item for index, item in enumerate(node.value)}
    return {}


def _walk(before: Node | None, after: Node | None, path: str, found: list[Difference]) -> None:
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
