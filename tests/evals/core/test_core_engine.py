"""The engine equals the reference, whatever the model, the packs, the padding and the number of processes."""

import numpy as np
import pytest
import torch
from core_bundles import tiny_model, write_bundle

from littlelm.errors import UserError
from littlelm.evals.core.bundle import open_bundle
from littlelm.evals.core.cuts import cut_rows
from littlelm.evals.core.engine import longer_context, run_packs
from littlelm.evals.core.packs import GRAIN, RowTokens, naive_tokens, plan_packs
from littlelm.evals.core.prepared import prepare_rows
from littlelm.evals.core.reference import evaluate_reference
from littlelm.tokenizers.byte import ByteTokenizer

CHOICES = [
    {},
    {"num_key_value_heads": 2, "mlp": "swiglu", "norm_weight": True, "embedding_norm": False, "tie_embeddings": True},
    {"value_embeddings": "alternate", "value_embedding_gate": True, "residual_scalars": True, "qk_norm": True,
     "logit_softcap": 10.0, "num_key_value_heads": 1},
]  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer():
    return ByteTokenizer()


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return open_bundle(str(write_bundle(tmp_path_factory.mktemp("bundle"))), tmp_path_factory.mktemp("none"))


@pytest.fixture(scope="module")
def prepared(bundle, tokenizer, tmp_path_factory):
    return prepare_rows(bundle, tokenizer, tmp_path_factory.mktemp("cache"))


def rows_at(prepared, tokenizer, limit=4096, policy="crop_left"):
    return RowTokens(prepared, cut_rows(prepared, limit, policy, tokenizer.token_bytes))


def compare(model, rows, bundle, tokenizer, limit, pack_tokens=1024):
    prepared = rows.prepared
    packs = plan_packs(rows, range(prepared.num_items), pack_tokens)
    scores = run_packs(model, rows, packs, pad_id=7).scores
    position = {int(row): number for number, row in enumerate(scores.rows)}
    first = {task.label: int(item) for task, item in zip(prepared.tasks, prepared.task_items, strict=False)}
    seen = 0
    for found in evaluate_reference(model, bundle, tokenizer, limit):
        item = first[found.task.label] + found.index
        for number, row in enumerate(range(prepared.item_rows[item], prepared.item_rows[item + 1])):
            seen += 1
            assert rows.row(row).tolist() == found.tokens[number]
            assert (rows.start[row], rows.length[row]) == (found.starts[number], found.ends[number])
            if rows.is_empty(row):
                assert row not in position and len(found.losses[number]) == 0
                continue
            place = scores.of(position[row])
            np.testing.assert_allclose(scores.losses[place], found.losses[number], atol=1e-5, rtol=0)
            if found.task.type == "lm":
                assert bool(scores.right[place].all()) == found.decision.correct
                assert abs(float(scores.gap[place].min())) == pytest.approx(found.decision.margin, abs=1e-4)
    assert seen == prepared.num_rows


@pytest.mark.parametrize("choices", CHOICES)
def test_tokens_spans_losses_and_argmax_equal_the_reference(choices, bundle, prepared, tokenizer):
    model = tiny_model(tokenizer.vocab_size, context=4096, **choices)
    compare(model, rows_at(prepared, tokenizer), bundle, tokenizer, None)


def test_rows_that_are_cut_equal_the_reference(bundle, prepared, tokenizer):
    model = tiny_model(tokenizer.vocab_size, context=300)
    rows = rows_at(prepared, tokenizer, 300)
    assert (rows.crop > 0).sum() > 10
    compare(model, rows, bundle, tokenizer, 300)


def test_policy_none_feeds_whole_rows_and_puts_the_model_back(bundle, prepared, tokenizer):
    model = tiny_model(tokenizer.vocab_size, context=300)
    long = tiny_model(tokenizer.vocab_size, context=4096)
    rows = rows_at(prepared, tokenizer, 300, "none")
    packs = plan_packs(rows, range(prepared.num_items), 1024)
    short_scores = run_packs(model, rows, packs, pad_id=0).scores
    np.testing.assert_array_equal(short_scores.losses, run_packs(long, rows, packs, pad_id=0).scores.losses)
    assert model.config.max_position_embeddings == 300 == len(model.cos)
    with longer_context(model, 500):
        model(torch.zeros(1, 500, dtype=torch.int64))


def test_neither_padding_nor_the_size_of_packs_changes_a_loss(prepared, tokenizer):
    model = tiny_model(tokenizer.vocab_size, context=4096)
    rows = rows_at(prepared, tokenizer)
    everything = range(prepared.num_items)
    packs = plan_packs(rows, everything, 1024)
    first = run_packs(model, rows, packs, pad_id=0).scores
    other = run_packs(model, rows, packs, pad_id=99).scores
    np.testing.assert_array_equal(first.losses, other.losses)
    for pack_tokens, grain in ((1, 16), (300, 4), (10**6, 1)):
        resized = run_packs(model, rows, plan_packs(rows, everything, pack_tokens, grain), pad_id=0).scores
        np.testing.assert_allclose(resized.losses, first.losses, atol=1e-5, rtol=0)
        np.testing.assert_array_equal(resized.right, first.right)


