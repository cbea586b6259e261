"""Texts, tokens, spans and samples of CORE: the exact cases of its specification, with GPT-2's tokenizer."""

import math
import random

import numpy as np
import pytest

from littlelm.errors import UserError
from littlelm.evals.core import sampling
from littlelm.evals.core.bundle import Task
from littlelm.evals.core.rendering import render
from littlelm.evals.core.scores import TokenScores, centred, clustered_error, decide_options, decide_tokens, mean_loss
from littlelm.evals.core.spans import spans_of
from littlelm.tokenizers.configs import Gpt2TokenizerConfig
from littlelm.tokenizers.gpt2 import build_gpt2


@pytest.fixture(scope="module")
def gpt2():
    return build_gpt2(Gpt2TokenizerConfig())


def rows(tokenizer, kind, item, delimiter=" ", shots=()):
    task = Task("t", kind, len(shots), delimiter, 0, 0, "t.jsonl")
    texts = render(task, item, list(shots))
    encode = lambda text: np.array([tokenizer.bos_id, *tokenizer.encode(text)], dtype=np.uint32)  # noqa: E731
    without = None if texts.without is None else encode(texts.without)
    return spans_of(task, [encode(text) for text in texts.rows], without, "t, item 0")


def choice(query, choices):
    return {"query": query, "choices": choices, "gold": 0}


def test_the_span_of_a_choice_begins_where_the_options_part(gpt2):
    found = rows(gpt2, "choice", choice("The capital of France is", ["Paris", "Lyon", "New York"]))
    assert found.tokens[0].tolist() == [50256, 464, 3139, 286, 4881, 318, 6342]
    assert (found.starts, found.ends) == ([6, 6, 6], [7, 7, 8])


def test_words_that_options_share_are_not_scored(gpt2):
    assert rows(gpt2, "choice", choice("He picked up", ["the red ball", "the blue ball"])).starts == [5, 5]


def test_a_merge_across_the_boundary_belongs_to_the_span(gpt2):
    found = rows(gpt2, "choice", choice("The answer is un", ["happy", "fair"]), delimiter="")
    assert [found.tokens[i][found.starts[i] :].tolist() for i in (0, 1)] == [[19283], [11675]]
    assert found.starts == [4, 4]


def test_lm_strips_the_context_and_not_the_continuation(gpt2):
    found = rows(gpt2, "lm", {"context": "  Input: [ <\nOutput: ", "continuation": "> ]"})
    assert found.tokens[0].tolist() == [50256, 20560, 25, 685, 1279, 198, 26410, 25, 1875, 2361]
    assert (found.starts, found.ends) == ([8], [10])


def test_lm_whose_continuation_melts_into_the_context_is_an_error_naming_the_item(gpt2):
    with pytest.raises(UserError, match="t, item 0"):
        rows(gpt2, "lm", {"context": "Ans", "continuation": "wer"}, delimiter="")


def test_lm_whose_continuation_has_no_tokens_at_all_is_an_error():
    # Some vocabularies of others have no token for a byte, and drop it.
    task, row = Task("t", "lm", 0, " ", 0, 0, "t.jsonl"), np.array([0, 5, 6], dtype=np.uint32)
    with pytest.raises(UserError, match="t, item 3"):
        spans_of(task, [row], row, "t, item 3")


def test_the_span_of_a_schema_is_the_common_end(gpt2):
    item = {"context_options": ["The cup because the cup", "The cup because it"], "continuation": "broke.", "gold": 0}
    found = rows(gpt2, "schema", item)
    assert [gpt2.decode(found.tokens[i][found.starts[i] :]) for i in (0, 1)] == [" broke."] * 2


