"""CORE in a run: prepared before, estimated during, whole at the end, whatever was cut said aloud."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from fake_run import run_with_model, tiny_model

from littlelm import registry
from littlelm.callbacks.base import Callback
from littlelm.callbacks.configs import ConsoleConfig, CoreCallbackConfig
from littlelm.errors import UserError
from littlelm.evals.core import evaluate as module
from littlelm.evals.core.files import read_result

sys.path.insert(0, str(Path(__file__).parents[1] / "evals" / "core"))
from core_bundles import write_bundle


def config_of(directory):
    data = SimpleNamespace(sequence_length=200, cache_dir=str(directory / "cache"))
    return SimpleNamespace(data=data, model=SimpleNamespace(max_position_embeddings=256))


@pytest.fixture
def ready(tmp_path):
    run = run_with_model(tmp_path / "run", total_steps=20)
    run.model = tiny_model(run.tokenizer.vocab_size, positions=256)
    callback = registry.build(CoreCallbackConfig(bundle=str(write_bundle(tmp_path / "bundle")), budget=0.1))
    callback.prepare(config_of(tmp_path), run.tokenizer, lambda text: None)
    return run, callback


def test_it_comes_after_the_save():
    assert registry.build(CoreCallbackConfig(bundle="x")).phase > Callback.CHECKPOINT


def test_an_estimate_during_the_run_and_everything_at_its_end(ready):
    run, callback = ready
    run.state.step = 10
    callback.on_due(run)
    run.state.step = 20
    callback.on_due(run)
    during, end = run.records
    assert (during["kind"], end["kind"], end["name"]) == ("core", "core", "core")
    assert during["items"] <= end["items"]
    assert end["rows_cut"] > 0  # the context is 200 tokens
    result = read_result(run.directory / "evals" / "core-step-00000020")
    assert result.core[0] == end["core_v1"]
    assert result.settings["limit"] == 200
    assert run.ledger.parts == ["evaluate", "evaluate"]


def test_the_bundle_is_needed_before_training_and_not_during_it(tmp_path, ready, monkeypatch):
    run, callback = ready
    monkeypatch.setattr(module, "open_bundle", None)
    run.state.step = 10
    callback.on_due(run)
    missing = registry.build(CoreCallbackConfig(bundle=str(tmp_path / "nowhere")))
    monkeypatch.undo()
    with pytest.raises(UserError, match="no such bundle"):
        missing.prepare(config_of(tmp_path), run.tokenizer, lambda text: None)


def test_the_console_shows_it_with_its_error_and_what_was_cut(ready):
    run, callback = ready
    run.state.step = 20
    callback.on_due(run)
    console = registry.build(ConsoleConfig())
    console.on_start(run)
    console.on_record(run, run.records[-1])
    record = run.records[-1]
    assert f"core {record['core_v1']:.4f} ± {record['core_v1_error']:.4f}" in run.printed()
    assert f"{record['rows_cut']} rows cut" in run.printed()
