"""Data sets of a hub as sources: what is read, in which order, under which identity, and what it will cost."""

from __future__ import annotations

import gzip
import json
import pickle
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hub_server import HubServer, serve
from huggingface_hub import constants

from littlelm import registry
from littlelm.data.hub.configs import ClimbMixConfig, FineWebEduConfig, HubConfig, HubDownloadConfig
from littlelm.data.hub.estimate import Estimate, check_disk, estimate
from littlelm.data.sources.base import records_of
from littlelm.data.sources.hub import HubSource
from littlelm.errors import UserError

FILES = 5
ROWS = 120


def documents_of(index: int) -> list[str]:
    chooser = random.Random(index)
    return [f"file {index} row {row} " + "".join(chooser.choices("abcdefgh ", k=80)) for row in range(ROWS)]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("served")
    for index in range(FILES):
        table = pa.table({"text": documents_of(index), "url": ["x"] * ROWS})
        pq.write_table(table, directory / f"shard_{index:05}.parquet", row_group_size=10)
    (directory / "README.md").write_text("about it")
    return directory


@pytest.fixture
def hub(directory: Path) -> Iterator[HubServer]:
    with serve(directory) as server:
        yield server


def source_of(hub: HubServer, cache: Path, **keys: Any) -> HubSource:
    config = HubConfig(repo="me/set", endpoint=hub.url, backoff_seconds=0.01, **keys)
    source: HubSource = registry.build(config)
    source.resolve(cache, lambda line: None)
    return source


def quiet(count: int) -> None:
    """Progress that nobody looks at."""


def read(units: list[Any]) -> list[str]:
    result = []
    for unit in units:
        unit.remote.fetch(quiet)
        result += [record.text for record in records_of(pickle.loads(pickle.dumps(unit.part)))]
    return result


@pytest.mark.parametrize("shard_tokens", [200, 1000, 10**8])
def test_units_add_up_to_all_documents_in_order(hub: HubServer, tmp_path: Path, shard_tokens: int) -> None:
    source = source_of(hub, tmp_path)
    units = source.units(shard_tokens)
    assert read(units) == [document for index in range(FILES) for document in documents_of(index)]
    assert sum(unit.size for unit in units) == source.size()
    assert len(units) == FILES if shard_tokens == 10**8 else len(units) > 2 * FILES


def test_units_are_there_before_anything_is_fetched(hub: HubServer, tmp_path: Path) -> None:
    units = source_of(hub, tmp_path).units(200)
    assert not hub.asked("/resolve/")
    assert not any(unit.remote.is_here() for unit in units)
    remotes = {id(unit.remote) for unit in units}
    assert len(remotes) == FILES, "slices of a file share it"
    assert len({id(unit.remote) for unit in source_of(hub, tmp_path).units(200)} & remotes) == 0


def test_a_record_knows_its_file_in_the_repository_and_its_row(hub: HubServer, tmp_path: Path) -> None:
    for unit in source_of(hub, tmp_path).units(200):
        unit.remote.fetch(quiet)
        [name] = unit.part.file_names()
        expected = documents_of(int(name[6:11]))
        for record in unit.part.records():
            assert record.file == 0
            assert record.text == expected[record.position]


def test_held_out_files_are_never_among_the_units(hub: HubServer, tmp_path: Path) -> None:
    source = source_of(hub, tmp_path, held_out=["shard_00004.parquet"])
    held_out = source.held_out()
    assert held_out is not None
    assert read(held_out.units(10**8)) == documents_of(4)
    names = {unit.remote.name for unit in source.units(200) if unit.remote is not None}
    assert names == {f"shard_{index:05}.parquet" for index in range(4)}
    assert held_out.held_out() is None
    assert held_out.identity() != source.identity()
    assert source_of(hub, tmp_path).held_out() is None


def test_identity_is_the_content_however_it_is_named_or_fetched(hub: HubServer, tmp_path: Path) -> None:
    source = source_of(hub, tmp_path)
    same = source_of(
        hub, tmp_path / "other", files=["shard_*", "*.parquet"], max_files=2, keep_raw=False, parallel_downloads=9
    )
    assert json.dumps(source.identity()) == json.dumps(same.identity())
    assert "1" * 40 in json.dumps(source.identity())
    read(source.units(10**8)[:1])
    assert source_of(hub, tmp_path).identity() == source.identity(), "the cache changed it"
    assert source_of(hub, tmp_path, files=["shard_0000[01].parquet"]).identity() != source.identity()


