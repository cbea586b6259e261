"""Checkpoints: written under a temporary name, fsynced, committed by one rename, digested, never unpickled.

checkpoints/
  step-00000100/
    model.safetensors optimizer.safetensors rng.safetensors   tensors by name
    state.json                                                where the run stands
    config.yaml                                               the resolved config
    manifest.json                                             size and sha256 of each file; written last

A directory of that name is complete by construction: it appears by one rename, after everything in it is on disk.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from littlelm.errors import UserError
from littlelm.train import filesystem

SCHEMA_VERSION = 1
_NAME = re.compile(r"step-(\d{8,})$")
_TEMPORARY = re.compile(r"\.(tmp|trash)-.*")
_DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint; tensors are read when asked for."""

    path: Path
    state: dict[str, Any]
    config_text: str

    def tensors(self, stem: str) -> dict[str, Tensor]:
        """All tensors of `<stem>.safetensors`, on the CPU, memory-mapped. Raises UserError when unreadable."""
        return read_safetensors(self.path / f"{stem}.safetensors")


def checkpoint_name(step: int) -> str:
    return f"step-{step:08}"


def _safetensors_chunks(tensors: dict[str, Tensor]) -> Iterator[bytes | memoryview]:
    """The safetensors format (8 bytes of header length, JSON header, data), one tensor in memory at a time.

    safetensors' own writer needs all tensors on the CPU at once and gives no chance to digest while writing.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, tensor in tensors.items():
        if tensor.dtype not in _DTYPES:
            raise TypeError(f"{name}: {tensor.dtype} has no place in a checkpoint")
        size = tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": _DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + size],
        }
        offset += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for tensor in tensors.values():
        flat = tensor.detach().cpu().contiguous().flatten()
        if flat.numel():
            yield memoryview(flat.view(torch.uint8).numpy())


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """Name -> tensor of a safetensors file. Raises UserError naming the file when it cannot be read."""
    try:
        with safe_open(path, framework="pt") as file:  # type: ignore[no-untyped-call]
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise UserError(f"{path}: is missing from the checkpoint") from None
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path}: cannot be read: {error}") from None


def save_checkpoint(
    directory: Path,
    step: int,
    tensors: dict[str, dict[str, Tensor]],
    state: dict[str, Any],
    config_text: str,
    *,
    keep_last: int | None = None,
    keep_every: int | None = None,
) -> Path:
    """Write a checkpoint of `step` and commit it by one rename; a kill anywhere leaves the old ones or the new one.

    Args:
        directory: the run's checkpoints/.
        tensors: file stem ("model", "optimizer", ...) -> name -> tensor.
        keep_last: newest checkpoints to keep; None keeps all. The new one is always kept.
        keep_every: steps divisible by this are kept for good.

    Raises:
        UserError: the disk has no room, or cannot be written; nothing new is left then.
    """
    target = directory / checkpoint_name(step)
    temporary = directory / f".tmp-{target.name}-{os.getpid()}"
    try:
        filesystem.make_directory(directory)
        clean_leftovers(directory)
        _check_room(directory, tensors)
        filesystem.make_directory(temporary)
        files: dict[str, dict[str, Any]] = {}
        contents: dict[str, Iterator[bytes | memoryview]] = {
            **{f"{stem}.safetensors": _safetensors_chunks(named) for stem, named in tensors.items()},
            "state.json": iter([json.dumps({"schema_version": SCHEMA_VERSION, **state}, indent=2).encode()]),
            "config.yaml": iter([config_text.encode()]),
        }
        for name, chunks in contents.items():
            size, sha256 = filesystem.write_file(temporary / name, chunks)
            files[name] = {"bytes": size, "sha256": sha256}
        manifest = json.dumps({"schema_version": SCHEMA_VERSION, "step": step, "files": files}, indent=2)
        filesystem.write_file(temporary / "manifest.json", [manifest.encode()])
        filesystem.sync_directory(temporary)
        if target.exists():  # the same step once more, after going back: move the old one aside first
            trash = directory / f".trash-{target.name}-{os.getpid()}"
            filesystem.rename(target, trash)
        filesystem.rename(temporary, target)
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        reason = "no space left on the disk" if error.errno in (errno.ENOSPC, errno.EDQUOT) else error.strerror
        raise UserError(
            f"{target}: the checkpoint cannot be written: {reason}. Earlier checkpoints are untouched; free space or "
            "choose another run.dir, then run the same command again"
        ) from None
    _retire(directory, step, keep_last, keep_every)
    return target


def _check_room(directory: Path, tensors: dict[str, dict[str, Tensor]]) -> None:
    needed = sum(t.numel() * t.element_size() for named in tensors.values() for t in named.values()) + 2**20
    free = shutil.disk_usage(directory).free
    if needed > free:
        raise UserError(
            f"{directory}: the checkpoint needs {needed / 2**30:.2f} GiB, the disk has {free / 2**30:.2f} GiB free. "
            "Earlier checkpoints are untouched; free space or choose another run.dir, then run the same command again"
        )


def clean_leftovers(directory: Path) -> None:
    """Remove what a killed process left: half-written and half-deleted checkpoints.

    A `.trash-` whose replacement never got its name is the only copy of that step: it gets its name back.
    """
    for path in sorted(directory.iterdir()):
        if not path.is_dir() or not _TEMPORARY.match(path.name):
            continue
        original = directory / path.name.removeprefix(".trash-").rsplit("-", 1)[0]
        if path.name.startswith(".trash-step-") and not original.exists():
            filesystem.rename(path, original)
        else:
            filesystem.remove_tree(path)


def _retire(directory: Path, newest: int, keep_last: int | None, keep_every: int | None) -> None:
    """Delete old checkpoints: renamed away first, so that no half-deleted one bears a step's name."""
    if keep_last is not None:
        steps = [step for step, _ in list_checkpoints(directory)]
        kept = {newest, *steps[len(steps) - max(1, keep_last) :]}
        for step in steps:
            if step not in kept and not (keep_every and step % keep_every == 0):
                path = directory / checkpoint_name(step)
                gone = directory / f".tmp-retired-{path.name}-{os.getpid()}"
                filesystem.rename(path, gone)
                filesystem.remove_tree(gone)
    for path in directory.glob(".trash-*"):
        filesystem.remove_tree(path)


