"""A hub on this machine, for tests: it serves a directory as a data set, and misbehaves when told to.

    with serve(directory) as hub: ...                          # well-behaved
    with serve(directory, misbehave=Random(seed=7)) as hub:    # at random, the same way for the same seed
        hub.url, hub.requests, hub.trouble["a.parquet"] = ["cut", "wrong"]

or, as a script, `python tests/data/hub_server.py DIRECTORY --port 8000 --seed 7`.

It speaks what the client asks of a hub: /api/datasets/<repo>/revision/<revision>, .../tree/<revision>[/<folder>] in
pages, .../refs, /api/datasets?author=, and /datasets/<repo>/resolve/<revision>/<file>, which leads to another address
that knows ranges. Large files are listed with their sha256, small ones with the sha1 of their git blob.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import re
import socket
import threading
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

TROUBLES = ("cut", "wrong", "429", "500", "503", "stall", "ignore_range", "short")


@dataclass
class Random:
    """Trouble for a part of the requests. No file is sent with wrong bytes more than twice, so patience suffices."""

    seed: int = 0
    rate: float = 0.4
    troubles: tuple[str, ...] = TROUBLES


@dataclass(frozen=True)
class Request:
    """What was asked."""

    path: str
    headers: dict[str, str]

    @property
    def range(self) -> str | None:
        return self.headers.get("range")


@dataclass
class _File:
    path: Path
    size: int
    sha256: str
    git: str
    is_large: bool


@dataclass
class HubServer:
    """A running hub. What is public may be changed while it runs.

    trouble: file name (or "api") -> what happens to its next requests, one each; "cut:N" cuts after N bytes, "429:S"
        asks for S seconds; "*wrong" (with a star) happens to all that follow.
    """

    directory: Path
    repo: str | None = None  # the only data set there is; None: whichever is asked for
    branches: dict[str, str] = field(default_factory=lambda: {"main": "1" * 40})  # name -> commit
    directories: dict[str, Path] = field(default_factory=dict)  # commit -> what it holds, if not `directory`
    misbehave: Random | None = None
    token: str | None = None  # without which everything is gated
    storage: str = ""  # address that files are sent from, if not this one
    page: int = 1000  # entries a page
    large: int = 0  # bytes from which a file is listed with its sha256
    stall_seconds: float = 5.0
    chunk: int = 65536
    requests: list[Request] = field(default_factory=list)
    trouble: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    served_wrong: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    port: int = 0

    def __enter__(self) -> HubServer:
        self._lock = threading.Lock()
        self._random = random.Random(self.misbehave.seed if self.misbehave else 0)
        self._files: dict[Path, dict[str, _File]] = {}
        self.closing = threading.Event()
        handler = type("Handler", (_Handler,), {"hub": self})
        self._server = _Server(("127.0.0.1", self.port), handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def asked(self, part: str) -> list[Request]:
        """The requests whose path holds `part`."""
        return [request for request in self.requests if part in request.path]

    def files(self, commit: str) -> dict[str, _File]:
        """Name -> file of a commit, hashed once."""
        directory = self.directories.get(commit, self.directory)
        with self._lock:
            if directory not in self._files:
                paths = sorted(path for path in directory.rglob("*") if path.is_file())
                self._files[directory] = {str(path.relative_to(directory)): self._describe(path) for path in paths}
            return self._files[directory]

    def _describe(self, path: Path) -> _File:
        content = path.read_bytes()
        git = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
        return _File(path, len(content), hashlib.sha256(content).hexdigest(), git, len(content) >= self.large)

    def next_trouble(self, name: str) -> str:
        """What is to go wrong with this request; "" if nothing."""
        with self._lock:
            queue = self.trouble.get(name)
            if queue:
                return queue[0][1:] if queue[0].startswith("*") else queue.pop(0)
            if self.misbehave is None or self._random.random() >= self.misbehave.rate:
                return ""
            trouble = self._random.choice(self.misbehave.troubles)
            if trouble == "wrong":
                self.served_wrong[name] += 1
                if self.served_wrong[name] > 2:
                    return "cut"
            return f"{trouble}:0" if trouble == "429" else trouble

    def place(self, size: int) -> int:
        """A random place in `size` bytes."""
        with self._lock:
            return self._random.randrange(max(1, size))


def serve(directory: Path, misbehave: Random | None = None, **options: Any) -> HubServer:
    """A hub that serves `directory`; it runs within `with`."""
    return HubServer(Path(directory), misbehave=misbehave, **options)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is what these tests are about."""


