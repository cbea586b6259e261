"""What makes a directory a whole checkpoint: manifest.json, with the size and SHA-256 of every file beside it."""

from __future__ import annotations

import json
import re
import shlex
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from littlelm.errors import UserError
from littlelm.filesystem import sha256_of_file

# Of the layout of a checkpoint directory: manifest.json and state.json carry it. Raise it when either changes.
SCHEMA_VERSION = 1
MANIFEST = "manifest.json"

_STEP = re.compile(r"step-(\d{8,})")
# A checkpoint that is about to give its name to a newer one of the same step (`checkpoint._replace`): still valid.
REPLACED_PREFIX = ".replaced-"


@dataclass(frozen=True)
class Manifest:
    """The step a checkpoint holds and, of each of its files, (size in bytes, SHA-256 in hex)."""

    step: int
    files: dict[str, tuple[int, str]]

    def to_json(self) -> bytes:
        files = {name: {"bytes": size, "sha256": digest} for name, (size, digest) in self.files.items()}
        return json_bytes({"schema_version": SCHEMA_VERSION, "step": self.step, "files": files})


def json_bytes(value: Any) -> bytes:
    """A JSON file's content. Raises ValueError on NaN and infinity, which JSON lacks."""
    return json.dumps(value, indent=2, allow_nan=False).encode() + b"\n"


def step_directory(directory: Path, step: int) -> Path:
    """Where the checkpoint of a step lives."""
    return directory / f"step-{step:08}"


def find_steps(directory: Path) -> dict[int, Path]:
    """Step -> directory of its checkpoint, in ascending order, whole or not."""
    found: dict[int, Path] = {}
    for entry in sorted(directory.iterdir()):  # ".replaced-step-..." sorts before "step-...", which overrides it
        match = _STEP.fullmatch(entry.name.removeprefix(REPLACED_PREFIX))
        if match and entry.is_dir():
            found[int(match[1])] = entry
    return dict(sorted(found.items()))


def damaged(path: Path, what: str) -> UserError:
    """The error for a checkpoint that is not what was written, with the way to go on."""
    steps = find_steps(path.parent)
    own = next((step for step, each in steps.items() if each.name == path.name), 0)
    earlier = [each for step, each in steps.items() if step < own]
    delete = f"rm -r {shlex.quote(str(path))}"
    if earlier:
        advice = f"To go on from the checkpoint before it, {earlier[-1].name}, delete this one: {delete}"
    else:
        advice = f"There is no earlier one beside it: restore it from a copy, or delete it to start anew: {delete}"
    return UserError(f"{what}; the checkpoint {path.name} is damaged or incomplete. {advice}")


def read_json(path: Path) -> dict[str, Any]:
    """Read one of a checkpoint's JSON files. Raises UserError when it is missing, malformed or of a newer format."""
    try:
        value: Any = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise damaged(path.parent, f"{path}: missing") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:  # bad UTF-8 or bad JSON
        raise damaged(path.parent, f"{path}: not JSON: {error}") from None
    version = value.get("schema_version") if isinstance(value, dict) else None
    if not isinstance(value, dict) or type(version) is not int:
        raise damaged(path.parent, f"{path}: not a JSON object with a whole-number schema_version")
    if version > SCHEMA_VERSION:
        raise UserError(
            f"{path}: written by a newer little-lm (schema_version {version}; this one reads up to {SCHEMA_VERSION}); "
            "update little-lm to use this checkpoint"
        )
    return value


def read_manifest(path: Path) -> Manifest:
    """Read the manifest of the checkpoint at `path`. Raises UserError when it is missing or malformed."""
    value = read_json(path / MANIFEST)
    try:
        files = {str(name): (int(file["bytes"]), str(file["sha256"])) for name, file in value["files"].items()}
        return Manifest(int(value["step"]), files)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise damaged(path, f"{path / MANIFEST}: malformed ({type(error).__name__}: {error})") from None


def check_sizes(path: Path, manifest: Manifest) -> None:
    """Compare every file's size with the manifest. Raises UserError naming the file and both sizes."""
    for name, (size, _) in manifest.files.items():
        try:
            actual = (path / name).stat().st_size
        except FileNotFoundError:
            raise damaged(path, f"{path / name}: missing") from None
        except OSError as error:
            raise UserError(f"{path / name}: cannot be read: {error.strerror}") from None
        if actual != size:
            raise damaged(path, f"{path / name}: {actual} bytes, but {MANIFEST} says {size}")


def check_digests(path: Path, manifest: Manifest) -> None:
    """Compare every file's size and SHA-256 with the manifest, files in parallel. Raises UserError naming the file."""
    check_sizes(path, manifest)
    with ThreadPoolExecutor(max(1, len(manifest.files)), thread_name_prefix="sha256") as pool:
        running = {name: pool.submit(sha256_of_file, path / name) for name in manifest.files}
    for name, (_, digest) in manifest.files.items():
        try:
            _, actual = running[name].result()
        except OSError as error:
            raise UserError(f"{path / name}: cannot be read: {error.strerror}") from None
        if actual != digest:
            raise damaged(path, f"{path / name}: SHA-256 is {actual}, but {MANIFEST} says {digest}")
