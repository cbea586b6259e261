"""Preparing: cached by content, independent of the workers, never half done, every byte accounted for."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import write_corpus
from rich.console import Console

from littlelm.data import prepare as module
from littlelm.data.configs import BestFitConfig, DataConfig, ValidationConfig
from littlelm.data.prepare import prepare
from littlelm.data.source_configs import TextSourceConfig
from littlelm.errors import UserError
from littlelm.tokenizers.configs import ByteTokenizerConfig

QUIET = Console(quiet=True)


def config(corpus, cache, **options):
    options = {"validation": ValidationConfig(documents=8), "workers": 1, "sequence_length": 64, **options}
    return DataConfig(
        sources=[TextSourceConfig(files=[f"{corpus}/*.txt"])],
        packing=BestFitConfig(),
        cache_dir=str(cache),
        **options,
    )


def contents(directory):
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_a_second_time_opens_what_is_there(corpus, tmp_path, monkeypatch):
    first = prepare(config(corpus, tmp_path), ByteTokenizerConfig(), QUIET)
    monkeypatch.setattr(module, "tokenize", None)
    second = prepare(config(corpus, tmp_path), ByteTokenizerConfig(), QUIET)
    assert second.fingerprint == first.fingerprint
    assert second.report == first.report


def test_the_result_does_not_depend_on_the_workers(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_PART_BYTES", 5_000)
    one = prepare(config(corpus, tmp_path / "1", workers=1), ByteTokenizerConfig(), QUIET)
    two = prepare(config(corpus, tmp_path / "2", workers=2), ByteTokenizerConfig(), QUIET)
    assert len(one.shards) > 2
    assert contents(one.directory) == contents(two.directory)


def test_other_content_is_prepared_anew(tmp_path):
    write_corpus(tmp_path / "corpus")
    first = prepare(config(tmp_path / "corpus", tmp_path / "cache"), ByteTokenizerConfig(), QUIET)
    (tmp_path / "corpus" / "000.txt").write_text("Something else entirely.\n")
    second = prepare(config(tmp_path / "corpus", tmp_path / "cache"), ByteTokenizerConfig(), QUIET)
    assert second.directory != first.directory
    assert second.fingerprint != first.fingerprint


def test_validation_is_fixed_by_content_not_by_order(tmp_path):
    write_corpus(tmp_path / "a")
    (tmp_path / "b").mkdir()
    for number, path in enumerate(sorted((tmp_path / "a").iterdir(), reverse=True)):
        shutil.copy(path, tmp_path / "b" / f"{number:03}.txt")
    one = prepare(config(tmp_path / "a", tmp_path / "cache"), ByteTokenizerConfig(), QUIET)
    two = prepare(config(tmp_path / "b", tmp_path / "cache"), ByteTokenizerConfig(), QUIET)
    assert one.validation.sha256 == two.validation.sha256
    assert one.fingerprint != two.fingerprint


def test_copies_of_validation_documents_are_not_trained_on(tmp_path):
    write_corpus(tmp_path / "a")
    alone = prepare(config(tmp_path / "a", tmp_path / "cache"), ByteTokenizerConfig(), QUIET)
    for path in list((tmp_path / "a").iterdir()):
        shutil.copy(path, path.with_name(f"copy-{path.name}"))
    doubled = prepare(config(tmp_path / "a", tmp_path / "cache"), ByteTokenizerConfig(), QUIET)
    assert doubled.validation.sha256 == alone.validation.sha256
    assert doubled.report["tokens"] == 2 * alone.report["tokens"]


def test_a_pin_that_does_not_match_is_refused(corpus, tmp_path):
    made = prepare(config(corpus, tmp_path), ByteTokenizerConfig(), QUIET)
    pinned = ValidationConfig(documents=8, sha256=made.validation.sha256)
    prepare(config(corpus, tmp_path, validation=pinned), ByteTokenizerConfig(), QUIET)
    wrong = ValidationConfig(documents=8, sha256="0" * 64)
    with pytest.raises(UserError, match="not the pinned one"):
        prepare(config(corpus, tmp_path, validation=wrong), ByteTokenizerConfig(), QUIET)


def test_validation_may_have_sources_of_its_own(corpus, tmp_path):
    write_corpus(tmp_path / "held_out", documents=5)  # the first five documents of the corpus, again
    own = ValidationConfig(sources=[TextSourceConfig(files=[f"{tmp_path}/held_out/*.txt"])])
    made = prepare(config(corpus, tmp_path, validation=own), ByteTokenizerConfig(), QUIET)
    assert made.validation.documents == 5
    assert made.report["documents"] == 115


def test_max_rows_takes_the_same_rows_each_time(corpus, tmp_path):
    few = ValidationConfig(documents=8, max_rows=3)
    one = prepare(config(corpus, tmp_path, validation=few), ByteTokenizerConfig(), QUIET).validation
    whole = prepare(config(corpus, tmp_path), ByteTokenizerConfig(), QUIET).validation
    assert one.num_rows == 3 < whole.num_rows
    assert (one.batch(0, 3)[0] == whole.batch(0, 3)[0]).all()


def test_a_validation_set_that_takes_everything_is_an_error(corpus, tmp_path):
    everything = ValidationConfig(documents=120)
    with pytest.raises(UserError, match="only 120 documents"):
        prepare(config(corpus, tmp_path, validation=everything), ByteTokenizerConfig(), QUIET)
    assert not list(tmp_path.rglob("*.tokens"))


def test_a_flipped_byte_is_found_and_a_missing_file_named(corpus, tmp_path):
    made = prepare(config(corpus, tmp_path), ByteTokenizerConfig(), QUIET)
    made.verify()
    file = made.directory / "train-00000.tokens"
    data = bytearray(file.read_bytes())
    data[100] ^= 1
    file.write_bytes(data)
    with pytest.raises(UserError, match=r"train-00000\.tokens: damaged"):
        prepare(config(corpus, tmp_path), ByteTokenizerConfig(), QUIET).verify()
    file.unlink()
    with pytest.raises(UserError, match=r"train-00000\.tokens: missing"):
        prepare(config(corpus, tmp_path), ByteTokenizerConfig(), QUIET)


def test_a_full_disk_is_one_clear_error(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(100, 100, 0))
    with pytest.raises(UserError, match=r"set data\.cache_dir to another disk"):
        prepare(config(corpus, tmp_path), ByteTokenizerConfig(), QUIET)
    monkeypatch.undo()

    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "tokenize", full)
    with pytest.raises(UserError, match="no space left on the disk"):
        prepare(config(corpus, tmp_path), ByteTokenizerConfig(), QUIET)
    assert [path.suffix for path in (tmp_path / "data").iterdir()] == [".lock"]


def test_a_killed_preparation_leaves_nothing_that_counts(corpus, tmp_path):
    """Stop in the middle, then again: the result is that of an undisturbed one, and the remains are gone."""
    code = (
        "import os, sys, time\n"
        f"sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from test_prepare import *\n"
        "commit = module.commit\n"
        "module.commit = lambda *a: (print('ready', flush=True), time.sleep(60))\n"
        f"prepare(config({str(corpus)!r}, {str(tmp_path)!r}), ByteTokenizerConfig(), QUIET)\n"
    )
    path = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path}
    )
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert list((tmp_path / "data").glob(".tmp-*"))
    time.sleep(0.05)
    made = prepare(config(corpus, tmp_path), ByteTokenizerConfig(), QUIET)
    made.verify()
    assert not list((tmp_path / "data").glob(".tmp-*"))