def list_checkpoints(directory: Path) -> list[tuple[int, Path]]:
    """(step, path) of all checkpoints, oldest first."""
    if not directory.is_dir():
        return []
    found = [(int(match[1]), path) for path in directory.iterdir() if (match := _NAME.fullmatch(path.name))]
    return sorted(found)


def latest_checkpoint(directory: Path) -> Path | None:
    """The newest checkpoint, unverified; None when there is none. Restores one that was moved aside when killed."""
    if directory.is_dir():
        known = {path.name for _, path in list_checkpoints(directory)}
        for path in directory.glob(".trash-step-*"):
            name = path.name.removeprefix(".trash-").rsplit("-", 1)[0]
            if name not in known:
                filesystem.rename(path, directory / name)
    found = list_checkpoints(directory)
    return found[-1][1] if found else None


def load_checkpoint(path: Path, verify: bool = True) -> Checkpoint:
    """Open a checkpoint and, unless told not to, check size and sha256 of every file.

    Raises UserError naming the file that is missing, cut short or changed, and how to go on without it.
    """
    advice = f"to go on from the checkpoint before it, delete {path}"
    manifest = _read_json(path / "manifest.json", advice)
    if manifest.get("schema_version", 0) > SCHEMA_VERSION:
        raise UserError(f"{path}: written by a newer little-lm (format {manifest['schema_version']}); update little-lm")
    if verify:
        _verify(path, manifest["files"], advice)
    state = _read_json(path / "state.json", advice)
    return Checkpoint(path, state, (path / "config.yaml").read_text(encoding="utf-8"))


def _read_json(path: Path, advice: str) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: is missing; {advice}") from None
    except (ValueError, OSError) as error:
        raise UserError(f"{path}: cannot be read: {error}; {advice}") from None
    if not isinstance(value, dict):
        raise UserError(f"{path}: is no JSON object; {advice}")
    return value


def _verify(path: Path, files: dict[str, dict[str, Any]], advice: str) -> None:
    for name, expected in files.items():
        file = path / name
        size = file.stat().st_size if file.is_file() else None
        if size is None:
            raise UserError(f"{file}: is missing; {advice}")
        if size != expected["bytes"]:
            raise UserError(f"{file}: has {size} bytes instead of {expected['bytes']}; {advice}")
    large = sum(entry["bytes"] for entry in files.values()) > 10 * 2**30
    if large:
        sys.stderr.write(f"checking the digests of {path}\n")
    with ThreadPoolExecutor(max_workers=min(8, len(files))) as pool:  # hashing releases the GIL
        digests = pool.map(lambda name: filesystem.file_sha256(path / name), files)
        for name, digest in zip(files, digests, strict=True):
            if digest != files[name]["sha256"]:
                raise UserError(f"{path / name}: is damaged (its sha256 is not the one it was saved with); {advice}")
