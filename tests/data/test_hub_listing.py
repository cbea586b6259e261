"""Listings: one commit for ever, digests of every file, globs, and one clear error for each mistake."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from hub_server import HubServer, serve
from huggingface_hub import constants

from littlelm.data.hub import client
from littlelm.data.hub.client import Hub, Patience
from littlelm.data.hub.listing import Listing, glob_expression
from littlelm.errors import UserError

NAMES = ["README.md", "data/CC-1/0.parquet", "data/CC-1/1.parquet", "data/CC-2/0.parquet", "sample/10BT/0.parquet"]
PATIENCE = Patience(retries=3, backoff=0.01, stall=20.0)


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[HubServer]:
    directory = tmp_path / "served"
    for name in NAMES:
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(name)
    with serve(directory) as server:
        yield server


def listing_of(
    hub: HubServer, tmp_path: Path, revision: str = "main", repo: str = "me/set", said: list[str] | None = None
) -> Listing:
    said = said if said is not None else []
    return Listing(Hub(hub.url, PATIENCE), repo, revision, tmp_path / "cache", said.append)


def names(listing: Listing, *patterns: str) -> list[str]:
    return [file.name for file in listing.select(patterns)]


def test_files_come_sorted_with_size_and_digest(hub: HubServer, tmp_path: Path) -> None:
    files = listing_of(hub, tmp_path).select(["data/**/*.parquet", "data/CC-1/1.parquet"])
    assert [file.name for file in files] == NAMES[1:4]
    for file in files:
        assert file.size == len(file.name)
        assert file.digest == f"sha256:{hashlib.sha256(file.name.encode()).hexdigest()}"


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("**/*.parquet", NAMES[1:]),
        ("data/*/*.parquet", NAMES[1:4]),
        ("data/CC-1/*.parquet", NAMES[1:3]),
        ("data/CC-[12]/0.parquet", [NAMES[1], NAMES[3]]),
        ("data/CC-[!1]/?.parquet", [NAMES[3]]),
        ("sample/10BT/0.parquet", [NAMES[4]]),
        ("*", ["README.md"]),
        ("**", NAMES),
    ],
)
def test_globs_name_files_of_the_repository(hub: HubServer, tmp_path: Path, pattern: str, expected: list[str]) -> None:
    assert names(listing_of(hub, tmp_path), pattern) == sorted(expected)


def test_a_star_stays_within_a_directory() -> None:
    assert not glob_expression("data/*.parquet").fullmatch("data/a/b.parquet")
    assert not glob_expression("[a/]b").fullmatch("/b")
    assert glob_expression("**/a.parquet").fullmatch("a.parquet")
    assert glob_expression("a+(b).parquet").fullmatch("a+(b).parquet")


def test_only_the_folders_that_are_needed_are_listed(hub: HubServer, tmp_path: Path) -> None:
    names(listing_of(hub, tmp_path), "sample/10BT/*.parquet", "data/CC-1/*.parquet")
    assert [request.path.partition("?")[0].rpartition("1" * 40)[2] for request in hub.asked("/tree/")] == [
        "/sample/10BT",
        "/data/CC-1",
    ]


def test_a_long_listing_is_read_page_by_page(hub: HubServer, tmp_path: Path) -> None:
    hub.page = 2
    assert names(listing_of(hub, tmp_path), "**") == NAMES
    assert len(hub.asked("/tree/")) > 3


def test_the_commit_stays_though_the_branch_moves(hub: HubServer, tmp_path: Path) -> None:
    said: list[str] = []
    first = listing_of(hub, tmp_path, said=said)
    assert first.commit == "1" * 40
    assert "'main' is commit 1111" in said[0]
    moved = tmp_path / "moved"
    moved.mkdir()
    (moved / "other.parquet").write_text("other")
    hub.directories = {"1" * 40: hub.directory, "3" * 40: moved}
    hub.branches["main"] = "3" * 40
    again = listing_of(hub, tmp_path)
    assert again.commit == "1" * 40
    assert names(again, "**/*.parquet") == NAMES[1:]
    assert listing_of(hub, tmp_path / "elsewhere").commit == "3" * 40


def test_what_is_known_needs_no_network(hub: HubServer, tmp_path: Path) -> None:
    expected = listing_of(hub, tmp_path).select(["**/*.parquet"])
    hub.requests.clear()
    again = listing_of(hub, tmp_path)
    assert again.select(["**/*.parquet"]) == expected
    assert not hub.requests


def test_a_commit_is_taken_as_it_is(hub: HubServer, tmp_path: Path) -> None:
    assert names(listing_of(hub, tmp_path, "1" * 40), "*") == ["README.md"]
    assert not hub.asked("/revision/")


def test_a_hub_in_trouble_is_asked_again(hub: HubServer, tmp_path: Path) -> None:
    hub.trouble["api"] = ["500", "429:0", "503", "502"]
    said: list[str] = []
    with pytest.raises(UserError, match=r"HTTP 502 .*4 attempts at http://127"):
        listing_of(hub, tmp_path, said=said)
    assert "HTTP 500" in said[0]
    hub.trouble["api"] = ["500", "", "503"]
    assert names(listing_of(hub, tmp_path), "*") == ["README.md"]


def test_a_hub_that_stalls_or_hangs_up_is_asked_again(hub: HubServer, tmp_path: Path) -> None:
    hub.trouble["api"] = ["stall", "cut", "", "stall"]
    hub.stall_seconds = 60
    hasty = Hub(hub.url, Patience(retries=20, backoff=0.01, stall=0.3))
    listing = Listing(hasty, "me/set", "main", tmp_path, lambda line: None)
    assert names(listing, "*") == ["README.md"]
    assert not hub.trouble["api"]


def test_a_hub_that_cannot_be_reached_is_one_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"me/set: no connection .*check the network"):
        Listing(Hub("http://127.0.0.1:9", PATIENCE), "me/set", "main", tmp_path, lambda line: None)


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("data/CC-1/00.parquet", "no file matches 'data/CC-1/00.parquet' .* did you mean 'data/CC-1/0.parquet'"),
        ("data/CC-3/*.parquet", "no folder 'data/CC-3' .* did you mean 'data/CC-[12]'"),
        ("daat/CC-1/*.parquet", "no folder 'daat/CC-1' .* did you mean 'data'"),
        ("**/*.jsonl", r"no file matches '\*\*/\*.jsonl' .* there are README.md"),
    ],
)
def test_a_pattern_without_a_file_names_the_nearest(hub: HubServer, tmp_path: Path, pattern: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        listing_of(hub, tmp_path).select([pattern])


def test_a_wrong_revision_names_the_nearest(hub: HubServer, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no such revision: 'mian' .*did you mean 'main'"):
        listing_of(hub, tmp_path, "mian")


def test_a_wrong_name_of_a_data_set_names_the_nearest(hub: HubServer, tmp_path: Path) -> None:
    hub.repo = "me/set"
    with pytest.raises(UserError, match=r"me/sett: http://127.* has no such data set.*did you mean 'me/set'"):
        listing_of(hub, tmp_path, repo="me/sett")


def test_a_gated_data_set_says_where_its_terms_are(hub: HubServer, tmp_path: Path) -> None:
    hub.token = "secret"
    with pytest.raises(UserError, match=r"gated.*/datasets/me/set.*not sent to a mirror.*HF_ENDPOINT"):
        listing_of(hub, tmp_path)


def test_the_token_of_the_environment_goes_to_the_hub_and_to_no_mirror(
    hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    said: list[str] = []
    listing_of(hub, tmp_path / "a", said=said)
    assert all("authorization" not in request.headers for request in hub.requests)
    hub.requests.clear()
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    hub.token = "hf_other"
    with pytest.raises(UserError, match=r"gated.*set HF_TOKEN") as caught:
        Listing(Hub(None, PATIENCE), "me/set", "main", tmp_path / "b", said.append)
    assert hub.requests[0].headers["authorization"] == "Bearer hf_secret"
    assert "hf_secret" not in f"{caught.value}{said}"
    hub.token = "hf_secret"
    assert Listing(Hub(None, PATIENCE), "me/set", "main", tmp_path / "b", said.append).commit == "1" * 40


def test_offline_is_respected(hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match="HF_HUB_OFFLINE forbids"):
        listing_of(hub, tmp_path)


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "a/../../b", "a\\b", "./a", "a//b"])
def test_a_listing_cannot_name_a_file_outside_its_directory(
    hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    entry = {"type": "file", "path": name, "size": 1, "oid": "0" * 40}
    monkeypatch.setattr(Listing, "_entries", lambda self, folder, deep: [entry])
    with pytest.raises(UserError, match="cannot be called"):
        listing_of(hub, tmp_path).select(["**"])


def test_a_server_that_is_no_hub_is_told_apart(hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Listing, "_json", lambda self, url, params=None: ({"hello": 1}, None))
    with pytest.raises(UserError, match="does not answer as a hub does"):
        listing_of(hub, tmp_path)
    with pytest.raises(UserError, match="does not list files as a hub does"):
        listing_of(hub, tmp_path, "1" * 40).select(["*"])


def test_a_damaged_cache_is_told_apart(hub: HubServer, tmp_path: Path) -> None:
    names(listing_of(hub, tmp_path), "*")
    [tree] = (tmp_path / "cache" / "trees").rglob("*.json")
    tree.write_text('{"schema_version": 1, "files": [["../x", 1, "git:00"]]}')
    with pytest.raises(UserError, match="damaged; delete it"):
        names(listing_of(hub, tmp_path), "*")
    shutil.rmtree(tmp_path / "cache" / "trees")
    assert names(listing_of(hub, tmp_path), "*") == ["README.md"]


def test_a_wait_is_interrupted_by_its_listener() -> None:
    def listen() -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        client.wait(1000.0, listen)
