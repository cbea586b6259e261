"""A mixture gives each source its share, in order, from nothing but the position."""

import numpy as np
import pytest

from littlelm.data.mixture import BLOCK, Mixture, Stages, temperature_weights
from littlelm.errors import UserError

NAMES = ["a", "b", "c"]


def test_every_source_has_its_exact_share_of_each_block():
    mixture = Mixture([0.7, 0.2, 0.1], 3, NAMES)
    totals = np.zeros(3)
    for number in range(40):
        source, _ = mixture.block(number)
        counts = np.bincount(source, minlength=3)
        assert counts.sum() == BLOCK
        totals += counts
        assert np.abs(totals - np.array([0.7, 0.2, 0.1]) * BLOCK * (number + 1)).max() < 1.01


def test_rows_of_a_source_are_numbered_in_the_order_they_are_read():
    stages = Stages([(0, [0.7, 0.3, 0.0]), (10_000, [0.1, 0.4, 0.5])], 3, NAMES)
    source, index = stages.places(0, 30_000)
    for each in range(3):
        mine = index[source == each]
        assert (mine == np.arange(len(mine))).all()
    assert (source[:10_000] != 2).all()
    assert stages.used(30_000) == np.bincount(source).tolist()
    assert stages.used(10_000) == np.bincount(source[:10_000], minlength=3).tolist()


@pytest.mark.parametrize(("start", "stop"), [(0, 0), (5, 100), (4095, 4097), (9_990, 10_010), (12_345, 20_000)])
def test_a_position_alone_decides(start, stop):
    whole = Stages([(0, [1, 2, 0]), (10_000, [1, 1, 5])], 1, NAMES).places(0, 20_000)
    part = Stages([(0, [1, 2, 0]), (10_000, [1, 1, 5])], 1, NAMES).places(start, stop)
    for left, right in zip(whole, part, strict=True):
        assert (left[start:stop] == right).all()


def test_position_is_the_inverse_of_places():
    stages = Stages([(0, [0.7, 0.3, 0.0]), (10_000, [0.0, 0.4, 0.6])], 3, NAMES)
    source, index = stages.places(0, 20_000)
    for position in [0, 1, 4095, 4096, 9_999, 10_000, 10_001, 19_999, *range(0, 20_000, 997)]:
        assert stages.position(int(source[position]), int(index[position])) == position
    assert stages.position(0, int((source == 0).sum())) is None  # the second stage never reads the first source


def test_places_are_spread_and_differ_by_seed():
    source, _ = Mixture([1, 1, 0], 1, NAMES).block(0)
    other, _ = Mixture([1, 1, 0], 2, NAMES).block(0)
    assert (source != other).any()
    for quarter in np.split(source, 4):  # 1024 draws: 5 standard deviations
        assert abs(np.bincount(quarter, minlength=2)[0] - 512) < 80


def test_a_large_run_needs_no_more_work_than_a_small_one():
    mixture = Mixture([0.5, 0.25, 0.25], 0, NAMES)
    far = 10**9
    assert sum(mixture.used(far + 17)) == far + 17
    assert mixture.position(1, 10**8) > 3 * 10**8


def test_weights_without_a_place_are_refused():
    with pytest.raises(UserError, match=r"'c' has 0\.01 % of the mixture"):
        Mixture([1, 0, 0.0001], 0, NAMES)
    with pytest.raises(UserError, match="every weight"):
        Mixture([0, 0, 0], 0, NAMES)


def test_temperature_lifts_small_sources():
    plain = temperature_weights([100, 10], 1.0)
    assert plain[1] / plain[0] == pytest.approx(0.1)
    assert temperature_weights([100, 10], 2.0)[1] == pytest.approx(0.1**0.5)
