"""Sources -> tokenizer -> shards -> validation set -> packing plans, cached by content. All before training starts.

    cache_dir/shards/<key>/      the shards of a source, and their plans; the key is its content, tokenizer and filters
    cache_dir/validation/<key>/  documents that were chosen to be held out
    cache_dir/data/<key>/        the manifest: which shards of which sources a run reads, and what it leaves out

Everything is made shard by shard, and a shard that is there is never made again: a killed preparation goes on, a source
is shared by all mixtures that use it, and a longer run downloads only what is new to it.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from littlelm import registry
from littlelm.config.base import ComponentConfig
from littlelm.config.merge import to_plain
from littlelm.data.configs import DataConfig
from littlelm.data.digests import check_once
from littlelm.data.files import exclusive, explained, read_json, save_array
from littlelm.data.filters.text import normalise
from littlelm.data.pipeline import Pipeline, SourceShards
from littlelm.data.plans import PlanSpec, write_plan
from littlelm.data.prepared import PreparedData
from littlelm.data.preparing import Preparing, check_all_room, estimated_units, needed_tokens
from littlelm.data.shards import SCHEMA_VERSION, Shard, ShardWriter, read_entry, token_dtype
from littlelm.data.source_configs import SourceConfig
from littlelm.data.sources.base import Source
from littlelm.data.store import Store
from littlelm.data.validation import choose, content_sha256, excluded, write_chosen
from littlelm.data.workers import Workers, worker_count
from littlelm.errors import UserError
from littlelm.filesystem import write_atomically
from littlelm.tokenizers.base import Tokenizer


def source_key(config: ComponentConfig, source: Source, data: DataConfig, tokenizer: Tokenizer) -> str:
    """Name of a source's shards: everything that decides their bytes, and nothing else."""
    reading = {k: v for k, v in to_plain(config).items() if k not in {*SourceConfig.model_fields, "files"}}
    for key in getattr(config, "not_content", ()):
        reading.pop(key, None)
    text = to_plain(data.text)
    text.pop("max_invalid_fraction")
    # A filter that compares documents without a signature of them leaves the shards as they are.
    filters = [to_plain(each) for each in data.filters if getattr(registry.build(each), "signature_bytes", 1)]
    content = [
        SCHEMA_VERSION, source.identity(), reading, text, filters, tokenizer.fingerprint, data.shard_tokens
    ]  # fmt: skip
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:20]


def _filters(data: DataConfig) -> tuple[list[tuple[str, Any]], list[tuple[str, Any]]]:
    """(name, filter) of those that judge a document, and of those that compare documents."""
    built = [(config.name, registry.build(config)) for config in data.filters]
    signers = [name for name, each in built if getattr(each, "signature_bytes", 0)]
    if len(set(signers)) < len(signers):
        raise UserError(f"data.filters: '{max(signers, key=signers.count)}' is given twice; one is enough")
    return (
        [(name, each) for name, each in built if hasattr(each, "accepts")],
        [(name, each) for name, each in built if not hasattr(each, "accepts")],
    )


def prepare(
    data: DataConfig,
    tokenizer_config: ComponentConfig,
    console: Console | None = None,
    train_rows: int | None = None,
) -> PreparedData:
    """Prepare what `data` describes, or open it when it is in the cache.

    Of a source that is downloaded as many files are taken as `train_rows` rows need (None: all).

    Raises:
        UserError: a source that cannot be read or is empty, a full disk, a pinned validation set that differs, files
            that changed since they were written.
    """
    console = console or Console(quiet=True)
    with _preparing(data, tokenizer_config, console, train_rows) as state:
        directory = state.cache / "data" / _request_key(state)
        if not _is_there(state.cache, directory):
            _make(state, directory)
        manifest = read_json(directory / "manifest.json", SCHEMA_VERSION)
        prepared = PreparedData(state.cache, directory, manifest, state.tokenizer, data, train_rows)
        state.pipeline.run_jobs(
            [
                (write_plan, (shard.directory, shard.entry, prepared.spec, mask))
                for shard, mask in prepared.missing_plans()
            ]
        )
        prepared.open_plans()
        check_once(prepared.files(), state.cache / "checked" / f"{directory.name}.json", console)
    return prepared


