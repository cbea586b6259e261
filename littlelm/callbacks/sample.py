"""Continuations of fixed prompts, recorded."""

from __future__ import annotations

from littlelm.callbacks.base import Callback, Run


class SampleCallback(Callback):
    """The main process generates while the others wait; global random state is not touched."""

    phase = Callback.EVALUATE

    def on_start(self, run: Run) -> None:
        from littlelm.inference import note_on_speed

        note = note_on_speed(run.model)
        if note is not None and run.is_main:
            run.console.print(f"samples: {note}", markup=False)

    def on_due(self, run: Run) -> None:
        if run.is_main:
            with run.ledger.part("sample"):
                for prompt in self.config.prompts:
                    run.record("sample", {"prompt": prompt, "text": self._continue(run, prompt)})

    def _continue(self, run: Run, prompt: str) -> str:
        import torch

        from littlelm.inference import context_of, generate

        tokenizer, config = run.tokenizer, self.config
        tokens, longest, context = [tokenizer.bos_id, *tokenizer.encode(prompt)], config.max_new_tokens, None
        limit = context_of(run.model)
        if limit is None:
            context = run.config.data.sequence_length
        else:
            tokens = tokens[: limit - 1]
            longest = min(longest, limit - len(tokens))
        generated = list(
            generate(
                run.model,
                tokens,
                longest,
                temperature=config.temperature,
                top_k=config.top_k,
                top_p=config.top_p,
                generator=torch.Generator().manual_seed(config.seed),
                stop_ids=[tokenizer.bos_id],
                context=context,
            )
        )
        return str(tokenizer.decode(generated))
