"""Machines that share a store prepare together, and the result is that of one machine."""

import json
import socket
import uuid

import fsspec
import pytest
from conftest import write_corpus
from rich.console import Console

from littlelm.data.configs import BestFitConfig, DataConfig, ValidationConfig
from littlelm.data.prepare import prepare, prepare_range
from littlelm.data.shards import ShardWriter
from littlelm.data.source_configs import TextSourceConfig
from littlelm.data.sources import base
from littlelm.data.store import Store
from littlelm.errors import UserError
from littlelm.tokenizers.configs import ByteTokenizerConfig

QUIET = Console(quiet=True)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    directory = tmp_path_factory.mktemp("store")
    write_corpus(directory, documents=60)
    return directory


@pytest.fixture(autouse=True)
def small_units(monkeypatch):
    monkeypatch.setattr(base, "_UNIT_BYTES", 4_000)


@pytest.fixture(scope="session")
def bucket():
    """A bucket of an S3 server on this machine."""
    from moto.server import ThreadedMotoServer

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=port, verbose=False)
    server.start()
    options = {"key": "test", "secret": "test", "client_kwargs": {"endpoint_url": f"http://127.0.0.1:{port}"}}
    fsspec.config.conf["s3"] = options
    fsspec.filesystem("s3").mkdir("shards")
    yield "s3://shards/prefix"
    fsspec.config.conf.pop("s3")
    server.stop()


@pytest.fixture(params=["file", "memory", "s3"])
def store(request, tmp_path):
    if request.param == "s3":
        return f"{request.getfixturevalue('bucket')}-{uuid.uuid4().hex}"
    return f"memory://{uuid.uuid4().hex}" if request.param == "memory" else f"{tmp_path}/store"


def config(corpus, cache, store=None):
    return DataConfig(
        sources=[TextSourceConfig(files=[f"{corpus}/*.txt"])],
        validation=ValidationConfig(documents=4),
        sequence_length=64,
        packing=BestFitConfig(),
        cache_dir=str(cache),
        store=store,
        workers=1,
    )


def contents(cache):
    return {
        str(path.relative_to(cache)): path.read_bytes()
        for part in ("shards", "validation", "data")
        for path in (cache / part).rglob("*")
        if path.is_file() and path.suffix != ".lock"
    }


def test_machines_with_a_store_make_what_one_machine_makes(corpus, tmp_path, store, monkeypatch):
    alone = prepare(config(corpus, tmp_path / "alone"), ByteTokenizerConfig(), QUIET)
    assert len(alone.shards) >= 4
    for machine in range(3):
        data = config(corpus, tmp_path / f"machine-{machine}", store)
        prepare_range(data, ByteTokenizerConfig(), QUIET, None, machine, 3)
        made = list((tmp_path / f"machine-{machine}").glob("shards/*/*.tokens"))
        assert len(made) == len(alone.shards[machine::3])

    def forbidden(*arguments):
        raise AssertionError("this shard is in the store")

    monkeypatch.setattr(ShardWriter, "write", forbidden)
    prepare(config(corpus, tmp_path / "trainer", store), ByteTokenizerConfig(), QUIET)
    assert contents(tmp_path / "trainer") == contents(tmp_path / "alone")


def test_what_a_machine_did_not_finish_is_made_by_the_next(corpus, tmp_path, store):
    prepare_range(config(corpus, tmp_path / "one", store), ByteTokenizerConfig(), QUIET, None, 0, 2)
    prepare(config(corpus, tmp_path / "two", store), ByteTokenizerConfig(), QUIET)
    prepare(config(corpus, tmp_path / "alone"), ByteTokenizerConfig(), QUIET)
    assert contents(tmp_path / "two") == contents(tmp_path / "alone")


def test_a_damaged_file_of_the_store_is_named_and_not_used(corpus, tmp_path):
    data = config(corpus, tmp_path / "one", f"{tmp_path}/store")
    prepare(data, ByteTokenizerConfig(), QUIET)
    (damaged,) = (tmp_path / "store").glob("*/00001.tokens")
    damaged.write_bytes(b"\x00" * damaged.stat().st_size)
    with pytest.raises(UserError, match=r"00001\.tokens is damaged .*delete .*00001\.json there"):
        prepare(config(corpus, tmp_path / "two", f"{tmp_path}/store"), ByteTokenizerConfig(), QUIET)
    assert not list((tmp_path / "two").glob("shards/*/00001.*"))


def test_an_entry_appears_only_after_its_files(corpus, tmp_path, monkeypatch):
    prepared = prepare(config(corpus, tmp_path / "one"), ByteTokenizerConfig(), QUIET)
    store = Store(f"memory://{uuid.uuid4().hex}")
    shard = prepared.shards[0]
    put_file, count = store._fs.put_file, []

    def broken(*arguments, **options):
        if len(count) == 3:
            raise OSError("the line was cut")
        count.append(arguments)
        return put_file(*arguments, **options)

    monkeypatch.setattr(store._fs, "put_file", broken, raising=False)
    with pytest.raises(UserError, match=r"data\.store: memory://.*the line was cut"):
        store.put("key", shard.entry, shard.directory)
    (tmp_path / "two").mkdir()
    assert store.get("key", shard.name, tmp_path / "two") is None
    monkeypatch.setattr(store._fs, "put_file", put_file, raising=False)
    store.put("key", shard.entry, shard.directory)
    assert store.get("key", shard.name, tmp_path / "two") == json.loads((shard.directory / "00000.json").read_text())


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("nosuch://bucket", "of an unknown kind"),
        ("s3://no-such-bucket-here/prefix", r"data\.store: s3://no-such-bucket-here/prefix: "),
    ],
)
def test_a_store_that_cannot_be_used_is_one_clear_error(corpus, tmp_path, bucket, url, message):
    with pytest.raises(UserError, match=message):
        prepare(config(corpus, tmp_path, url), ByteTokenizerConfig(), QUIET)


def test_a_missing_backend_names_the_package(monkeypatch):
    def missing(url):
        raise ImportError("no s3fs")

    monkeypatch.setattr(fsspec.core, "url_to_fs", missing)
    with pytest.raises(UserError, match="pip install s3fs"):
        Store("s3://bucket/prefix")