def prepare_range(
    data: DataConfig,
    tokenizer_config: ComponentConfig,
    console: Console,
    train_rows: int | None,
    index: int,
    count: int,
) -> list[int]:
    """Make every `count`-th shard from number `index` on (from 0): the share of one of `count` machines.

    Returns how many shards of each source are there now, the store's included. `prepare` afterwards, on a machine that
    sees all of them, writes the manifest. Raises UserError as `prepare` does.
    """
    with _preparing(data, tokenizer_config, console, train_rows) as state:
        sets = [(shards, needed_tokens(state, i)) for i, shards in enumerate(state.training)]
        sets += [(shards, None) for shards in state.held_out]
        wanted = []
        for shards, needed in sets:
            units = len(shards.units) if needed is None else estimated_units(shards, 0, needed)
            wanted += [(shards, number) for number in range(units)]
        for shards in {id(shards): shards for shards, _ in wanted}.values():
            console.print(f"preparing {shards.source.describe()}, share {index} of {count}")
        state.pipeline.run(wanted[index::count])
        return [len(shards.entries) for shards, _ in sets]


@contextlib.contextmanager
def _preparing(
    data: DataConfig, tokenizer_config: ComponentConfig, console: Console, train_rows: int | None
) -> Iterator[Preparing]:
    """Sources resolved, tokenizer there, the sources' shards locked, workers ready."""
    sources = [registry.build(config) for config in data.sources]
    own = [registry.build(config) for config in data.validation.sources or []]
    cache = Path(data.cache_dir).expanduser()
    with contextlib.ExitStack() as stack:
        stack.enter_context(explained(cache))
        cache.mkdir(parents=True, exist_ok=True)
        for source in (*sources, *own):
            source.resolve(cache, console.print)
        with exclusive(cache / "tokenizers.lock", console):  # one process trains it, the others read it
            tokenizer: Tokenizer = registry.build(tokenizer_config, sources=sources, cache_dir=cache)
        training = [
            _source_shards(config, source, data, tokenizer, cache)
            for config, source in zip(data.sources, sources, strict=True)
        ]
        if data.validation.sources is not None:
            pairs = list(zip(data.validation.sources, own, strict=True))
        else:
            pairs = [
                (c, held) for c, s in zip(data.sources, sources, strict=True) if (held := s.held_out()) is not None
            ]
        held_out = [_source_shards(config, source, data, tokenizer, cache) for config, source in pairs]
        for key in sorted({shards.key for shards in [*training, *held_out]}):
            stack.enter_context(exclusive(cache / "shards" / f"{key}.lock", console))
            (cache / "shards" / key).mkdir(exist_ok=True)
        filters, corpus_filters = _filters(data)
        writer = ShardWriter(
            tokenizer,
            functools.partial(normalise, config=data.text),
            filters,
            [(name, each) for name, each in corpus_filters if each.signature_bytes],
            data.text.max_invalid_fraction,
        )
        store = Store(data.store) if data.store is not None else None
        workers = stack.enter_context(Workers(writer, worker_count(data.workers)))
        pipeline = Pipeline(workers, console, store)
        yield Preparing(data, cache, console, tokenizer, training, held_out, pipeline, corpus_filters, train_rows)


def _source_shards(
    config: ComponentConfig, source: Source, data: DataConfig, tokenizer: Tokenizer, cache: Path
) -> SourceShards:
    key = source_key(config, source, data, tokenizer)
    return SourceShards(source, key, cache / "shards" / key, source.units(data.shard_tokens))