def test_texts_are_joined_by_blank_lines_and_nothing_else_is_changed():
    task = Task("t", "choice", 1, "\nAnswer: ", 0, 0, "t.jsonl")
    shown = {"query": "One\n", "choices": ["a", " b é"], "gold": 1}
    texts = render(task, choice("Two ", ["x", "y"]), [shown])
    assert texts.rows == ["One\n\nAnswer:  b é\n\nTwo \nAnswer: x", "One\n\nAnswer:  b é\n\nTwo \nAnswer: y"]
    assert texts.starts == [0, len("One\n\nAnswer:  b é\n\n".encode())]


def test_the_order_and_the_examples_are_those_of_the_reference():
    assert sampling.shuffled(range(10)) == [0, 3, 7, 2, 1, 6, 4, 5, 8, 9]
    assert sampling.shuffled(range(10), 3) == [0, 3, 7]
    assert [sampling.shots_of(index, 6, 2) for index in range(3)] == [[4, 1], [4, 5], [5, 4]]
    assert sampling.shots_of(0, 100, 10) == [57, 15, 1, 12, 75, 5, 86, 89, 11, 13]


@pytest.mark.parametrize("count", [11, 12, 50, 500, 20321])
def test_examples_equal_those_drawn_from_the_list_of_all_others(count):
    for index in {0, 1, 5, count // 2, count - 1}:
        others = [i for i in range(count) if i != index]
        assert sampling.shots_of(index, count, 10) == random.Random(1234 + index).sample(others, 10)


def test_the_mean_decides_and_not_the_sum():
    assert decide_options([mean_loss(np.float32([2.0])), mean_loss(np.float32([1.2, 1.2]))], 1).chosen == 1


def test_the_first_wins_a_tie_and_the_tie_is_told():
    decision = decide_options([1.5, 1.5, 2.0], 1)
    assert (decision.chosen, decision.correct, decision.tie, decision.margin) == (0, False, True, 0.0)
    assert not decide_options([1.5, 1.6, 1.6], 0).tie


def test_an_empty_span_wins_when_it_is_first_and_never_otherwise():
    empty = mean_loss(np.empty(0, np.float32))
    assert math.isnan(empty)
    assert decide_options([empty, 1.0], 0).chosen == 0
    second = decide_options([1.0, empty, 0.5], 0)
    assert (second.chosen, second.nan) == (2, True)


def test_lm_is_right_when_every_token_is_the_likeliest_and_its_margin_is_the_smallest_gap():
    losses = np.float32([0.1, 0.2])
    right = decide_tokens(losses, np.array([True, True]), np.float32([2.0, 0.5]))
    wrong = decide_tokens(losses, np.array([False, True]), np.float32([-3.0, 0.5]))
    assert (right.correct, right.margin, wrong.correct, wrong.margin) == (True, 0.5, False, 3.0)


def test_centring_subtracts_what_guessing_scores():
    assert centred(0.25, 9.1) == pytest.approx(0.174917, abs=1e-6)
    assert centred(0.619, 62) == pytest.approx(-0.002632, abs=1e-6)


def test_questions_on_one_text_count_as_less_than_independent_ones():
    values = np.repeat([0.0, 1.0, 1.0, 0.0, 1.0, 0.0], 5)
    alone = clustered_error(values, np.arange(30))
    assert alone == pytest.approx(values.std(ddof=1) / math.sqrt(30))
    assert clustered_error(values, np.repeat(np.arange(6), 5)) == pytest.approx(0.5 / math.sqrt(5), rel=1e-6)


def test_parts_of_different_processes_join_in_the_order_of_rows():
    def part(rows, lengths, first):
        count = sum(lengths)
        values = np.arange(first, first + count)
        return TokenScores(np.array(rows), np.concatenate(([0], np.cumsum(lengths))), values.astype(np.float32),
                           values % 2 == 0, values.astype(np.float32))  # fmt: skip

    joined = TokenScores.join([part([5, 2], [2, 1], 0), part([3], [3], 10)])
    assert joined.rows.tolist() == [2, 3, 5]
    assert [joined.losses[joined.of(i)].tolist() for i in range(3)] == [[2], [10, 11, 12], [0, 1]]
