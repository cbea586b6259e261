"""Preparing: cached by content, independent of the workers, never half done, every byte accounted for."""

import io
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from conftest import write_corpus
from rich.console import Console

from littlelm import registry
from littlelm.data import plans
from littlelm.data.configs import BestFitConfig, DataConfig, ValidationConfig
from littlelm.data.files import exclusive
from littlelm.data.prepare import prepare
from littlelm.data.shards import ShardWriter
from littlelm.data.source_configs import TextSourceConfig
from littlelm.data.sources import base
from littlelm.data.workers import Workers
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


def contents(cache):
    """Every prepared file of a cache, by its place."""
    return {
        str(path.relative_to(cache)): path.read_bytes()
        for part in ("shards", "validation", "data")
        for path in (cache / part).rglob("*")
        if path.is_file() and path.suffix != ".lock"
    }


def forbidden(*arguments):
    raise AssertionError("this must not be made again")


def test_a_second_time_opens_what_is_there(corpus, tmp_path, monkeypatch):
    first = prepare(config(corpus, tmp_path), ByteTokenizerConfig(), QUIET)
    monkeypatch.setattr(ShardWriter, "write", forbidden)
    second = prepare(config(corpus, tmp_path), ByteTokenizerConfig(), QUIET)
    assert second.fingerprint == first.fingerprint
    assert second.report == first.report


def test_the_result_does_not_depend_on_the_workers(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(base, "_UNIT_BYTES", 5_000)
    one = prepare(config(corpus, tmp_path / "1", workers=1), ByteTokenizerConfig(), QUIET)
    prepare(config(corpus, tmp_path / "2", workers=2), ByteTokenizerConfig(), QUIET)
    assert len(one.shards) > 2
    assert contents(tmp_path / "1") == contents(tmp_path / "2")


def test_other_content_is_prepared_anew(tmp_path):
    write_corpus(tmp_path / "corpus")
    first = prepare(config(tmp_path / "corpus", tmp_path / "cache"), ByteTokenizerConfig(), QUIET)
    (tmp_path / "corpus" / "000.txt").write_text("Something else entirely.\n")
    second = prepare(config(tmp_path / "corpus", tmp_path / "cache"), ByteTokenizerConfig(), QUIET)
    assert second.directory != first.directory
    assert second.shards[0].directory != first.shards[0].directory
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
    assert not list(tmp_path.glob("data/*"))


def test_a_flipped_byte_is_found_and_a_missing_file_named(corpus, tmp_path):
    made = prepare(config(corpus, tmp_path), ByteTokenizerConfig(), QUIET)
    file = made.shards[0].directory / "00000.tokens"
    data = bytearray(file.read_bytes())
    data[100] ^= 1
    file.write_bytes(data)
    with pytest.raises(UserError, match=r"00000\.tokens: damaged .*delete .*00000\.json to have"):
        prepare(config(corpus, tmp_path), ByteTokenizerConfig(), QUIET)
    file.unlink()
    with pytest.raises(UserError, match=r"00000\.tokens: missing"):
        prepare(config(corpus, tmp_path), ByteTokenizerConfig(), QUIET)


def test_what_a_message_says_mends_a_damaged_shard(corpus, tmp_path):
    made = prepare(config(corpus, tmp_path), ByteTokenizerConfig(), QUIET)
    before = contents(tmp_path)
    directory = made.shards[0].directory
    (directory / "00000.tokens").write_bytes(b"damaged")
    (directory / "00000.json").unlink()
    prepare(config(corpus, tmp_path), ByteTokenizerConfig(), QUIET)
    assert contents(tmp_path) == before


def test_a_full_disk_is_one_clear_error(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(100, 100, 0))
    with pytest.raises(UserError, match=r"set data\.cache_dir to another disk"):
        prepare(config(corpus, tmp_path), ByteTokenizerConfig(), QUIET)
    monkeypatch.undo()

    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ShardWriter, "write", full)
    with pytest.raises(UserError, match="no space left on the disk"):
        prepare(config(corpus, tmp_path), ByteTokenizerConfig(), QUIET)
    assert contents(tmp_path) == {}


