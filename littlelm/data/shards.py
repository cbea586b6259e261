"""Prepared shards: writing one from a unit's documents, and reading it back memory-mapped.

A shard `00012` is a few raw arrays, one element a token or a document, and `00012.json`, written last and atomically:
a shard exists when that file does. So making a source can stop anywhere and go on at the next shard.

| file | element | |
|---|---|---|
| 00012.tokens | uint16 or uint32 | the documents one after the other, each beginning with BOS |
| 00012.lengths | int64 | tokens of each document, BOS included |
| 00012.digests | 16 bytes | what identifies a document by its content |
| 00012.origins | int64 | file of the unit << 40 | row (parquet) or byte (other files) of the document |
| 00012.FILTER | bytes | signatures of the documents, for filters that compare them |
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from littlelm.data.files import DigestedFile, check_file, read_json, write_array
from littlelm.data.sources.base import Record, SourcePart, file_names_of, records_of
from littlelm.errors import UserError
from littlelm.filesystem import write_atomically
from littlelm.tokenizers.base import Tokenizer

SCHEMA_VERSION = 2
DIGEST_BYTES = 16
_FILE_SHIFT = 40
_BATCH_CHARACTERS = 2_000_000  # text in memory at one time
_ENOUGH_RECORDS = 1000  # before a share of invalid records is judged in the middle of a shard

Digests = NDArray[np.void]


def token_dtype(vocab_size: int) -> np.dtype[Any]:
    """uint16 when every id fits, else uint32."""
    return np.dtype(np.uint16 if vocab_size <= 2**16 else np.uint32)


def content_digest(text: str) -> bytes:
    """16 bytes that identify a document by its content."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=DIGEST_BYTES).digest()


class ShardWriter:
    """Turns the records of a part into a shard. One for each worker process; it holds tokenizer and filters.

    `filters` are (name, filter) of those that judge a document, in order; `signers` those that need a signature of it.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        normalise: Any = None,
        filters: Sequence[tuple[str, Any]] = (),
        signers: Sequence[tuple[str, Any]] = (),
        max_invalid_fraction: float = 0.01,
    ) -> None:
        self.tokenizer = tokenizer
        self.normalise = normalise
        self.filters = list(filters)
        self.signers = list(signers)
        self.max_invalid_fraction = max_invalid_fraction
        self.dtype = token_dtype(tokenizer.vocab_size)

    def write(self, part: SourcePart, directory: Path, name: str) -> dict[str, Any]:
        """Write the shard `name`, its entry last; returns the entry.

        Raises UserError when too many records are not valid UTF-8.
        """
        tokens = DigestedFile(directory / f"{name}.tokens")
        kept = _Kept(self.signers)
        left_out: Counter[str] = Counter()
        for batch in self._batches(part, left_out):
            texts = [text for text, _ in batch]
            pieces = []
            for (text, record), ids in zip(batch, self.tokenizer.encode_batch(texts, threads=1), strict=True):
                if len(ids) == 0:
                    left_out["no_tokens"] += 1
                    continue
                piece = np.empty(len(ids) + 1, dtype=self.dtype)
                piece[0] = self.tokenizer.bos_id
                piece[1:] = ids
                pieces.append(piece)
                kept.add(text, record, len(piece))
            if pieces:
                tokens.write(np.concatenate(pieces))
        entry = {
            "schema_version": SCHEMA_VERSION,
            "name": name,
            "documents": len(kept.lengths),
            "tokens": sum(kept.lengths),
            "text_bytes": kept.text_bytes,
            "left_out": dict(sorted(left_out.items())),
            "made_of": file_names_of(part),
            "files": [tokens.close(), *kept.write(directory, name)],
        }
        write_atomically(directory / f"{name}.json", json.dumps(entry, indent=1).encode())
        return entry

    def _batches(self, part: SourcePart, left_out: Counter[str]) -> Iterator[list[tuple[str, Record]]]:
        """Documents that pass, with their records, about 2 MB of text at a time; counts the others by reason."""
        batch: list[tuple[str, Record]] = []
        size = records = 0
        first_invalid: Record | None = None
        for record in records_of(part):
            records += 1
            text, reason = self._judge(record)
            if text is None:
                left_out[reason] += 1
                if reason == "invalid_utf8":
                    first_invalid = first_invalid or record
                    if records >= _ENOUGH_RECORDS:
                        self._check_invalid(part, left_out[reason], records, first_invalid)
                continue
            batch.append((text, record._replace(text=None)))
            size += len(text)
            if size >= _BATCH_CHARACTERS:
                yield batch
                batch, size = [], 0
        if first_invalid is not None:
            self._check_invalid(part, left_out["invalid_utf8"], records, first_invalid)
        if batch:
            yield batch

    def _judge(self, record: Record) -> tuple[str | None, str]:
        """The text as it is tokenized, or None and why the record is left out."""
        text = record.text
        if text is None:
            return None, record.reason or "empty"
        if self.normalise is not None:
            text = self.normalise(text)
            if not text or text.isspace():
                return None, "empty"
        for name, each in self.filters:
            if not each.accepts(text):
                return None, name
        return text, ""

    def _check_invalid(self, part: SourcePart, invalid: int, records: int, first: Record) -> None:
        if invalid <= records * self.max_invalid_fraction:
            return
        name = file_names_of(part)[first.file]
        raise UserError(
            f"{name}: {invalid} of {records} documents are not valid UTF-8, the first at "
            f"{place(name, first.position)}; more than data.text.max_invalid_fraction ({self.max_invalid_fraction:g}). "
            "Convert the files, e.g. `iconv -f latin1 -t utf-8`, if that is their encoding, or raise the key to leave "
            "these documents out"
        )


class _Kept:
    """What is kept of each document of a shard besides its tokens."""

    def __init__(self, signers: Sequence[tuple[str, Any]]) -> None:
        self.lengths: list[int] = []
        self.text_bytes = 0
        self._digests = bytearray()
        self._origins: list[int] = []
        self._signers = signers
        self._signatures = [bytearray() for _ in signers]

    def add(self, text: str, record: Record, length: int) -> None:
        encoded = text.encode("utf-8", "surrogatepass")
        self.lengths.append(length)
        self.text_bytes += len(encoded)
        self._digests += hashlib.blake2b(encoded, digest_size=DIGEST_BYTES).digest()
        self._origins.append(record.file << _FILE_SHIFT | record.position)
        for (_, signer), signatures in zip(self._signers, self._signatures, strict=True):
            signatures += signer.signature(text)

    def write(self, directory: Path, name: str) -> list[dict[str, Any]]:
        arrays: list[tuple[str, NDArray[Any]]] = [
            ("lengths", np.array(self.lengths, dtype=np.int64)),
            ("digests", np.frombuffer(bytes(self._digests), dtype=np.uint8)),
            ("origins", np.array(self._origins, dtype=np.int64)),
        ]
        for (signer, _), signatures in zip(self._signers, self._signatures, strict=True):
            arrays.append((signer, np.frombuffer(bytes(signatures), dtype=np.uint8)))
        return [write_array(directory / f"{name}.{suffix}", array) for suffix, array in arrays]


def read_entry(directory: Path, name: str) -> dict[str, Any] | None:
    """The entry of a shard that is there with files of the right sizes, else None."""
    path = directory / f"{name}.json"
    if not path.is_file():
        return None
    entry = read_json(path, SCHEMA_VERSION)
    for file in entry["files"]:
        check_file(directory / file["name"], file, digest=False)
    return entry


def place(name: str, position: int) -> str:
    """A document's place for a reader: `row 17` of a parquet file, `byte 1234` of another."""
    return f"row {position}" if name.endswith(".parquet") else f"byte {position}" if name else f"document {position}"


