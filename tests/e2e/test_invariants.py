"""The invariants of the design that concern whole runs, each under its own name."""

import contextlib
import json
import socket
import sys
from pathlib import Path

import pytest
from conftest import little_lm

from littlelm.commands.train import run_training
from littlelm.config.base import ConfigModel
from littlelm.errors import UserError
from littlelm.train.configs import load_run

sys.path.insert(0, str(Path(__file__).parents[1] / "evals" / "core"))
from core_bundles import write_bundle

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = sorted(path for path in (ROOT / "configs").rglob("*.yaml"))

# Keys that shrink any shipped file to a run of a few seconds, changing no choice of components.
SHRINK = [
    "run.steps=2", "run.tokens=null", "tokenizer=byte", "data.sequence_length=32", "data.workers=1",
    "model.vocab_size=null", "model.hidden_size=32", "model.intermediate_size=64", "model.num_hidden_layers=2",
    "model.num_attention_heads=2", "model.num_key_value_heads=1", "model.head_dim=null",
    "model.max_position_embeddings=64", "train.global_batch_tokens=128", "train.device=cpu", "train.compile=false",
]  # fmt: skip


@contextlib.contextmanager
def recorded_reads(monkeypatch):
    """The set of (config class, key) that are read while it is active."""
    reads: set[tuple[type, str]] = set()

    def reading(self, name):
        if name in type(self).__dict__.get("__pydantic_fields__", {}):
            reads.add((type(self), name))
        return object.__getattribute__(self, name)

    with monkeypatch.context() as patch:
        patch.setattr(ConfigModel, "__getattribute__", reading, raising=False)
        yield reads


def configs_within(value):
    """Every config object inside a config, itself included."""
    if isinstance(value, ConfigModel):
        yield value
        value = {name: value.__dict__[name] for name in type(value).model_fields}
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from configs_within(item)


@pytest.mark.parametrize("file", SHIPPED, ids=lambda path: str(path.relative_to(ROOT / "configs")))
def test_every_key_is_read(file, tmp_path, corpus, cache, monkeypatch):
    """Each shipped file, shrunk, trains two steps; a key that nothing read in doing so would be a lie."""
    overrides = [
        *SHRINK,
        f"run.dir={tmp_path}/run",
        f"data.cache_dir={cache}",
        f"data.sources=[{{text: {{files: ['{corpus}/*.txt']}}}}]",
        "data.validation.sources=null",
        "data.validation.documents=8",
    ]
    if "core" in load_run(file).config.callbacks:  # a bundle of its own, and rows in which its answers have room
        overrides += [
            f"callbacks.core.bundle={write_bundle(tmp_path / 'bundle')}",
            "data.sequence_length=256",
            "model.max_position_embeddings=256",
            "train.global_batch_tokens=512",
        ]
    config = load_run(file, overrides).config
    with recorded_reads(monkeypatch) as reads:
        assert run_training(file, overrides) == 0
        from littlelm.commands.inspect import show_diff

        show_diff(file, file)
    # `check` of the root reads some keys only to compare them; that is no use of a key, but each is used elsewhere too.
    unread = {
        f"{type(each).__name__}.{key}"
        for each in configs_within(config)
        for key in type(each).model_fields
        if (type(each), key) not in reads
    }
    assert unread == set()


def test_unknown_key_is_an_error():
    with pytest.raises(UserError, match="did you mean 'warmup_ratio'"):
        load_run(ROOT / "configs" / "demo.yaml", ["scheduler.warmup_ratoi=0.1"])


def test_training_never_downloads(tiny, tmp_path, monkeypatch):
    """A run on local text opens no connection to anything."""

    def refuse(self, address):
        raise AssertionError(f"a connection to {address} was tried")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    assert run_training(tiny, ["run.steps=2"]) == 0


FRAGILE = """
from littlelm.callbacks.base import Callback
from littlelm.config.base import ComponentConfig
from littlelm.registry import register

class FragileConfig(ComponentConfig):
    "Fails when it is called."
    every: int = 10

@register("callback", "fragile", config=FragileConfig)
class Fragile(Callback):
    phase = Callback.EVALUATE
    def on_due(self, run):
        raise RuntimeError("the evaluation broke")
    def on_error(self, run, error):
        raise OSError("and so does tidying up")
"""


