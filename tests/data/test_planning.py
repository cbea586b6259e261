"""A plan is arithmetic on sizes: what is twice as much takes twice as long, and the slowest part is the whole."""

import pytest

from littlelm.data import planning
from littlelm.data.configs import BestFitConfig, DataConfig
from littlelm.data.hub.configs import ClimbMixConfig
from littlelm.data.planning import Machine, Published, plan_preparation
from littlelm.tokenizers.configs import Gpt2TokenizerConfig


@pytest.fixture(autouse=True)
def speed(monkeypatch):
    monkeypatch.setattr(planning, "measure_tokenizer", lambda tokenizer: 10e6)


def plan(rows, machine, files=1000):
    config = ClimbMixConfig(keep_raw=False)
    data = DataConfig(sources=[config], sequence_length=2047, packing=BestFitConfig())
    return plan_preparation(data, Gpt2TokenizerConfig(), [Published(config, files, 100_000_000)], rows, machine)


def test_as_many_files_as_the_run_needs():
    rows = 61_000_000 * 100 // 2048
    made = plan(rows, Machine(32, 125e6, 1e9))
    assert made.sources[0].files == 100
    assert made.sources[0].raw_bytes == 100 * 100_000_000
    assert made.disk_bytes == made.sources[0].token_bytes == 2 * made.sources[0].tokens
    assert made.is_enough
    assert not plan(rows, Machine(32, 125e6, 1e9), files=99).is_enough


@pytest.mark.parametrize(
    ("machine", "bottleneck", "seconds"),
    [
        (Machine(32, 125e6, 1e12), "the download", 100 * 100e6 / 125e6),
        (Machine(1, 1e12, 1e12), "tokenizing", 6.1e9 / 10e6),
        (Machine(1000, 1e12, 1e8), "the disk", (2 * 10e9 + 2 * 12.2e9) / 1e8),
    ],
)
def test_the_slowest_part_is_the_bottleneck(machine, bottleneck, seconds):
    made = plan(61_000_000 * 100 // 2048, machine)
    assert made.bottleneck == bottleneck
    assert made.seconds == pytest.approx(seconds, rel=1e-3)


def test_the_speed_is_measured_on_a_shard(monkeypatch):
    monkeypatch.undo()
    assert planning.measure_tokenizer(planning._tokenizer(Gpt2TokenizerConfig())) > 0
