"""What one looks at is what a run reads."""

from pathlib import Path

import numpy as np
import pytest
from conftest import write_corpus
from rich.console import Console

from littlelm.data.configs import BestFitConfig, ConcatConfig, DataConfig, ValidationConfig
from littlelm.data.look import find_in_shard, pieces_of_row, rows_of_document, steps_of_document, utilisation
from littlelm.data.prepare import prepare
from littlelm.data.shards import ShardWriter
from littlelm.data.source_configs import JsonlSourceConfig, TextSourceConfig
from littlelm.data.sources import base
from littlelm.tokenizers.configs import ByteTokenizerConfig

STEPS = 60


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    directory = tmp_path_factory.mktemp("look")
    write_corpus(directory / "a", documents=60)
    lines = [f'{{"text": "line {number} says {"again " * number}"}}\n' for number in range(40)]
    (directory / "b.jsonl").write_text("".join(lines))
    return directory


@pytest.fixture(scope="module", params=[(BestFitConfig(), True), (ConcatConfig(), False)], ids=["mixed", "natural"])
def opened(request, directory):
    packing, is_mixed = request.param
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.setattr(base, "_UNIT_BYTES", 4_000)
    weights = {"weight": 1.0, "max_epochs": 50.0} if is_mixed else {}
    data = DataConfig(
        sources=[
            TextSourceConfig(files=[f"{directory}/a/*.txt"], **weights),
            JsonlSourceConfig(files=[f"{directory}/b.jsonl"], **weights),
        ],
        validation=ValidationConfig(documents=6),
        sequence_length=64,
        packing=packing,
        cache_dir=str(directory / "cache"),
        workers=1,
    )
    prepared = prepare(data, ByteTokenizerConfig(), Console(quiet=True))
    monkeypatch.undo()
    return prepared, prepared.train_loader(8, 1, STEPS)


def test_the_pieces_of_a_row_are_the_row(opened):
    prepared, loader = opened
    for step in (0, 7, STEPS - 1):
        inputs, _ = loader.batch(step, 0, 8)
        for row in range(8):
            pieces = pieces_of_row(prepared, loader, step, row)
            assert "".join(piece.text for piece in pieces).startswith(prepared.tokenizer.decode(inputs[row])[:50])
            assert sum(piece.end - piece.begin for piece in pieces) <= 65


def test_a_piece_names_the_file_and_place_it_comes_from(opened):
    prepared, loader = opened
    seen = set()
    for step in range(20):
        for piece in pieces_of_row(prepared, loader, step, step % 8):
            name, place = piece.origin
            content = Path(name).read_bytes()[int(place.removeprefix("byte ")) :]
            assert piece.text.strip()[:20].encode() in content
            seen.add(name.endswith(".jsonl"))
    assert seen == {True, False}


def test_a_text_is_found_where_it_is_and_read_when_it_is_said_to_be(opened):
    prepared, loader = opened
    writer = ShardWriter(prepared.tokenizer)
    needle = b"line 33 says"
    found = [(s, d) for s in prepared.shards for d in find_in_shard(writer, s.directory, s.entry, needle)]
    assert len(found) == 1
    (shard, document) = found[0]
    steps = steps_of_document(loader, shard, document, STEPS)
    text = prepared.tokenizer.decode(shard.tokens[_span(shard, document)])
    for step in range(STEPS):
        for row in range(8):
            holds = any(p.shard is shard and p.document == document for p in pieces_of_row(prepared, loader, step, row))
            assert holds == ((step, row) in steps)
    assert text.startswith("line 33 says")


def _span(shard, document):
    ends = np.cumsum(shard.lengths())
    return slice(int(ends[document - 1]) if document else 0, int(ends[document]))


def test_held_out_documents_are_in_no_row(opened):
    prepared, loader = opened
    held_out = {digest.tobytes() for digest in prepared.spec.held_out}
    count = 0
    for plans, shards in zip(prepared.plans, prepared.sources, strict=True):
        for plan, shard in zip(plans, shards, strict=True):
            for document, digest in enumerate(shard.digests()):
                if digest.tobytes() in held_out:
                    count += 1
                    assert rows_of_document(plan, shard, document) == []
                    assert steps_of_document(loader, shard, document, STEPS) == []
    assert count == 6


def test_utilisation_is_that_of_packing(opened):
    prepared, _ = opened
    shard = prepared.shards[0]
    counts = utilisation(ShardWriter(prepared.tokenizer), shard.directory, shard.entry, BestFitConfig(), [33, 65])
    assert [each["slots"] // each["rows"] for each in counts] == [33, 65]
    assert all(each["packed"] == len(shard.tokens) for each in counts)