def test_checkpoint_before_eval(tiny, tmp_path):
    """An evaluation that breaks costs nothing: the step it broke at was saved before."""
    (tmp_path / "fragile.py").write_text(FRAGILE)
    tiny.write_text("plugins: [fragile.py]\n" + tiny.read_text() + "  fragile: {every: 10}\n")
    done = little_lm("train", tiny)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "RuntimeError: the evaluation broke"  # the first error is the one told
    assert "then Fragile.on_error failed too: and so does tidying up" in done.stdout
    assert (tmp_path / "run" / "checkpoints" / "step-00000010" / "model.safetensors").exists()
    # Nor at the end of a run that saves at no other time.
    end = [f"run.dir={tmp_path}/end", "callbacks.checkpoint=false", "run.steps=3", "callbacks.fragile.every=3"]
    done = little_lm("train", tiny, *(word for override in end for word in ("--set", override)))
    assert done.returncode == 1
    assert (tmp_path / "end" / "checkpoints" / "step-00000003" / "model.safetensors").exists()
    tiny.write_text(tiny.read_text().replace("  fragile: {every: 10}\n", "  fragile: false\n"))
    done = little_lm("train", tiny)
    assert done.returncode == 0, done.stderr
    assert "step 10" in done.stdout


def test_dollars_of_a_whole_run_add_up(tiny, tmp_path):
    """Time is split into named parts whose sum is the whole, across a restart."""
    for steps in (10, 20):
        done = little_lm("train", tiny, "--set", f"run.steps={steps}", "--set", "budget.usd_per_gpu_hour=3.6")
        assert done.returncode == 0, done.stderr
    ledger = json.loads((tmp_path / "run" / "ledger.json").read_text())
    assert len(ledger["sessions"]) == 2
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    last = [record for record in records if record["kind"] == "train"][-1]
    assert last["usd"] == pytest.approx(last["seconds"] / 1000, rel=1e-2)


def test_a_plugin_swaps_the_optimizer_in_one_line(tiny, tmp_path):
    (tmp_path / "mine.py").write_text(
        "import torch\n"
        "from littlelm.config.base import ComponentConfig\n"
        "from littlelm.optim.base import NamedOptimizer\n"
        "from littlelm.registry import register\n"
        "class SignConfig(ComponentConfig):\n"
        "    'Sign descent.'\n"
        "    lr: float = 0.001\n"
        "@register('optimizer', 'signum', config=SignConfig)\n"
        "class Sign(NamedOptimizer):\n"
        "    def __init__(self, config, named_parameters, roles, **options):\n"
        "        super().__init__(named_parameters, roles, {'lr': config.lr}, **options)\n"
        "    def new_state(self, parameter):\n"
        "        return {}\n"
        "    def update_group(self, group):\n"
        "        for parameter in group['params']:\n"
        "            if parameter.grad is not None:\n"
        "                parameter.sub_(group['lr'] * parameter.grad.sign())\n"
    )
    tiny.write_text("plugins: [mine.py]\n" + tiny.read_text())
    assert run_training(tiny, ["optimizer=signum", "run.steps=3"]) == 0
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records if record["kind"] == "train"] == [1, 2, 3]


def test_fast_path_equals_reference(tiny, tmp_path):
    """A run with every fast path (compiled step, chunked compiled loss, compiled stacked Muon) and one with none."""
    fast = ["train.compile=true", "loss={chunked: {chunk_tokens: 64}}", "optimizer.matrix.compile=true"]
    slow = ["train.compile=false", "loss=full", "optimizer.matrix.compile=false"]
    losses = []
    for name, overrides in (("fast", fast), ("slow", slow)):
        directory = tmp_path / name
        assert run_training(tiny, [*overrides, "run.steps=6", f"run.dir={directory}", "callbacks.sample=false"]) == 0
        records = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
        losses.append([record["loss"] for record in records if record["kind"] in ("train", "eval")])
    assert len(losses[0]) == 7
    assert losses[0] == pytest.approx(losses[1], abs=2e-4)
