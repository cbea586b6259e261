"""Sources -> tokenizer -> shards -> validation set -> packing plan, cached by content. All before training starts."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from littlelm import registry
from littlelm.config.base import ComponentConfig
from littlelm.config.merge import to_plain
from littlelm.data.configs import DataConfig
from littlelm.data.files import check_room, commit, exclusive, explained, read_json, write_json
from littlelm.data.loader import Loader
from littlelm.data.plans import Plans, make_plans
from littlelm.data.shards import Shard
from littlelm.data.sources.base import Source
from littlelm.data.tokenize import token_dtype, tokenize
from littlelm.data.validation import ValidationSet, choose, content_sha256, write_chosen
from littlelm.tokenizers.base import Tokenizer, check_fingerprint

SCHEMA_VERSION = 1
_COMPRESSED = {".parquet", ".gz", ".zst"}
_COMPRESSION = 3  # text bytes a compressed byte holds, roughly
_PART_BYTES = 8_000_000  # text of a part of a small corpus: enough parts to keep the workers busy
_SMALL_PARTS = 16


class PreparedData:
    """Prepared data, opened: a tokenizer, token shards, a packing plan, a validation set."""

    def __init__(self, directory: Path, manifest: dict[str, Any], tokenizer: Tokenizer, config: DataConfig) -> None:
        check_fingerprint(manifest["tokenizer"], tokenizer, f"the prepared data in {directory}")
        self.directory = directory
        self.manifest = manifest
        self.tokenizer = tokenizer
        self.config = config
        dtype = token_dtype(tokenizer.vocab_size)
        self.shards = [Shard(directory, entry, dtype) for entry in manifest["shards"]]
        self.validation_shards = [Shard(directory, entry, dtype) for entry in manifest["validation"]]
        self.validation = ValidationSet(
            self.validation_shards,
            config.sequence_length,
            tokenizer.bos_id,
            config.validation.max_rows,
            config.validation.sha256,
        )
        held_out = np.concatenate([shard.digests() for shard in self.validation_shards])
        with explained(directory):
            self.plans: Plans = make_plans(directory, self.shards, held_out, config.packing, config.sequence_length + 1)

    @property
    def vocab_size(self) -> int:
        return self.tokenizer.vocab_size

    @property
    def fingerprint(self) -> str:
        """Hash of the training shards' content and of which documents are held out."""
        return str(self.manifest["fingerprint"])

    @property
    def report(self) -> dict[str, Any]:
        """Documents, tokens, bytes, and what the packing achieved."""
        totals = {
            key: sum(shard.entry[key] for shard in self.shards)
            for key in ("documents", "tokens", "text_bytes", "skipped")
        }
        return {
            **{f"corpus_{key}": value for key, value in totals.items()},
            "bytes_per_token": totals["text_bytes"] / max(1, totals["tokens"]),
            "packing": self.config.packing.name,
            **self.plans.report,
            "validation_documents": self.validation.documents,
            "validation_rows": self.validation.num_rows,
            "validation_sha256": self.validation.sha256,
        }

    def report_table(self) -> Table:
        """The report for a terminal."""
        table = Table(box=None, show_header=False)
        for key, value in self.report.items():
            text = (
                f"{value:.4f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
            )
            table.add_row(key.replace("_", " "), text)
        return table

    def train_loader(self, global_batch_rows: int, seed: int) -> Loader:
        """The rows of training steps. Raises UserError when there are fewer than one global batch."""
        return Loader(
            self.shards,
            self.plans,
            sequence_length=self.config.sequence_length,
            global_batch_rows=global_batch_rows,
            bos_id=self.tokenizer.bos_id,
            seed=seed,
        )

    def verify(self) -> None:
        """Check the sha256 of every file. Raises UserError naming the first that is damaged."""
        for shard in [*self.shards, *self.validation_shards]:
            shard.verify()
        self.plans.verify()


def _text_bytes(path: Path) -> int:
    size = path.stat().st_size
    return size * _COMPRESSION if path.suffix in _COMPRESSED else size


