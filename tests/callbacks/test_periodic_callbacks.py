"""Checkpoint, eval, sample and report: what they do when they are due."""

import random

import numpy as np
import pytest
import torch
from fake_run import FakeRun, run_with_model

from littlelm import registry
from littlelm.callbacks.base import Callback
from littlelm.callbacks.configs import CheckpointConfig, ConsoleConfig, EvalConfig, ReportConfig, SampleConfig


def global_random_state():
    return torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()


def test_whatever_is_slow_or_fragile_comes_after_the_save():
    order = [ConsoleConfig(), CheckpointConfig(), EvalConfig(), ReportConfig()]
    phases = [registry.build(config).phase for config in order]
    assert phases == [Callback.RECORD, Callback.CHECKPOINT, Callback.EVALUATE, Callback.PRESENT] == sorted(phases)
    assert registry.build(SampleConfig()).phase > Callback.CHECKPOINT


def test_checkpoint_asks_the_run_to_save_and_records_where(tmp_path):
    run = FakeRun(tmp_path)
    run.state.step = 4
    registry.build(CheckpointConfig()).on_due(run)
    assert run.saves == 1
    assert [(r["kind"], r["path"]) for r in run.records] == [("checkpoint", f"{tmp_path}/checkpoints/step-00000004")]


def test_eval_records_bits_per_byte_and_the_set_they_were_measured_on(tmp_path):
    run = run_with_model(tmp_path)
    run.model.train()
    before = global_random_state()
    registry.build(EvalConfig()).on_due(run)
    (record,) = run.records
    assert record["kind"] == "eval"
    assert {"bits_per_byte", "loss", "targets", "bytes", "seconds_spent"} <= record.keys()
    assert record["validation_sha256"] == run.validation.sha256
    assert run.model.training
    assert run.ledger.parts == ["evaluate"]
    assert global_random_state() == before


def test_sample_continues_each_prompt_the_same_each_time_and_leaves_global_randomness_alone(tmp_path):
    run = run_with_model(tmp_path)
    callback = registry.build(SampleConfig(prompts=["One", "Two"], max_new_tokens=8, temperature=1.0))
    before = global_random_state()
    callback.on_due(run)
    torch.manual_seed(99)
    callback.on_due(run)
    torch.set_rng_state(torch.tensor(before[0], dtype=torch.uint8))
    assert global_random_state() == before
    assert [record["prompt"] for record in run.records] == ["One", "Two"] * 2
    texts = [record["text"] for record in run.records]
    assert texts[:2] == texts[2:]
    assert any(texts)
    other = registry.build(SampleConfig(prompts=["One", "Two"], max_new_tokens=8, temperature=1.0, seed=3))
    other.on_due(run)
    assert [record["text"] for record in run.records[4:]] != texts[:2]


@pytest.mark.parametrize("prompt", ["", "long " * 40])
def test_sample_takes_an_empty_prompt_and_one_longer_than_the_context(tmp_path, prompt):
    run = run_with_model(tmp_path)
    registry.build(SampleConfig(prompts=[prompt], max_new_tokens=500)).on_due(run)
    assert [record["prompt"] for record in run.records] == [prompt]


def test_sample_runs_on_the_main_process_alone(tmp_path):
    run = run_with_model(tmp_path, is_main=False)
    run.model = None  # touching it would fail
    registry.build(SampleConfig()).on_due(run)


def test_report_is_written_when_due_once_at_the_end_and_after_an_interrupt(tmp_path, monkeypatch):
    written = []
    monkeypatch.setattr("littlelm.report.write_report", written.append)
    run = FakeRun(tmp_path, total_steps=10)
    callback = registry.build(ReportConfig())
    run.state.step = 5
    callback.on_due(run)
    assert written == [tmp_path]
    assert run.ledger.written == 1  # the report shows time up to now
    run.state.step = 10
    callback.on_due(run)
    assert len(written) == 1
    callback.on_end(run)
    assert len(written) == 2
    callback.on_end(FakeRun(tmp_path, is_main=False))
    assert len(written) == 2


def test_a_report_that_fails_is_said_and_does_not_end_the_training(tmp_path, monkeypatch):
    def fail(directory):
        raise RuntimeError("no [font] found")

    monkeypatch.setattr("littlelm.report.write_report", fail)
    run = FakeRun(tmp_path)
    registry.build(ReportConfig()).on_due(run)
    assert "RuntimeError: no [font] found" in run.printed()
    assert f"little-lm report {tmp_path}" in run.printed()
