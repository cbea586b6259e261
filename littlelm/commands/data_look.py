"""`little-lm data stats | show | where | contamination`: looking into prepared data."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from littlelm.commands.data import make_console, open_data
from littlelm.errors import UserError

_CONTEXTS = (512, 1024, 2048, 4096, 8192)
_MOST_TOKENS = 1_000_000_000  # on which packing is tried out; more tells nothing new
_TOP_FILES = 10
_BAR = 40


def show_stats(file: Path, overrides: list[str], out: Path | None) -> None:
    """Documents, tokens, lengths as a picture, largest files, packing at several context lengths."""
    from littlelm.data.look import document_lengths

    console = make_console()
    _, prepared = open_data(file, overrides, console)
    console.print(prepared.report_table())
    lengths = np.concatenate(list(document_lengths(prepared)))
    console.print("\ndocument length in tokens, BOS included")
    counts, edges = length_histogram(lengths)
    for count, edge in zip(counts.tolist(), edges.tolist(), strict=True):
        console.print(
            f"  {edge:>9,} - {2 * edge - 1:<11,} {'█' * round(_BAR * count / max(1, counts.max())):<40} {count:,}"
        )
    quantiles = np.quantile(lengths, [0.1, 0.5, 0.9, 0.99]).astype(int)
    names = ("10 %", "half", "90 %", "99 %")
    console.print("  " + ", ".join(f"{n} up to {q:,}" for n, q in zip(names, quantiles, strict=True)))
    console.print(_largest_files(prepared))
    console.print(_packing_table(prepared, console))
    if out is not None:
        _draw(prepared, lengths, out)
        console.print(f"{out}: the lengths as a picture")


def length_histogram(lengths: Any) -> tuple[Any, Any]:
    """(counts, lower edges) of document lengths in powers of two, from the shortest to the longest."""
    powers = np.floor(np.log2(np.maximum(lengths, 1))).astype(int)
    counts = np.bincount(powers)
    first = int(np.flatnonzero(counts)[0]) if len(counts) else 0
    return counts[first:], 2 ** np.arange(first, len(counts))


def _largest_files(prepared: Any) -> Table:
    table = Table("largest files", "documents", "tokens", "share", box=None, title_justify="left")
    tokens: Counter[str] = Counter()
    documents: Counter[str] = Counter()
    for shard in prepared.shards:
        lengths = shard.lengths()
        for number, name in enumerate(shard.entry["made_of"]):
            mine = lengths[shard.file_numbers() == number]
            tokens[name] += int(mine.sum())
            documents[name] += len(mine)
    total = max(1, sum(tokens.values()))
    for name, count in tokens.most_common(_TOP_FILES):
        table.add_row(name or "(no files)", f"{documents[name]:,}", f"{count:,}", f"{100 * count / total:.1f} %")
    if len(tokens) > _TOP_FILES:
        table.add_row(f"and {len(tokens) - _TOP_FILES:,} more", "", "", "")
    return table


def _packing_table(prepared: Any, console: Console) -> Table:
    from littlelm.data.look import utilisation
    from littlelm.data.packing.plan import summarise
    from littlelm.data.shards import ShardWriter
    from littlelm.data.workers import Workers, worker_count

    config = prepared.config
    row_lengths = [length + 1 for length in _CONTEXTS]
    some, tokens = [], 0
    for shard in prepared.shards:
        if tokens < _MOST_TOKENS:
            some.append(shard)
            tokens += shard.entry["tokens"]
    with Workers(ShardWriter(prepared.tokenizer), min(worker_count(config.workers), len(some))) as workers:
        jobs = [
            workers.submit(utilisation, shard.directory, shard.entry, config.packing, row_lengths) for shard in some
        ]
        results = [job.result()[0] for job in track(jobs, "packing", console=console, transient=True)]
    scope = "" if len(some) == len(prepared.shards) else f", {tokens:,} tokens of it"
    table = Table(f"context ({config.packing.name}{scope})", "utilisation", "padding", "crop", "split", box=None)
    for index, context in enumerate(_CONTEXTS):
        report = summarise(each[index] for each in results)
        table.add_row(
            f"{context:,}",
            f"{report['utilisation_percent']:.3f} %",
            f"{report['padding_percent']:.4f} %",
            f"{report['crop_percent']:.2f} %",
            f"{report['documents_split']:,} of {report['documents']:,}",
        )
    return table


def _draw(prepared: Any, lengths: Any, out: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 3.5), layout="constrained")
    bins = np.geomspace(max(1, lengths.min()), lengths.max() + 1, 60)
    axes.hist(lengths, bins=bins.tolist(), weights=lengths, color="#2f6f9f")
    axes.axvline(prepared.config.sequence_length + 1, color="#b03a2e", linewidth=1)
    axes.set(xscale="log", xlabel="tokens of a document", ylabel="tokens in such documents")
    axes.set_title(f"{len(lengths):,} documents, {int(lengths.sum()):,} tokens; red: the row", loc="left", fontsize=10)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    try:
        figure.savefig(out, dpi=150)
    except (OSError, ValueError) as error:
        raise UserError(f"{out}: cannot be written: {error}") from None
    finally:
        pyplot.close(figure)


def show_row(file: Path, overrides: list[str], step: int, row: int, characters: int) -> None:
    """The documents of one row of one step, decoded, with where they come from."""
    from littlelm.data.look import pieces_of_row

    console = make_console()
    config, prepared = open_data(file, overrides, console)
    if step >= config.total_steps:
        raise UserError(f"--step {step}: the run has {config.total_steps} steps, counted from 0")
    if row >= config.global_batch_rows:
        raise UserError(f"--row {row}: a step has {config.global_batch_rows} rows, counted from 0")
    loader = prepared.train_loader(config.global_batch_rows, config.run.seed, config.total_steps)
    for number, piece in enumerate(pieces_of_row(prepared, loader, step, row)):
        name, place = piece.origin
        part = "" if piece.end - piece.begin == piece.tokens else f", tokens {piece.begin}-{piece.end - 1}"
        source = config.data.source_ids[_source_of(prepared, piece.shard)]
        console.print(
            f"{number + 1}. {name}, {place} (source {source}, shard {piece.shard.name}, document {piece.document}): "
            f"{piece.tokens:,} tokens{part}",
            style="bold",
        )
        cut = len(piece.text) - characters
        console.print(piece.text[:characters] + (f"... ({cut:,} more characters)" if cut > 0 else ""), soft_wrap=True)


def _plan_of(prepared: Any, shard: Any) -> Any:
    pairs = (
        p
        for shards, plans in zip(prepared.sources, prepared.plans, strict=True)
        for p in zip(shards, plans, strict=True)
    )
    return next(plan for each, plan in pairs if each is shard)


def _source_of(prepared: Any, shard: Any) -> int:
    return next(index for index, shards in enumerate(prepared.sources) if shard in shards)


def find_text(file: Path, overrides: list[str], text: str, limit: int) -> None:
    """The documents that hold a text, and the steps at which the run reads them."""
    from littlelm.data.look import find_in_shard, rows_of_document, steps_of_document
    from littlelm.data.shards import ShardWriter
    from littlelm.data.workers import Workers, worker_count

    if not text:
        raise UserError("give a text to look for")
    console = make_console()
    config, prepared = open_data(file, overrides, console)
    loader = prepared.train_loader(config.global_batch_rows, config.run.seed, config.total_steps)
    needle, found, shards = text.encode(), 0, prepared.shards
    with Workers(ShardWriter(prepared.tokenizer), min(worker_count(config.data.workers), len(shards))) as workers:
        jobs = [(s, workers.submit(find_in_shard, s.directory, s.entry, needle)) for s in shards]
        for shard, job in track(jobs, "searching", console=console, transient=True):
            for document in job.result()[0]:
                found += 1
                if found > limit:
                    continue
                name, place = shard.origin(document)
                steps = steps_of_document(loader, shard, document, config.total_steps)
                when = ", ".join(f"step {step} row {row}" for step, row in steps[:8]) + ", ..." * (len(steps) > 8)
                if not when:
                    held_out = not rows_of_document(_plan_of(prepared, shard), shard, document)
                    when = "held out or dropped" if held_out else f"not in the run's {config.total_steps:,} steps"
                console.print(f"{name}, {place} (shard {shard.name}, document {document}): {when}")
    more = f", the first {limit} shown" if found > limit else ""
    console.print(f"{found:,} document{'s' * (found != 1)} with {text!r}{more}")


def show_contamination(file: Path, overrides: list[str], bundle: str, sha256: str | None, examples: int) -> None:
    """Items of a benchmark bundle that share a run of 13 words with the training text, by task."""
    from littlelm.data.contamination import NGRAM_WORDS, ContaminationIndex, Hits
    from littlelm.data.look import Scanner, scan_shard
    from littlelm.data.workers import Workers, worker_count
    from littlelm.evals.core.bundle import item_texts, open_bundle

    console = make_console()
    config, prepared = open_data(file, overrides, console)
    opened = open_bundle(bundle, Path(config.data.cache_dir).expanduser(), sha256, console.print)
    items = ((t.label, str(i), item_texts(t, item)) for t in opened.tasks for i, item in enumerate(opened.items(t)))
    console.print("reading the items of the bundle")
    index, hits = ContaminationIndex(items), Hits()
    count = min(worker_count(config.data.workers), len(prepared.shards))
    with Workers(Scanner(prepared.tokenizer, index), count) as workers:
        jobs = [workers.submit(scan_shard, shard.directory, shard.entry) for shard in prepared.shards]
        for job in track(jobs, "searching", console=console, transient=True):
            hits.merge(job.result()[0])
    table = Table("task", "items", "too short", "found", "share", box=None)
    reports = index.report(hits, examples)
    for report in reports:
        table.add_row(
            report.task,
            f"{report.items:,}",
            f"{report.too_short:,}",
            f"{report.found:,}",
            f"{100 * report.share:.2f} %",
        )
    console.print(table)
    for report in reports:
        for item, example in report.examples:
            console.print(f"{report.task} item {item}: {example.reference}: {example.words}", soft_wrap=True)
    found = sum(report.found for report in reports)
    console.print(
        f"{found:,} of {len(index.items):,} items share {NGRAM_WORDS} words in a row with one of the "
        f"{hits.documents:,} documents"
    )
