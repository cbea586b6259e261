"""Packers and loader on a corpus: how much is lost, and how fast.

    python benchmarks/packing.py 'data/*.parquet' [--vocab-size 8192] [--cache DIR]

Prints one line a packer and context: padding, crop, documents split; tokens/s of planning alone (the documents are
tokenized already) and of reading batches of 16 rows through the loader, one process, one thread, from the page cache.
"""

from __future__ import annotations

import argparse
import time

from rich.console import Console

from littlelm import registry
from littlelm.data.configs import BestFitConfig, BestFitCropConfig, ConcatConfig, DataConfig
from littlelm.data.prepare import prepare
from littlelm.data.source_configs import source_for_files
from littlelm.data.validation import excluded
from littlelm.tokenizers.configs import BpeTokenizerConfig

BATCH_ROWS = 16
READ_SECONDS = 3.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("files", nargs="+")
    parser.add_argument("--vocab-size", type=int, default=8192)
    parser.add_argument("--cache", default="~/.cache/little-lm")
    arguments = parser.parse_args()
    sources = [source_for_files(pattern) for pattern in arguments.files]
    tokenizer = BpeTokenizerConfig(vocab_size=arguments.vocab_size)
    for length in (512, 2048):
        for packing in (BestFitConfig(), BestFitCropConfig(), ConcatConfig()):
            data = DataConfig(
                sources=sources, sequence_length=length, packing=packing, cache_dir=arguments.cache, workers="auto"
            )
            prepared = prepare(data, tokenizer, Console())
            packer = registry.build(packing)
            held_out = prepared.validation_shards[0].digests()
            documents = [shard.lengths()[~excluded(shard.digests(), held_out)] for shard in prepared.shards]
            started = time.perf_counter()
            for lengths in documents:
                packer.plan(lengths, length + 1)
            planning = time.perf_counter() - started
            loader = prepared.train_loader(BATCH_ROWS, 0)
            started, step = time.perf_counter(), 0
            while time.perf_counter() - started < READ_SECONDS:
                loader.batch(step, 0, BATCH_ROWS)
                step += 1
            reading = (time.perf_counter() - started) / (step * BATCH_ROWS * length)
            report = prepared.report
            print(
                f"{length:5} {packing.name:14} padding {report['padding_percent']:7.4f} %  crop "
                f"{report['crop_percent']:7.4f} %  split {report['documents_split']:7,} of {report['documents']:,}  "
                f"plan {report['tokens'] / planning / 1e6:9,.0f}M tokens/s  read {1e-6 / reading:6.1f}M tokens/s",
                flush=True,
            )


if __name__ == "__main__":
    main()
