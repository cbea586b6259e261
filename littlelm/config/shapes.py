"""What a config field holds: a component, several, a nested section, or a plain value."""

from __future__ import annotations

import types
import typing
from dataclasses import dataclass
from enum import Enum
from typing import Any

from pydantic.fields import FieldInfo

from littlelm import registry
from littlelm.config.base import ComponentConfig, ComponentOf, ConfigModel
from littlelm.config.nodes import Node


class Holds(Enum):
    COMPONENT = "component"
    COMPONENT_LIST = "list of components"
    COMPONENT_DICT = "mapping of components"
    SECTION = "section"
    SECTION_LIST = "list of sections"
    VALUE = "value"


@dataclass(frozen=True)
class Shape:
    """`kind` is set for components, `section` for nested sections, `item` for lists of sections."""

    holds: Holds
    kind: str = ""
    section: type[ConfigModel] | None = None
    item: type[ConfigModel] | None = None


VALUE = Shape(Holds.VALUE)


def _markers(annotation: Any) -> list[ComponentOf]:
    found = [item for item in getattr(annotation, "__metadata__", ()) if isinstance(item, ComponentOf)]
    for argument in typing.get_args(annotation):
        found += _markers(argument)
    return found


def _members(annotation: Any) -> list[Any]:
    """The alternatives of an optional or union annotation, without Annotated and None."""
    origin = typing.get_origin(annotation)
    if origin in (typing.Union, types.UnionType):
        return [member for arg in typing.get_args(annotation) for member in _members(arg)]
    if origin is typing.Annotated:
        return _members(typing.get_args(annotation)[0])
    return [] if annotation is type(None) else [annotation]


def shape_of(field: FieldInfo) -> Shape:
    """Classify a field of a ConfigModel."""
    markers = [item for item in field.metadata if isinstance(item, ComponentOf)] or _markers(field.annotation)
    members = _members(field.annotation)
    if markers:
        origins = {typing.get_origin(member) for member in members}
        if list in origins:
            return Shape(Holds.COMPONENT_LIST, markers[0].kind)
        return Shape(Holds.COMPONENT_DICT if dict in origins else Holds.COMPONENT, markers[0].kind)
    for member in members:
        if isinstance(member, type) and issubclass(member, ConfigModel) and not issubclass(member, ComponentConfig):
            return Shape(Holds.SECTION, section=member)
        for item in typing.get_args(member) if typing.get_origin(member) is list else ():
            if isinstance(item, type) and issubclass(item, ConfigModel):
                return Shape(Holds.SECTION_LIST, item=item)
    return VALUE


def shapes_of(config_class: type[ConfigModel]) -> dict[str, Shape]:
    return {name: shape_of(field) for name, field in config_class.model_fields.items()}


def component_class(kind: str, node: Node) -> type[ComponentConfig] | None:
    """The config class a normalised component node names, or None when the name is unknown."""
    name = node.value.get("name") if node.is_mapping else None
    if name is not None and name.value in registry.names(kind):
        return registry.entry(kind, name.value).config
    return None


def normalise_component(node: Node, kind: str, base: Node | None = None) -> Node:
    """Rewrite the shorthands `muon` and `{muon: {...}}` as `{name: muon, ...}`.

    With a `base` (already normalised), a mapping that names no component is a partial change of the base's.
    Anything that cannot be understood is returned as it is, for validation to report.
    """
    if isinstance(node.value, str):
        return Node({"name": Node(node.value, node.origin)}, node.origin)
    if not node.is_mapping or "name" in node.value:
        return node
    base_class = component_class(kind, base) if base is not None else None
    base_fields = base_class.model_fields if base_class else {}
    if len(node.value) == 1:
        key, body = next(iter(node.value.items()))
        known = key in registry.names(kind)
        is_name = key not in base_fields and (known or base_class is None or body.is_mapping)
        if is_name and (body.is_mapping or body.value is None):
            name = Node(key, node.key_origin(key))
            if body.value is None:
                return Node({"name": name}, node.origin)
            return Node({"name": name, **body.value}, node.origin, dict(body.key_origins))
    if base_class is not None and base is not None:
        return Node({"name": base.value["name"], **node.value}, node.origin, dict(node.key_origins))
    return node


def normalise_entry(key: str, node: Node, key_origin: Any, kind: str) -> Node:
    """Entry of a mapping of components: the key is the name unless `name:` says otherwise; `false` disables."""
    if node.value is False:
        return node
    if node.value is None or node.value is True:
        return Node({"name": Node(key, key_origin)}, node.origin)
    if node.is_mapping and "name" not in node.value:
        return Node({"name": Node(key, key_origin), **node.value}, node.origin, dict(node.key_origins))
    return normalise_component(node, kind)
