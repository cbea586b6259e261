"""Prepared data, opened: what a run reads, what the other commands look into."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from littlelm.data.configs import DataConfig
from littlelm.data.loader import Loader, Stream
from littlelm.data.packing.plan import summarise
from littlelm.data.plans import Plan, PlanSpec
from littlelm.data.reading import is_mixed, make_loader
from littlelm.data.shards import Shard, token_dtype
from littlelm.data.validation import ValidationSet
from littlelm.tokenizers.base import Tokenizer, check_fingerprint

_SEED_STEP = 104_729  # sources that are mixed must not shuffle alike


class PreparedData:
    """A tokenizer, token shards of each source, their packing plans, a validation set.

    `manifest` names what belongs to the data; `cache` is where it lies: `shards/<key of the source>/`.
    """

    def __init__(
        self,
        cache: Path,
        directory: Path,
        manifest: dict[str, Any],
        tokenizer: Tokenizer,
        config: DataConfig,
        train_rows: int | None = None,
    ) -> None:
        check_fingerprint(manifest["tokenizer"], tokenizer, f"the prepared data in {directory}")
        self.directory = directory
        self.manifest = manifest
        self.tokenizer = tokenizer
        self.config = config
        self.train_rows = train_rows  # for which it was prepared; None: for any number
        dtype = token_dtype(tokenizer.vocab_size)
        self.sources: list[list[Shard]] = [
            [Shard(cache / "shards" / source["key"], entry, dtype) for entry in source["shards"]]
            for source in manifest["sources"]
        ]
        self.validation_shards = [
            Shard(cache / each["directory"], each["entry"], dtype) for each in manifest["validation"]
        ]
        self.validation = ValidationSet(
            self.validation_shards,
            config.sequence_length,
            tokenizer.bos_id,
            config.validation.max_rows,
            config.validation.sha256,
        )
        self.spec = PlanSpec(
            config.packing,
            config.sequence_length + 1,
            np.concatenate([shard.digests() for shard in self.validation_shards]),
            manifest["validation_sha256"],
            manifest["dropped_by"],
        )
        self.plans: list[list[Plan]] = []  # opened by `open_plans`, when they are all there

    @property
    def shards(self) -> list[Shard]:
        """The training shards of all sources, in order."""
        return [shard for shards in self.sources for shard in shards]

    def dropped(self, source: int, shard: int) -> NDArray[np.bool_] | None:
        """(documents,) which documents of a shard the corpus filters leave out; None when there is no such filter."""
        if not self.manifest["dropped_by"]:
            return None
        name = f"dropped-{source}-{self.sources[source][shard].name}.npy"
        return np.asarray(np.load(self.directory / name))

    def missing_plans(self) -> list[tuple[Shard, NDArray[np.bool_] | None]]:
        """Shards without a plan for this packing and row length, and the mask of their dropped documents."""
        return [
            (shard, self.dropped(s, i))
            for s, shards in enumerate(self.sources)
            for i, shard in enumerate(shards)
            if not self.spec.exists(shard.directory, shard.name)
        ]

    def open_plans(self) -> None:
        """Open the plan of every shard. Raises UserError for one that is damaged."""
        self.plans = [[Plan(shard.directory, shard.name, self.spec) for shard in shards] for shards in self.sources]

    @property
    def vocab_size(self) -> int:
        return self.tokenizer.vocab_size

    @property
    def fingerprint(self) -> str:
        """Hash of the training shards' content and of which documents are held out."""
        return str(self.manifest["fingerprint"])

    @property
    def report(self) -> dict[str, Any]:
        """Documents, tokens, bytes, what was left out and why, and what the packing achieved."""
        totals = {key: sum(shard.entry[key] for shard in self.shards) for key in ("documents", "tokens", "text_bytes")}
        left_out: Counter[str] = Counter()
        for shard in self.shards:
            left_out.update(shard.entry["left_out"])
        left_out.update(self.manifest["dropped"])
        return {
            **{f"corpus_{key}": value for key, value in totals.items()},
            **{f"left_out_{reason}": count for reason, count in sorted(left_out.items())},
            "bytes_per_token": totals["text_bytes"] / max(1, totals["tokens"]),
            "packing": self.config.packing.name,
            **summarise(plan.counts for plans in self.plans for plan in plans),
            "validation_documents": self.validation.documents,
            "validation_rows": self.validation.num_rows,
            "validation_sha256": self.validation.sha256,
        }

    def report_table(self) -> Table:
        """The report for a terminal."""
        table = Table(box=None, show_header=False)
        for key, value in self.report.items():
            text = (
                f"{value:.4f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
            )
            table.add_row(key.replace("_", " "), text)
        return table

    def train_loader(
        self,
        global_batch_rows: int,
        seed: int,
        total_steps: int | None = None,
        say: Callable[[str], None] = lambda text: None,
    ) -> Loader:
        """The rows of training steps.

        Raises UserError when there are fewer than one global batch, or when a source would be read too often.
        """
        if is_mixed(self.config):
            names = self.config.source_ids
            streams = [
                Stream(name, shards, plans, seed + _SEED_STEP * number)
                for number, (name, shards, plans) in enumerate(zip(names, self.sources, self.plans, strict=True))
            ]
        else:
            streams = [Stream("corpus", self.shards, [plan for plans in self.plans for plan in plans], seed)]
        return make_loader(
            self.config,
            streams,
            [sum(plan.counts["packed"] for plan in plans) for plans in self.plans],
            global_batch_rows=global_batch_rows,
            bos_id=self.tokenizer.bos_id,
            seed=seed,
            total_steps=total_steps,
            say=say,
        )

    def files(self) -> list[tuple[Path, dict[str, Any]]]:
        """(path, its recorded name, bytes and sha256) of every file that training reads."""
        found = [
            (shard.directory / file["name"], file)
            for shard in [*self.shards, *self.validation_shards]
            for file in shard.entry["files"]
        ]
        found += [
            (plan.directory / file["name"], file) for plans in self.plans for plan in plans for file in plan.files
        ]
        return found
