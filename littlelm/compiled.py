"""A function compiled by torch.compile, one graph a kind of call, that falls back to eager and says so."""

from __future__ import annotations

import types
import warnings
from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch._dynamo.exc import TorchDynamoException
from torch._inductor.exc import CppCompileError


class CompiledOrEager:
    """`function`, compiled once for every `key` it is called with.

    Each key gets a code object of its own: dynamo counts recompilations by code object and stops compiling after
    eight, so that a model with many matrix shapes would otherwise quietly end up in eager mode.

    Args:
        function: a plain function, traceable without a graph break.
        enabled: False runs it eagerly.
    """

    def __init__(self, function: Callable[..., Any], *, enabled: bool) -> None:
        self.function = function
        self.enabled = enabled
        self._compiled: dict[Hashable, Callable[..., Any]] = {}

    def __call__(self, key: Hashable, *args: Any) -> Any:
        """Call it with `args`; `key` says which graph: everything that its shapes depend on."""
        if not self.enabled:
            return self.function(*args)
        compiled = self._compiled.get(key)
        if compiled is None:
            compiled = self._compiled[key] = torch.compile(self._copy(), fullgraph=True, dynamic=False)
        try:
            return compiled(*args)
        except (TorchDynamoException, CppCompileError) as error:  # raised before anything ran: args are untouched
            self.enabled = False
            reason = str(error).strip().splitlines()[0]
            warnings.warn(
                f"torch.compile of {self.function.__qualname__} failed, going on without it, slower: {reason}",
                RuntimeWarning,
                stacklevel=2,
            )
            return self.function(*args)

    def _copy(self) -> Callable[..., Any]:
        function = self.function
        assert isinstance(function, types.FunctionType)
        copy = types.FunctionType(
            function.__code__.replace(co_name=f"{function.__name__}_{len(self._compiled)}"),
            function.__globals__,
            function.__name__,
            function.__defaults__,
            function.__closure__,
        )
        copy.__kwdefaults__ = function.__kwdefaults__
        return copy
