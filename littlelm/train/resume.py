"""Going on from a checkpoint: what may have changed in the file since, and what may not."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from littlelm.config.diff import Difference, diff
from littlelm.config.merge import to_plain
from littlelm.config.nodes import from_plain, parse_yaml
from littlelm.errors import UserError
from littlelm.train.configs import RunConfig

# Keys that change nothing about the numbers of the training that is behind, or ahead.
_FREE = (
    "schema_version", "plugins", "run.name", "run.dir", "run.resume", "budget", "callbacks", "train.device",
    "train.compile", "train.max_bad_steps", "data.cache_dir", "data.workers", "data.store",
)  # fmt: skip
# How a source is fetched: what is fetched is told by the fingerprint of the data.
_FETCHING = re.compile(
    r"data\.(validation\.)?sources\.\d+\."
    r"(endpoint|parallel_downloads|keep_raw|retries|backoff_seconds|stall_seconds|tokens_per_raw_byte)"
)
# Keys that change the rest of the run in a way a user may well want: allowed, and said aloud.
_NOTED = ("run.steps", "run.tokens", "train.micro_batch", "data.mixture.on_exhausted")


def _under(key: str, prefixes: tuple[str, ...]) -> bool:
    return any(key == prefix or key.startswith(prefix + ".") for prefix in prefixes)


def compare_configs(saved_text: str, config: RunConfig, checkpoint: Path) -> list[Difference]:
    """Differences worth saying. Raises UserError when a key differs that the saved weights depend on."""
    saved = parse_yaml(saved_text, str(checkpoint / "config.yaml"))
    changes = [
        item
        for item in diff(saved, from_plain(to_plain(config)))
        if not _under(item.key, _FREE) and not _FETCHING.fullmatch(item.key)
    ]
    breaking = [item for item in changes if not _under(item.key, _NOTED)]
    if breaking:
        lines = "\n".join(f"  {item.key}: {item.before!r} then, {item.after!r} now" for item in breaking)
        raise UserError(
            f"{checkpoint.parent.parent} holds a run of another config, so it cannot be continued with this one:\n"
            f"{lines}\nUndo these changes to go on, or give the new run its own name (--set run.name=...) or directory "
            "(--set run.dir=...)"
        )
    return changes


def check_state(state: dict[str, Any], current: dict[str, Any], checkpoint: Path) -> None:
    """Refuse to train or evaluate on other bytes than the checkpoint did. Raises UserError saying which differ."""
    what = {
        "tokenizer_fingerprint": "the tokenizer",
        "data_fingerprint": "the training data",
        "validation_sha256": "the validation set",
        "vocab_size": "the vocabulary size",
    }
    for key, name in what.items():
        if state.get(key) != current[key]:
            raise UserError(
                f"{checkpoint}: {name} changed since this checkpoint was saved ({key}: {state.get(key)} then, "
                f"{current[key]} now); restore the old files, or start a new run with its own run.dir"
            )
