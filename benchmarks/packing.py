"""Packers and loader on a corpus: how much is lost, and how fast.

    python benchmarks/packing.py ['data/*.parquet' ...] [--vocab-size 8192] [--cache DIR]

Without files: 20M made-up bytes in documents whose lengths are spread like those of English text (log-normal, median
1,500), read by the `byte` tokenizer. Prints one line a packer and context: utilisation, padding, crop, documents
split; tokens/s of planning alone (the documents are tokenized already) and of reading batches of 16 rows through the
loader, one process, one thread, from the page cache (the median of five measurements).
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
from rich.console import Console

from littlelm import registry
from littlelm.config.base import ComponentConfig
from littlelm.data.configs import BestFitConfig, BestFitCropConfig, ConcatConfig, DataConfig
from littlelm.data.loader import Loader
from littlelm.data.prepare import prepare
from littlelm.data.prepared import PreparedData
from littlelm.data.source_configs import JsonlSourceConfig, source_for_files
from littlelm.data.validation import excluded
from littlelm.tokenizers.configs import BpeTokenizerConfig, ByteTokenizerConfig

BATCH_ROWS = 16
REPEATS = 5
REPEAT_SECONDS = 0.6
SYNTHETIC_BYTES = 20_000_000


def write_synthetic(path: Path) -> None:
    """A JSON Lines file of documents of random letters, the same every time."""
    random = np.random.default_rng(0)
    written = 0
    with path.open("w", encoding="ascii") as file:
        while written < SYNTHETIC_BYTES:
            length = max(1, int(random.lognormal(np.log(1500), 1.2)))
            file.write(f'{{"text": "{random.integers(97, 123, length, dtype=np.uint8).tobytes().decode()}"}}\n')
            written += length


def planning_speed(prepared: PreparedData, packing: ComponentConfig, row_length: int) -> float:
    """Tokens/s of packing every shard once."""
    packer = registry.build(packing)
    held_out = np.concatenate([shard.digests() for shard in prepared.validation_shards])
    documents = [shard.lengths()[~excluded(shard.digests(), held_out)] for shard in prepared.shards]
    started = time.perf_counter()
    for lengths in documents:
        packer.plan(lengths, row_length)
    return sum(int(lengths.sum()) for lengths in documents) / (time.perf_counter() - started)


def reading_speed(loader: Loader) -> float:
    """Tokens/s of reading the run's batches from the first on, after one that is not counted."""
    speeds, step = [], 0
    loader.batch(step, 0, BATCH_ROWS)
    for _ in range(REPEATS):
        started, first = time.perf_counter(), step
        while time.perf_counter() - started < REPEAT_SECONDS:
            step += 1
            loader.batch(step, 0, BATCH_ROWS)
        tokens = (step - first) * BATCH_ROWS * (loader.row_length - 1)
        speeds.append(tokens / (time.perf_counter() - started))
    return statistics.median(speeds)


def measure(sources: list[ComponentConfig], tokenizer: ComponentConfig, cache: str) -> None:
    """Print the table."""
    for length in (512, 2048):
        for packing in (BestFitConfig(), BestFitCropConfig(), ConcatConfig()):
            data = DataConfig(sources=sources, sequence_length=length, packing=packing, cache_dir=cache)
            prepared = prepare(data, tokenizer, Console(stderr=True))
            report = prepared.report
            planning = planning_speed(prepared, packing, length + 1)
            reading = reading_speed(prepared.train_loader(BATCH_ROWS, 0))
            print(
                f"{length:5} {packing.name:14} utilisation {report['utilisation_percent']:8.4f} %  padding "
                f"{report['padding_percent']:7.4f} %  crop {report['crop_percent']:7.4f} %  split "
                f"{report['documents_split']:7,} of {report['documents']:,}  plan {planning / 1e6:9,.0f}M tokens/s  "
                f"read {reading / 1e6:6.1f}M tokens/s",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("files", nargs="*", help="files or globs; none: a made-up corpus")
    parser.add_argument("--vocab-size", type=int, default=8192)
    parser.add_argument("--cache", default="~/.cache/little-lm")
    arguments = parser.parse_args()
    if arguments.files:
        sources = [source_for_files(pattern) for pattern in arguments.files]
        measure(sources, BpeTokenizerConfig(vocab_size=arguments.vocab_size), arguments.cache)
        return
    with tempfile.TemporaryDirectory() as directory:
        corpus = Path(directory) / "synthetic.jsonl"
        write_synthetic(corpus)
        measure([JsonlSourceConfig(files=[str(corpus)])], ByteTokenizerConfig(), directory)


if __name__ == "__main__":
    main()
