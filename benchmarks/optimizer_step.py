"""Time of one optimizer step over the matrices of a small transformer: ours against torch.optim.Muon.

    python benchmarks/optimizer_step.py --layers 6 --hidden-size 384

Prints milliseconds and, what counts, ratios to torch.optim.Muon. The contenders take turns, and the median of the
rounds is taken, so that a busy machine slows all of them alike.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

from littlelm.train.malloc import raise_malloc_thresholds

print(raise_malloc_thresholds())

import torch  # noqa: E402
from torch.nn import Parameter  # noqa: E402

from littlelm.optim.adamw import AdamW  # noqa: E402
from littlelm.optim.configs import AdamWConfig, MuonConfig  # noqa: E402
from littlelm.optim.muon import Muon  # noqa: E402


def matrices(layers: int, hidden_size: int, device: str) -> list[tuple[str, Parameter]]:
    """Query, key, value, output, up and down of every layer, with random gradients."""
    shapes = [(hidden_size, hidden_size)] * 4 + [(4 * hidden_size, hidden_size), (hidden_size, 4 * hidden_size)]
    named = []
    for index in range(layers):
        for place, shape in enumerate(shapes):
            parameter = Parameter(torch.randn(shape, device=device))
            parameter.grad = torch.randn_like(parameter)
            named.append((f"{index}.{place}", parameter))
    return named


def contenders(layers: int, hidden_size: int, device: str) -> dict[str, torch.optim.Optimizer]:
    """Caption -> optimizer, each with matrices of its own; the first is the measure."""
    found: dict[str, torch.optim.Optimizer] = {}
    named = matrices(layers, hidden_size, device)
    found["torch.optim.Muon"] = torch.optim.Muon([parameter for _, parameter in named], lr=1e-3)
    for compiled in (False, True):
        named = matrices(layers, hidden_size, device)
        roles = dict.fromkeys((name for name, _ in named), "matrix")
        found[f"muon, {'compiled' if compiled else 'eager'}"] = Muon(
            MuonConfig(lr=1e-3, weight_decay=0.1, coefficients="classic", compile=compiled), named, roles
        )
    named = matrices(layers, hidden_size, device)
    roles = dict.fromkeys((name for name, _ in named), "matrix")
    found["adamw, for comparison"] = AdamW(AdamWConfig(), named, roles)
    return found


def milliseconds(step: Callable[[], object], device: str) -> float:
    """One call, from idle to idle."""
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    step()
    if device == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - start) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--hidden-size", type=int, default=384)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments = parser.parse_args()
    optimizers = contenders(arguments.layers, arguments.hidden_size, arguments.device)
    times: dict[str, list[float]] = {caption: [] for caption in optimizers}
    for number in range(arguments.rounds + 2):
        for caption, optimizer in optimizers.items():
            taken = milliseconds(optimizer.step, arguments.device)
            if number >= 2:  # the first two compile and warm up
                times[caption].append(taken)
    measure = statistics.median(next(iter(times.values())))
    for caption, rounds in times.items():
        median = statistics.median(rounds)
        print(f"{caption:24} {median:8.1f} ms   {median / measure:5.2f} x torch.optim.Muon")


if __name__ == "__main__":
    main()