def test_max_files_takes_the_first_ones(hub: HubServer, tmp_path: Path) -> None:
    few = source_of(hub, tmp_path, max_files=2)
    everything = source_of(hub, tmp_path)
    assert [u.part for u in few.units(200)] == [u.part for u in everything.units(200)][: len(few.units(200))]
    assert {unit.remote.name for unit in few.units(200) if unit.remote} == {
        "shard_00000.parquet",
        "shard_00001.parquet",
    }
    assert "2 of 5 files" in few.describe()


@pytest.mark.parametrize("n", [1, 2, 7, 64])
def test_split_fetches_a_part_of_the_sample_when_it_is_read(
    hub: HubServer, tmp_path: Path, n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = source_of(hub, tmp_path, tokens_per_raw_byte=0.5)
    monkeypatch.setattr("littlelm.data.sources.hub._SAMPLE_BYTES", source.size() * 2 * 0.5)  # half of the files
    parts = pickle.loads(pickle.dumps(source.split(n)))
    assert not hub.asked("/resolve/")
    assert len(parts) <= n
    documents = [document for part in parts for document in part.documents()]
    assert documents == [document for index in range(3) for document in documents_of(index)]
    assert len(hub.asked("/resolve/")) == 3
    assert [path.name for path in source.files()] == [f"shard_{index:05}.parquet" for index in range(3)]
    if n == 2:
        assert {parts[1].file_names()[record.file] for record in parts[1].records()} == set(parts[1].file_names())


def test_other_kinds_of_files_are_read_by_their_suffix(tmp_path: Path) -> None:
    directory = tmp_path / "served"
    directory.mkdir()
    lines = "".join(json.dumps({"content": document}) + "\n" for document in documents_of(0)).encode()
    (directory / "a.jsonl").write_bytes(lines)
    (directory / "b.jsonl.gz").write_bytes(gzip.compress(lines))
    with pa.output_stream(str(directory / "c.jsonl.zst"), compression="zstd") as file:
        file.write(lines)
    (directory / "d [1].txt").write_text("one document")
    with serve(directory, large=10**6) as hub:
        source = source_of(hub, tmp_path / "cache", files=["*.jsonl*", "*.txt"], column="content")
        units = source.units(500)
        assert read(units) == [*documents_of(0) * 3, "one document"]
        names = [unit.remote.name for unit in units if unit.remote is not None]
        assert names.count("a.jsonl") > 3
        assert names.count("b.jsonl.gz") == 1, "a stream is read from its beginning only"


def test_mistakes_are_one_clear_error(hub: HubServer, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no column 'nothing'; valid: text, url"):
        read(source_of(hub, tmp_path, files=["README.md", "shard_00000.parquet"], column="nothing").units(10**8)[1:])
    with pytest.raises(UserError, match="every file that `files` names is one of `held_out`"):
        source_of(hub, tmp_path, held_out=["*.parquet"])
    with pytest.raises(UserError, match="no column 'txt'; did you mean 'text'"):
        read(source_of(hub, tmp_path, column="txt").units(10**8))
    with pytest.raises(UserError, match=r"did you mean 'shard_00004\.parquet'"):
        source_of(hub, tmp_path, held_out=["shard_0004.parquet"])
    with pytest.raises(RuntimeError, match="resolve"):
        HubSource(HubConfig(repo="me/set")).units(1000)


def test_a_file_of_an_unknown_kind_is_refused_before_it_is_fetched(tmp_path: Path) -> None:
    (tmp_path / "served").mkdir()
    (tmp_path / "served" / "a.arrow").write_bytes(b"x")
    with serve(tmp_path / "served") as hub, pytest.raises(UserError, match=r"'a.arrow' is no .parquet"):
        source_of(hub, tmp_path / "cache", files=["*"])


@pytest.mark.parametrize(
    ("repo", "endpoint"), [("a b", None), ("a/b/c", None), ("../x", None), ("me/set", "hub.example"), ("", None)]
)
def test_a_name_or_address_that_cannot_be_one_is_refused(repo: str, endpoint: str | None) -> None:
    with pytest.raises(ValueError, match=r"repo|endpoint"):
        HubConfig(repo=repo, endpoint=endpoint)


def test_climbmix_holds_its_last_shard_out(tmp_path: Path, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served = tmp_path / "served"
    served.mkdir()
    for index, name in [(0, "shard_00000"), (1, "shard_00001"), (2, "shard_06542")]:
        (served / f"{name}.parquet").write_bytes((directory / f"shard_{index:05}.parquet").read_bytes())
    with serve(served, repo="karpathy/climbmix-400b-shuffle") as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        source: HubSource = registry.build(ClimbMixConfig())
        source.resolve(tmp_path / "cache", lambda line: None)
        held_out = source.held_out()
        assert held_out is not None
        assert read(held_out.units(10**8)) == documents_of(2)
        assert read(source.units(10**8)) == documents_of(0) + documents_of(1)


@pytest.mark.parametrize(
    ("config", "pattern"),
    [
        ("sample-10BT", "sample/10BT/*.parquet"),
        ("sample-350BT", "sample/350BT/*.parquet"),
        ("default", "data/*/*.parquet"),
        ("CC-MAIN-2024-10", "data/CC-MAIN-2024-10/*.parquet"),
    ],
)
def test_a_config_of_fineweb_edu_is_a_folder(config: str, pattern: str) -> None:
    assert FineWebEduConfig(config=config).selection().files == (pattern,)


def test_a_config_that_fineweb_edu_does_not_have_is_refused() -> None:
    with pytest.raises(ValueError, match="config"):
        FineWebEduConfig(config="sample-10B")


def test_how_a_data_set_is_fetched_is_no_content() -> None:
    for config in (HubConfig, ClimbMixConfig, FineWebEduConfig):
        own = set(config.model_fields) - {"id", "weight", "max_epochs"}
        assert own - HubDownloadConfig.not_content <= {"column"}


def test_the_estimate_takes_as_many_files_as_the_tokens_need(hub: HubServer, tmp_path: Path) -> None:
    source = source_of(hub, tmp_path, held_out=["shard_00004.parquet"], tokens_per_raw_byte=0.5)
    sizes = [remote.size for remote in source.remotes()]
    held_out = source.held_out()
    assert held_out is not None
    need = estimate(source, sizes[0] // 2 + 1, bandwidth=1000.0, held_out=held_out)
    assert (need.files, need.files_there, need.raw) == (2, 4, sizes[0] + sizes[1])
    assert need.held_out == held_out.size()
    assert need.download == need.raw + need.held_out
    assert need.seconds == need.download / 1000.0
    assert need.tokens == need.raw // 2
    assert need.token_bytes == 2 * need.tokens
    assert need.disk == need.download + need.token_bytes + 2 * (need.held_out // 2)
    assert need.is_enough
    source.remotes()[0].fetch(quiet)
    later = estimate(source, sizes[0] // 2 + 1, bytes_per_token=4, held_out=held_out)
    assert later.download == need.download - sizes[0]
    assert later.token_bytes == 4 * need.tokens
    assert later.seconds is None
    everything = estimate(source, None)
    assert everything.files == 4
    too_much = estimate(source, 10**9)
    assert (too_much.files, too_much.is_enough) == (4, False)
    assert all(value for _, value in need.lines())


def test_raw_files_that_are_deleted_need_little_disk(hub: HubServer, tmp_path: Path) -> None:
    keeping = estimate(source_of(hub, tmp_path), None)
    source = source_of(hub, tmp_path, keep_raw=False, parallel_downloads=1)
    deleting = estimate(source, None, workers=1)
    largest = sorted((remote.size for remote in source.remotes()), reverse=True)[:3]
    assert deleting.disk == sum(largest) + deleting.token_bytes < keeping.disk


def test_a_disk_that_cannot_hold_it_is_refused_before_anything_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need = Estimate(
        files=1066,
        files_there=6542,
        raw=106_600_000_000,
        held_out=100_000_000,
        download=106_700_000_000,
        tokens=65_000_000_000,
        token_bytes=130_000_000_000,
        disk=236_700_000_000,
        seconds=None,
        is_enough=True,
    )
    monkeypatch.setattr("littlelm.data.hub.estimate.free_bytes", lambda path: 236_700_000_000)
    check_disk(need, tmp_path)
    monkeypatch.setattr("littlelm.data.hub.estimate.free_bytes", lambda path: 236_699_999_999)
    with pytest.raises(UserError, match=r"1,066 files .*106.7 GB to download and 130.0 GB of tokens.*keep_raw"):
        check_disk(need, tmp_path)
