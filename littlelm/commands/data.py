"""`little-lm data prepare | verify | plan` and `little-lm tokenizer train`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from littlelm.errors import UserError
from littlelm.train.configs import RunConfig, load_run


def make_console() -> Console:
    """For text of others: as wide as the terminal, wide enough for every column where there is none."""
    console = Console(highlight=False, markup=False)
    return console if console.is_terminal else Console(highlight=False, markup=False, width=160)


def open_data(file: Path, overrides: list[str], console: Console) -> tuple[RunConfig, Any]:
    """The run's config and its prepared data, prepared first where it is not."""
    config = load_run(file, overrides).config
    from littlelm.data.prepare import prepare

    return config, prepare(config.data, config.tokenizer, console, config.train_rows)


def prepare_data(file: Path, overrides: list[str], shard_range: str | None) -> None:
    """Prepare FILE's data as `train` would and print the report; with a range, one machine's share of the shards."""
    console = make_console()
    if shard_range is None:
        config, prepared = open_data(file, overrides, console)
        prepared.train_loader(config.global_batch_rows, config.run.seed, config.total_steps, console.print)  # refuses
        console.print(prepared.report_table())
        return
    index, count = _parse_range(shard_range)
    config = load_run(file, overrides).config
    from littlelm.data.prepare import prepare_range

    there = prepare_range(config.data, config.tokenizer, console, config.train_rows, index, count)
    console.print(f"share {index} of {count} is made; shards here: {', '.join(map(str, there))}")
    if config.data.store is None:
        console.print("the other machines cannot see them: set data.store to a directory or bucket that all share")


def _parse_range(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if match is None or not int(match[1]) < int(match[2]):
        raise UserError(f"--shard-range: expected i/n with i from 0 to n - 1, for example 0/4, got '{text}'")
    return int(match[1]), int(match[2])


def verify_data(file: Path, overrides: list[str]) -> None:
    """Check every digest and offset of FILE's prepared data. Raises UserError naming every file that is damaged."""
    from littlelm.data.digests import check_all, check_offsets

    console = make_console()
    _, prepared = open_data(file, overrides, console)
    files = prepared.files()
    check_all(files, console)
    check_offsets(prepared)
    size = sum(entry["bytes"] for _, entry in files)
    console.print(f"{len(files):,} files of {prepared.directory}, {size / 1e9:,.3f} GB, match their digests")


def plan_data(file: Path, overrides: list[str], cores: int, megabits: float, disk: float) -> None:
    """What preparing FILE's data takes with `cores` cores, a line of `megabits` Mbit/s and a disk of `disk` MB/s."""
    from littlelm.data.planning import Machine, plan_preparation
    from littlelm.units import duration

    config = load_run(file, overrides).config
    console = make_console()
    cache = Path(config.data.cache_dir).expanduser()
    sources = [_source_to_plan(source, cache, console) for source in config.data.sources]
    machine = Machine(cores, megabits * 1e6 / 8, disk * 1e6)
    plan = plan_preparation(config.data, config.tokenizer, sources, config.train_rows, machine)
    table = Table("source", "files", "raw GB", "tokens", "shards GB", "download", "tokenize", box=None)
    for line in plan.sources:
        table.add_row(
            line.name,
            f"{line.files:,}",
            f"{line.raw_bytes / 1e9:,.1f}",
            f"{line.tokens / 1e9:,.2f}B",
            f"{line.token_bytes / 1e9:,.1f}",
            duration(line.download_seconds),
            duration(line.tokenize_seconds),
        )
    console.print(table)
    console.print(
        f"{cores} cores at {plan.tokens_per_second_per_core / 1e6:.1f}M tokens/s each (measured here with "
        f"{plan.engine}), {megabits:,.0f} Mbit/s in, a disk of {disk:,.0f} MB/s, all at once:"
    )
    console.print(
        f"  {duration(plan.seconds)}, the bottleneck is {plan.bottleneck}; {plan.disk_bytes / 1e9:,.1f} GB of disk, "
        f"{plan.memory_bytes / 1e9:,.0f} GB of memory at most"
    )
    if not plan.is_enough:
        console.print("  the sources hold fewer tokens than the run reads: it would read them more than once")


def _source_to_plan(config: Any, cache: Path, console: Console) -> Any:
    """A source with its files listed; without a network one that is made of what its publisher says."""
    from littlelm import registry
    from littlelm.data.planning import Published

    published = getattr(config, "published", None)
    if published is not None:
        config = config.model_copy(update={"retries": 1, "backoff_seconds": 0.1})  # a plan is not worth waiting for
    source = registry.build(config)
    try:
        source.resolve(cache, console.print)
    except UserError as error:
        if published is None:
            raise
        files, size = published
        console.print(f"{error}\nplanning with what is published: {files:,} files of {size / 1e6:,.0f} MB")
        return Published(config, files, size)
    return source


def train_tokenizer(files: list[str], out: Path, vocab_size: int, column: str) -> None:
    """Train a BPE tokenizer on files or globs and write it to `out`."""
    from littlelm.data.source_configs import source_for_files
    from littlelm.data.sources.base import find_files
    from littlelm.tokenizers import train_to_file

    for file in find_files(files):
        if out.exists() and file.samefile(out):
            raise UserError(f"--out {out} is one of the files to train on; name another file")
    tokenizer = train_to_file([source_for_files(file, column) for file in files], vocab_size, out)
    print(f"{out}: {tokenizer.vocab_size} tokens. In a run file: tokenizer: {{bpe: {{path: {out}}}}}")