class Shard:
    """One shard of a prepared directory. Sizes are checked on opening, digests by `verify`."""

    def __init__(self, directory: Path, entry: dict[str, Any], dtype: np.dtype[Any]) -> None:
        self.directory = directory
        self.entry = entry
        self.name: str = entry["name"]
        self.dtype = dtype
        for file in entry["files"]:
            check_file(directory / file["name"], file, digest=False)
        self.tokens: NDArray[Any] = self._map("tokens", dtype)

    def _map(self, suffix: str, dtype: np.dtype[Any]) -> NDArray[Any]:
        path = self.directory / f"{self.name}.{suffix}"
        if path.stat().st_size == 0:
            return np.empty(0, dtype=dtype)
        return np.asarray(np.memmap(path, dtype=dtype, mode="r"))  # still mapped; np.memmap's own slicing is slow

    @property
    def documents(self) -> int:
        return int(self.entry["documents"])

    def lengths(self) -> NDArray[np.int64]:
        """(documents,) tokens of each document, BOS included."""
        return np.asarray(self._map("lengths", np.dtype(np.int64)))

    def digests(self) -> Digests:
        """(documents,) content digests."""
        return np.asarray(self._map("digests", np.dtype(f"V{DIGEST_BYTES}")))

    def origin(self, document: int) -> tuple[str, str]:
        """(file, place in it) that a document comes from."""
        origin = int(self._map("origins", np.dtype(np.int64))[document])
        name = str(self.entry["made_of"][origin >> _FILE_SHIFT])
        return name, place(name, origin & ((1 << _FILE_SHIFT) - 1))

    def file_numbers(self) -> NDArray[np.int64]:
        """(documents,) which of `made_of` each document comes from."""
        return np.asarray(self._map("origins", np.dtype(np.int64))) >> _FILE_SHIFT

    def per_document_bytes(self) -> list[str]:
        """Names of the arrays that tell documents apart wherever they lie: digests, and signatures of filters."""
        suffixes = [file["name"].split(".", 1)[1] for file in self.entry["files"]]
        return [suffix for suffix in suffixes if suffix not in ("tokens", "lengths", "origins")]

    def bytes_of(self, suffix: str) -> NDArray[np.uint8]:
        """(documents, bytes) of one of `per_document_bytes`."""
        return np.asarray(self._map(suffix, np.dtype(np.uint8))).reshape(self.documents, -1)

    def verify(self) -> None:
        """Raise UserError naming the first file whose sha256 is not the recorded one."""
        for file in self.entry["files"]:
            check_file(self.directory / file["name"], file, digest=True)
