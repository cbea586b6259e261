"""A shard holds every document once, says where it came from and counts what was left out."""

import json

import numpy as np
import pytest

from littlelm import registry
from littlelm.data.shards import Shard, ShardWriter, read_entry, token_dtype
from littlelm.data.source_configs import JsonlSourceConfig
from littlelm.errors import UserError
from littlelm.tokenizers.configs import ByteTokenizerConfig

TOKENIZER = registry.build(ByteTokenizerConfig())


def part_of(path, lines):
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return registry.build(JsonlSourceConfig(files=[str(path)])).split(1)[0]


def line(text):
    return json.dumps({"text": text}).encode()


class Short:
    """A filter that keeps documents of less than ten characters."""

    def accepts(self, text):
        return len(text) < 10


class FirstByte:
    """A filter that compares documents by their first byte."""

    signature_bytes = 1

    def signature(self, text):
        return text.encode()[:1]


def test_documents_come_back_with_their_origin_and_the_others_are_counted(tmp_path):
    lines = [line("one"), b'{"text": null}', line("two"), b'{"text": "\xff"}', line(" "), line("three")]
    part = part_of(tmp_path / "a.jsonl", lines)
    entry = ShardWriter(TOKENIZER, max_invalid_fraction=0.5).write(part, tmp_path, "00000")
    assert entry == read_entry(tmp_path, "00000")
    assert entry["left_out"] == {"empty": 1, "invalid_utf8": 1, "null": 1}
    shard = Shard(tmp_path, entry, token_dtype(TOKENIZER.vocab_size))
    documents = np.split(shard.tokens, np.cumsum(shard.lengths())[:-1])
    assert [TOKENIZER.decode(each) for each in documents] == ["one", "two", "three"]
    assert all(each[0] == TOKENIZER.bos_id for each in documents)
    places = [shard.origin(document) for document in range(3)]
    offsets = [0, len(lines[0]) + len(lines[1]) + 2, sum(map(len, lines[:5])) + 5]
    assert places == [(str(tmp_path / "a.jsonl"), f"byte {offset}") for offset in offsets]
    shard.verify()


def test_filters_are_counted_by_name_and_signatures_kept(tmp_path):
    part = part_of(tmp_path / "a.jsonl", [line("short"), line("rather long"), line("tiny")])
    writer = ShardWriter(TOKENIZER, str.upper, [("brief", Short())], [("first", FirstByte())])
    entry = writer.write(part, tmp_path, "00000")
    assert entry["left_out"] == {"brief": 1}
    shard = Shard(tmp_path, entry, token_dtype(TOKENIZER.vocab_size))
    assert shard.bytes_of("first").tobytes() == b"ST"
    assert shard.per_document_bytes() == ["digests", "first"]


def test_text_that_normalises_to_nothing_is_empty(tmp_path):
    part = part_of(tmp_path / "a.jsonl", [line("\x00"), line("text")])
    entry = ShardWriter(TOKENIZER, lambda text: text.replace("\x00", "")).write(part, tmp_path, "00000")
    assert entry["left_out"] == {"empty": 1}


@pytest.mark.parametrize("count", [10, 3000])
def test_too_much_invalid_text_is_fatal_and_names_the_first_place(tmp_path, count):
    part = part_of(tmp_path / "a.jsonl", [line("text")] + [b'{"text": "\xff"}'] * count)
    with pytest.raises(UserError, match=r"a\.jsonl: \d+ of \d+ documents are not valid UTF-8, the first at byte 17;"):
        ShardWriter(TOKENIZER).write(part, tmp_path, "00000")
    assert read_entry(tmp_path, "00000") is None


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    part = part_of(tmp_path / "a.jsonl", [line("text")])
    (tmp_path / "a.jsonl").unlink()
    with pytest.raises(UserError, match=r"a\.jsonl: cannot be read: No such file"):
        ShardWriter(TOKENIZER).write(part, tmp_path, "00000")


def test_one_document_of_many_megabytes_is_a_document(tmp_path):
    text = "a long story " * 400_000
    part = part_of(tmp_path / "a.jsonl", [line(text), line("end")])
    entry = ShardWriter(TOKENIZER).write(part, tmp_path, "00000")
    assert (entry["documents"], entry["tokens"]) == (2, len(text) + 1 + 4)
