"""A whole training step at a small shape: ours against the plain loop, in tokens/s and peak memory.

    python benchmarks/train_step.py [--rounds 3] [--layers 4 --hidden-size 256 --heads 2 --vocab-size 8192]

The plain loop is what a good small trainer does: model and cross-entropy over full fp32 logits compiled as one graph,
torch's own Muon and fused AdamW, malloc as the system has it. Ours is the trainer's step: chunked loss, batched Muon,
malloc thresholds raised. Same model code, same bf16 compute over fp32 weights, same random tokens, one process each,
taking turns.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from typing import Any

WARM_UP, STEPS = 8, 25


def run(which: str, arguments: argparse.Namespace) -> dict[str, float]:
    """Steps of one contender in this process: median tokens/s and peak resident GiB."""
    if which == "ours":
        from littlelm.train.malloc import raise_malloc_thresholds

        raise_malloc_thresholds()
    import torch
    import torch.nn.functional as F

    from littlelm import registry
    from littlelm.loss.configs import ChunkedLossConfig
    from littlelm.model.configs import TransformerConfig
    from littlelm.model.transformer import Transformer
    from littlelm.optim.clip import clip_grad_norm
    from littlelm.optim.configs import AdamWConfig, CompositeConfig, MuonConfig
    from littlelm.train.distributed import World
    from littlelm.train.step import StepRunner

    config = TransformerConfig(
        hidden_size=arguments.hidden_size,
        num_hidden_layers=arguments.layers,
        num_attention_heads=arguments.heads,
        max_position_embeddings=512,
        qk_norm=True,
        logit_softcap=15.0,
        residual_scalars=True,
        value_embeddings="alternate",
        value_embedding_gate=True,
    )
    model = Transformer(config, arguments.vocab_size)
    model.init_weights(torch.Generator().manual_seed(0))
    model.compute_dtype = torch.bfloat16
    tokens = torch.randint(0, arguments.vocab_size, (8, 513), generator=torch.Generator().manual_seed(1))
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    count = targets.numel()
    named, roles = list(model.named_parameters()), model.parameter_roles()
    optimizers: list[Any]
    if which == "ours":
        runner = StepRunner(
            model, registry.build(ChunkedLossConfig()), World(0, 1, 0, torch.device("cpu")), True, print
        )
        optimizers = [registry.build(CompositeConfig(matrix=MuonConfig(), default=AdamWConfig()), named, roles)]

        def backward() -> None:
            runner.micro_step(inputs, targets, count, last=True)

    else:

        def objective(inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            logits = model.logits(model(inputs))  # (B, T, V) fp32
            return F.cross_entropy(logits.flatten(0, 1), targets.flatten())

        compiled = torch.compile(objective, dynamic=False)
        matrices = [parameter for name, parameter in named if roles[name] == "matrix"]
        others = [parameter for name, parameter in named if roles[name] != "matrix"]
        optimizers = [torch.optim.Muon(matrices, lr=0.02), torch.optim.AdamW(others, lr=3e-4, fused=True)]

        def backward() -> None:
            compiled(inputs, targets).backward()  # type: ignore[no-untyped-call]

    times = []
    for step in range(WARM_UP + STEPS):
        started = time.perf_counter()
        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none=True)
        backward()
        clip_grad_norm(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
        if step >= WARM_UP:
            times.append(time.perf_counter() - started)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return {"tokens_per_second": count / statistics.median(times), "peak_gib": peak}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--hidden-size", type=int, default=256)
    parser.add_argument("--heads", type=int, default=2)
    parser.add_argument("--vocab-size", type=int, default=8192)
    parser.add_argument("--only", choices=["ours", "plain"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.only:
        print(json.dumps(run(arguments.only, arguments)))
        return
    results: dict[str, list[dict[str, float]]] = {"plain": [], "ours": []}
    for _ in range(arguments.rounds):
        for which, found in results.items():
            command = [sys.executable, __file__, *sys.argv[1:], "--only", which]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            found.append(json.loads(done.stdout.splitlines()[-1]))
    plain = statistics.median(each["tokens_per_second"] for each in results["plain"])
    for which, found in results.items():
        speeds = [each["tokens_per_second"] for each in found]
        middle, peak = statistics.median(speeds), max(each["peak_gib"] for each in found)
        rounds = ", ".join(f"{speed:,.0f}" for speed in speeds)
        print(f"{which:6} {middle:9,.0f} tokens/s ({rounds})  {middle / plain:.2f}x  {peak:.2f} GiB")


if __name__ == "__main__":
    main()
