"""Continuations of fixed prompts, recorded."""

from __future__ import annotations

from littlelm.callbacks.base import Callback, Run


class SampleCallback(Callback):
    """The main process generates while the others wait; global random state is not touched."""

    phase = Callback.EVALUATE

    def on_due(self, run: Run) -> None:
        if run.is_main:
            with run.ledger.part("sample"):
                for prompt in self.config.prompts:
                    run.record("sample", {"prompt": prompt, "text": self._continue(run, prompt)})

    def _continue(self, run: Run, prompt: str) -> str:
        import torch

        from littlelm.inference import generate

        tokenizer, config = run.tokenizer, self.config
        limit = run.model.config.max_position_embeddings
        tokens = [tokenizer.bos_id, *tokenizer.encode(prompt)][: limit - 1]
        generated = list(
            generate(
                run.model,
                tokens,
                min(config.max_new_tokens, limit - len(tokens)),
                temperature=config.temperature,
                top_k=config.top_k,
                top_p=config.top_p,
                generator=torch.Generator().manual_seed(config.seed),
                stop_ids=[tokenizer.bos_id],
            )
        )
        return str(tokenizer.decode(generated))
