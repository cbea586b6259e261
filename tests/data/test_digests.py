"""Files are checked once for each time they change, and every damaged one is named."""

import os

import numpy as np
import pytest
from conftest import write_corpus
from rich.console import Console

from littlelm.data import digests
from littlelm.data.configs import BestFitConfig, DataConfig, ValidationConfig
from littlelm.data.digests import check_all, check_offsets, check_once
from littlelm.data.files import write_array
from littlelm.data.prepare import prepare
from littlelm.data.source_configs import TextSourceConfig
from littlelm.errors import UserError
from littlelm.tokenizers.configs import ByteTokenizerConfig

QUIET = Console(quiet=True)


@pytest.fixture
def files(tmp_path):
    return [(tmp_path / n, write_array(tmp_path / n, np.arange(1000))) for n in ("00000.tokens", "00001.tokens")]


def small_corpus(tmp_path):
    write_corpus(tmp_path / "text", documents=40)
    return DataConfig(
        sources=[TextSourceConfig(files=[f"{tmp_path}/text/*.txt"])],
        validation=ValidationConfig(documents=4),
        sequence_length=64,
        packing=BestFitConfig(),
        cache_dir=str(tmp_path / "cache"),
        workers=1,
    )


def flip(path):
    data = bytearray(path.read_bytes())
    data[77] ^= 1
    path.write_bytes(data)


def test_what_was_checked_is_read_again_only_when_it_changed(files, tmp_path, monkeypatch):
    read = []
    monkeypatch.setattr(digests, "check_all", lambda some, console: read.append([path.name for path, _ in some]))
    check_once(files, tmp_path / "memory" / "checked.json", QUIET)
    check_once(files, tmp_path / "memory" / "checked.json", QUIET)
    os.utime(files[1][0], ns=(1, 1))
    check_once(files, tmp_path / "memory" / "checked.json", QUIET)
    assert read == [["00000.tokens", "00001.tokens"], ["00001.tokens"]]


def test_a_damaged_memory_means_reading_everything(files, tmp_path):
    memory = tmp_path / "checked.json"
    memory.write_text("{")
    check_once(files, memory, QUIET)
    flip(files[0][0])
    with pytest.raises(UserError, match="damaged"):
        check_once(files, memory, QUIET)


def test_every_damaged_file_is_named(files):
    check_all(files, QUIET)
    for path, _ in files:
        flip(path)
    with pytest.raises(UserError) as caught:
        check_all(files, QUIET)
    lines = str(caught.value).splitlines()
    assert [line.split(": ")[0] for line in lines] == [str(path) for path, _ in files]


@pytest.mark.parametrize("suffix", ["tokens", "lengths", "digests", "origins", "first.npy", "start.npy", "length.npy"])
def test_training_on_a_flipped_byte_is_refused_whatever_the_file(tmp_path, suffix):
    data = small_corpus(tmp_path)
    check_offsets(prepare(data, ByteTokenizerConfig(), QUIET))
    (path,) = (tmp_path / "cache" / "shards").rglob(f"00000.{suffix}")
    flip(path)
    with pytest.raises(UserError, match=rf"00000\.{suffix}: damaged"):
        prepare(data, ByteTokenizerConfig(), QUIET)


def test_an_offset_that_points_nowhere_is_found(tmp_path):
    data = small_corpus(tmp_path)
    prepared = prepare(data, ByteTokenizerConfig(), QUIET)
    plan = prepared.plans[0][0]
    plan.start = plan.start.copy()
    plan.start[0] = len(prepared.shards[0].tokens)
    prepared.shards[0].tokens = prepared.shards[0].tokens[1:]
    with pytest.raises(UserError) as caught:
        check_offsets(prepared)
    assert "tokens in documents" in str(caught.value)
    assert "points outside of the shard" in str(caught.value)