def test_a_part_of_the_items_gives_the_losses_they_have_in_the_whole(prepared, tokenizer):
    model = tiny_model(tokenizer.vocab_size, context=4096)
    rows = rows_at(prepared, tokenizer)
    whole = run_packs(model, rows, plan_packs(rows, range(prepared.num_items), 1024), pad_id=0).scores
    part = run_packs(model, rows, plan_packs(rows, range(0, prepared.num_items, 5), 1024), pad_id=0).scores
    found = np.searchsorted(whole.rows, part.rows)
    joined = np.concatenate([whole.losses[whole.of(position)] for position in found])
    np.testing.assert_allclose(part.losses, joined, atol=1e-5, rtol=0)


def test_packs_hold_every_row_once_and_feed_far_fewer_tokens(prepared, tokenizer):
    rows = rows_at(prepared, tokenizer)
    everything = np.arange(prepared.num_items)
    packs = plan_packs(rows, everything, 2048)
    members = [row for pack in packs for family in pack.families for row, _ in family.members]
    assert sorted(members) == [row for row in range(prepared.num_rows) if not rows.is_empty(row)]
    assert sum(pack.cost for pack in packs) < naive_tokens(rows, everything) / 2
    assert all(pack.prefix % GRAIN == 0 for pack in packs)
    assert [pack.cost for pack in packs] == sorted((pack.cost for pack in packs), reverse=True)
    largest = max(int(length) for length in rows.length)
    assert all(pack.cost <= 2048 or len(pack.families) == 1 or pack.cost <= largest + GRAIN for pack in packs)


def test_options_of_one_token_are_one_row(bundle, prepared, tokenizer):
    rows = rows_at(prepared, tokenizer)
    task = [task.label for task in prepared.tasks].index("commonsense_qa")
    items = range(prepared.task_items[task], prepared.task_items[task + 1])
    families = [family for pack in plan_packs(rows, items, 2048) for family in pack.families]
    assert len(families) == len(items)
    assert all(len(family.fed) == 1 and len(family.members) == 4 for family in families)


def test_questions_on_one_text_share_it(prepared, tokenizer):
    rows = rows_at(prepared, tokenizer)
    task = [task.label for task in prepared.tasks].index("coqa")
    items = range(prepared.task_items[task], prepared.task_items[task + 1])
    families = [family for pack in plan_packs(rows, items, 2048) for family in pack.families]
    assert max(len(family.members) for family in families) > 1
    shared = [family for family in families if family.prefix]
    assert shared and all(family.prefix > 100 for family in shared)


def test_a_second_preparation_is_found_and_equal(bundle, tokenizer, tmp_path):
    first = prepare_rows(bundle, tokenizer, tmp_path)
    second = prepare_rows(bundle, tokenizer, tmp_path)
    assert (first.found, second.found, first.key == second.key) == (False, True, True)
    np.testing.assert_array_equal(first.tokens, second.tokens)
    np.testing.assert_array_equal(first.span_start, second.span_start)
    assert prepare_rows(bundle, tokenizer, tmp_path, max_per_task=5).key != first.key


def test_what_a_cut_loses_is_counted(prepared, tokenizer):
    rows = rows_at(prepared, tokenizer, 300)
    cuts = cut_rows(prepared, 300, "crop_left", tokenizer.token_bytes)
    for row in range(prepared.num_rows):
        item = int(rows.row_item[row])
        starts = prepared.starts[prepared.starts_at[item] : prepared.starts_at[item + 1]]
        lost = max(0, int(rows.crop[row]) - 1)  # the first token cut is BOS, every other one a byte
        assert cuts.shots_lost[row] == sum(start < lost for start in starts[:-1])
        assert cuts.text_cut[row] == (starts[-1] < lost)
    counted = cuts.of(slice(0, prepared.num_rows))
    assert counted["rows_cut"] == counted["bos_dropped"] == int((rows.crop > 0).sum()) > 0
    assert counted["shots_lost_max"] == 3


def test_policy_error_and_a_span_that_does_not_fit_are_errors_naming_the_item(prepared, tokenizer):
    with pytest.raises(UserError, match=r"arc_easy, item \d+ .*longer than the model's 300"):
        rows_at(prepared, tokenizer, 300, "error")
    with pytest.raises(UserError, match="does not fit into 10 tokens"):
        rows_at(prepared, tokenizer, 10)
