"""Forward and backward of one optimizer step: micro-batches, gradient accumulation, DDP, compilation."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from littlelm.train.distributed import World


class StepModule(nn.Module):
    """Model and loss as one module, so that DDP sees every parameter used inside its forward."""

    def __init__(self, model: nn.Module, loss: nn.Module):
        super().__init__()
        self.model = model
        self.loss = loss
        self.forward_model: Callable[..., Tensor] = model  # replaced by the compiled one

    def forward(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """(B, T) int64 inputs and targets -> (objective_sum, nll_sum), fp32 scalars."""
        hidden = self.forward_model(inputs)  # (B, T, D)
        model: Any = self.model
        return self.loss(
            hidden.flatten(0, 1), model.head_weight, targets.flatten(), model.vocab_size, model.logit_softcap
        )


class StepRunner:
    """Runs the forward/backward passes of an optimizer step and leaves the mean gradient in `.grad`.

    The objective is divided by the counted targets of the *whole* global batch, so micro-batch, accumulation and
    world size change nothing but rounding.
    """

    def __init__(self, model: nn.Module, loss: nn.Module, world: World, compile: bool, say: Callable[[str], None]):
        self.world = world
        self.module = StepModule(model, loss)
        self.say = say
        self.compiled = compile
        self.first = True
        if compile:
            self.module.forward_model = torch.compile(model, dynamic=False)
        self.runner: nn.Module = self.module
        if world.size > 1:
            # gradient_as_bucket_view saves one copy of the gradients; the mean over ranks is undone in `_backward`.
            devices = [world.device.index] if world.device.type == "cuda" else None
            self.runner = DistributedDataParallel(self.module, device_ids=devices, gradient_as_bucket_view=True)

    def _backward(self, module: nn.Module, inputs: Tensor, targets: Tensor, num_targets: int) -> Tensor:
        objective, nll = module(inputs, targets)
        (objective * (self.world.size / num_targets)).backward()
        return nll.detach()

    def micro_step(self, inputs: Tensor, targets: Tensor, num_targets: int, last: bool) -> Tensor:
        """One forward/backward; gradients add up, and cross ranks on the last one. Returns the nll sum (fp32)."""
        hold = self.runner.no_sync() if isinstance(self.runner, DistributedDataParallel) and not last else None
        with hold or contextlib.nullcontext():
            nll = self._backward_or_eager(self.runner, inputs, targets, num_targets)
        self.first = False
        return nll

    def probe(self, inputs: Tensor, targets: Tensor) -> None:
        """One forward/backward of this process alone, to see whether it fits: no rank waits for another."""
        self._backward_or_eager(self.module, inputs, targets, targets.numel())

    def _backward_or_eager(self, module: nn.Module, inputs: Tensor, targets: Tensor, num_targets: int) -> Tensor:
        """The first pass compiles; where that fails, it and all later ones are eager."""
        try:
            return self._backward(module, inputs, targets, num_targets)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            if not (self.first and self.compiled and _is_compile_failure(error)):
                raise
            lines = str(error).strip().splitlines() or [type(error).__name__]
            self.say(f"torch.compile failed, going on in eager mode (slower): {type(error).__name__}: {lines[0]}")
            self.compiled = False
            self.module.forward_model = self.module.model
            self.module.zero_grad(set_to_none=True)
        return self._backward(module, inputs, targets, num_targets)


def _is_compile_failure(error: BaseException) -> bool:
    """Whether an error comes from the compiler (dynamo, inductor, a missing C++ compiler) and not from the model."""
    seen: BaseException | None = error
    while seen is not None:
        if type(seen).__module__.startswith(("torch._dynamo", "torch._inductor")):
            return True
        seen = seen.__cause__ or seen.__context__
    return False
