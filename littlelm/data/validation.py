"""The validation set: which documents it is, that no training row holds them, and its rows."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from littlelm.data.configs import BestFitConfig
from littlelm.data.files import DigestedFile, write_array
from littlelm.data.packing.best_fit import BestFit
from littlelm.data.permutation import permute
from littlelm.data.rows import assemble, split_targets
from littlelm.data.shards import SCHEMA_VERSION, Digests, Shard
from littlelm.errors import UserError
from littlelm.filesystem import write_atomically

Keys = NDArray[np.uint64]


def keys_of(digests: Digests) -> Keys:
    """The first 8 bytes of each digest as an integer whose order is that of the bytes."""
    if len(digests) == 0:
        return np.empty(0, dtype=np.uint64)
    return np.ascontiguousarray(digests).view(">u8").reshape(len(digests), 2)[:, 0].astype(np.uint64)


def choose(shards: list[Shard], count: int, is_corpus: bool = True) -> list[tuple[int, int]]:
    """(shard, document) of the `count` documents of smallest content digest, copies counted once.

    The choice depends on the documents alone, not on their order or on how they were divided. Raises UserError when
    the shards are the corpus and nothing would be left of it to train on.
    """
    candidates: list[tuple[bytes, int, int]] = []
    for index, shard in enumerate(shards):
        digests = shard.digests()
        order = np.argsort(keys_of(digests), kind="stable")
        seen: set[bytes] = set()
        for document in order:
            if len(seen) > count:  # one more than asked for, to know whether anything is left to train on
                break
            digest = digests[document].tobytes()
            if digest not in seen:
                seen.add(digest)
                candidates.append((digest, index, int(document)))
    chosen: dict[bytes, tuple[int, int]] = {}
    for digest, index, document in sorted(candidates):
        chosen.setdefault(digest, (index, document))
    if is_corpus and len(chosen) <= count:
        documents = sum(shard.entry["documents"] for shard in shards)
        copies = f" ({documents} with copies)" if documents > len(chosen) else ""
        raise UserError(
            f"data.validation.documents is {count}, but the corpus has only {len(chosen)} documents{copies}: nothing "
            "would be left to train on; lower it or add text"
        )
    return list(chosen.values())[:count]


def write_chosen(directory: Path, shards: list[Shard], chosen: list[tuple[int, int]]) -> dict[str, Any]:
    """Copy documents into a shard of their own, `validation`; returns its entry."""
    name = "validation"
    tokens = DigestedFile(directory / f"{name}.tokens")
    lengths = []
    kept: dict[str, list[bytes]] = {suffix: [] for suffix in shards[0].per_document_bytes()}
    for index, document in chosen:
        shard_lengths = shards[index].lengths()
        start = int(shard_lengths[:document].sum())
        tokens.write(np.asarray(shards[index].tokens[start : start + int(shard_lengths[document])]))
        lengths.append(int(shard_lengths[document]))
        for suffix, values in kept.items():
            values.append(shards[index].bytes_of(suffix)[document].tobytes())
    files = [tokens.close(), write_array(directory / f"{name}.lengths", np.array(lengths, dtype=np.int64))]
    for suffix, values in kept.items():
        files.append(write_array(directory / f"{name}.{suffix}", np.frombuffer(b"".join(values), dtype=np.uint8)))
    entry = {
        "schema_version": SCHEMA_VERSION,
        "name": name,
        "documents": len(lengths),
        "tokens": sum(lengths),
        "files": files,
    }
    write_atomically(directory / f"{name}.json", json.dumps(entry, indent=1).encode())
    return entry


def excluded(digests: Digests, validation: Digests) -> NDArray[np.bool_]:
    """(documents,) which of a training shard's documents are in the validation set, copies included."""
    mask = np.isin(keys_of(digests), keys_of(validation))
    known = {digest.tobytes() for digest in validation}
    for document in np.flatnonzero(mask):  # the keys are half a digest: make sure
        mask[document] = digests[document].tobytes() in known
    return mask


def content_sha256(shards: Iterable[Shard]) -> str:
    """SHA-256 over the lengths and token ids (as uint32) of the documents, in order."""
    digest = hashlib.sha256()
    for shard in shards:
        digest.update(shard.lengths().tobytes())
        for start in range(0, len(shard.tokens), 2**22):
            digest.update(shard.tokens[start : start + 2**22].astype(np.uint32).tobytes())
    return digest.hexdigest()


class ValidationSet:
    """Rows of the validation documents, best-fit packed, in a fixed order.

    Raises UserError when the content hash is not `pinned`.
    """

    def __init__(
        self, shards: list[Shard], sequence_length: int, bos_id: int, max_rows: int | None, pinned: str | None
    ) -> None:
        self.sha256 = content_sha256(shards)
        if pinned is not None and pinned != self.sha256:
            raise UserError(
                f"the validation set is not the pinned one: its sha256 is {self.sha256}, data.validation.sha256 says "
                f"{pinned}; restore the old documents and tokenizer, or remove the pin to start a new series of numbers"
            )
        self.bos_id = bos_id
        self.documents = sum(shard.entry["documents"] for shard in shards)
        lengths = np.concatenate([shard.lengths() for shard in shards])
        self._tokens = np.concatenate([np.asarray(shard.tokens) for shard in shards])
        self._plan = BestFit(BestFitConfig()).plan(lengths, sequence_length + 1)
        # Rows in a mixed order, so that the first `max_rows` are not only the longest documents.
        self._order = permute(np.arange(self._plan.rows), max(1, self._plan.rows), 0)[:max_rows]

    @property
    def num_rows(self) -> int:
        return len(self._order)

    def batch(self, start: int, stop: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Rows [start, stop): inputs and targets, int64 (n, T); targets are -100 on padding."""
        plan = self._plan
        rows = self._order[start:stop]
        table, filled = assemble(
            [(self._tokens, plan.first, plan.start, plan.length, int(row)) for row in rows],
            plan.row_length,
            self.bos_id,
        )
        return split_targets(table, filled)
