"""Layering of config trees: `extends`, `--set`, defaults and `${...}`.

Mappings merge, scalars and lists are replaced; a component of another name replaces the whole component. Each part is
directed by the types of the fields, so `{muon: {lr: 0.1}}` and `{name: muon, lr: 0.1}` layer alike.
"""

from __future__ import annotations

import re
from typing import Any

from littlelm import registry
from littlelm.config.base import ComponentConfig, ConfigModel
from littlelm.config.nodes import DEFAULT, Node, from_plain
from littlelm.config.shapes import (
    VALUE,
    Holds,
    Shape,
    component_class,
    normalise_component,
    normalise_entry,
    shapes_of,
)
from littlelm.errors import UserError

_REFERENCE = re.compile(r"\$\{([^}]*)\}")


def merge(base: Node | None, over: Node, shape: Shape) -> Node:
    """Lay `over` upon `base`; both may use shorthands, the result is normalised."""
    if shape.holds is Holds.COMPONENT:
        return _merge_component(base, over, shape.kind)
    if shape.holds is Holds.COMPONENT_LIST:
        return _merge_list(base, over, shape.kind)
    if shape.holds is Holds.COMPONENT_DICT:
        return _merge_entries(base, over, shape.kind)
    if shape.section is not None:
        return merge_mapping(base, over, shapes_of(shape.section))
    if isinstance(over.value, dict) and base is not None and isinstance(base.value, list):
        return _merge_items(base, over, VALUE)
    return merge_mapping(base, over, {})


def merge_mapping(base: Node | None, over: Node, shapes: dict[str, Shape]) -> Node:
    """Merge two mappings key by key (anything else is replaced), each key by its shape."""
    if not over.is_mapping:
        return over
    under = base if base is not None and base.is_mapping else Node({}, over.origin)
    result = Node(dict(under.value), over.origin, {**under.key_origins, **over.key_origins})
    for key, child in over.value.items():
        result.value[key] = merge(under.value.get(key), child, shapes.get(key, VALUE))
    return result


def _merge_component(base: Node | None, over: Node, kind: str) -> Node:
    over = normalise_component(over, kind, base)
    if not over.is_mapping:
        return over
    config_class = component_class(kind, over)
    shapes = shapes_of(config_class) if config_class else {}
    same = base is not None and base.is_mapping and "name" in base.value and "name" in over.value
    if same and base is not None and base.value["name"].value == over.value["name"].value:
        return merge_mapping(base, over, shapes)
    return merge_mapping(None, over, shapes)


def _merge_list(base: Node | None, over: Node, kind: str) -> Node:
    shape = Shape(Holds.COMPONENT, kind)
    if over.is_mapping and base is not None and isinstance(base.value, list):
        return _merge_items(base, over, shape)
    if not isinstance(over.value, list):
        return over
    return Node([merge(None, item, shape) for item in over.value], over.origin)


def _merge_items(base: Node, over: Node, shape: Shape) -> Node:
    """`--set data.sources.0.column=body`: change single items of a list."""
    items = list(base.value)
    for key, child in over.value.items():
        if not key.isdigit() or int(key) >= len(items):
            raise UserError(f"{over.key_origin(key)}: '{key}' is no item of this list (0 to {len(items) - 1})")
        items[int(key)] = merge(items[int(key)], child, shape)
    return Node(items, base.origin)


def _merge_entries(base: Node | None, over: Node, kind: str) -> Node:
    if not over.is_mapping:
        return over
    under = base if base is not None and base.is_mapping else Node({}, over.origin)
    result = Node(dict(under.value), over.origin, {**under.key_origins, **over.key_origins})
    for key, child in over.value.items():
        below = under.value.get(key)
        if below is not None and below.is_mapping and child.is_mapping and "name" not in child.value:
            child = Node({"name": below.value["name"], **child.value}, child.origin, child.key_origins)
        if child.value is False and below is None and key not in registry.names(kind):
            hint = registry.did_you_mean(key, registry.names(kind))
            raise UserError(f"{over.key_origin(key)}: there is no {kind} '{key}' to switch off{hint}")
        entry = normalise_entry(key, child, over.key_origin(key), kind)
        if not entry.is_mapping or below is None or not below.is_mapping:
            result.value[key] = merge(None, entry, Shape(Holds.COMPONENT, kind)) if entry.is_mapping else entry
        else:
            result.value[key] = _merge_component(below, entry, kind)
    return result