def _is_there(cache: Path, directory: Path) -> bool:
    """Whether there is a manifest, and no shard of it was deleted to be made anew."""
    if not (directory / "manifest.json").is_file():
        return False
    manifest = read_json(directory / "manifest.json", SCHEMA_VERSION)
    places = [(f"shards/{source['key']}", entry) for source in manifest["sources"] for entry in source["shards"]]
    places += [(each["directory"], each["entry"]) for each in manifest["validation"]]
    return all((cache / place / f"{entry['name']}.json").is_file() for place, entry in places)


def _request_key(state: Preparing) -> str:
    """Name of a manifest: the sources, how much of those that are downloaded, and what is held out and dropped."""
    validation = to_plain(state.data.validation)
    del validation["max_rows"], validation["sha256"], validation["sources"]
    content = [
        SCHEMA_VERSION,
        [shards.key for shards in state.training],
        [shards.key for shards in state.held_out],
        validation,
        [needed_tokens(state, index) for index in range(len(state.training))],
        [to_plain(config) for config in state.data.filters],
    ]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:20]


def _make(state: Preparing, directory: Path) -> None:
    """Make every shard that is missing, choose what is held out, and write the manifest."""
    everything = [*state.training, *state.held_out]
    for shards in everything:
        state.console.print(f"preparing {shards.source.describe()}")
    state.console.print(f"tokenizing with {getattr(state.tokenizer, 'engine', state.tokenizer.name)}")
    check_all_room(state)
    validation, places = _validation(state)
    dtype = token_dtype(state.tokenizer.vocab_size)
    opened = [Shard(state.cache / place, entry, dtype) for place, entry in zip(places, validation, strict=True)]
    sha256 = content_sha256(opened)
    spec = PlanSpec(
        state.data.packing,
        state.data.sequence_length + 1,
        np.concatenate([shard.digests() for shard in opened]),
        sha256,
    )
    used = [_make_source(state, index, spec) for index in range(len(state.training))]
    entries = [[shards.entries[i] for i in range(n)] for shards, n in zip(state.training, used, strict=True)]
    documents = sum(entry["documents"] for each in entries for entry in each)
    if documents == 0:
        raise state.training[0].source.empty_error()
    directory.mkdir(parents=True, exist_ok=True)
    dropped = _drop(state, used, opened, directory) if state.corpus_filters else {}
    identity = [[file["sha256"] for each in entries for entry in each for file in entry["files"]], sha256]
    manifest = {
        "schema_version": SCHEMA_VERSION,
        "tokenizer": state.tokenizer.identity,
        "fingerprint": hashlib.sha256(json.dumps([*identity, sorted(dropped.items())]).encode()).hexdigest(),
        "validation_sha256": sha256,
        "dropped_by": directory.name if state.corpus_filters else "",
        "dropped": dropped,
        "sources": [
            {"key": shards.key, "description": shards.source.describe(), "shards": each}
            for shards, each in zip(state.training, entries, strict=True)
        ],
        "validation": [{"directory": place, "entry": entry} for place, entry in zip(places, validation, strict=True)],
    }
    write_atomically(directory / "manifest.json", json.dumps(manifest, indent=1).encode())
    tokens = sum(entry["tokens"] for each in entries for entry in each)
    peak = state.pipeline.peak_memory
    memory = f"; at most {peak / 1e9:.2f} GB of memory a process" if peak else ""
    state.console.print(f"prepared {documents:,} documents, {tokens:,} tokens in {directory}{memory}")


