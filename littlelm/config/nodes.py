"""YAML text -> a tree of values that remember where they were written.

Safe by construction: only plain scalars, lists and mappings exist. Scalars follow YAML 1.2, so `1e-3` is a float and
`yes`, `on` and `12:30` are strings. Duplicate keys, merge keys (`<<`) and tags are errors.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from littlelm.errors import UserError

_INT = re.compile(r"[-+]?[0-9][0-9_]*$")
_HEX = re.compile(r"0x[0-9a-fA-F]+$")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9][0-9_]*(\.[0-9_]*)?)([eE][-+]?[0-9]+)?$")
_WORDS: dict[str, Any] = {
    "": None, "~": None, "null": None, "Null": None, "NULL": None,
    "true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False,
    ".inf": float("inf"), "+.inf": float("inf"), "-.inf": float("-inf"), ".nan": float("nan"),
}  # fmt: skip
_NUMBER = re.compile(r"[-+]?[0-9][0-9_]*$|0x[0-9a-fA-F]+$")
_MAX_DIGITS = 400  # more than any double has; beyond 4,300 Python itself refuses to convert
_MAX_NODES = 100_000  # a run file has hundreds; this stops exponentially aliased input


@dataclass(frozen=True)
class Origin:
    """Where a value was written: a file with line and column (from 1), `--set ...`, or `default`."""

    source: str
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        return self.source if self.line is None else f"{self.source}:{self.line}:{self.column}"


DEFAULT = Origin("default")


@dataclass
class Node:
    """A scalar, a list of nodes or a mapping of nodes, with its origin (and that of each key)."""

    value: Any
    origin: Origin = DEFAULT
    key_origins: dict[str, Origin] = field(default_factory=dict)

    @property
    def is_mapping(self) -> bool:
        return isinstance(self.value, dict)

    def plain(self) -> Any:
        """The value without origins."""
        if isinstance(self.value, dict):
            return {key: child.plain() for key, child in self.value.items()}
        if isinstance(self.value, list):
            return [child.plain() for child in self.value]
        return self.value

    def key_origin(self, key: str) -> Origin:
        return self.key_origins.get(key, self.origin)

    def find(self, path: tuple[str | int, ...]) -> Node | None:
        """The node at `path`, or None."""
        node: Node = self
        for part in path:
            if isinstance(node.value, dict) and part in node.value:
                node = node.value[part]
            elif isinstance(node.value, list) and str(part).isdigit() and int(part) < len(node.value):
                node = node.value[int(part)]
            else:
                return None
        return node


def from_plain(value: Any, origin: Origin = DEFAULT) -> Node:
    """Wrap a plain value; every part gets the same origin."""
    if isinstance(value, dict):
        return Node({key: from_plain(child, origin) for key, child in value.items()}, origin)
    if isinstance(value, list):
        return Node([from_plain(child, origin) for child in value], origin)
    return Node(value, origin)


def parse_scalar(text: str) -> Any:
    """A plain (unquoted) YAML 1.2 scalar, with `_` allowed inside numbers."""
    if text in _WORDS:
        return _WORDS[text]
    if _INT.match(text):
        return int(text.replace("_", ""))
    if _HEX.match(text):
        return int(text, 16)
    if _FLOAT.match(text):
        return float(text.replace("_", ""))
    return text


class _PlainLoader(yaml.SafeLoader):
    """Composes nodes only; with no implicit resolvers, any other tag than str/seq/map was written by hand."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012


class _Converter:
    def __init__(self, source: str):
        self.source = source
        self.count = 0
        self.open_nodes: set[int] = set()

    def origin(self, node: yaml.Node) -> Origin:
        return Origin(self.source, node.start_mark.line + 1, node.start_mark.column + 1)

    def fail(self, node: yaml.Node, message: str) -> UserError:
        return UserError(f"{self.origin(node)}: {message}")

    def convert(self, node: yaml.Node) -> Node:
        self.count += 1
        if self.count > _MAX_NODES:
            raise self.fail(node, f"more than {_MAX_NODES} values; aliases that multiply are not accepted")
        if id(node) in self.open_nodes:
            raise self.fail(node, "this alias contains itself")
        if node.tag.rpartition(":")[2] not in ("str", "seq", "map"):
            raise self.fail(node, f"tags are not accepted: remove '{node.tag}'")
        self.open_nodes.add(id(node))
        try:
            if isinstance(node, yaml.ScalarNode):
                if node.style is None and len(node.value) > _MAX_DIGITS and _NUMBER.match(node.value):
                    raise self.fail(node, f"a number of {len(node.value)} characters; what was meant?")
                value = parse_scalar(node.value) if node.style is None else node.value
                return Node(value, self.origin(node))
            if isinstance(node, yaml.SequenceNode):
                return Node([self.convert(child) for child in node.value], self.origin(node))
            assert isinstance(node, yaml.MappingNode)
            return self.mapping(node)
        finally:
            self.open_nodes.discard(id(node))

    def mapping(self, node: yaml.MappingNode) -> Node:
        result = Node({}, self.origin(node))
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise self.fail(key_node, "a key must be a plain word")
            key = str(key_node.value)
            if key == "<<":
                raise self.fail(key_node, "merge keys ('<<') are not accepted; use `extends:` for a shared base")
            if key in result.value:
                raise self.fail(key_node, f"the key '{key}' stands twice; first at {result.key_origins[key]}")
            result.value[key] = self.convert(value_node)
            result.key_origins[key] = self.origin(key_node)
        return result


def parse_yaml(text: str, source: str) -> Node:
    """Parse one YAML document. Raises UserError with `source:line:column` on any fault of syntax."""
    try:
        root = yaml.compose(text, Loader=_PlainLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{source}:{mark.line + 1}:{mark.column + 1}" if mark else source
        raise UserError(f"{where}: not valid YAML: {error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise UserError(f"{source}: not valid YAML: {error}") from None
    except RecursionError:
        raise UserError(f"{source}: nested too deeply to be read; is a bracket repeated by mistake?") from None
    if root is None:
        return Node({}, Origin(source, 1, 1))
    return _Converter(source).convert(root)


def read_yaml(path: Path) -> Node:
    """Read and parse a file whose top level is a mapping."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read: {error}") from None
    node = parse_yaml(text, str(path))
    if not node.is_mapping:
        raise UserError(f"{node.origin}: a run file is a mapping of sections (run:, data:, model:, ...)")
    return node


class PlainDumper(yaml.SafeDumper):
    """Writes YAML that `parse_yaml` reads back: strings that YAML 1.2 would take for something else are quoted."""


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = None if isinstance(parse_scalar(text), str) else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


PlainDumper.add_representer(str, _represent_text)


def parse_override(text: str) -> Node:
    """`a.b.c=value` (value as in YAML) -> the nested mapping it stands for."""
    dotted, equals, value_text = text.partition("=")
    origin = Origin(f"--set {text}")
    keys = dotted.strip().split(".")
    if not equals or not all(keys):
        raise UserError(f"{origin}: write it as --set section.key=value")
    value = parse_yaml(value_text, str(origin)).plain() if value_text.strip() else None
    node = from_plain(value, origin)
    for key in reversed(keys):
        node = Node({key: node}, origin, {key: origin})
    return node
