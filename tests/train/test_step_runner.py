"""Probing for memory falls back to eager mode where compiling fails, as training does."""

from types import SimpleNamespace

import pytest
import torch
from fake_run import one_process, tiny_model
from torch._dynamo.exc import BackendCompilerFailed, InternalTorchDynamoError

from littlelm import registry
from littlelm.errors import UserError
from littlelm.loss.configs import FullLossConfig
from littlelm.train.setup import probe_memory
from littlelm.train.step import StepRunner


def runner_whose_forward(fails_with):
    said = []
    runner = StepRunner(tiny_model(100), registry.build(FullLossConfig()), one_process(), False, said.append)
    runner.compiled = True

    class Fails(torch.nn.Module):
        def forward(self, tokens):
            raise fails_with

    runner.module.forward_model = Fails()
    return runner, said


CONFIG = SimpleNamespace(data=SimpleNamespace(sequence_length=16))


@pytest.mark.parametrize("error", [InternalTorchDynamoError("no"), BackendCompilerFailed(len, RuntimeError("no"), "")])
def test_a_compiler_that_fails_while_memory_is_probed_is_said_and_left_alone(error):
    runner, said = runner_whose_forward(error)
    assert probe_memory(CONFIG, runner, one_process(), 8, 4) == 4
    assert "torch.compile failed, going on in eager mode" in said[0]
    assert not runner.compiled
    assert all(parameter.grad is None for parameter in runner.module.parameters())
    tokens = torch.ones((2, 16), dtype=torch.int64)
    assert torch.isfinite(runner.micro_step(tokens, tokens, 32, last=True))


def test_too_little_memory_is_no_failure_of_the_compiler():
    runner, said = runner_whose_forward(torch.OutOfMemoryError())
    with pytest.raises(UserError, match="does not fit into the GPU's memory"):
        probe_memory(CONFIG, runner, one_process(), 8, 4)
    assert runner.compiled and runner.first
    assert said == []


def test_an_error_of_the_model_itself_is_told():
    runner, _ = runner_whose_forward(RuntimeError("a wrong shape"))
    with pytest.raises(RuntimeError, match="a wrong shape"):
        probe_memory(CONFIG, runner, one_process(), 8, 4)