@pytest.mark.parametrize("kills_after", [0, 1, 3])
def test_a_killed_preparation_goes_on_at_the_next_shard(corpus, tmp_path, monkeypatch, kills_after):
    """Killed while a shard is being written: the finished ones stay, the result is that of an undisturbed one."""
    monkeypatch.setattr(base, "_UNIT_BYTES", 5_000)
    prepare(config(corpus, tmp_path / "undisturbed"), ByteTokenizerConfig(), QUIET)
    code = (
        "import os, signal, sys\n"
        f"sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from test_prepare import *\n"
        "base._UNIT_BYTES = 5_000\n"
        "import littlelm.data.shards as shards\n"
        "write, done = shards.write_array, []\n"
        "def deadly(path, array):\n"
        f"    if path.suffix == '.digests' and path.name >= '{kills_after:05}':\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return write(path, array)\n"
        "shards.write_array = deadly\n"
        f"prepare(config({str(corpus)!r}, {str(tmp_path / 'cache')!r}), ByteTokenizerConfig(), QUIET)\n"
    )
    path = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    killed = subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path}, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert len(list(tmp_path.glob("cache/shards/*/*.json"))) == kills_after
    made, write = [], ShardWriter.write

    def counted(writer, part, directory, name):
        made.append(name)
        return write(writer, part, directory, name)

    monkeypatch.setattr(ShardWriter, "write", counted)
    prepare(config(corpus, tmp_path / "cache"), ByteTokenizerConfig(), QUIET)
    assert min(made) == f"{kills_after:05}"
    assert contents(tmp_path / "cache") == contents(tmp_path / "undisturbed")


def test_plans_are_checked_like_shards(corpus, tmp_path):
    made = prepare(config(corpus, tmp_path), ByteTokenizerConfig(), QUIET)
    file = made.plans[0][0].directory / "00000.start.npy"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(UserError, match=r"00000\.start\.npy: damaged"):
        prepare(config(corpus, tmp_path), ByteTokenizerConfig(), QUIET)
    file.write_bytes(data[:-4])
    with pytest.raises(UserError, match=r"00000\.start\.npy: \d+ bytes instead of"):
        prepare(config(corpus, tmp_path), ByteTokenizerConfig(), QUIET)


def test_plans_that_were_interrupted_are_made_anew(corpus, tmp_path, monkeypatch):
    """As after a kill: arrays of a plan without its entry."""
    made = prepare(config(corpus, tmp_path), ByteTokenizerConfig(), QUIET)
    directory, before = made.plans[0][0].directory, contents(tmp_path)
    (directory / "00000.json").unlink()
    (directory / "00000.first.npy").write_bytes(b"half")
    monkeypatch.setattr(ShardWriter, "write", forbidden)
    prepare(config(corpus, tmp_path), ByteTokenizerConfig(), QUIET)
    assert contents(tmp_path) == before


def test_another_row_length_packs_what_is_tokenized(corpus, tmp_path, monkeypatch):
    prepare(config(corpus, tmp_path), ByteTokenizerConfig(), QUIET)
    monkeypatch.setattr(ShardWriter, "write", forbidden)
    longer = prepare(config(corpus, tmp_path, sequence_length=128), ByteTokenizerConfig(), QUIET)
    assert longer.train_loader(4, 0).batch(0, 0, 4)[0].shape == (4, 128)


def test_a_source_is_tokenized_once_for_every_mixture_it_is_in(corpus, tmp_path, monkeypatch):
    write_corpus(tmp_path / "more", documents=9)
    prepare(config(corpus, tmp_path / "cache"), ByteTokenizerConfig(), QUIET)
    made, write = [], ShardWriter.write

    def counted(writer, part, directory, name):
        made.append(part.file_names()[0])
        return write(writer, part, directory, name)

    monkeypatch.setattr(ShardWriter, "write", counted)
    one = config(corpus, tmp_path / "cache").sources[0].model_copy(update={"weight": 1.0, "id": "one"})
    two = TextSourceConfig(files=[f"{tmp_path}/more/*.txt"], weight=2.0)
    both = config(corpus, tmp_path / "cache").model_copy(update={"sources": [one, two]})
    prepare(both, ByteTokenizerConfig(), QUIET)
    assert len(made) == 1
    assert made[0].startswith(str(tmp_path / "more"))


