"""JSON schema of the run file, for editors (VS Code's YAML extension and others)."""

from __future__ import annotations

import typing
import warnings
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import TypeAdapter
from pydantic.fields import FieldInfo
from pydantic.json_schema import PydanticJsonSchemaWarning

from littlelm import registry
from littlelm.config.base import ComponentConfig, ConfigModel, parse_count
from littlelm.config.merge import to_plain
from littlelm.config.shapes import Holds, shape_of
from littlelm.config.validate import describe_class

_SUFFIXED = {"anyOf": [{"type": "number"}, {"type": "string", "pattern": r"^[0-9_.]+[kKMBT]?$"}]}
_REFERENCE = {"type": "string", "pattern": r"\$\{.*\}"}


def json_schema(root: type[ConfigModel]) -> dict[str, Any]:
    """The schema (draft 2020-12) of a run file whose root is `root`, with every registered component."""
    definitions: dict[str, Any] = {}
    for kind in registry.kinds():
        definitions[kind] = {}
    for kind in registry.kinds():
        definitions[kind] = _component_schema(kind)
    schema = _section_schema(root, partial=True)
    schema["properties"] |= {
        "extends": {"description": "file(s) this one builds upon", "anyOf": [{"type": "string"}, _list_of_strings()]},
        "plugins": {"description": "Python files that register own components", **_list_of_strings()},
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "little-lm run file",
        **schema,
        "$defs": definitions,
    }


def _list_of_strings() -> dict[str, Any]:
    return {"type": "array", "items": {"type": "string"}}


def _component_schema(kind: str) -> dict[str, Any]:
    """`name`, `{name: {...}}`, `{name: ..., keys}`, or keys alone (a partial change under `extends`)."""
    options: list[dict[str, Any]] = []
    names = registry.names(kind)
    for name in names:
        config = registry.entry(kind, name).config
        body = _section_schema(config, partial=True)
        options.append({**body, "properties": {"name": {"const": name}, **body["properties"]}, "title": name})
        shorthand = {name: {"anyOf": [body, {"type": "null"}], "description": describe_class(config)}}
        options.append({"type": "object", "properties": shorthand, "required": [name], "additionalProperties": False})
    return {"anyOf": [{"enum": names}, *options], "description": registry.kinds()[kind]}


def _section_schema(config: type[ConfigModel], partial: bool) -> dict[str, Any]:
    properties = {name: _field_schema(field) for name, field in config.model_fields.items()}
    schema: dict[str, Any] = {"type": "object", "properties": properties, "additionalProperties": False}
    required = [name for name, field in config.model_fields.items() if field.is_required()]
    if required and not partial:  # a base file given by `extends` may hold the rest, so nothing is required
        schema["required"] = required
    text = describe_class(config)
    return {**schema, "description": text} if text else schema


def _field_schema(field: FieldInfo) -> dict[str, Any]:
    shape = shape_of(field)
    if shape.holds is Holds.COMPONENT:
        schema: dict[str, Any] = {"anyOf": [{"$ref": f"#/$defs/{shape.kind}"}, {"type": "null"}]}
    elif shape.holds is Holds.COMPONENT_LIST:
        schema = {"type": "array", "items": {"$ref": f"#/$defs/{shape.kind}"}}
    elif shape.holds is Holds.COMPONENT_DICT:
        entries = {
            name: {
                "anyOf": [_section_schema(registry.entry(shape.kind, name).config, True), {"type": ["boolean", "null"]}]
            }
            for name in registry.names(shape.kind)
        }
        schema = {"type": "object", "properties": entries, "additionalProperties": {"type": ["object", "boolean"]}}
    elif shape.section is not None:
        schema = _section_schema(shape.section, partial=True)
    elif shape.item is not None:
        schema = {"type": "array", "items": _section_schema(shape.item, partial=False)}
    else:
        schema = {"anyOf": [_value_schema(field), _REFERENCE]}
    if field.description:
        schema["description"] = field.description
    if not field.is_required():
        schema["default"] = to_plain(field.get_default(call_default_factory=True))
    return schema


def _takes_suffix(annotation: Any, metadata: Sequence[Any]) -> bool:
    """Whether a Count is in it: directly, or as one of the alternatives of a union."""
    if any(getattr(item, "func", None) is parse_count for item in metadata):
        return True
    return any(
        _takes_suffix(argument, getattr(argument, "__metadata__", ())) for argument in typing.get_args(annotation)
    )


def _value_schema(field: FieldInfo) -> dict[str, Any]:
    annotation: Any = field.annotation
    if field.metadata:
        annotation = Annotated[(annotation, *field.metadata)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PydanticJsonSchemaWarning)
        schema = TypeAdapter(annotation).json_schema(mode="validation")
    schema.pop("title", None)
    if _takes_suffix(field.annotation, field.metadata):
        schema = {"anyOf": [_SUFFIXED, schema]}
    return schema


def describe_component(config: type[ComponentConfig]) -> list[tuple[str, str, str, str]]:
    """Rows (key, type, default, meaning) of a component's config, for `little-lm components KIND NAME`."""
    rows = []
    for name, field in config.model_fields.items():
        shape = shape_of(field)
        kind = shape.kind if shape.kind else _type_text(field.annotation)
        default = "required" if field.is_required() else str(to_plain(field.get_default(call_default_factory=True)))
        rows.append((name, kind, default, field.description or ""))
    return rows


def _type_text(annotation: Any) -> str:
    origin = typing.get_origin(annotation)
    arguments = typing.get_args(annotation)
    if origin is typing.Literal:
        return " | ".join(str(argument) for argument in arguments)
    if origin is Annotated:
        return _type_text(arguments[0])
    if annotation is type(None):
        return "null"
    if origin is not None and arguments:
        if origin in (list, dict):
            return f"{origin.__name__} of {', '.join(_type_text(argument) for argument in arguments)}"
        return " | ".join(_type_text(argument) for argument in arguments)
    return getattr(annotation, "__name__", str(annotation))
