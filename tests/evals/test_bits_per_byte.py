"""Bits per byte against its definition, and what it must not depend on."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fake_run import Validation, one_process, run_with_model

from littlelm import registry
from littlelm.errors import UserError
from littlelm.evals.bits_per_byte import evaluate_bits_per_byte
from littlelm.loss.configs import ChunkedLossConfig, FullLossConfig


@pytest.fixture
def run(tmp_path):
    return run_with_model(tmp_path)


def measure(run, rows=2, world=None, loss=None):
    world = world or one_process()
    return evaluate_bits_per_byte(run.model, loss or run.loss, run.validation, run.tokenizer.token_bytes, rows, world)


def by_hand(run):
    """From all logits in float64: (nll in nats, targets, bytes) of targets that stand for at least one byte."""
    inputs, targets = run.validation.batch(0, run.validation.num_rows)
    with torch.no_grad():
        logits = run.model.logits(run.model(torch.from_numpy(inputs))).double()  # (B, T, V)
    logs = torch.log_softmax(logits, dim=-1).numpy()
    nll = count = octets = 0
    for row, column in np.ndindex(targets.shape):
        target = targets[row, column]
        if target != -100 and run.tokenizer.token_bytes[target] > 0:
            nll -= logs[row, column, target]
            count += 1
            octets += int(run.tokenizer.token_bytes[target])
    return nll, count, octets


def test_it_is_the_nll_in_bits_over_the_bytes_of_the_targets(run):
    nll, count, octets = by_hand(run)
    result = measure(run)
    assert (result["targets"], result["bytes"]) == (count, octets) == (6 * 16 - 6 - 1, 6 * 16 - 6 - 1)
    assert result["bits_per_byte"] == pytest.approx(nll / math.log(2) / octets, rel=1e-6)
    assert result["loss"] == pytest.approx(nll / count, rel=1e-6)
    assert result["validation_sha256"] == run.validation.sha256


def test_a_token_counts_as_many_bytes_as_it_stands_for(run):
    once = measure(run)
    run.tokenizer = SimpleNamespace(token_bytes=run.tokenizer.token_bytes * 3)
    thrice = measure(run)
    assert thrice["bytes"] == 3 * once["bytes"]
    assert thrice["bits_per_byte"] == pytest.approx(once["bits_per_byte"] / 3)


@pytest.mark.parametrize("rows", [1, 4, 5, 6, 100])
def test_it_does_not_depend_on_the_rows_taken_at_a_time(run, rows):
    assert measure(run, rows)["bits_per_byte"] == pytest.approx(measure(run, 2)["bits_per_byte"], rel=1e-6)


@pytest.mark.parametrize("size", [2, 3, 8])
def test_it_does_not_depend_on_the_number_of_processes(run, size):
    parts = []
    for rank in range(size):
        world = SimpleNamespace(rank=rank, size=size, device=torch.device("cpu"), sum=lambda v: parts.append(v) or v)
        try:
            measure(run, 2, world)
        except UserError:
            assert parts[-1] == [0.0, 0.0, 0.0]  # more processes than blocks; with a real sum none would notice
    total = [sum(column) for column in zip(*parts, strict=True)]
    world = SimpleNamespace(rank=0, size=size, device=torch.device("cpu"), sum=lambda values: total)
    alone = measure(run, 2)
    together = measure(run, 2, world)
    assert (together["targets"], together["bytes"]) == (alone["targets"], alone["bytes"])
    assert together["bits_per_byte"] == pytest.approx(alone["bits_per_byte"], rel=1e-6)


def test_the_objective_beside_the_likelihood_does_not_enter(run):
    penalised = measure(run, loss=registry.build(FullLossConfig(z_loss=10.0)))
    assert penalised["bits_per_byte"] == pytest.approx(measure(run)["bits_per_byte"], rel=1e-6)


def test_every_loss_gives_the_same_number(run):
    chunked = registry.build(ChunkedLossConfig(chunk_tokens=7, compile=False))
    assert measure(run, loss=chunked)["bits_per_byte"] == pytest.approx(measure(run)["bits_per_byte"], rel=1e-6)


@pytest.mark.parametrize("training", [True, False])
def test_the_mode_of_the_model_is_put_back_even_after_a_failure(run, training):
    run.model.train(training)
    measure(run)
    assert run.model.training is training

    def fail(*arguments):
        assert not run.model.training
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        measure(run, loss=fail)
    assert run.model.training is training


def test_nothing_is_kept_for_a_backward_pass(run):
    def loss(hidden, *arguments):
        assert not hidden.requires_grad
        return run.loss(hidden, *arguments)

    assert measure(run, loss=loss) == measure(run)


def test_a_set_without_text_is_an_error_and_not_a_perfect_score(run):
    run.validation = Validation(run.tokenizer.bos_id)
    run.validation.targets[:] = run.tokenizer.bos_id
    with pytest.raises(UserError, match=r"raise data\.validation\.documents"):
        measure(run)
