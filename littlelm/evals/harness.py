"""Our models in lm-evaluation-harness (0.4.x): its tasks, our engine.

    little-lm eval harness RUN --tasks piqa,arc_easy
    python -m littlelm.evals.harness run --model little_lm --model_args path=RUN --tasks piqa   (the harness's own CLI)

The harness has no way to find models of other packages by itself, hence the second command instead of `lm_eval`.

Each text gets one BOS in front, as in training; a text that begins with BOS spelled out gets no second one. What is cut
off to fit the context is counted and said.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from littlelm.errors import UserError

try:
    from lm_eval.api.model import TemplateLM
    from lm_eval.api.registry import register_model
    from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
except ImportError:
    raise UserError(
        'lm-evaluation-harness is not installed; pip install "little-lm[eval]", or pip install "lm_eval>=0.4.9,<0.5"'
    ) from None

from littlelm.evals.core.bundle import Task
from littlelm.evals.core.cuts import Cuts
from littlelm.evals.core.engine import GRAINS, PACK_TOKENS, run_packs
from littlelm.evals.core.packs import GRAIN, RowTokens, plan_packs
from littlelm.evals.core.prepared import PreparedRows
from littlelm.evals.core.spans import Tokens
from littlelm.inference import generate
from littlelm.registry import did_you_mean

_log = logging.getLogger(__name__)
_MAX_NEW_TOKENS = 256  # as the harness's own models
_TASK = Task("requests", "lm", 0, "", 0.0, 0.0, "")


def rows_of_requests(pairs: Sequence[tuple[Sequence[int], Sequence[int]]], context: int) -> tuple[RowTokens, list[int]]:
    """Rows for the engine from (context tokens, continuation tokens), and how many tokens were cut off each.

    Neighbours with one context, which are the options of a question, become rows of one item. A row may be one token
    longer than the model's context: its last token is predicted and never read.

    Raises:
        UserError: a continuation does not fit into the context.
    """
    tokens: list[Tokens] = []
    starts, crops, item_rows = [], [], [0]
    before: Sequence[int] | None = None
    for given, continuation in pairs:
        whole = [*given, *continuation]
        crop = max(0, len(whole) - context - 1)
        start = len(given) - crop
        if start < 1 and continuation:
            raise UserError(
                f"a continuation of {len(continuation):,} tokens does not fit into the model's context of {context:,}; "
                "leave the task out, or use a model with a longer context"
            )
        if before is not None and list(before) != list(given):
            item_rows.append(len(tokens))
        before = given
        tokens.append(np.asarray(whole[crop:], dtype=np.uint32))
        starts.append(start)
        crops.append(crop)
    if tokens:
        item_rows.append(len(tokens))
    lengths = np.array([len(row) for row in tokens], dtype=np.int64)
    items = len(item_rows) - 1
    prepared = PreparedRows(
        tasks=[_TASK],
        tokens=np.concatenate([*tokens, np.empty(0, np.uint32)]),
        task_items=np.array([0, items]),
        gold=np.zeros(items, np.int64),
        file_index=np.arange(items),
        prefix_at=np.zeros(items, np.int64),
        prefix_length=np.zeros(items, np.int64),
        item_rows=np.array(item_rows, dtype=np.int64),
        rest_at=np.cumsum(lengths) - lengths,
        rest_length=lengths,
        span_start=np.array(starts, dtype=np.int64),
        starts=np.zeros(items, np.int64),
        starts_at=np.arange(items + 1),
        cluster=np.arange(items),
        key="",
        seconds=0.0,
        found=False,
    )
    none = np.zeros(len(tokens), np.int64)
    return RowTokens(prepared, Cuts(none, none, none.astype(np.bool_), context)), crops


@register_model("little_lm")
class LittleLM(TemplateLM):  # type: ignore[misc]  # the harness has no types
    """A run directory, one of its checkpoints, or a Hugging Face directory.

    Args:
        path: where the model is; or `model` and `tokenizer`, loaded already, with `max_length`.
        device: auto, cpu or cuda.
        dtype: fp32 or bf16, of the activations; None: the run's own.
        max_length: tokens read at most; None: the model's context.
    """

    def __init__(
        self,
        path: str | Path | None = None,
        *,
        model: Any = None,
        tokenizer: Any = None,
        device: str | None = "auto",
        dtype: str | None = None,
        max_length: int | None = None,
        batch_size: int | str | None = None,  # the harness always gives one; packs have their own size
        max_batch_size: int | None = None,
    ):
        super().__init__()
        if path is not None:
            from littlelm.commands.evaluate import load_subject

            subject = load_subject(Path(path), device or "auto", dtype)
            model, tokenizer = subject.model, subject.tokenizer
            context = subject.context
        elif model is None or tokenizer is None:
            raise UserError("little_lm: give path=RUN (in --model_args)")
        else:
            context = model.config.max_position_embeddings
        self.model, self.text = model, tokenizer
        self.max_length = min(context, max_length or context)
        self.truncated = 0  # rows that lost tokens on the left
        self.tokens_cut = 0
        self._bos_text = getattr(getattr(tokenizer, "vocabulary", None), "bos", None) or getattr(tokenizer, "bos", None)

    @property
    def eot_token_id(self) -> int:
        """What ends a text: BOS, which begins the next one in training, unless the model has its own."""
        eos: int = getattr(self.text, "eos_id", None) or self.text.bos_id
        return eos

    @property
    def prefix_token_id(self) -> int:
        """What an empty context is."""
        bos: int = self.text.bos_id
        return bos

    @property
    def tokenizer_name(self) -> str:
        return f"little_lm {self.text.fingerprint[:12]}"

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        """Ids of a text, after BOS unless `add_special_tokens` is False; BOS spelled out at the start is that one."""
        if add_special_tokens is not False and self._bos_text and string.startswith(self._bos_text):
            string = string[len(self._bos_text) :]
        ids: list[int] = self.text.encode(string)
        return ids if add_special_tokens is False else [self.text.bos_id, *ids]

    def _loglikelihood_tokens(
        self, requests: list[tuple[Any, list[int], list[int]]], **kwargs: Any
    ) -> list[tuple[float, bool]]:
        """(log-likelihood of the continuation, whether it is what greedy decoding gives) of each request."""
        rows, crops = rows_of_requests([(given, continuation) for _, given, continuation in requests], self.max_length)
        self._count(crops)
        device = self.model.head_weight.device.type
        size = PACK_TOKENS.get(device, PACK_TOKENS["cpu"])
        packs = plan_packs(rows, range(rows.prepared.num_items), size, GRAINS.get(device, GRAIN))
        scores = run_packs(self.model, rows, packs, pad_id=self.text.bos_id).scores
        answers: list[tuple[float, bool]] = [(0.0, True)] * len(requests)  # an empty continuation is certain
        for place, row in enumerate(scores.rows.tolist()):
            span = scores.of(place)
            answers[row] = (-float(scores.losses[span].sum(dtype=np.float64)), bool(scores.right[span].all()))
        return answers

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:
        """Log-likelihood of whole texts, in disjoint windows of the context, each token given as much as fits."""
        windows: list[tuple[Any, list[int], list[int]]] = []
        counts = []
        for request in requests:
            (text,) = request.args
            rolling = get_rolling_token_windows(
                token_list=self.tok_encode(text, add_special_tokens=False),
                prefix_token=self.prefix_token_id,
                max_seq_len=self.max_length,
                context_len=1,
            )
            found = [(None, *make_disjoint_window(window)) for window in rolling]
            windows += found
            counts.append(len(found))
        answers = iter(self._loglikelihood_tokens(windows))
        return [sum(next(answers)[0] for _ in range(count)) for count in counts]

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        """Continue each context until one of the stop texts, one after the other."""
        return [self._generate(*request.args) for request in requests]

    def _generate(self, context: str, options: dict[str, Any]) -> str:
        options = dict(options)
        until = options.pop("until", None) or []
        until = [until] if isinstance(until, str) else list(until)
        most = options.pop("max_gen_toks", None) or options.pop("max_new_tokens", None) or _MAX_NEW_TOKENS
        sampled = options.pop("do_sample", None)
        temperature = float(options.pop("temperature", 0.0) or 0.0) if sampled is not False else 0.0
        if sampled and temperature == 0.0:
            temperature = 1.0
        top_k, top_p = options.pop("top_k", None), options.pop("top_p", None)
        if options:
            raise UserError(
                f"little_lm: generation does not know {', '.join(sorted(options))}; remove it from the task"
            )
        room = self.max_length - most
        if room < 1:
            raise UserError(
                f"little_lm: {most} tokens are to be generated, the context is {self.max_length}; lower max_gen_toks"
            )
        tokens = self.tok_encode(context)
        self._count([max(0, len(tokens) - room)])
        generated: list[int] = []
        stops = {self.eot_token_id, self.text.bos_id}
        for token in generate(
            self.model, tokens[-room:], most, temperature=temperature, top_k=top_k, top_p=top_p, stop_ids=list(stops)
        ):
            if token in stops:
                break
            generated.append(token)
            text = self.text.decode(generated)
            if any(stop in text for stop in until):
                break
        text = str(self.text.decode(generated))
        return text[: min((text.index(stop) for stop in until if stop in text), default=len(text))]

    def _count(self, crops: Sequence[int]) -> None:
        cut = sum(crop > 0 for crop in crops)
        if cut:
            self.truncated += cut
            self.tokens_cut += sum(crops)
            _log.warning("%d of %d rows lost their beginning to fit into %d tokens", cut, len(crops), self.max_length)


def run_tasks(
    model: LittleLM,
    tasks: list[str],
    shots: int | None,
    limit: int | None,
    include_path: Path | None,
    include_defaults: bool = True,
) -> tuple[dict[str, Any], str]:
    """(results as the harness gives them, its table).

    Args:
        tasks: names of tasks or groups.
        shots: examples before each question; None: the task's own number.
        limit: documents of each task; None: all.
        include_path: a directory of further task files.
        include_defaults: whether the harness's own tasks are known; looking through them takes seconds.

    Raises:
        UserError: an unknown task.
    """
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager
    from lm_eval.utils import make_table

    manager = TaskManager(
        include_path=str(include_path) if include_path is not None else None, include_defaults=include_defaults
    )
    unknown = [task for task in tasks if not manager.match_tasks([task])]
    if unknown:
        hint = did_you_mean(unknown[0], manager.all_tasks) if manager.all_tasks else ""
        raise UserError(f"lm-evaluation-harness has no task '{unknown[0]}'{hint[:200]}")
    results = simple_evaluate(
        model=model, tasks=list(tasks), num_fewshot=shots, limit=limit, task_manager=manager, log_samples=False
    )
    assert results is not None  # it is None on other ranks than the first, and there is one
    return dict(results), make_table(results)


def main() -> None:
    """The harness's own command line, with `little_lm` among its models."""
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()


if __name__ == "__main__":
    main()
