"""Text to tokens: `data prepare` as a whole against tokenizing in threads, as nanochat does while it trains.

    python benchmarks/tokenize_corpus.py 'data/*.parquet' [--vocab-size 8192 | --gpt2] [--rounds 3] [--cores 2]

threads: parquet row groups, batches of 128 documents, tiktoken's `encode_ordinary_batch` on one thread a core, BOS put
in front of each list. prepare: worker processes, from the files to fsynced shards with digests and their packing plan.
Both use the same vocabulary; the rounds alternate. Prints tokens/s (median of the rounds) and the ratio.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import pyarrow.parquet as pq
import tiktoken
from rich.console import Console

from littlelm import registry
from littlelm.config.base import ComponentConfig
from littlelm.data.configs import BestFitConfig, DataConfig
from littlelm.data.prepare import prepare
from littlelm.data.source_configs import ParquetSourceConfig
from littlelm.data.sources.base import find_files
from littlelm.tokenizers.base import usable_cores
from littlelm.tokenizers.byte_pair import BytePairTokenizer
from littlelm.tokenizers.configs import BpeTokenizerConfig, Gpt2TokenizerConfig

BATCH_DOCUMENTS = 128


def in_threads(files: list[Path], engine: tiktoken.Encoding, bos_id: int, threads: int) -> tuple[int, float]:
    """Tokens, seconds."""
    started, tokens = time.perf_counter(), 0
    for path in files:
        file = pq.ParquetFile(path)
        for group in range(file.num_row_groups):
            texts = file.read_row_group(group, columns=["text"]).column("text").to_pylist()
            for start in range(0, len(texts), BATCH_DOCUMENTS):
                rows = engine.encode_ordinary_batch(texts[start : start + BATCH_DOCUMENTS], num_threads=threads)
                for row in rows:
                    row.insert(0, bos_id)
                    tokens += len(row)
    return tokens, time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("files", nargs="+")
    parser.add_argument("--vocab-size", type=int, default=8192)
    parser.add_argument("--gpt2", action="store_true", help="GPT-2's vocabulary instead of a trained one")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cores", type=int, default=usable_cores())
    arguments = parser.parse_args()
    files = find_files(arguments.files)
    sources: list[ComponentConfig] = [ParquetSourceConfig(files=arguments.files)]
    with tempfile.TemporaryDirectory() as directory:
        tokenizer_config: ComponentConfig
        if arguments.gpt2:
            tokenizer_config = Gpt2TokenizerConfig()
        else:
            trained = registry.build(
                BpeTokenizerConfig(vocab_size=arguments.vocab_size), sources=[registry.build(s) for s in sources]
            )
            trained.save(directory)
            tokenizer_config = BpeTokenizerConfig(path=str(Path(directory) / "tokenizer.json"))
        tokenizer: BytePairTokenizer = registry.build(tokenizer_config)
        ours, theirs = [], []
        for number in range(arguments.rounds):
            tokens, seconds = in_threads(files, tokenizer._engine, tokenizer.bos_id, arguments.cores)
            theirs.append(tokens / seconds)
            data = DataConfig(
                sources=sources,
                sequence_length=2048,
                packing=BestFitConfig(),
                cache_dir=f"{directory}/{number}",
                workers=arguments.cores,
            )
            started = time.perf_counter()
            prepared = prepare(data, tokenizer_config, Console(stderr=True))
            ours.append(prepared.report["corpus_tokens"] / (time.perf_counter() - started))
            assert prepared.report["corpus_tokens"] == tokens
            print(f"threads {theirs[-1] / 1e6:.2f}M tokens/s, prepare {ours[-1] / 1e6:.2f}M tokens/s", flush=True)
        ratio = statistics.median(ours) / statistics.median(theirs)
        print(f"prepare / threads: {ratio:.2f} on {arguments.cores} cores, {len(tokenizer.vocabulary.tokens)} tokens")


if __name__ == "__main__":
    main()