def test_plans_that_fail_midway_are_not_used(corpus, tmp_path, monkeypatch):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(plans, "save_array", full)
    with pytest.raises(UserError, match="no space left on the disk"):
        prepare(config(corpus, tmp_path), ByteTokenizerConfig(), QUIET)
    assert not list(tmp_path.glob("shards/*/plans/*/*.json"))
    assert not list(tmp_path.glob("data/*/manifest.json"))


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"schema_version": 99}'])
def test_a_damaged_manifest_is_one_clear_error(corpus, tmp_path, damage):
    made = prepare(config(corpus, tmp_path), ByteTokenizerConfig(), QUIET)
    for manifest in (made.plans[0][0].directory / "00000.json", made.directory / "manifest.json"):
        manifest.write_text(damage)
        with pytest.raises(UserError, match=f"{manifest}: .* delete it to have it made anew"):
            prepare(config(corpus, tmp_path), ByteTokenizerConfig(), QUIET)


def test_a_cache_that_is_no_directory_is_one_clear_error(corpus, tmp_path):
    (tmp_path / "file").write_text("")
    for place in ("file", "file/below"):
        with pytest.raises(UserError, match=r"set data\.cache_dir"):
            prepare(config(corpus, tmp_path / place), ByteTokenizerConfig(), QUIET)


def test_copies_do_not_count_as_documents_left_to_train_on(tmp_path):
    write_corpus(tmp_path / "a", documents=6)
    for path in list((tmp_path / "a").iterdir()):
        shutil.copy(path, path.with_name(f"copy-{path.name}"))
    six = ValidationConfig(documents=6)
    with pytest.raises(UserError, match=r"only 6 documents \(12 with copies\)"):
        prepare(config(tmp_path / "a", tmp_path / "cache", validation=six), ByteTokenizerConfig(), QUIET)


def test_a_shard_may_be_held_out_as_a_whole(corpus, tmp_path):
    write_corpus(tmp_path / "held_out", documents=5)
    own = ValidationConfig(sources=[TextSourceConfig(files=[f"{tmp_path}/held_out/*.txt"])])
    sources = [TextSourceConfig(files=[f"{tmp_path}/held_out/*.txt"]), TextSourceConfig(files=[f"{corpus}/*.txt"])]
    data = config(corpus, tmp_path, validation=own).model_copy(update={"sources": sources})
    made = prepare(data, ByteTokenizerConfig(), QUIET)
    assert [plan.rows == 0 for plans in made.plans for plan in plans] == [True, False]
    loader = made.train_loader(4, 0)
    assert sum(loader.num_targets(step) for step in range(loader.rows_per_epoch // 4)) > 0


def test_a_second_process_waits_for_the_first(tmp_path):
    said = io.StringIO()
    entered = []
    with exclusive(tmp_path / "lock", QUIET):

        def second():
            with exclusive(tmp_path / "lock", Console(file=said)):
                entered.append(True)

        thread = threading.Thread(target=second)
        thread.start()
        while "waiting for it" not in said.getvalue():
            assert thread.is_alive()
        assert not entered
    thread.join()
    assert entered


class Deadly:
    """A part whose worker process is killed, as when memory runs out."""

    def documents(self):
        os.kill(os.getpid(), signal.SIGKILL)
        yield ""


class Endless:
    """A part that a worker process never finishes."""

    def documents(self):
        os.write(1, b"working\n")  # one write: print makes two where output is unbuffered, and workers interleave
        time.sleep(600)
        yield ""


def run_two(part, directory):
    """Write two shards of a part in two processes."""
    with Workers(ShardWriter(registry.build(ByteTokenizerConfig())), 2) as workers:
        for future in [workers.submit(ShardWriter.write, part, directory, f"{number:05}") for number in range(2)]:
            future.result()


def test_a_killed_worker_is_one_clear_error(tmp_path):
    with pytest.raises(UserError, match=r"killed from outside.* lower data\.workers \(now 2\)"):
        run_two(Deadly(), tmp_path)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_workers_end_with_the_process_that_started_them(tmp_path, number):
    """Their output closes only when the last of them is gone, not after the part they are at."""
    code = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "if __name__ == '__main__':\n"
        "    from test_prepare import *\n"
        "    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it\n"
        f"    run_two(Endless(), Path({str(tmp_path)!r}))\n"
    )
    path = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    try:
        assert process.stdout.readline() == "working\n"  # the other worker may still be starting
        process.send_signal(number)
        process.communicate(timeout=60)
    finally:
        process.kill()
