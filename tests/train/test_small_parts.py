"""Random state, interrupts, micro-batches, resuming: the small parts of training."""

import os
import random
import signal

import numpy as np
import pytest
import torch

from littlelm.errors import UserError
from littlelm.train import micro_batch, rng
from littlelm.train.environment import describe_environment
from littlelm.train.interrupt import Interrupt


def draw():
    return random.random(), np.random.rand(3).tolist(), torch.rand(3).tolist(), np.random.randn()


def test_every_generator_continues_where_it_was():
    rng.seed_everything(5)
    draw()
    state = rng.capture()
    expected = draw()
    draw()
    rng.restore(state)
    assert draw() == expected
    assert all(tensor.dtype == torch.uint8 for tensor in state.values())


def test_the_first_signal_asks_and_the_second_insists(capsys):
    with Interrupt() as interrupt:
        assert not interrupt.requested
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupt.requested
        assert interrupt.signal_number == signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert "saving after this step" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_micro_batch_divides_the_rows_and_fits():
    gib = 2**30
    assert micro_batch.auto_micro_batch(48, 1024, gib, 20 * gib, "cuda")[0] == 12
    assert micro_batch.auto_micro_batch(48, 1024, 100 * gib, gib, "cuda")[0] == 1
    chosen, reason = micro_batch.auto_micro_batch(64, 512, 1, gib, "cpu")
    assert chosen * 512 <= 8192
    assert "CPU" in reason
    assert micro_batch.next_smaller(48, 12) == 8
    assert micro_batch.next_smaller(48, 1) is None
    with pytest.raises(UserError, match="possible: 1, 2, 4, 8"):
        micro_batch.check_micro_batch(8, 3)
    with pytest.raises(UserError, match="shared equally by 3 processes"):
        micro_batch.rows_per_rank(8, 3)


def test_environment_names_versions_and_machine():
    found = describe_environment()
    assert found["packages"]["torch"] == torch.__version__
    assert found["cpu"]["threads"] >= 1
