"""`little-lm data ...` and `little-lm tokenizer train`."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from littlelm.train.configs import load_run


def prepare_data(file: Path, overrides: list[str]) -> None:
    """Prepare FILE's data as `train` would and print the report."""
    config = load_run(file, overrides).config
    from littlelm.data.prepare import prepare

    console = Console(highlight=False, markup=False)
    prepared = prepare(config.data, config.tokenizer, console, config.total_steps * config.global_batch_rows)
    prepared.train_loader(config.global_batch_rows, config.run.seed, config.total_steps, console.print)  # refuses
    console.print(prepared.report_table())


def verify_data(file: Path, overrides: list[str]) -> None:
    """Check every digest of FILE's prepared data. Raises UserError naming the first file that is damaged."""
    config = load_run(file, overrides).config
    from littlelm.data.digests import check_all
    from littlelm.data.prepare import prepare

    console = Console(highlight=False, markup=False)
    prepared = prepare(config.data, config.tokenizer, console, config.total_steps * config.global_batch_rows)
    check_all(prepared.files(), console)
    console.print(f"all files of {prepared.directory} match their digests")


def train_tokenizer(files: list[str], out: Path, vocab_size: int, column: str) -> None:
    """Train a BPE tokenizer on files or globs and write it to `out`."""
    from littlelm.data.source_configs import source_for_files
    from littlelm.tokenizers import train_to_file

    tokenizer = train_to_file([source_for_files(file, column) for file in files], vocab_size, out)
    print(f"{out}: {tokenizer.vocab_size} tokens. In a run file: tokenizer: {{bpe: {{path: {out}}}}}")
