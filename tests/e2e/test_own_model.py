"""A model of a user's own, with nothing but what the contract asks for, goes through every command."""

import json

from conftest import little_lm

OWN_MODEL = """
import torch
from torch import nn
from littlelm.config.base import ComponentConfig
from littlelm.registry import register

class BagConfig(ComponentConfig):
    "Each token sees the mean of all before it."
    width: int = 16

@register("model", "bag", config=BagConfig)
class Bag(nn.Module):
    logit_softcap = None
    compute_dtype = torch.float32

    def __init__(self, config, vocab_size):
        super().__init__()
        self.vocab_size = self.padded_vocab_size = vocab_size
        self.table = nn.Parameter(torch.empty(vocab_size, config.width))
        self.mix = nn.Parameter(torch.empty(config.width, config.width))
        self.out = nn.Parameter(torch.empty(vocab_size, config.width))

    def init_weights(self, generator):
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator))

    def parameter_roles(self):
        return {"table": "embedding", "mix": "matrix", "out": "head"}

    @property
    def head_weight(self):
        return self.out

    def forward(self, tokens):
        x = nn.functional.embedding(tokens, self.table)
        count = torch.arange(1, tokens.size(1) + 1, device=tokens.device)[:, None]
        return torch.tanh(x.cumsum(1) / count @ self.mix) + x

    def logits(self, hidden):
        return hidden @ self.out.T
"""


def test_a_model_of_ones_own_trains_samples_reports_and_compares(tiny, tmp_path):
    (tmp_path / "bag.py").write_text(OWN_MODEL)
    text = tiny.read_text()
    start, end = text.index("model:\n"), text.index("optimizer:\n")
    own = tmp_path / "own.yaml"
    own.write_text("plugins: [bag.py]\n" + text[:start] + "model: {bag: {width: 8}}\n" + text[end:])
    done = little_lm("train", own, "--set", "run.steps=10")
    assert done.returncode == 0, done.stderr
    assert "samples: this model's forward takes no cache" in done.stdout
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert {record["kind"] for record in records} == {"train", "eval", "sample", "checkpoint"}

    prompt = "The " * 30  # longer than the 64 tokens it was trained with: the window moves
    done = little_lm("sample", tmp_path / "run", "--prompt", prompt, "--max-new-tokens", "5", "--temperature", "0")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(prompt)
    assert "takes no cache" in done.stderr

    done = little_lm("config", "diff", own, tiny)
    assert done.returncode == 0, done.stderr
    assert "unknown: only the built-in transformer can be planned, and not bag" in done.stdout
    assert "FLOPs per token" in done.stdout

    page = (tmp_path / "run" / "report.html").read_text()
    assert "FLOPs a token = 6 × parameters in matrices and head" in page
    assert "causal attention" not in page
