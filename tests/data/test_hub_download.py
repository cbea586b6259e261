"""Downloads: whatever the network does, what is handed out is what the hub lists, and nothing is fetched twice."""

from __future__ import annotations

import errno
import hashlib
import itertools
import os
import pickle
import random
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hub_server import TROUBLES, HubServer, Random, serve
from huggingface_hub import constants

from littlelm import filesystem
from littlelm.data.hub.client import Hub, Patience
from littlelm.data.hub.download import RemoteFile
from littlelm.data.hub.listing import HubFile, Listing
from littlelm.errors import UserError

SIZE = 400_000
CONTENT = random.Random(5).randbytes(SIZE)
PATIENCE = Patience(retries=4, backoff=0.01, stall=20.0)
HASTY = Patience(retries=20, backoff=0.01, stall=0.3)


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[HubServer]:
    directory = tmp_path / "served"
    (directory / "data").mkdir(parents=True)
    (directory / "data" / "a.bin").write_bytes(CONTENT)
    with serve(directory, chunk=16384) as server:
        yield server


def remote_of(hub: HubServer, tmp_path: Path, patience: Patience = PATIENCE, name: str = "data/a.bin") -> RemoteFile:
    client = Hub(hub.url, patience)
    listing = Listing(client, "me/set", "main", tmp_path / "cache", lambda line: None)
    [file] = listing.select([name])
    return RemoteFile(client, "me/set", listing.commit, file, tmp_path / "cache")


def quiet(count: int) -> None:
    """Progress that nobody looks at."""


def is_whole(remote: RemoteFile, content: bytes = CONTENT) -> bool:
    left = [path.name for path in remote.local.parent.iterdir() if path.name.endswith(".part")]
    return remote.is_here() and remote.local.read_bytes() == content and not left


def test_a_file_is_fetched_once_and_progress_adds_up(hub: HubServer, tmp_path: Path) -> None:
    remote, heard = remote_of(hub, tmp_path), []
    assert not remote.is_here()
    remote.fetch(heard.append)
    assert is_whole(remote)
    assert sum(heard) == SIZE
    before = len(hub.requests)
    remote.fetch(heard.append)
    assert len(hub.requests) == before
    assert sum(heard) == SIZE


@pytest.mark.parametrize(
    "troubles",
    [
        ["cut:100000", "cut:0", "cut:50000"],
        ["429:0", "500", "502", "503"],
        ["short", "short"],
        ["wrong"],
        ["wrong", "cut", "wrong", "wrong"],
        ["cut:100000", "wrong"],
        ["cut:200000", "ignore_range"],
    ],
    ids=" ".join,
)
def test_trouble_delays_a_download_and_never_alters_it(hub: HubServer, tmp_path: Path, troubles: list[str]) -> None:
    hub.trouble["data/a.bin"] = list(troubles)
    remote, heard = remote_of(hub, tmp_path), []
    remote.fetch(heard.append)
    assert is_whole(remote)
    assert sum(heard) == SIZE
    assert not hub.trouble["data/a.bin"], "the server did not get to do all of it"


def test_a_connection_that_brings_nothing_is_given_up(hub: HubServer, tmp_path: Path) -> None:
    hub.trouble["data/a.bin"] = ["stall:100000", "stall:0"]
    hub.stall_seconds = 60
    remote = remote_of(hub, tmp_path, HASTY)
    remote.fetch(quiet)
    assert is_whole(remote)
    assert len(hub.asked("/cdn/")) >= 3


def test_a_cut_download_continues_at_the_byte_where_it_stopped(hub: HubServer, tmp_path: Path) -> None:
    hub.trouble["data/a.bin"] = ["cut:100000", "cut:50000"]
    remote_of(hub, tmp_path).fetch(quiet)
    assert [request.range for request in hub.asked("/cdn/")] == [None, "bytes=100000-", "bytes=150000-"]


def test_what_a_server_that_ignores_ranges_sends_again_is_skipped(hub: HubServer, tmp_path: Path) -> None:
    hub.trouble["data/a.bin"] = ["cut:300000", "ignore_range"]
    remote, heard = remote_of(hub, tmp_path), []
    remote.fetch(heard.append)
    assert is_whole(remote)
    assert min(heard) >= 0, "bytes that were here were thrown away"


