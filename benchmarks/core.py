"""CORE: the packed engine against the reference engine, same model, same items, one run.

    python benchmarks/core.py HF_DIR|RUN BUNDLE [--items 40] [--task arc_easy ...] [--max-length 2048]

Prints, by task: tokens of the rows and tokens computed, seconds of both engines and their ratio, whether every
decision is the same, the largest difference of a token's loss and of a row's mean; then the whole, the four-choice
tasks with examples, what a second preparation costs, and, by arithmetic, a full evaluation of the 3.8B model on
8 x B200.

The items are the first ones in the order asked, with the prompts of a full run. Run it alone on the machine: with two
threads a neighbour halves the speed of one engine and not of the other.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from littlelm.train.malloc import raise_malloc_thresholds

LITTLE_3_8B = {"hidden": 3072, "layers": 28, "heads_width": 3072, "matrices": 2_818_572_288, "head": 154_533_888}
B200_BF16, GPUS, MFU = 2.25e15, 8, 0.4  # dense FLOP/s of one, how many, the share that is reached


def full_evaluation(rows: Any, packs: list[Any]) -> dict[str, float]:
    """FLOP of a forward pass over the packs for the 3.8B model; the head at scored positions alone."""
    model = LITTLE_3_8B
    tokens = sum(pack.cost for pack in packs)
    pairs = 0.0  # of a query and a key it sees
    for pack in packs:
        tails = sum(len(family.fed) for family in pack.families)
        pairs += len(pack.families) * pack.prefix**2 / 2 + tails * (pack.tail * pack.prefix + pack.tail**2 / 2)
    scored = int(np.maximum(0, rows.length - rows.start).sum())
    return {
        "tokens": tokens,
        "products": 2.0 * model["matrices"] * tokens,
        "attention": 4.0 * model["layers"] * model["heads_width"] * pairs,
        "head": 2.0 * model["head"] * scored,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("bundle")
    parser.add_argument("--items", type=int, default=40, help="items of each task")
    parser.add_argument("--task", action="append", help="only this task; may be repeated")
    parser.add_argument("--max-length", type=int, default=2048)
    parser.add_argument("--pack-tokens", type=int)
    parser.add_argument("--grain", type=int, default=4, help="lengths are multiples of this many tokens")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--clock",
        choices=("wall", "cpu"),
        default="wall",
        help="cpu: of this process, with 1 thread, on a busy machine",
    )
    parser.add_argument("--cache-dir", type=Path, help="default: a fresh one, so that preparation is measured")
    arguments = parser.parse_args()
    raise_malloc_thresholds()  # before torch allocates: both engines profit

    import torch

    from littlelm.commands.evaluate import load_subject
    from littlelm.evals.core.bundle import open_bundle
    from littlelm.evals.core.cuts import cut_rows
    from littlelm.evals.core.engine import PACK_TOKENS, run_packs
    from littlelm.evals.core.evaluate import decide
    from littlelm.evals.core.packs import RowTokens, plan_packs
    from littlelm.evals.core.prepared import prepare_rows
    from littlelm.evals.core.reference import evaluate_reference

    clock = time.perf_counter if arguments.clock == "wall" else time.process_time
    torch.set_num_threads(arguments.threads)
    subject = load_subject(arguments.model, "auto", "fp32")
    limit = min(subject.context, arguments.max_length)
    scratch = tempfile.TemporaryDirectory()
    cache_dir = arguments.cache_dir or Path(scratch.name)
    bundle = open_bundle(arguments.bundle, cache_dir)
    first = prepare_rows(bundle, subject.tokenizer, cache_dir).seconds
    prepared = prepare_rows(open_bundle(arguments.bundle, cache_dir), subject.tokenizer, cache_dir)
    started = time.perf_counter()
    rows = RowTokens(prepared, cut_rows(prepared, limit, "crop_left", subject.tokenizer.token_bytes))
    cutting = time.perf_counter() - started
    pack_tokens = arguments.pack_tokens or PACK_TOKENS["cpu"]
    how = f"limit {limit}, {arguments.threads} threads, {arguments.clock} clock, fp32"
    print(f"{arguments.model}, {how}; the first {arguments.items} items")
    print(
        f"{'task':32} {'items':>5} {'rows':>9} {'computed':>9} {'reference':>10} {'packed':>8} {'ratio':>6}  same  loss"
    )
    sums: dict[str, list[float]] = {"all": [0, 0, 0, 0], "four-choice, with examples": [0, 0, 0, 0]}
    for number, task in enumerate(prepared.tasks):
        if arguments.task and task.label not in arguments.task:
            continue
        begin = int(prepared.task_items[number])
        items = np.arange(begin, min(begin + arguments.items, int(prepared.task_items[number + 1])))
        started = clock()
        packs = plan_packs(rows, items.tolist(), pack_tokens, arguments.grain)
        run = run_packs(subject.model, rows, packs, pad_id=subject.tokenizer.bos_id)
        decisions = decide(prepared, items, run.scores)
        packed = clock() - started
        oracle = bundle.select([task.label])
        oracle.items(task)  # parsed before the clock starts
        wanted = {task.label: set(range(len(items)))}.get
        started = clock()
        found = list(evaluate_reference(subject.model, oracle, subject.tokenizer, limit, None, wanted))
        reference = clock() - started
        position = {row: place for place, row in enumerate(run.scores.rows.tolist())}
        worst, mean, same = 0.0, 0.0, 0
        for one in found:
            item = begin + one.index
            decision = decisions[item]
            same += (decision.chosen, decision.correct) == (one.decision.chosen, one.decision.correct)
            for row, losses in zip(
                range(prepared.item_rows[item], prepared.item_rows[item + 1]), one.losses, strict=True
            ):
                if row in position:
                    theirs = run.scores.losses[run.scores.of(position[row])]
                    worst = max(worst, float(np.abs(theirs - losses).max()))
                    mean = max(mean, abs(float(theirs.mean(dtype=np.float64) - losses.mean(dtype=np.float64))))
        tokens = sum(len(row) for one in found for row in one.tokens)
        computed = sum(pack.cost for pack in packs)
        print(
            f"{task.label:32} {len(items):5} {tokens:9,} {computed:9,} {reference:9.1f}s {packed:7.1f}s "
            f"{reference / packed:6.2f}  {same}/{len(found)}  {worst:.1e} {mean:.1e}",
            flush=True,
        )
        four = task.type == "choice" and task.shots and len(found[0].tokens) == 4
        for name in ["all", *(["four-choice, with examples"] if four else [])]:
            sums[name] = [a + b for a, b in zip(sums[name], (tokens, computed, reference, packed), strict=True)]
    for name, (fed, made, slow, fast) in sums.items():
        if fast:
            print(f"{name:38} {fed:9,} {made:9,} {slow:9.1f}s {fast:7.1f}s {slow / fast:6.2f}")
    print(f"preparing the whole bundle: {first:.1f} s; a second time {prepared.seconds:.2f} s, cutting {cutting:.2f} s")
    started = time.perf_counter()
    packs = plan_packs(rows, range(prepared.num_items), PACK_TOKENS["cuda"])
    planning = time.perf_counter() - started
    flop = full_evaluation(rows, packs)
    total = flop["products"] + flop["attention"] + flop["head"]
    naive = int(rows.length.sum())
    print(
        f"a full evaluation at {limit} tokens: {prepared.num_items:,} items, {naive / 1e6:.1f}M tokens of rows, "
        f"{flop['tokens'] / 1e6:.1f}M computed in {len(packs):,} packs (planned in {planning:.1f} s)"
    )
    print(
        f"3.8B on 8 x B200: {total:.3g} FLOP ({flop['products']:.3g} products + {flop['attention']:.3g} attention + "
        f"{flop['head']:.3g} head) / ({GPUS} x {B200_BF16:.3g} FLOP/s x {MFU}) = "
        f"{total / (GPUS * B200_BF16 * MFU):.0f} s"
    )


if __name__ == "__main__":
    main()
