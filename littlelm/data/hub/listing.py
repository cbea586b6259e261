"""What a data set consists of: its commit, its files with sizes and digests, and those that globs name.

<directory>/refs/<revision>.json       the commit a branch or tag was at when it was first asked for
<directory>/trees/<commit>/<folder>.json  the files of that commit; they can never change
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple
from urllib.parse import quote

import httpx2
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import fix_hf_endpoint_in_url  # type: ignore[attr-defined]

from littlelm.data.files import read_json
from littlelm.data.hub.client import PERMANENT, Hub, TryAgainError, explain
from littlelm.data.hub.locks import locked
from littlelm.errors import UserError
from littlelm.filesystem import make_directories, write_atomically

SCHEMA_VERSION = 1
_COMMIT = re.compile(r"[0-9a-f]{40}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}|git:[0-9a-f]{40}")
_MAGIC = re.compile(r"[*?\[]")
_COMPARED = 1000  # names among which the nearest one is looked for


class HubFile(NamedTuple):
    """A file of a commit."""

    name: str  # its path in the repository
    size: int  # bytes
    digest: str  # "sha256:<hex>" of a large file's content, "git:<hex>" (sha1 of its git blob) of a small one's


class Listing:
    """The files of one data set at one commit, asked for once and then read from `directory`.

    Args:
        hub: where it is asked for.
        repo: name of the data set.
        revision: branch, tag or commit.
        directory: where what is found out is kept; of this data set alone.
    """

    def __init__(self, hub: Hub, repo: str, revision: str, directory: Path, say: Callable[[str], None]) -> None:
        self.hub, self.repo, self.revision, self.directory, self.say = hub, repo, revision, directory, say
        with locked(directory / ".lock"):
            self.commit = self._commit()

    def select(self, patterns: Sequence[str]) -> list[HubFile]:
        """The files that match, sorted within each pattern, none twice. Raises UserError for one that matches none."""
        with locked(self.directory / ".lock"):
            files = [file for folder, deep in _folders(patterns) for file in self._files(folder, deep)]
        found: dict[str, HubFile] = {}
        for pattern in patterns:
            expression = glob_expression(pattern)
            matches = sorted(file for file in files if expression.fullmatch(file.name))
            if not matches:
                names = [file.name for file in files]
                raise UserError(
                    f"{self.repo}: no file matches '{pattern}' at commit {self.commit[:12]}{nearest(pattern, names)}"
                )
            found.update((file.name, file) for file in matches)
        return list(found.values())

    def _commit(self) -> str:
        if _COMMIT.fullmatch(self.revision):
            return self.revision
        path = self.directory / "refs" / f"{quote(self.revision, safe='')}.json"
        if path.is_file():
            commit = str(read_json(path, SCHEMA_VERSION).get("commit"))
            if _COMMIT.fullmatch(commit):
                return commit
            raise UserError(f"{path}: damaged; delete it to have it made anew")
        url = f"{self.hub.endpoint}/api/datasets/{self.repo}/revision/{quote(self.revision, safe='')}"
        try:
            answer, _ = self._json(url)
        except PERMANENT as error:
            raise self._explained(error, f"'{self.revision}'") from None
        commit = str(answer.get("sha")) if isinstance(answer, dict) else ""
        if not _COMMIT.fullmatch(commit):
            raise UserError(f"{self.repo}: {url} does not answer as a hub does (no commit); check `endpoint`")
        _write(path, {"schema_version": SCHEMA_VERSION, "repo": self.repo, "commit": commit})
        self.say(
            f"{self.repo}: '{self.revision}' is commit {commit} now and stays it here; to follow the branch, delete "
            f"{path}"
        )
        return commit

    def _files(self, folder: str, deep: bool) -> list[HubFile]:
        """Files of a folder, those of folders within it too if `deep`."""
        path = self.directory / "trees" / self.commit / f"{'deep' if deep else 'flat'}-{quote(folder, safe='')}.json"
        if path.is_file():
            try:
                return [_checked(HubFile(*entry)) for entry in read_json(path, SCHEMA_VERSION)["files"]]
            except (TypeError, KeyError, ValueError):
                raise UserError(f"{path}: damaged; delete it to have it made anew") from None
        try:
            entries = self._entries(folder, deep)
        except RemoteEntryNotFoundError:
            raise UserError(
                f"{self.repo}: no folder '{folder}' at commit {self.commit[:12]}{self._nearest_folder(folder)}"
            ) from None
        except PERMANENT as error:
            raise self._explained(error, f"'{self.commit}'") from None
        try:
            files = [_checked(_file(entry)) for entry in entries if entry.get("type") == "file"]
        except (AttributeError, TypeError, KeyError, ValueError) as error:
            raise UserError(
                f"{self.repo}: {self.hub.endpoint} does not list files as a hub does ({error}); check `endpoint`"
            ) from None
        files.sort()
        _write(path, {"schema_version": SCHEMA_VERSION, "files": files})
        return files

    def _entries(self, folder: str, deep: bool) -> list[Any]:
        """The hub's own entries of a folder, page by page."""
        place = f"/{quote(folder, safe='')}" if folder else ""
        url: str | None = f"{self.hub.endpoint}/api/datasets/{self.repo}/tree/{self.commit}{place}"
        params: dict[str, Any] | None = {"recursive": deep, "expand": False}
        entries: list[Any] = []
        while url is not None:
            page, url = self._json(url, params)
            if not isinstance(page, list):
                raise UserError(f"{self.repo}: {self.hub.endpoint} does not list files as a hub does; check `endpoint`")
            entries += page
            params = None  # the address of the next page holds them
        return entries

    def _json(self, url: str, params: dict[str, Any] | None = None) -> tuple[Any, str | None]:
        """An answer and the address of the next page, if there is one."""

        def get() -> tuple[Any, str | None]:
            response = self.hub.get(url, params)
            try:
                return response.json(), _next_page(response, self.hub)
            except ValueError:
                raise TryAgainError("the answer is not JSON") from None

        return self.hub.persistently(self.repo, get, self.say)

    def _explained(self, error: Exception, revision: str) -> UserError:
        plain = explain(error, self.hub, self.repo, revision)
        if isinstance(error, RevisionNotFoundError):
            return UserError(f"{plain}{nearest(self.revision, self._revisions())}")
        if isinstance(error, RepositoryNotFoundError) and not isinstance(error, GatedRepoError):
            return UserError(f"{plain}{nearest(self.repo, self._neighbours(), show=False)}")
        return plain

    def _revisions(self) -> list[str]:
        """Branches and tags, for an error's suggestion."""
        answer = self._asked_in_passing(f"/api/datasets/{self.repo}/refs")
        groups = [answer.get(kind) for kind in ("branches", "tags")] if isinstance(answer, dict) else []
        return [str(ref.get("name")) for group in groups if isinstance(group, list) for ref in group]

    def _neighbours(self) -> list[str]:
        """Names of the owner's data sets, for an error's suggestion."""
        answer = self._asked_in_passing("/api/datasets", {"author": self.repo.partition("/")[0], "limit": 1000})
        return [str(each.get("id")) for each in answer] if isinstance(answer, list) else []

    def _asked_in_passing(self, path: str, params: dict[str, Any] | None = None) -> Any:
        try:
            return self.hub.get(self.hub.endpoint + path, params).json()
        except (TryAgainError, HfHubHTTPError, ValueError):
            return None  # the error that is about to be raised matters more than its suggestion

    def _nearest_folder(self, folder: str) -> str:
        while folder:
            above = folder.rpartition("/")[0]
            try:
                entries = self._entries(above, deep=False)
                return nearest(folder, [str(each["path"]) for each in entries if each.get("type") == "directory"])
            except RemoteEntryNotFoundError:
                folder = above
        return ""


