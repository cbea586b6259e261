"""What a model's context cuts off each row, and what is lost by it: examples, BOS, even a part of what is asked.

A row that is too long keeps its LAST tokens, each row by itself: rows of one item can be cut differently and then
share nothing. A model that looks worse at a short context may only have been shown fewer examples.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from littlelm.errors import UserError
from littlelm.evals.core.prepared import PreparedRows
from littlelm.evals.core.spans import span_cut, too_long

Policy = Literal["crop_left", "none", "error"]
_SHOWN = 3  # faults that are printed


@dataclass(frozen=True)
class Cuts:
    """What is cut.

    Args:
        crop: (rows,) tokens cut off the left.
        shots_lost: (rows,) examples that are cut off, whole or in part.
        text_cut: (rows,) whether the item's own text is cut.
        limit: longest row; None: as long as they are.
    """

    crop: NDArray[np.int64]
    shots_lost: NDArray[np.int64]
    text_cut: NDArray[np.bool_]
    limit: int | None

    def of(self, rows: slice) -> dict[str, Any]:
        """The counts of some rows, for the report; of a whole task, say."""
        lost = self.shots_lost[rows]
        return {
            "rows": len(lost),
            "rows_cut": int((self.crop[rows] > 0).sum()),
            "shots_lost_mean": float(lost.mean()) if len(lost) else 0.0,
            "shots_lost_max": int(lost.max()) if len(lost) else 0,
            "bos_dropped": int((self.crop[rows] > 0).sum()),
        }


def cut_rows(prepared: PreparedRows, limit: int, policy: Policy, token_bytes: NDArray[np.int32]) -> Cuts:
    """Decide what is cut off each row for a model that reads `limit` tokens.

    Args:
        token_bytes: (vocab_size,) bytes of each token: they tell where in the text a cut falls.

    Raises:
        UserError: policy `error` and a row is too long; or a cut would reach into what is scored.
    """
    lengths, row_item = prepared.row_length, prepared.row_item
    crop = np.zeros(prepared.num_rows, dtype=np.int64)
    shots_lost = np.zeros_like(crop)
    text_cut = np.zeros(prepared.num_rows, dtype=np.bool_)
    if policy == "none":
        return Cuts(crop, shots_lost, text_cut, None)
    long = np.flatnonzero(lengths > limit)
    if policy == "error" and len(long):
        row = int(long[np.argmax(lengths[long])])
        raise too_long(prepared.name(int(row_item[row])), int(lengths[row]), limit)
    crop[long] = lengths[long] - limit
    gone = long[prepared.span_start[long] - crop[long] < 1]
    gone = gone[prepared.span_start[gone] < lengths[gone]]  # an empty span loses nothing
    if len(gone):
        faults = dict.fromkeys(
            str(span_cut(prepared.name(int(row_item[row])), int(lengths[row] - prepared.span_start[row]), limit))
            for row in gone
        )
        more = f"\n... and {len(faults) - _SHOWN} more items" if len(faults) > _SHOWN else ""
        raise UserError("\n".join(list(faults)[:_SHOWN]) + more)
    for row in long.tolist():
        item = int(row_item[row])
        bytes_lost = int(token_bytes[prepared.row(row, item)[: crop[row]]].sum())
        starts = prepared.starts[prepared.starts_at[item] : prepared.starts_at[item + 1]]
        shots_lost[row] = int((starts[:-1] < bytes_lost).sum())
        text_cut[row] = bool(starts[-1] < bytes_lost)
    return Cuts(crop, shots_lost, text_cut, limit)