class _Handler(BaseHTTPRequestHandler):
    hub: HubServer
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        """Stay quiet."""

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        self.hub.requests.append(Request(unquote(self.path), {k.lower(): v for k, v in self.headers.items()}))
        path = url.path
        if match := re.fullmatch(r"/cdn/(\w+)/(.+)", path):
            return self._send_file(match[1], unquote(match[2]))
        if self.hub.token is not None and self.headers.get("Authorization") != f"Bearer {self.hub.token}":
            return self._fail(403 if "Authorization" in self.headers else 401, "GatedRepo", "you must be logged in")
        if path == "/api/datasets":
            return self._send_json([{"id": self.hub.repo}] if self.hub.repo else [])
        match = re.fullmatch(r"/api/datasets/([^/]+(?:/[^/]+)?)/(revision|tree|refs)(?:/([^/]+))?(?:/(.+))?", path)
        resolve = re.fullmatch(r"/datasets/([^/]+(?:/[^/]+)?)/resolve/([^/]+)/(.+)", path)
        if match is None and resolve is None:
            return self._fail(404, "", "no such address")
        found = match or resolve
        assert found is not None
        if self.hub.repo is not None and found[1] != self.hub.repo:
            return self._fail(404, "RepoNotFound", "Repository not found")
        trouble = self.hub.next_trouble("api") if match is not None else ""
        if trouble in ("stall", "cut"):
            self.hub.closing.wait(self.hub.stall_seconds if trouble == "stall" else 0)
            return self._hang_up()
        if self._is_refused(trouble):
            return None
        if match is not None and match[2] == "refs":
            branches = [{"name": name, "targetCommit": commit} for name, commit in self.hub.branches.items()]
            return self._send_json({"branches": branches, "tags": []})
        revision = unquote((match[3] if match else resolve[2]) or "")  # type: ignore[index]
        commit = self.hub.branches.get(revision, revision)
        if commit not in {*self.hub.branches.values(), *self.hub.directories}:
            return self._fail(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        if match is not None and match[2] == "revision":
            return self._send_json({"id": match[1], "sha": commit})
        if match is not None:
            return self._send_tree(commit, unquote(match[4] or ""), parse_qs(url.query))
        assert resolve is not None
        return self._resolve(commit, unquote(resolve[3]))

    def _send_tree(self, commit: str, folder: str, query: dict[str, list[str]]) -> None:
        deep = query.get("recursive", ["false"])[0].lower() == "true"
        prefix = f"{folder}/" if folder else ""
        entries: dict[str, dict[str, Any]] = {}
        for name, file in self.hub.files(commit).items():
            if not name.startswith(prefix):
                continue
            parts = name[len(prefix) :].split("/")
            for depth in range(1, len(parts) if deep else min(2, len(parts))):
                inner = prefix + "/".join(parts[:depth])
                entries[inner] = {"type": "directory", "oid": "0" * 40, "size": 0, "path": inner}
            if deep or len(parts) == 1:
                entry: dict[str, Any] = {"type": "file", "oid": file.git, "size": file.size, "path": name}
                if file.is_large:
                    entry |= {"lfs": {"oid": file.sha256, "size": file.size, "pointerSize": 130}, "oid": "2" * 40}
                entries[name] = entry
        if folder and not entries:
            return self._fail(404, "EntryNotFound", f"{folder} does not exist")
        start = int(query.get("cursor", ["0"])[0])
        page = list(entries.values())[start : start + self.hub.page]
        headers = {}
        if start + self.hub.page < len(entries):
            following = f"{self.hub.url}{urlsplit(self.path).path}?recursive={deep}&cursor={start + self.hub.page}"
            headers["Link"] = f'<{following}>; rel="next"'
        self._send_json(page, headers)
        return None

    def _resolve(self, commit: str, name: str) -> None:
        file = self.hub.files(commit).get(name)
        if file is None:
            return self._fail(404, "EntryNotFound", f"{name} does not exist")
        self.send_response(302)
        self.send_header("Location", f"{self.hub.storage}/cdn/{commit}/{quote(name)}")
        self.send_header("X-Repo-Commit", commit)
        self.send_header("X-Linked-Size", str(file.size))
        self.send_header("X-Linked-Etag", f'"{file.sha256}"')
        self.send_header("Content-Length", "0")
        self.end_headers()
        return None

    def _send_file(self, commit: str, name: str) -> None:
        """The bytes, from the place asked for on, and whatever is to go wrong with them."""
        file = self.hub.files(commit)[name]
        trouble = self.hub.next_trouble(name)
        if self._is_refused(trouble):
            return None
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        start = int(asked[1]) if asked and trouble != "ignore_range" else 0
        if start and start >= file.size:
            return self._fail(416, "", "Range Not Satisfiable")
        content = bytearray(file.path.read_bytes()[start:])
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{file.size - 1}/{file.size}")
        self.send_header("Accept-Ranges", "bytes")
        kind, _, value = trouble.partition(":")
        if kind == "wrong" and content:
            content[self.hub.place(len(content))] ^= 0x20
        if kind == "short":  # an answer without a length that ends early looks complete
            self.send_header("Connection", "close")
            self.close_connection = True
            del content[self.hub.place(len(content)) :]
        else:
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        stop = int(value) if value else self.hub.place(len(content))
        for at in range(0, len(content), self.hub.chunk):
            block = content[at : at + self.hub.chunk]
            if kind in ("cut", "stall") and at + len(block) > stop:
                self.wfile.write(block[: stop - at])
                self.wfile.flush()
                if kind == "stall":
                    self.hub.closing.wait(self.hub.stall_seconds)
                return self._hang_up()
            self.wfile.write(block)
        return None

    def _hang_up(self) -> None:
        self.close_connection = True
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def _is_refused(self, trouble: str) -> bool:
        """Answer with an error if that is the trouble."""
        kind, _, value = trouble.partition(":")
        if not kind.isdigit():
            return False
        headers = {"Retry-After": value} if value else {}
        self._fail(int(kind), "GatedRepo" if kind == "403" else "", f"trouble {kind}", headers)
        return True

    def _fail(self, status: int, code: str, message: str, headers: dict[str, str] | None = None) -> None:
        more = {"X-Error-Message": message, **({"X-Error-Code": code} if code else {}), **(headers or {})}
        self._send_json({"error": message}, more, status)

    def _send_json(self, value: Any, headers: dict[str, str] | None = None, status: int = 200) -> None:
        content = json.dumps(value).encode()
        self.send_response(status)
        for key, each in (headers or {}).items():
            self.send_header(key, each)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def main() -> None:
    """Serve a directory until interrupted."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--seed", type=int, help="misbehave at random, by this seed")
    parser.add_argument("--rate", type=float, default=0.4, help="part of the requests that go wrong")
    parser.add_argument("--stall-seconds", type=float, default=5.0)
    given = parser.parse_args()
    misbehave = None if given.seed is None else Random(given.seed, given.rate)
    with serve(given.directory, misbehave, port=given.port, stall_seconds=given.stall_seconds) as hub:
        print(hub.url, flush=True)
        with suppress(KeyboardInterrupt):
            hub.closing.wait()


if __name__ == "__main__":
    main()