def _next_page(response: httpx2.Response, hub: Hub) -> str | None:
    link = response.links.get("next", {}).get("url")
    if link is None:
        return None
    return fix_hf_endpoint_in_url(str(response.url.join(link)), hub.mirror)  # a mirror may pass on the hub's own


def _file(entry: Any) -> HubFile:
    large = entry.get("lfs")
    if large:
        return HubFile(str(entry["path"]), int(large["size"]), f"sha256:{large['oid']}")
    return HubFile(str(entry["path"]), int(entry["size"]), f"git:{entry['oid']}")


def _checked(file: HubFile) -> HubFile:
    """Raise ValueError for an entry that could not be fetched, or would be written elsewhere than where it belongs."""
    path = PurePosixPath(file.name)
    strange = any(character in file.name for character in "\\\0\n")
    if path.is_absolute() or ".." in path.parts or strange or str(path) != file.name or file.name in ("", "."):
        raise ValueError(f"a file cannot be called {file.name!r}")
    if file.size < 0 or not _DIGEST.fullmatch(file.digest):
        raise ValueError(f"no size or digest of {file.name!r}")
    return file


def _write(path: Path, value: dict[str, Any]) -> None:
    make_directories(path.parent)
    write_atomically(path, json.dumps(value, indent=0).encode())


