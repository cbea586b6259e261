"""The one registry: (kind, name) -> a typed config and the class or function that is built from it.

Two ways to register, one table:

    @register("scheduler", "trapezoidal", config=TrapezoidalConfig)   # the implementation is cheap to import
    class Trapezoidal: ...

    @register_lazy("optimizer", "muon", "littlelm.optim.muon:Muon")   # the implementation needs torch
    class MuonConfig(ComponentConfig): ...

The second keeps `little-lm config show` free of torch: configs are read and checked before anything heavy loads.
A user's own file, named under `plugins:`, uses the first.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from littlelm.config.base import ComponentConfig
from littlelm.errors import UserError

_T = TypeVar("_T")
_C = TypeVar("_C", bound=type[ComponentConfig])

# Modules that register the built-in components, all free of torch.
BUILTIN_MODULES = (
    "littlelm.tokenizers.configs",
    "littlelm.data.configs",
    "littlelm.model.configs",
    "littlelm.optim.configs",
    "littlelm.optim.schedules",
    "littlelm.precision.configs",
    "littlelm.loss.configs",
    "littlelm.callbacks.configs",
    "littlelm.evals.configs",
)


@dataclass(frozen=True)
class Entry:
    """One registered component."""

    kind: str
    name: str
    config: type[ComponentConfig]
    implementation: Any  # the class or function itself, or "module:attribute" until first use

    def load(self) -> Any:
        """Return the class or function, importing its module when it was registered lazily."""
        if isinstance(self.implementation, str):
            module_name, _, attribute = self.implementation.partition(":")
            return getattr(importlib.import_module(module_name), attribute)
        return self.implementation


_entries: dict[str, dict[str, Entry]] = {}
_contracts: dict[str, str] = {}


def declare_kind(kind: str, contract: str) -> None:
    """Declare a kind of component and say in one sentence what its implementation must provide."""
    _contracts[kind] = contract
    _entries.setdefault(kind, {})


def _add(entry: Entry) -> None:
    known = _entries.setdefault(entry.kind, {})
    before = known.get(entry.name)
    if before is not None and before.config.__qualname__ != entry.config.__qualname__:
        raise UserError(
            f"the {entry.kind} '{entry.name}' is registered twice: by {before.config.__module__} and by "
            f"{entry.config.__module__}; give yours another name"
        )
    entry.config.kind = entry.kind
    entry.config.name = entry.name
    known[entry.name] = entry


def register(kind: str, name: str, *, config: type[ComponentConfig]) -> Callable[[_T], _T]:
    """Decorate the implementation (class or function) of a component; `config` is its typed config."""

    def decorate(implementation: _T) -> _T:
        _add(Entry(kind, name, config, implementation))
        return implementation

    return decorate


def register_lazy(kind: str, name: str, implementation: str) -> Callable[[_C], _C]:
    """Decorate the config of a component whose implementation, "module:attribute", is imported on first use."""

    def decorate(config: _C) -> _C:
        _add(Entry(kind, name, config, implementation))
        return config

    return decorate


def load_builtins() -> None:
    """Import every module that registers built-in components (idempotent, free of torch)."""
    for module in BUILTIN_MODULES:
        importlib.import_module(module)


def kinds() -> dict[str, str]:
    """Kind -> its contract, in order of declaration."""
    load_builtins()
    return dict(_contracts)


def names(kind: str) -> list[str]:
    """Sorted names registered under `kind`."""
    load_builtins()
    return sorted(_entries.get(kind, {}))


def entry(kind: str, name: str) -> Entry:
    """Look a component up. Raises UserError with the nearest valid name when there is none."""
    load_builtins()
    found = _entries.get(kind, {}).get(name)
    if found is None:
        raise UserError(f"unknown {kind} '{name}'{did_you_mean(name, names(kind))}")
    return found


def did_you_mean(given: str, valid: list[str]) -> str:
    """A clause naming the closest valid names: `; did you mean 'x'?` or `; valid: a, b, c`."""
    close = difflib.get_close_matches(given, valid, n=1, cutoff=0.6)
    if close:
        return f"; did you mean '{close[0]}'?"
    return f"; valid: {', '.join(valid)}" if valid else ""


def build(config: ComponentConfig, /, *args: Any, **kwargs: Any) -> Any:
    """Build the component a config describes: calls its implementation with `(config, *args, **kwargs)`."""
    return entry(config.kind, config.name).load()(config, *args, **kwargs)
