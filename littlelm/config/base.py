"""Base classes of every typed config. Importing this must stay free of torch and cheap."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, BeforeValidator, ConfigDict

_SUFFIXES = {"k": 10**3, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}


class ConfigModel(BaseModel):
    """A strict, frozen section of the run file: unknown keys and silent conversions are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, protected_namespaces=())


class ComponentConfig(ConfigModel):
    """Config of a registered component. `kind` and `name` are filled in by the registry."""

    kind: ClassVar[str] = ""
    name: ClassVar[str] = ""


@dataclass(frozen=True)
class ComponentOf:
    """Annotation marker: this field holds a component of `kind`.

    Three shapes are understood: `Annotated[ComponentConfig, ComponentOf(k)]` (optionally `| None`),
    `Annotated[list[ComponentConfig], ComponentOf(k)]` and `Annotated[dict[str, ComponentConfig | None],
    ComponentOf(k)]`, where a key of the mapping is the component's name unless the entry says `name:`.
    """

    kind: str


def parse_count(value: Any) -> Any:
    """Turn `65B`, `1.5M`, `4_096`, `65e9` into an int; anything else passes through to pydantic's own check."""
    if isinstance(value, bool):
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str):
        text = value.strip().replace("_", "")
        scale = _SUFFIXES.get(text[-1:], 1)
        digits = text[:-1] if scale != 1 else text
        try:
            scaled = float(digits) * scale
        except ValueError:
            return value
        if scaled.is_integer():
            return int(scaled)
    return value


Count = Annotated[int, BeforeValidator(parse_count)]
"""A whole number that may be written with a suffix: `65B`, `512k`, `1.5M` or `65e9`."""
