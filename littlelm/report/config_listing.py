"""The run's config as a listing in which the choices stand out from the defaults."""

from __future__ import annotations

import html
from typing import Any

import yaml

from littlelm.config.base import ComponentConfig, ConfigModel
from littlelm.config.merge import to_plain


def _scalar(value: Any) -> str:
    shown = yaml.safe_dump(to_plain(value), default_flow_style=True, width=10_000, allow_unicode=True).strip()
    return html.escape(shown.removesuffix("...").strip())


def _line(indent: int, content: str, chosen: bool) -> str:
    padded = " " * indent + content
    return f"<b>{padded}</b>\n" if chosen else f"{padded}\n"


def _entry(key: str, value: Any, indent: int, chosen: bool) -> str:
    head = html.escape(key)
    if isinstance(value, ConfigModel):
        if isinstance(value, ComponentConfig):
            return _line(indent, f"{head}: {html.escape(value.name)}", chosen) + _section(value, indent + 2)
        return _line(indent, f"{head}:", False) + _section(value, indent + 2)
    if isinstance(value, dict) and value:
        inner = "".join(_entry(str(name), each, indent + 2, chosen) for name, each in value.items())
        return _line(indent, f"{head}:", False) + inner
    if isinstance(value, list) and any(isinstance(each, ConfigModel) for each in value):
        inner = "".join(_entry("-", each, indent + 2, chosen).replace("-:", "-", 1) for each in value)
        return _line(indent, f"{head}:", False) + inner
    return _line(indent, f"{head}: {_scalar(value)}", chosen)


def _section(config: ConfigModel, indent: int) -> str:
    lines = []
    for key, info in type(config).model_fields.items():
        value = getattr(config, key)
        chosen = info.get_default(call_default_factory=True) != value  # a required key has none, and differs
        lines.append(_entry(key, value, indent, chosen))
    return "".join(lines)


def listing(config: ConfigModel | None, fallback: str) -> str:
    """HTML for a `<pre>`: every key and value, those that differ from their default in bold.

    A component stands beside its kind (`optimizer: muon`) with its keys beneath. Without a config, the text as it is.
    """
    return _section(config, 0) if config is not None else html.escape(fallback)
