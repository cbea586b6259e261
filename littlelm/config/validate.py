"""A normalised tree -> typed configs, reporting every problem at once with its place and the way to mend it."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from littlelm import registry
from littlelm.config.base import ComponentConfig, ConfigModel
from littlelm.config.nodes import Node, Origin
from littlelm.config.shapes import Holds, Shape, component_class, shapes_of
from littlelm.errors import UserError

Path = tuple[str | int, ...]

_EXPECTED = {
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "bool_type": "true or false",
    "string_type": "text",
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "none_required": "null",
}
_YES_NO = {"yes", "no", "on", "off", "y", "n"}


@dataclass(frozen=True)
class Problem:
    origin: Origin
    message: str

    def __str__(self) -> str:
        return f"{self.origin}: {self.message}"


class ConfigError(UserError):
    """All problems of a config, one a line."""

    def __init__(self, problems: Iterable[Problem]):
        unique = dict.fromkeys(problems)
        self.problems = sorted(unique, key=lambda p: (p.origin.source, p.origin.line or 0, p.origin.column or 0))
        super().__init__("\n".join(str(problem) for problem in self.problems))


def dotted(path: Path) -> str:
    return ".".join(str(part) for part in path) or "the file"


def validate(root: Node, config_class: type[ConfigModel]) -> Any:
    """Build `config_class` from a normalised, interpolated tree. Raises ConfigError with all problems."""
    walker = _Walker(config_class)
    result = walker.section(root, config_class, ())
    if walker.problems:
        raise ConfigError(walker.problems)
    return result


class _Walker:
    def __init__(self, root_class: type[ConfigModel]):
        self.root_class = root_class
        self.problems: list[Problem] = []

    def add(self, origin: Origin, message: str) -> None:
        self.problems.append(Problem(origin, message))

    def section(self, node: Node, config_class: type[ConfigModel], path: Path) -> ConfigModel | None:
        """Validate a mapping; returns None when anything in it is wrong (and has been reported)."""
        if not node.is_mapping:
            self.add(node.origin, f"{dotted(path)} must be a mapping, got {_show(node.value)}")
            return None
        before = len(self.problems)
        shapes = shapes_of(config_class)
        is_component = issubclass(config_class, ComponentConfig)
        arguments: dict[str, Any] = {}
        for key, child in node.value.items():
            if key in shapes:
                arguments[key] = self.child(child, shapes[key], (*path, key))
            elif not (is_component and key == "name"):
                self.unknown_key(node, key, config_class, path)
        built_wrong = {key for key, value in arguments.items() if value is _WRONG}
        valid = {key: value for key, value in arguments.items() if value is not _WRONG}
        try:
            result = config_class.model_validate(valid)
        except ValidationError as error:
            self.pydantic(error, node, config_class, path, built_wrong)
            return None
        if len(self.problems) > before:
            return None
        for where, message in getattr(result, "check", tuple)():
            target = node
            for part in where:
                target = target.find((part,)) or target
            self.add(target.origin, message)
        return result if len(self.problems) == before else None

    def child(self, node: Node, shape: Shape, path: Path) -> Any:
        if shape.holds is Holds.VALUE:
            return node.plain()
        if node.value is None and shape.holds is not Holds.COMPONENT_DICT:
            return None  # pydantic says whether null is allowed here
        if shape.section is not None:
            return self._or_wrong(self.section(node, shape.section, path))
        if shape.holds is Holds.COMPONENT:
            return self._or_wrong(self.component(node, shape.kind, path))
        if shape.item is not None:
            if not isinstance(node.value, list):
                self.add(node.origin, f"{dotted(path)} must be a list, got {_show(node.plain())}")
                return _WRONG
            sections = [self.section(item, shape.item, (*path, i)) for i, item in enumerate(node.value)]
            return _WRONG if None in sections else sections
        if shape.holds is Holds.COMPONENT_LIST:
            if not isinstance(node.value, list):
                self.add(node.origin, f"{dotted(path)} must be a list of {shape.kind}s, got {_show(node.plain())}")
                return _WRONG
            built = [self.component(item, shape.kind, (*path, i)) for i, item in enumerate(node.value)]
            return _WRONG if None in built else built
        return self.entries(node, shape.kind, path)

    def entries(self, node: Node, kind: str, path: Path) -> Any:
        if not node.is_mapping:
            self.add(node.origin, f"{dotted(path)} must be a mapping of {kind}s, got {_show(node.plain())}")
            return _WRONG
        built = {
            key: self.component(item, kind, (*path, key)) for key, item in node.value.items() if item.value is not False
        }
        return _WRONG if None in built.values() else built

    def _or_wrong(self, value: ConfigModel | None) -> Any:
        return _WRONG if value is None else value

    def component(self, node: Node, kind: str, path: Path) -> ConfigModel | None:
        valid = registry.names(kind)
        if not node.is_mapping or "name" not in node.value:
            hint = f"write `name: {valid[0]}` (one of: {', '.join(valid)}) and its keys" if valid else ""
            self.add(node.origin, f"{dotted(path)} must name a {kind}, got {_show(node.plain())}; {hint}")
            return None
        config_class = component_class(kind, node)
        if config_class is None:
            name = node.value["name"]
            message = f"unknown {kind} {_show(name.value)}{registry.did_you_mean(str(name.value), valid)}"
            self.add(name.origin, f"{message} (own components come from a file named under `plugins:`)")
            return None
        return self.section(node, config_class, path)

    def unknown_key(self, node: Node, key: str, config_class: type[ConfigModel], path: Path) -> None:
        where = dotted(path)
        if issubclass(config_class, ComponentConfig):
            where += f" ({config_class.name})"
        hint = registry.did_you_mean(key, list(config_class.model_fields))
        if "did you mean" not in hint:
            homes = [
                name
                for name, shape in shapes_of(self.root_class).items()
                if shape.section is not None and key in shape.section.model_fields
            ]
            hint = f"; did you mean '{homes[0]}.{key}'?" if homes else hint
        self.add(node.key_origin(key), f"unknown key '{key}' in {where}{hint}")

    def pydantic(self, error: ValidationError, node: Node, cls: type[ConfigModel], path: Path, skip: set[str]) -> None:
        """Translate pydantic's errors; those of one value (a union's alternatives) become one problem."""
        grouped: dict[Path, list[dict[str, Any]]] = {}
        for item in error.errors(include_url=False):
            location = item["loc"]
            if location and location[0] in skip:
                continue
            depth = 0
            while depth < len(location) and node.find(tuple(location[: depth + 1])) is not None:
                depth += 1
            if item["type"] == "missing":
                depth = len(location)
            grouped.setdefault(tuple(location[:depth]), []).append(dict(item))
        for where, items in grouped.items():
            full = (*path, *where)
            if items[0]["type"] == "missing":
                field = cls.model_fields.get(str(where[0]))
                about = f" ({field.description})" if field is not None and field.description else ""
                self.add(node.origin, f"the key '{where[-1]}' is missing in {dotted(full[:-1])}{about}")
                continue
            target = node.find(where) or node
            self.add(target.origin, f"{dotted(full)}: {_explain(items, target.plain())}")


_WRONG: Any = object()


def _show(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _explain(items: list[dict[str, Any]], given: Any) -> str:
    first = items[0]
    if first["type"] in ("value_error", "assertion_error"):
        return str(first["msg"]).removeprefix("Value error, ").removeprefix("Assertion failed, ")
    expected = []
    for item in items:
        context = item.get("ctx", {})
        if item["type"] == "literal_error":
            expected.append(str(context.get("expected", "")).replace("'", ""))
        elif item["type"] in _EXPECTED:
            expected.append(_EXPECTED[item["type"]])
        else:
            message = str(item["msg"]).removeprefix("Value error, ").removeprefix("Input should be ")
            expected.append(message[:1].lower() + message[1:])
    text = f"expected {' or '.join(dict.fromkeys(expected))}, got {_show(given)}"
    if isinstance(given, str) and given.lower() in _YES_NO and any(item["type"] == "bool_type" for item in items):
        return f"{text}; in this file only true and false are booleans"
    literals = [word.strip() for entry in expected for word in entry.replace(" or ", ",").split(",")]
    close = difflib.get_close_matches(str(given), literals, n=1, cutoff=0.6)
    if any(item["type"] == "literal_error" for item in items) and close:
        return f"{text}; did you mean '{close[0]}'?"
    return text


def describe_class(config_class: type[ConfigModel]) -> str:
    """First line of a config's docstring."""
    return (inspect.getdoc(config_class) or "").split("\n")[0]