def _parts(source: Source, shard_tokens: int) -> list[Any]:
    """The source's parts; their number depends on its size alone, so the result does not depend on the workers."""
    size = sum(_text_bytes(path) for path in source.files())
    small = min(_SMALL_PARTS, -(-size // _PART_BYTES))
    return source.split(max(1, small, -(-size // (4 * shard_tokens))))


def _content_key(data: DataConfig, sources: list[Source], held_out: list[Source], tokenizer: Tokenizer) -> str:
    files = [
        [str(path), path.stat().st_size, path.stat().st_mtime_ns]
        for source in (*sources, *held_out)
        for path in source.files()
    ]
    validation = to_plain(data.validation)
    del validation["max_rows"], validation["sha256"]
    parts = [
        SCHEMA_VERSION, files, to_plain(data.sources), validation, tokenizer.fingerprint, data.shard_tokens
    ]  # fmt: skip
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:20]


def prepare(data: DataConfig, tokenizer_config: ComponentConfig, console: Console | None = None) -> PreparedData:
    """Prepare what `data` describes, or open it when it is in the cache.

    Raises:
        UserError: a source that cannot be read or is empty, a full disk, a pinned validation set that differs.
    """
    console = console or Console(quiet=True)
    sources = [registry.build(config) for config in data.sources]
    held_out = [registry.build(config) for config in data.validation.sources or []]
    cache = Path(data.cache_dir).expanduser()
    with explained(cache):
        cache.mkdir(parents=True, exist_ok=True)
    with explained(cache), exclusive(cache / "tokenizers.lock", console):  # one process trains it, the others read it
        tokenizer: Tokenizer = registry.build(tokenizer_config, sources=sources, cache_dir=cache)
    key = _content_key(data, sources, held_out, tokenizer)
    directory = cache / "data" / key
    with explained(cache), exclusive(cache / "data" / f"{key}.lock", console):
        if not (directory / "manifest.json").is_file():
            _build(directory, data, sources, held_out, tokenizer, console)
        manifest = read_json(directory / "manifest.json", SCHEMA_VERSION)
        return PreparedData(directory, manifest, tokenizer, data)


def _build(
    directory: Path,
    data: DataConfig,
    sources: list[Source],
    held_out: list[Source],
    tokenizer: Tokenizer,
    console: Console,
) -> None:
    for leftover in directory.parent.glob(f".tmp-{directory.name}-*"):  # of a killed process: we hold its lock
        shutil.rmtree(leftover)
    temporary = directory.with_name(f".tmp-{directory.name}-{os.getpid()}")
    temporary.mkdir()
    try:
        everything = [*sources, *held_out]
        bytes_of_text = sum(_text_bytes(path) for source in everything for path in source.files())
        dtype = token_dtype(tokenizer.vocab_size)
        # At worst a token a byte; a vocabulary of thousands makes it one for three or more.
        check_room(temporary, bytes_of_text * dtype.itemsize // (3 if tokenizer.vocab_size > 1000 else 1))
        for source in everything:
            console.print(f"preparing {source.describe()}")
        parts = [part for source in sources for part in _parts(source, data.shard_tokens)]
        entries = tokenize(parts, tokenizer, temporary, "train", data.workers, console)
        if sum(entry["documents"] for entry in entries) == 0:
            raise sources[0].empty_error()
        shards = [Shard(temporary, entry, dtype) for entry in entries]
        if held_out:
            parts = [part for source in held_out for part in _parts(source, data.shard_tokens)]
            validation = tokenize(parts, tokenizer, temporary, "validation", data.workers, console)
            if sum(entry["documents"] for entry in validation) == 0:
                raise held_out[0].empty_error()
        else:
            validation = [write_chosen(temporary, shards, choose(shards, data.validation.documents))]
        validation_sha256 = content_sha256(Shard(temporary, entry, dtype) for entry in validation)
        identity = [[file["sha256"] for entry in entries for file in entry["files"]], validation_sha256]
        manifest = {
            "schema_version": SCHEMA_VERSION,
            "tokenizer": tokenizer.identity,
            "sources": [source.describe() for source in sources],
            "fingerprint": hashlib.sha256(json.dumps(identity).encode()).hexdigest(),
            "validation_sha256": validation_sha256,
            "shards": entries,
            "validation": validation,
        }
        write_json(temporary / "manifest.json", manifest)
        commit(temporary, directory)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    documents = sum(entry["documents"] for entry in entries)
    tokens = sum(entry["tokens"] for entry in entries)
    console.print(f"prepared {documents:,} documents, {tokens:,} tokens in {directory}")