def fill_defaults(node: Node, config_class: type[ConfigModel]) -> Node:
    """Make every default explicit, with the origin `default`, recursively; the tree must be normalised."""
    if not node.is_mapping:
        return node
    result = Node(dict(node.value), node.origin, dict(node.key_origins))
    shapes = shapes_of(config_class)
    for name, field in config_class.model_fields.items():
        if name not in result.value and not field.is_required():
            result.value[name] = from_plain(to_plain(field.get_default(call_default_factory=True)))
            result.key_origins[name] = DEFAULT
        child = result.value.get(name)
        if child is not None:
            result.value[name] = _fill_child(child, shapes[name])
    return result


def _fill_child(node: Node, shape: Shape) -> Node:
    if shape.section is not None:
        return fill_defaults(node, shape.section)
    if shape.item is not None and isinstance(node.value, list):
        return Node([_fill_child(item, Shape(Holds.SECTION, section=shape.item)) for item in node.value], node.origin)
    if shape.holds is Holds.COMPONENT_LIST and isinstance(node.value, list):
        return Node([_fill_child(item, Shape(Holds.COMPONENT, shape.kind)) for item in node.value], node.origin)
    if shape.holds is Holds.COMPONENT_DICT and node.is_mapping:
        filled = {key: _fill_child(item, Shape(Holds.COMPONENT, shape.kind)) for key, item in node.value.items()}
        return Node(filled, node.origin, node.key_origins)
    if shape.holds is Holds.COMPONENT and node.is_mapping:
        config_class = component_class(shape.kind, node)
        return fill_defaults(node, config_class) if config_class else node
    return node


def to_plain(value: Any) -> Any:
    """A config (or any part of one) as plain YAML values; components carry their `name`."""
    if isinstance(value, ConfigModel):
        fields = {name: to_plain(getattr(value, name)) for name in type(value).model_fields}
        return {"name": value.name, **fields} if isinstance(value, ComponentConfig) else fields
    if isinstance(value, dict):
        return {key: to_plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(item) for item in value]
    return value


def interpolate(root: Node) -> Node:
    """Replace every `${a.b}` by the value of that key; a string that is one reference takes the value's type."""

    def value_at(dotted: str, origin: Any, trail: tuple[str, ...]) -> Any:
        if dotted in trail:
            raise UserError(f"{origin}: ${{{dotted}}} refers to itself ({' -> '.join((*trail, dotted))})")
        target = root.find(tuple(dotted.split(".")))
        if target is None:
            raise UserError(f"{origin}: ${{{dotted}}}: there is no such key in this file")
        if isinstance(target.value, (dict, list)):
            raise UserError(f"{origin}: ${{{dotted}}} is not a single value")
        return resolve(target.value, target.origin, (*trail, dotted))

    def resolve(value: Any, origin: Any, trail: tuple[str, ...]) -> Any:
        if not isinstance(value, str) or "${" not in value:
            return value
        whole = _REFERENCE.fullmatch(value)
        if whole:
            return value_at(whole[1].strip(), origin, trail)
        return _REFERENCE.sub(lambda match: str(value_at(match[1].strip(), origin, trail)), value)

    def walk(node: Node) -> Node:
        if isinstance(node.value, dict):
            return Node({key: walk(child) for key, child in node.value.items()}, node.origin, node.key_origins)
        if isinstance(node.value, list):
            return Node([walk(child) for child in node.value], node.origin)
        return Node(resolve(node.value, node.origin, ()), node.origin)

    return walk(root)
