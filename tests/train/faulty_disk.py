"""Disks that fail on purpose: at the k-th operation they die, tear a write, raise, or forget what was not fsynced."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from littlelm.filesystem import Disk

OPERATIONS = ("make_directory", "create", "write", "sync", "rename", "remove_file", "remove_directory")


class WatchedDisk(Disk):
    """Calls `before(operation, arguments)` before every operation. Nothing waits for the real disk."""

    def __init__(self) -> None:
        self.count = 0

    def before(self, operation: str, arguments: tuple[Any, ...]) -> None:
        self.count += 1


def _watch(operation: str) -> Callable[..., Any]:
    def method(self: WatchedDisk, *arguments: Any) -> Any:
        self.before(operation, arguments)
        if operation == "sync":
            return None  # a killed process loses nothing that the kernel has; `ForgetfulDisk` keeps its own books
        return getattr(Disk, operation)(self, *arguments)

    return method


for _operation in OPERATIONS:
    setattr(WatchedDisk, _operation, _watch(_operation))


class KillingDisk(WatchedDisk):
    """Kills its process with SIGKILL before operation `number` (from 1), or, `torn`, halfway through write `number`."""

    def __init__(self, number: int, torn: bool):
        super().__init__()
        self.number, self.torn = number, torn

    def before(self, operation: str, arguments: tuple[Any, ...]) -> None:
        if self.torn and operation != "write":
            return
        super().before(operation, arguments)
        if self.count == self.number:
            if self.torn:
                descriptor, data = arguments
                os.write(descriptor, data[: len(data) // 2])
            os.kill(os.getpid(), signal.SIGKILL)


class RaisingDisk(WatchedDisk):
    """Raises `error` from operation `number` on, in everything but removals; or in that one only."""

    def __init__(self, number: int, error: BaseException, once: bool):
        super().__init__()
        self.number, self.error, self.once = number, error, once
        self.raised = False

    def before(self, operation: str, arguments: tuple[Any, ...]) -> None:
        super().before(operation, arguments)
        due = self.count == self.number if self.once else self.count >= self.number
        if due and not operation.startswith("remove"):
            self.raised = True
            raise self.error


class ForgetfulDisk(WatchedDisk):
    """Does everything, and knows after each operation what a power cut could leave of the tree below `root`.

    The model allows whatever POSIX does not forbid: an unsynced file has its synced bytes, all its bytes, or zeros;
    of the changes of names (create, rename, remove) whose directory was not fsynced afterwards, none, any number of
    the first, or any single one have reached the disk. Fsyncing a file does not make its name durable.
    """

    def __init__(self, root: Path):
        super().__init__()
        self.root = root
        self.contents: dict[int, bytes] = {}  # inode -> bytes as processes see them
        self.durable: dict[int, bytes] = {}
        self.start: dict[int, dict[str, int]] = {}  # directory inode -> name -> inode, before the first operation
        self.changes: list[tuple[bool, str, int, tuple[Any, ...]]] = []  # (durable, kind, directory, arguments)
        self.images: list[set[tuple[tuple[str, bytes | None], ...]]] = []  # of each moment: the possible trees
        self._scan(root)
        self._snapshot()

    def _scan(self, directory: Path) -> None:
        names = self.start.setdefault(directory.stat().st_ino, {})
        for path in directory.iterdir():
            names[path.name] = path.stat().st_ino
            if path.is_dir():
                self._scan(path)
            else:
                self.contents[path.stat().st_ino] = self.durable[path.stat().st_ino] = path.read_bytes()

    def _change(self, kind: str, directory: Path, *arguments: Any) -> None:
        self.changes.append((False, kind, directory.stat().st_ino, arguments))
        self._snapshot()

    def make_directory(self, path: Path) -> None:
        super().make_directory(path)
        self.start[path.stat().st_ino] = {}
        self._change("add", path.parent, path.name, path.stat().st_ino)

    def create(self, path: Path) -> int:
        descriptor = super().create(path)
        inode = os.fstat(descriptor).st_ino
        self.contents[inode], self.durable[inode] = b"", b""
        self._change("add", path.parent, path.name, inode)
        return descriptor

    def write(self, descriptor: int, data: memoryview) -> int:
        written = super().write(descriptor, data)
        self.contents[os.fstat(descriptor).st_ino] += bytes(data[:written])
        self._snapshot()
        return written

    def sync(self, descriptor: int) -> None:
        super().sync(descriptor)
        inode = os.fstat(descriptor).st_ino
        if inode in self.contents:
            self.durable[inode] = self.contents[inode]
        else:
            self.changes = [(done or where == inode, kind, where, rest) for done, kind, where, rest in self.changes]
        self._snapshot()

    def rename(self, source: Path, target: Path) -> None:
        super().rename(source, target)
        assert source.parent == target.parent, "the model knows renames within a directory only"
        self._change("rename", source.parent, source.name, target.name)

    def remove_file(self, path: Path) -> None:
        super().remove_file(path)
        self._change("remove", path.parent, path.name)

    def remove_directory(self, path: Path) -> None:
        super().remove_directory(path)
        self._change("remove", path.parent, path.name)

    def _choices(self) -> Iterator[set[int]]:
        pending = [index for index, change in enumerate(self.changes) if not change[0]]
        for length in range(len(pending) + 1):
            yield set(pending[:length])
        for index in pending:
            yield {index}

    def _snapshot(self) -> None:
        images = set()
        for chosen in self._choices():
            tree = {inode: dict(names) for inode, names in self.start.items()}
            for index, (done, kind, directory, arguments) in enumerate(self.changes):
                names = tree[directory]
                if not done and index not in chosen:
                    continue
                if kind == "add":
                    names[arguments[0]] = arguments[1]
                elif kind == "remove":
                    names.pop(arguments[0], None)
                elif arguments[0] in names:
                    names[arguments[1]] = names.pop(arguments[0])
            for unsynced in ("lost", "kept", "zeros"):
                images.add(tuple(self._walk(tree, self.root.stat().st_ino, "", unsynced)))
        self.images.append(images)

    def _walk(
        self, tree: dict[int, dict[str, int]], directory: int, prefix: str, unsynced: str
    ) -> Iterator[tuple[str, bytes | None]]:
        for name, inode in sorted(tree[directory].items()):
            if inode in tree:
                yield prefix + name, None
                yield from self._walk(tree, inode, f"{prefix}{name}/", unsynced)
            elif self.durable[inode] == self.contents[inode] or unsynced == "kept":
                yield prefix + name, self.contents[inode]
            else:
                yield prefix + name, self.durable[inode] if unsynced == "lost" else bytes(len(self.contents[inode]))


def materialise(image: tuple[tuple[str, bytes | None], ...], directory: Path) -> Path:
    """Write a tree of `ForgetfulDisk.images` below `directory`."""
    directory.mkdir(parents=True)
    for name, content in image:
        if content is None:
            (directory / name).mkdir()
        else:
            (directory / name).write_bytes(content)
    return directory