def _folders(patterns: Sequence[str]) -> list[tuple[str, bool]]:
    """The folders that must be listed to find what the patterns match, and whether with the folders within."""
    wanted: dict[tuple[str, bool], None] = {}
    for pattern in patterns:
        *above, last = pattern.split("/")
        plain = 0
        while plain < len(above) and not _MAGIC.search(above[plain]):
            plain += 1
        wanted["/".join(above[:plain]), plain < len(above) or "**" in last] = None
    deep = [folder for folder, is_deep in wanted if is_deep]

    def is_covered(folder: str, is_deep: bool) -> bool:
        others = [each for each in deep if each != folder] if is_deep else deep
        return any(each == "" or folder == each or folder.startswith(f"{each}/") for each in others)

    return [(folder, is_deep) for folder, is_deep in wanted if not is_covered(folder, is_deep)]


def glob_expression(pattern: str) -> re.Pattern[str]:
    """A glob as an expression: `*`, `?` and `[...]` stay within a directory, `**/` is any number of directories."""
    result, i = "", 0
    while i < len(pattern):
        if pattern.startswith("**/", i) and (i == 0 or pattern[i - 1] == "/"):
            result, i = f"{result}(?:[^/]+/)*", i + 3
        elif pattern.startswith("**", i):
            result, i = f"{result}.*", i + 2
        elif pattern[i] == "[" and (end := pattern.find("]", i + 2)) > 0:
            inside = pattern[i + 1 : end].replace("\\", "\\\\").replace("[", "\\[").replace("&&", "&\\&")
            inside = (
                f"^{inside[1:]}" if inside[0] == "!" else inside.replace("^", "\\^", 1) if inside[0] == "^" else inside
            )
            result, i = f"{result}(?!/)[{inside}]", end + 1
        else:
            plain = {"*": "[^/]*", "?": "[^/]"}.get(pattern[i], re.escape(pattern[i]))
            result, i = result + plain, i + 1
    try:
        return re.compile(result)
    except re.error as error:
        raise UserError(f"'{pattern}' is no glob: {error}") from None


def nearest(given: str, valid: Sequence[str], show: bool = True) -> str:
    """A clause that names the nearest of many names, or (if `show`) a few of them."""
    close = difflib.get_close_matches(given, valid[:_COMPARED], n=1, cutoff=0.6)
    if close:
        return f"; did you mean '{close[0]}'?"
    if not show or not valid:
        return ""
    return f"; there are {', '.join(valid[:5])}{', ...' if len(valid) > 5 else ''}"
