"""Time and memory of the loss over the vocabulary, forward and backward: chunked against full logits.

    python benchmarks/linear_cross_entropy.py --tokens 4096 --hidden-size 384 --vocab-size 50304

Prints milliseconds, the rise of the peak of the resident memory (CPU) or of the allocator's memory (CUDA), and ratios
to the compiled full logits. Each contender runs in a process of its own, as memory that was once resident stays; the
processes take turns for several rounds, and the median is taken.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

CONTENDERS = ("full, compiled", "full, eager", "chunked", "chunked in a compiled step", "chunked, eager")


def measure(contender: str, arguments: argparse.Namespace) -> dict[str, float]:
    """Milliseconds and extra MiB of one contender, in this process."""
    from littlelm.train.malloc import raise_malloc_thresholds

    raise_malloc_thresholds()
    import torch

    from littlelm.loss.chunked import ChunkedLoss
    from littlelm.loss.configs import ChunkedLossConfig, FullLossConfig
    from littlelm.loss.full import FullLoss

    generator = torch.Generator().manual_seed(0)
    shape = (arguments.tokens, arguments.hidden_size)
    hidden = torch.randn(shape, generator=generator).to(arguments.device, torch.bfloat16).requires_grad_()
    weight = torch.randn(arguments.vocab_size, arguments.hidden_size, generator=generator).mul_(0.05)
    weight = weight.to(arguments.device).requires_grad_()
    targets = torch.randint(0, arguments.vocab_size, shape[:1], generator=generator).to(arguments.device)
    loss: Any = FullLoss(FullLossConfig())
    if contender.startswith("chunked"):
        chunk: Any = arguments.chunk_tokens or "auto"
        loss = ChunkedLoss(ChunkedLossConfig(chunk_tokens=chunk, compile="eager" not in contender))

    def objective(hidden: Any, weight: Any) -> Any:
        return loss(hidden, weight, targets, arguments.vocab_size, arguments.softcap or None)[0] / arguments.tokens

    if "compiled" in contender:
        objective = torch.compile(objective)

    def step() -> None:
        hidden.grad = weight.grad = None
        objective(hidden, weight).backward()
        if arguments.device == "cuda":
            torch.cuda.synchronize()

    before = _peak_mib(arguments.device)
    step()
    step()
    extra = _peak_mib(arguments.device) - before
    times = [_milliseconds(step) for _ in range(arguments.repeats)]
    return {"milliseconds": statistics.median(times), "extra_mib": extra}


def _peak_mib(device: str) -> float:
    if device == "cuda":
        import torch

        return torch.cuda.max_memory_allocated() / 2**20
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def _milliseconds(step: Callable[[], None]) -> float:
    start = time.perf_counter()
    step()
    return (time.perf_counter() - start) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--hidden-size", type=int, default=256)
    parser.add_argument("--vocab-size", type=int, default=8192)
    parser.add_argument("--softcap", type=float, default=15.0, help="0: none")
    parser.add_argument("--chunk-tokens", type=int, default=0, help="0: auto")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--only", choices=CONTENDERS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.only:
        print(json.dumps(measure(arguments.only, arguments)))
        return
    results: dict[str, list[dict[str, float]]] = {contender: [] for contender in CONTENDERS}
    for _ in range(arguments.rounds):
        for contender in CONTENDERS:
            command = [sys.executable, *sys.argv, "--only", contender]
            ran = subprocess.run(command, capture_output=True, text=True, check=True)
            results[contender].append(json.loads(ran.stdout.splitlines()[-1]))
    base = statistics.median(result["milliseconds"] for result in results[CONTENDERS[0]])
    base_mib = statistics.median(result["extra_mib"] for result in results[CONTENDERS[0]])
    for contender, runs in results.items():
        taken = statistics.median(result["milliseconds"] for result in runs)
        extra = statistics.median(result["extra_mib"] for result in runs)
        print(
            f"{contender:28} {taken:8.1f} ms {taken / base:6.2f} x    "
            f"{extra:8.0f} MiB {extra / max(base_mib, 1.0):6.2f} x"
        )


if __name__ == "__main__":
    main()
