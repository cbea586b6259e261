"""Text of an item: the examples shown first, then what is asked, with each answer. No templates, nothing is escaped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from littlelm.evals.core.bundle import Task

SEPARATOR = "\n\n"


@dataclass(frozen=True)
class Rendered:
    """Texts of one item.

    Args:
        rows: one text for each option; for `lm` the one text.
        without: `lm`: the text before what is scored; else None.
        starts: where each example, and last the item's own text, begin in every row; bytes of UTF-8.
    """

    rows: list[str]
    without: str | None
    starts: list[int]


def shot(task: Task, item: dict[str, Any]) -> str:
    """An item with its right answer, as it is shown before others."""
    if task.type == "choice":
        return f"{item['query']}{task.delimiter}{item['choices'][item['gold']]}"
    if task.type == "schema":
        return f"{item['context_options'][item['gold']]}{task.delimiter}{item['continuation']}"
    return f"{item['context'].strip()}{task.delimiter}{item['continuation']}"


def render(task: Task, item: dict[str, Any], shots: Sequence[dict[str, Any]]) -> Rendered:
    """Texts of `item` after the examples `shots`."""
    return render_after(task, item, [shot(task, example) for example in shots])


def render_after(task: Task, item: dict[str, Any], shots: Sequence[str]) -> Rendered:
    """Texts of `item` after examples that are rendered already."""
    before = "".join(text + SEPARATOR for text in shots)
    starts = [0]
    for text in shots:
        starts.append(starts[-1] + len((text + SEPARATOR).encode("utf-8", "surrogatepass")))
    if task.type == "choice":
        head = before + item["query"] + task.delimiter
        return Rendered([head + choice for choice in item["choices"]], None, starts)
    if task.type == "schema":
        tail = task.delimiter + item["continuation"]
        return Rendered([before + option + tail for option in item["context_options"]], None, starts)
    given = before + item["context"].strip() + task.delimiter
    # The text without the continuation is stripped on both sides. The one with it is not: what tells is that the
    # tokens of the first are a prefix of those of the second.
    return Rendered([given + item["continuation"]], given.strip(), starts)