def _validation(state: Preparing) -> tuple[list[dict[str, Any]], list[str]]:
    """Entries of the validation shards, and the directory of each relative to the cache."""
    if state.data.validation.sources is not None:
        wanted = [(shards, i) for shards in state.held_out for i in range(len(shards.units))]
        state.pipeline.run(wanted)
        if sum(shards.entries[i]["documents"] for shards, i in wanted) == 0:
            raise state.held_out[0].source.empty_error()
        return [s.entries[i] for s, i in wanted], [f"shards/{s.key}" for s, _ in wanted]
    if state.held_out:
        candidates = [(shards, i) for shards in state.held_out for i in range(len(shards.units))]
    else:  # of a source that is downloaded the first file's, or the set would depend on the length of the run
        candidates = [
            (shards, i)
            for shards in state.training
            for i, unit in enumerate(shards.units)
            if unit.remote is None or unit.remote is shards.units[0].remote
        ]
    state.pipeline.run(candidates)
    if sum(shards.entries[i]["documents"] for shards, i in candidates) == 0:
        raise candidates[0][0].source.empty_error() if candidates else state.training[0].source.empty_error()
    content = [[shards.key, i] for shards, i in candidates]
    wish = [SCHEMA_VERSION, content, state.data.validation.documents]
    place = f"validation/{hashlib.sha256(json.dumps(wish).encode()).hexdigest()[:20]}"
    directory = state.cache / place
    directory.mkdir(parents=True, exist_ok=True)
    entry = read_entry(directory, "validation")
    if entry is None:
        opened = [state.shard(shards, i) for shards, i in candidates]
        chosen = choose(opened, state.data.validation.documents, is_corpus=not state.held_out)
        entry = write_chosen(directory, opened, chosen)
    return [entry], [place]


def _make_source(state: Preparing, index: int, spec: PlanSpec) -> int:
    """Make the shards that the run needs of a source, packing each as it comes; returns how many it uses."""
    shards = state.training[index]
    needed = needed_tokens(state, index)

    def pack(each: SourceShards, number: int) -> Any:
        if state.corpus_filters or spec.exists(each.directory, each.name(number)):
            return None
        return write_plan, (each.directory, each.entries[number], spec, None)

    if needed is None:
        state.pipeline.run([(shards, i) for i in range(len(shards.units))], pack)
        return len(shards.units)
    count = 0
    while True:
        used, tokens = _prefix(shards, count, needed)
        if tokens >= needed or used == len(shards.units):
            return used
        count = estimated_units(shards, count, needed - tokens)
        state.pipeline.run([(shards, i) for i in range(count)], pack)


def _prefix(shards: SourceShards, count: int, needed: int) -> tuple[int, int]:
    """The fewest first shards that hold `needed` tokens, or all `count` that are there; and their tokens."""
    tokens = 0
    for index in range(count):
        if tokens >= needed:
            return index, tokens
        tokens += shards.entries[index]["tokens"]
    return count, tokens


def _drop(state: Preparing, used: Sequence[int], held_out: list[Shard], directory: Path) -> dict[str, int]:
    """Run the filters that compare documents, each on what the ones before left; returns documents dropped by each."""
    places = [(s, i) for s, n in enumerate(used) for i in range(n)]
    shards = [state.shard(state.training[s], i) for s, i in places]
    everything = [*held_out, *shards]
    known = np.concatenate([shard.digests() for shard in held_out])
    masks = [excluded(shard.digests(), known) for shard in everything]  # held out and not counted as dropped
    dropped: dict[str, int] = {}
    for name, each in state.corpus_filters:
        state.console.print(f"comparing documents: {name}")
        signatures = [_signatures(shard, name, each.signature_bytes) for shard in everything]
        found = each.drop([shard.digests() for shard in everything], signatures)
        count = 0
        for mask, new in zip(masks[len(held_out) :], found[len(held_out) :], strict=True):
            count += int((new & ~mask).sum())
            mask |= new
        dropped[name] = dropped.get(name, 0) + count
    for (s, i), mask in zip(places, masks[len(held_out) :], strict=True):
        save_array(directory / f"dropped-{s}-{state.training[s].name(i)}.npy", mask)
    return dropped


def _signatures(shard: Shard, name: str, size: int) -> Any:
    if size == 0 or shard.documents == 0:
        return np.empty((shard.documents, size), dtype=np.uint8)
    return shard.bytes_of(name)
