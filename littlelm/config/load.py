"""Files, `extends`, `--set` and plugins -> one resolved, validated config."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import yaml

from littlelm import registry
from littlelm.config.base import ConfigModel
from littlelm.config.merge import fill_defaults, interpolate, merge_mapping, to_plain
from littlelm.config.nodes import Node, Origin, PlainDumper, parse_override, read_yaml
from littlelm.config.shapes import shapes_of
from littlelm.config.validate import validate
from littlelm.errors import UserError

C = TypeVar("C", bound=ConfigModel)


@dataclass(frozen=True)
class Loaded(Generic[C]):
    """A resolved config: the typed object, and the tree it came from (every value with its origin)."""

    config: C
    tree: Node
    files: list[Path]


def load(
    path: Path | str,
    root: type[C],
    *,
    overrides: list[str] | None = None,
    defaults: Path | None = None,
) -> Loaded[C]:
    """Read a run file into `root`.

    Layers, later ones winning: the `defaults` file, the chain of `extends:`, the file, `--set` overrides.
    Raises UserError: `ConfigError` with every problem at once, or the first fault that prevents reading at all.
    """
    registry.load_builtins()
    path = Path(path)
    if path.is_dir():
        raise UserError(f"{path} is a directory; give a YAML file (a run directory holds its own config.yaml)")
    layers: list[tuple[Path, Node]] = []
    _collect(path, layers, ())
    given = [(Path.cwd() / "--set", parse_override(text)) for text in overrides or []]
    plugins = _load_plugins([*layers, *given])  # those named by --set are relative to the current directory
    shapes = shapes_of(root)
    tree = Node({}, Origin(str(path), 1, 1))
    if defaults is not None:
        tree = merge_mapping(None, _relabel(read_yaml(defaults)), shapes)
    for _, layer in layers:
        tree = merge_mapping(tree, layer, shapes)
    for _, override in given:
        tree = merge_mapping(tree, override, shapes)
    tree = Node(tree.value, Origin(str(path), 1, 1), tree.key_origins)
    if plugins:
        tree.value["plugins"] = plugins
    _name_the_run(tree, path)
    tree = interpolate(fill_defaults(tree, root))
    return Loaded(validate(tree, root), tree, [layer_path for layer_path, _ in layers])


def dump(config: ConfigModel) -> str:
    """A config as a YAML file that `load` reads back to an equal one, every default explicit."""
    return yaml.dump(to_plain(config), Dumper=PlainDumper, sort_keys=False, allow_unicode=True, width=120)


def _relabel(node: Node) -> Node:
    """Values of the packaged defaults file carry the origin `default`."""
    if isinstance(node.value, dict):
        return Node({key: _relabel(child) for key, child in node.value.items()})
    return Node([_relabel(child) for child in node.value]) if isinstance(node.value, list) else Node(node.value)


def _name_the_run(tree: Node, path: Path) -> None:
    """`run.name` defaults to the file's stem."""
    run = tree.value.setdefault("run", Node({}))
    if run.is_mapping and "name" not in run.value:
        run.value["name"] = Node(path.stem, Origin("default, from the file's name"))


def _collect(path: Path, layers: list[tuple[Path, Node]], chain: tuple[Path, ...]) -> None:
    """Read a file and what it extends, farthest first."""
    resolved = path.resolve()
    if resolved in chain:
        names = " -> ".join(item.name for item in (*chain, resolved))
        raise UserError(f"{path}: `extends` runs in a circle: {names}")
    node = read_yaml(path)
    parents = node.value.pop("extends", None)
    if parents is not None:
        for parent in parents.value if isinstance(parents.value, list) else [parents]:
            if not isinstance(parent.value, str):
                raise UserError(f"{parent.origin}: `extends` takes a file or a list of files, got {parent.plain()!r}")
            target = path.parent / Path(parent.value).expanduser()
            if not target.is_file():
                raise UserError(f"{parent.origin}: extends '{parent.value}': no such file ({target})")
            _collect(target, layers, (*chain, resolved))
    layers.append((path, node))


def _load_plugins(layers: list[tuple[Path, Node]]) -> Node | None:
    """Import the files named under `plugins:` (relative to the file that names them); return their full paths."""
    found: list[Node] = []
    for path, layer in layers:
        listed = layer.value.pop("plugins", None)
        if listed is None:
            continue
        for item in listed.value if isinstance(listed.value, list) else [listed]:
            if not isinstance(item.value, str):
                raise UserError(f"{item.origin}: `plugins` takes a list of Python files, got {item.plain()!r}")
            file = (path.parent / Path(item.value).expanduser()).resolve()
            if not file.is_file():
                raise UserError(f"{item.origin}: plugin '{item.value}': no such file ({file})")
            _import_plugin(file, item.origin)
            found.append(Node(str(file), item.origin))
    return Node(found, found[0].origin) if found else None


def _import_plugin(file: Path, origin: Any) -> None:
    name = f"littlelm_plugin_{file.stem}_{hashlib.sha256(str(file).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise UserError(f"{origin}: plugin {file}: not a Python file (its name must end in .py)")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except UserError:
        del sys.modules[name]
        raise
    except Exception as error:  # whatever a user's file raises is that user's to mend: name the file and line
        del sys.modules[name]
        line = _line_in(error, file)
        raise UserError(f"{origin}: plugin {file}{line}: {type(error).__name__}: {error}") from error


def _line_in(error: Exception, file: Path) -> str:
    if isinstance(error, SyntaxError):
        return f":{error.lineno}"
    lines = []
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == str(file):
            lines.append(trace.tb_lineno)
        trace = trace.tb_next
    return f":{lines[-1]}" if lines else ""