def test_wrong_bytes_every_time_are_an_error_and_nothing_is_kept(hub: HubServer, tmp_path: Path) -> None:
    hub.trouble["data/a.bin"] = ["*wrong"]
    remote = remote_of(hub, tmp_path)
    with pytest.raises(UserError, match=r"data/a\.bin came 4 times .* other bytes"):
        remote.fetch(quiet)
    assert not remote.is_here()
    assert not remote.local.exists()
    assert sum(path.stat().st_size for path in remote.local.parent.iterdir()) == 0


def test_retry_after_is_waited_for(hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    monkeypatch.setattr("littlelm.data.hub.download.wait", lambda seconds, listen: waited.append(seconds))
    hub.trouble["data/a.bin"] = ["429:7", "503:Wed, 21 Oct 2099 07:28:00 GMT", "500"]
    remote_of(hub, tmp_path).fetch(quiet)
    assert 7 <= waited[0] < 8
    assert 900 <= waited[1] < 901, "a date far away is waited for up to a limit"
    assert waited[2] < 1


def test_waits_double_with_each_failure_up_to_a_limit() -> None:
    patience = Patience(backoff=2.0)
    for failures, longest in [(1, 2), (2, 4), (5, 32), (9, 120), (99, 120)]:
        waits = [patience.seconds(failures, None) for _ in range(50)]
        assert longest / 2 <= min(waits) <= max(waits) <= longest
        assert len(set(waits)) > 1, "without jitter all threads come back at once"


def test_failures_without_progress_end_in_one_error(hub: HubServer, tmp_path: Path) -> None:
    hub.trouble["data/a.bin"] = ["cut:100000", "*503"]
    remote = remote_of(hub, tmp_path)
    with pytest.raises(UserError, match=r"data/a\.bin cannot be fetched: HTTP 503 .*100,000 of 400,000 bytes are here"):
        remote.fetch(quiet)
    assert len(hub.asked("/cdn/")) == PATIENCE.retries + 1
    hub.trouble["data/a.bin"] = []
    remote.fetch(quiet)
    assert hub.requests[-1].range == "bytes=100000-"
    assert is_whole(remote)


def test_progress_lets_a_download_go_on_for_ever(hub: HubServer, tmp_path: Path) -> None:
    hub.trouble["data/a.bin"] = ["cut:20000"] * 15  # far more cuts than failures in a row are allowed
    remote = remote_of(hub, tmp_path)
    remote.fetch(quiet)
    assert is_whole(remote)


@pytest.mark.parametrize(
    ("trouble", "message"),
    [
        ("401", "refuses access .*HF_TOKEN"),
        ("404", "answered HTTP 404 for data/a.bin"),
        ("410", "answered HTTP 410 for data/a.bin"),
    ],
)
def test_an_answer_that_will_not_change_is_not_asked_for_again(
    hub: HubServer, tmp_path: Path, trouble: str, message: str
) -> None:
    remote = remote_of(hub, tmp_path)
    hub.trouble["data/a.bin"] = [trouble]
    with pytest.raises(UserError, match=message):
        remote.fetch(quiet)
    assert len(hub.asked("/cdn/")) == 1


def test_an_expired_address_of_the_storage_is_asked_for_anew(hub: HubServer, tmp_path: Path) -> None:
    remote = remote_of(hub, tmp_path)
    hub.trouble["data/a.bin"] = ["403"]
    remote.fetch(quiet)
    assert len(hub.asked("/resolve/")) == 2


def test_the_token_stays_with_the_hub_when_the_bytes_come_from_elsewhere(
    hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    hub.token = "hf_secret"
    hub.storage = hub.url.replace("127.0.0.1", "localhost")
    hub.trouble["data/a.bin"] = ["cut:100000"]
    remote_of(hub, tmp_path).fetch(quiet)
    assert all(request.headers["authorization"] == "Bearer hf_secret" for request in hub.asked("/resolve/"))
    assert all("authorization" not in request.headers for request in hub.asked("/cdn/"))
    assert hub.requests[-1].range == "bytes=100000-"


def test_a_partial_file_longer_than_the_file_is_started_anew(hub: HubServer, tmp_path: Path) -> None:
    remote = remote_of(hub, tmp_path)
    remote.local.parent.mkdir(parents=True)
    remote.local.with_name("a.bin.part").write_bytes(CONTENT + b"more")
    remote.fetch(quiet)
    assert is_whole(remote)


def test_a_partial_file_of_wrong_bytes_is_found_out_and_fetched_anew(hub: HubServer, tmp_path: Path) -> None:
    remote, heard = remote_of(hub, tmp_path), []
    remote.local.parent.mkdir(parents=True)
    remote.local.with_name("a.bin.part").write_bytes(bytes(1000))  # zeros, as after a power cut
    remote.fetch(heard.append)
    assert is_whole(remote)
    assert sum(heard) == SIZE


def test_a_whole_file_without_its_marker_is_checked_not_fetched(hub: HubServer, tmp_path: Path) -> None:
    remote = remote_of(hub, tmp_path)
    remote.local.parent.mkdir(parents=True)
    remote.local.write_bytes(CONTENT)
    assert not remote.is_here()
    remote.fetch(quiet)
    assert is_whole(remote)
    assert not hub.asked("/resolve/")


def test_a_file_that_was_altered_after_its_check_is_fetched_anew(hub: HubServer, tmp_path: Path) -> None:
    remote = remote_of(hub, tmp_path)
    remote.fetch(quiet)
    remote.local.write_bytes(CONTENT[:-1] + b"?")
    assert not remote.is_here()
    remote.fetch(quiet)
    assert is_whole(remote)


def test_a_removed_file_can_be_fetched_again(hub: HubServer, tmp_path: Path) -> None:
    remote = remote_of(hub, tmp_path)
    remote.fetch(quiet)
    remote.remove()
    remote.remove()
    assert not remote.is_here()
    assert not list(remote.local.parent.iterdir())
    remote.fetch(quiet)
    assert is_whole(remote)


@pytest.mark.parametrize("content", [b"", b"small text\n"])
def test_a_small_file_is_checked_by_the_sha1_of_its_git_blob(hub: HubServer, tmp_path: Path, content: bytes) -> None:
    hub.large = 1000
    (hub.directory / "README.md").write_bytes(content)
    remote = remote_of(hub, tmp_path, name="README.md")
    assert remote.digest.startswith("git:")
    hub.trouble["README.md"] = ["wrong"]
    remote.fetch(quiet)
    assert is_whole(remote, content)


def fetch_at_once(remotes: list[RemoteFile], progress: Callable[[int], None]) -> None:
    """A thread each; raises what any of them raised."""
    with ThreadPoolExecutor(len(remotes)) as threads:
        for future in [threads.submit(remote.fetch, progress) for remote in remotes]:
            future.result()


def test_threads_that_want_the_same_file_fetch_it_once(hub: HubServer, tmp_path: Path) -> None:
    hub.trouble["data/a.bin"] = ["cut:50000", "cut:50000"]
    remote = remote_of(hub, tmp_path)
    heard: list[int] = []

    def slowly(count: int) -> None:
        heard.append(count)
        time.sleep(0.005)

    fetch_at_once([remote] * 6, slowly)
    assert is_whole(remote)
    assert sum(heard) == SIZE
    assert len(hub.asked("/cdn/")) == 3


class Stopped(Exception):
    """What a caller's progress raises to end a download."""


def stopper(after: int) -> Callable[[int], None]:
    left = [after]

    def progress(count: int) -> None:
        left[0] -= count
        if left[0] <= 0:
            raise Stopped

    return progress


def test_what_progress_raises_ends_the_download_and_what_came_is_kept(hub: HubServer, tmp_path: Path) -> None:
    remote = remote_of(hub, tmp_path)
    with pytest.raises(Stopped):
        remote.fetch(stopper(SIZE // 2))
    assert not remote.is_here()
    remote.fetch(quiet)
    assert is_whole(remote)
    begin = hub.requests[-1].range
    assert begin is not None
    assert int(begin.removeprefix("bytes=").removesuffix("-")) >= SIZE // 2


def test_a_waiting_download_hears_that_it_is_not_wanted(hub: HubServer, tmp_path: Path) -> None:
    hub.trouble["data/a.bin"] = ["*429:600"]
    remote = remote_of(hub, tmp_path)

    def unwanted(count: int) -> None:
        if hub.asked("/cdn/"):
            raise Stopped

    with pytest.raises(Stopped):
        remote.fetch(unwanted)


def test_a_full_disk_is_one_clear_error_and_what_came_is_kept(
    hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote, left = remote_of(hub, tmp_path), [100_000]
    write = filesystem.Disk.write

    def limited(self: filesystem.Disk, descriptor: int, data: memoryview) -> int:
        if left[0] <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        left[0] -= len(data)
        return write(self, descriptor, data)

    with monkeypatch.context() as patch:
        patch.setattr(filesystem.Disk, "write", limited)
        with pytest.raises(UserError, match=r"no space left for data/a\.bin.*what came so far is kept"):
            remote.fetch(quiet)
    remote.fetch(quiet)
    assert is_whole(remote)
    assert hub.requests[-1].range is not None


KILLED = """
import sys
from pathlib import Path
from littlelm.data.hub.client import Hub, Patience
from littlelm.data.hub.download import RemoteFile
from littlelm.data.hub.listing import Listing
hub = Hub(sys.argv[1], Patience(stall=60))
listing = Listing(hub, "me/set", "main", Path(sys.argv[2]), lambda line: None)
[file] = listing.select(["data/a.bin"])
RemoteFile(hub, "me/set", listing.commit, file, Path(sys.argv[2])).fetch(lambda count: print(count, flush=True))
"""


def test_a_process_killed_in_mid_download_continues_where_it_was(hub: HubServer, tmp_path: Path) -> None:
    hub.trouble["data/a.bin"] = ["stall:123456"]
    hub.stall_seconds = 60
    command = [sys.executable, "-c", textwrap.dedent(KILLED), hub.url, str(tmp_path / "cache")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    came = 0
    while came < 123456:
        came += int(process.stdout.readline())
    process.send_signal(signal.SIGKILL)
    process.wait()
    remote, heard = remote_of(hub, tmp_path), []
    assert not remote.is_here()
    remote.fetch(heard.append)
    assert hub.requests[-1].range == "bytes=123456-"
    assert heard[0] == 123456
    assert is_whole(remote)


def die_at(limit: int, patch: pytest.MonkeyPatch) -> None:
    """From the `limit`-th operation that changes the disk on, raise instead."""
    count = itertools.count(1)
    for name in ("create", "write", "sync", "rename", "remove_file"):
        original = getattr(filesystem.Disk, name)

        def dying(self: filesystem.Disk, *args: object, original: Callable[..., object] = original) -> object:
            if next(count) >= limit:
                raise Stopped
            return original(self, *args)

        patch.setattr(filesystem.Disk, name, dying)


def test_a_process_killed_at_any_write_leaves_no_unchecked_file(
    hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Death at every operation that changes the disk: afterwards the file is either not here or right."""
    remote = remote_of(hub, tmp_path)
    for limit in range(1, 200):
        with monkeypatch.context() as patch:
            die_at(limit, patch)
            try:
                remote.fetch(quiet)
                died = False
            except Stopped:
                died = True
        assert not remote.is_here() or remote.local.read_bytes() == CONTENT
        remote.fetch(quiet)
        assert is_whole(remote)
        remote.remove()
        if not died:
            break
    assert not died
    assert limit > 8


@pytest.mark.parametrize("seed", range(3))
def test_a_hub_that_misbehaves_at_random_delivers_right_bytes_only(tmp_path: Path, seed: int) -> None:
    directory = tmp_path / "served"
    directory.mkdir()
    chooser = random.Random(seed)
    for index in range(8):
        (directory / f"{index}.bin").write_bytes(chooser.randbytes(chooser.randrange(200_000)))
    with serve(directory, Random(seed, rate=0.6), stall_seconds=1.0) as hub:
        client = Hub(hub.url, HASTY)
        listing = Listing(client, "me/set", "main", tmp_path / "cache", quiet_line)
        remotes = [
            RemoteFile(client, "me/set", listing.commit, f, tmp_path / "cache") for f in listing.select(["*.bin"])
        ]
        fetch_at_once(remotes, quiet)
    assert all(is_whole(remote, (directory / remote.name).read_bytes()) for remote in remotes)


def quiet_line(line: str) -> None:
    """What nobody reads."""


def test_the_marker_holds_what_the_digest_was_taken_of(hub: HubServer, tmp_path: Path) -> None:
    remote = remote_of(hub, tmp_path)
    assert remote.digest == f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"
    remote.fetch(quiet)
    copy = pickle.loads(pickle.dumps(remote))
    assert copy.is_here()
    other = RemoteFile(
        copy.hub, copy.repo, copy.commit, HubFile(copy.name, copy.size, "sha256:" + "0" * 64), copy.directory
    )
    assert not other.is_here()
    os.utime(remote.local, ns=(time.time_ns(), 1))
    assert not copy.is_here()


def test_every_trouble_of_the_server_is_tried() -> None:
    assert set(TROUBLES) == {"cut", "wrong", "429", "500", "503", "stall", "ignore_range", "short"}
