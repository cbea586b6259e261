"""Packers: nothing is lost, rows are full, and the fast search is the plain one."""

import numpy as np
import pytest

from littlelm.data.configs import BestFitConfig, BestFitCropConfig, ConcatConfig
from littlelm.data.packing.best_fit import BestFit, _best_fit
from littlelm.data.packing.best_fit_crop import BestFitCrop
from littlelm.data.packing.concat import Concat
from littlelm.data.plans import around_excluded


def lengths(count=800, seed=0):
    """Like text: many short documents, a long tail."""
    return np.maximum(1, np.random.default_rng(seed).lognormal(4.5, 1.2, count)).astype(np.int64)


def covered(plan, total):
    """How often each token of the stream is in a row."""
    count = np.zeros(total, dtype=np.int64)
    for start, length in zip(plan.start, plan.length, strict=True):
        count[start : start + length] += 1
    return count


@pytest.mark.parametrize("packer", [BestFit(BestFitConfig()), Concat(ConcatConfig())], ids=["best_fit", "concat"])
@pytest.mark.parametrize("row_length", [16, 129, 513])
def test_every_token_is_in_exactly_one_row(packer, row_length):
    documents = lengths()
    plan = packer.plan(documents, row_length)
    assert (covered(plan, documents.sum()) == 1).all()
    assert (plan.row_tokens <= row_length).all()
    assert (plan.row_tokens > 0).all()
    assert plan.report()["crop_percent"] == 0.0


@pytest.mark.parametrize("row_length", [65, 129, 513])
def test_best_fit_pads_less_than_a_thousandth(row_length):
    plan = BestFit(BestFitConfig()).plan(lengths(40_000), row_length)
    assert plan.report()["padding_percent"] < 0.1


def test_best_fit_cuts_only_long_documents_and_those_that_close_gaps():
    documents = np.array([30, 20, 10] * 60)
    plan = BestFit(BestFitConfig()).plan(documents, 60)
    assert plan.documents_split == 0
    starts = np.concatenate([[0], np.cumsum(documents)[:-1]])
    pieces = set(zip(plan.start.tolist(), plan.length.tolist(), strict=True))
    assert pieces == set(zip(starts.tolist(), documents.tolist(), strict=True))


def test_best_fit_is_the_plain_algorithm():
    """Against the textbook: for each item, look at every open row and take the tightest that holds it."""
    items = sorted((int(n) % 100 + 1 for n in lengths(600, 5)), reverse=True)
    rows, free = _best_fit(items, 100)
    spaces: list[int] = []
    for item in items:
        fitting = [space for space in spaces if space >= item]
        if fitting:
            spaces[spaces.index(min(fitting))] -= item
        else:
            spaces.append(100 - item)
    assert sorted(spaces) == sorted(free)
    assert sorted(item for row in rows for item in row) == list(range(len(items)))
    assert [100 - sum(items[i] for i in row) for row in rows] == free


def test_crop_packing_fills_every_row_and_throws_the_rest_away():
    documents = lengths()
    plan = BestFitCrop(BestFitCropConfig(buffer_documents=50)).plan(documents, 129)
    assert (plan.row_tokens == 129).all()
    assert covered(plan, documents.sum()).max() == 1
    starts = set(np.concatenate([[0], np.cumsum(documents)[:-1]]).tolist())
    assert set(plan.start.tolist()) <= starts  # every piece is the beginning of a document
    report = plan.report()
    assert 0 < report["crop_percent"] < 100
    assert report["crop_percent"] == pytest.approx(100 * (1 - plan.length.sum() / documents.sum()))


def test_crop_packing_takes_the_longest_that_fits():
    plan = BestFitCrop(BestFitCropConfig(buffer_documents=10)).plan(np.array([3, 9, 6, 4]), 10)
    assert list(zip(plan.start.tolist(), plan.length.tolist(), strict=True)) == [(3, 9), (0, 1), (12, 6), (18, 4)]


@pytest.mark.parametrize("packer", [BestFit(BestFitConfig()), Concat(ConcatConfig())], ids=["best_fit", "concat"])
def test_a_plan_goes_around_excluded_documents(packer):
    documents = lengths(300)
    mask = np.random.default_rng(1).random(300) < 0.1
    mask[:2] = mask[-1] = True
    inner = packer.plan(documents[~mask], 129)
    plan = around_excluded(inner, documents, mask)
    expected = np.repeat(~mask, documents).astype(np.int64)
    assert (covered(plan, documents.sum()) == expected).all()
    assert (plan.row_tokens == inner.row_tokens).all()


@pytest.mark.parametrize("packer", [BestFit(BestFitConfig()), Concat(ConcatConfig())], ids=["best_fit", "concat"])
def test_no_document_gives_no_row(packer):
    assert packer.plan(np.array([], dtype=np.int64), 10).rows == 0


@pytest.mark.parametrize(
    "packer", [BestFit(BestFitConfig()), BestFitCrop(BestFitCropConfig(buffer_documents=50)), Concat(ConcatConfig())]
)
@pytest.mark.parametrize(
    ("documents", "row_length"),
    [(lengths(), 16), (lengths(), 129), (lengths(), 513), (np.array([90] * 60 + [35] * 5), 100)],
    ids=["16", "129", "513", "small gaps, each closed by a part of one document"],
)
def test_documents_split_counts_each_document_once(packer, documents, row_length):
    """A document is split when its tokens are in several rows, or only in part in one."""
    plan = packer.plan(documents, row_length)
    row_of = np.full(documents.sum(), -1)
    for row in range(plan.rows):
        for piece in range(plan.first[row], plan.first[row + 1]):
            row_of[plan.start[piece] : plan.start[piece] + plan.length[piece]] = row
    per_document = np.split(row_of, np.cumsum(documents)[:-1])
    # what was never packed at all (the last row that could not be filled) is not split
    assert plan.documents_split == sum(len(set(rows.tolist())) > 1 for rows in per_document)


@pytest.mark.parametrize("row_length", [65, 513])
def test_crop_packing_is_the_plain_rule(row_length):
    """Against the rule as stated: of the whole buffer the longest that fits, else the shortest, cropped."""
    documents = lengths(700, 2).tolist()
    waiting, buffer, rows = list(documents), [], []
    while True:
        row, space = [], row_length
        while space:
            while len(buffer) < 40 and waiting:
                buffer.append(waiting.pop(0))
            if not buffer:
                break
            fitting = [length for length in buffer if length <= space]
            taken = max(fitting) if fitting else min(buffer)
            buffer.remove(taken)
            row.append(min(taken, space))
            space -= row[-1]
        if space:
            break
        rows.append(row)
    plan = BestFitCrop(BestFitCropConfig(buffer_documents=40)).plan(np.array(documents), row_length)
    assert [plan.length[plan.first[i] : plan.first[i + 1]].tolist() for i in range(plan.rows)] == rows
