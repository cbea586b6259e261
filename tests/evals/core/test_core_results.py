"""From a model to a report, and what two reports say of each other."""

import json
import math

import numpy as np
import pytest
import torch
from core_bundles import tiny_model, write_bundle

from littlelm import registry
from littlelm.errors import UserError
from littlelm.evals.configs import CoreEvalConfig, JsonlEvalConfig
from littlelm.evals.core import estimate
from littlelm.evals.core.compare import compare, holm, mcnemar
from littlelm.evals.core.estimate import allocate
from littlelm.evals.core.evaluate import CoreEvaluation
from littlelm.evals.core.files import RECORDS, RESULTS, read_result, write_result
from littlelm.evals.core.picture import draw
from littlelm.evals.core.scores import centred
from littlelm.evals.core.tables import result_lines
from littlelm.tokenizers.byte import ByteTokenizer


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return write_bundle(tmp_path_factory.mktemp("bundle")), tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def model():
    return tiny_model(257, context=300)


def evaluate(place, model, context=4096, **keys):
    evaluation = CoreEvaluation(CoreEvalConfig(bundle=str(place[0]), **keys))
    evaluation.prepare(ByteTokenizer(), context, place[1])
    return evaluation.evaluate(model, described={"model": "tiny", "step": 3})


@pytest.fixture(scope="module")
def result(place, model):
    return evaluate(place, model, context=300)


def test_both_engines_give_the_same_report(place, model, result):
    reference = evaluate(place, model, context=300, engine="reference")
    for column in result.records:
        if column in ("losses", "margin"):
            first = np.concatenate([np.ravel(value) for value in result.records[column]])
            second = np.concatenate([np.ravel(value) for value in reference.records[column]])
            np.testing.assert_allclose(first, second, atol=1e-4)
        else:
            assert result.records[column] == reference.records[column], column
    assert result.core == reference.core
    assert sum(task.tokens_fed for task in result.tasks) < sum(task.tokens_fed for task in reference.tasks)


def test_core_is_the_unweighted_mean_of_centred_accuracies_with_its_error(result):
    assert len(result.tasks) == 6
    for version in (0, 1):
        values = [centred(task.accuracy, task.baseline[version]) for task in result.tasks]
        assert result.core[version] == pytest.approx(sum(values) / 6)
        errors = [
            math.sqrt(task.accuracy * (1 - task.accuracy) / (task.n - 1)) / (1 - task.baseline[version] / 100)
            for task in result.tasks
        ]
        assert result.core_error[version] == pytest.approx(math.sqrt(sum(error**2 for error in errors)) / 6)


def test_the_report_counts_empty_spans_ties_and_cuts(result):
    tasks = {task.label: task for task in result.tasks}
    assert (tasks["copa"].nan, tasks["copa"].n) == (1, 8)  # its last item repeats an option, which begins the third
    assert tasks["commonsense_qa"].nan == 0
    assert tasks["arc_easy"].rows_cut == tasks["arc_easy"].bos_dropped > 0
    assert tasks["arc_easy"].shots_lost_max >= 1 and tasks["copa"].rows_cut == 0
    assert tasks["coqa"].text_cut > 0 and tasks["coqa"].shots_lost_max == 0
    assert tasks["arc_easy"].rows == 4 * tasks["arc_easy"].n
    assert all(task.seconds > 0 for task in result.tasks)


def test_questions_on_one_story_are_one_cluster(result):
    clusters = [
        c for label, c in zip(result.records["task"], result.records["cluster"], strict=True) if label == "coqa"
    ]
    assert sorted(clusters.count(cluster) for cluster in set(clusters)) == [4, 4, 4]


def test_a_result_is_read_back_as_it_was_written(result, tmp_path):
    write_result(result, tmp_path / "run" / "evals" / "core-step-3")
    for given in (tmp_path / "run", tmp_path / "run/evals/core-step-3", tmp_path / "run/evals/core-step-3" / RESULTS):
        found = read_result(given)
        assert repr(found.tasks) == repr(result.tasks)
        assert (found.core, found.core_error, found.settings) == (result.core, result.core_error, result.settings)
        assert repr(found.records) == repr(result.records)


def test_the_json_is_that_of_lm_evaluation_harness(result, tmp_path):
    write_result(result, tmp_path)
    content = json.loads((tmp_path / RESULTS).read_text(), parse_constant=lambda name: pytest.fail(f"{name} in JSON"))
    task = result.tasks[0]
    named = content["results"]["core_arc_easy"]
    assert (named["acc,none"], named["acc_stderr,none"]) == (task.accuracy, task.error)
    assert content["n-shot"]["core_arc_easy"] == 3
    assert content["n-samples"]["core_arc_easy"] == {"original": 12, "effective": 12}
    assert content["results"]["core"]["core_v1,none"] == result.core[0]
    assert set(content) >= {"results", "group_subtasks", "configs", "versions", "n-shot", "higher_is_better", "config"}
    assert (tmp_path / RECORDS).is_file()


def test_a_place_without_a_result_is_an_error(tmp_path):
    with pytest.raises(UserError, match="little-lm eval core"):
        read_result(tmp_path)
    (tmp_path / RESULTS).write_text('{"schema_version": 1}')
    with pytest.raises(UserError, match="no whole CORE result"):
        read_result(tmp_path)


def test_bf16_says_how_much_rounding_could_change(place):
    model = tiny_model(257, context=4096)
    model.compute_dtype = torch.bfloat16
    result = evaluate(place, model)
    assert any("margin under 0.01" in line for line in result_lines(result))
    near = sum(margin < 0.01 for margin in result.records["margin"])
    assert sum(task.near for task in result.tasks) == near


def test_a_result_equals_itself_and_differs_from_another_model_by_what_its_items_say(place, result):
    same = compare(result, result)
    assert (same.difference, {task.p for task in same.tasks}) == ((0.0, 0.0), {1.0})
    other = evaluate(place, tiny_model(257, context=300, num_hidden_layers=2), context=300)
    found = compare(result, other)
    assert found.difference[0] == pytest.approx(other.core[0] - result.core[0])
    for task, a, b in zip(found.tasks, result.tasks, other.tasks, strict=True):
        assert task.accuracy == (a.accuracy, b.accuracy)
        assert task.only_b - task.only_a == round((b.accuracy - a.accuracy) * a.n)


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({"policy": "none"}, "truncation policy differs: crop_left and none"),
        ({"max_per_task": 6}, "max_per_task"),
        ({"tasks": ["copa"]}, "the bundle differs"),
    ],
)
def test_results_that_were_not_made_alike_are_not_compared(place, model, result, keys, reason):
    other = evaluate(place, model, context=300, **keys)
    with pytest.raises(UserError, match=reason):
        compare(result, other)


def test_untruncated_compares_the_items_that_are_cut_in_neither(place, result):
    other = evaluate(place, tiny_model(257, context=4096), context=4096)
    found = compare(result, other, untruncated=True)
    cut = {
        (task, line)
        for task, line, tokens in zip(
            result.records["task"], result.records["line"], result.records["tokens_cut"], strict=True
        )
        if tokens
    }
    assert sum(task.n for task in found.tasks) == len(result.records["task"]) - len(cut)
    keys = set(zip(result.records["task"], result.records["line"], strict=True))
    assert set(found.left_out) == {label for label, _ in keys} - {label for label, _ in keys - cut} != set()
    assert not compare(result, other).left_out


def test_mcnemar_and_holm_give_the_published_numbers():
    assert mcnemar(1, 9) == pytest.approx(2 * 11 / 1024)
    assert (mcnemar(0, 0), mcnemar(5, 5)) == (1.0, 1.0)
    assert mcnemar(3000, 3200) == pytest.approx(0.0115, abs=3e-4)
    np.testing.assert_allclose(holm(np.array([0.01, 0.04, 0.03, 0.005])), [0.03, 0.06, 0.06, 0.02])


def test_an_estimate_keeps_the_prompts_of_the_full_run(place, monkeypatch):
    monkeypatch.setattr(estimate, "_LEAST", 2)
    model = tiny_model(257, context=4096)
    whole, part = evaluate(place, model), evaluate(place, model, budget=0.5)
    assert (whole.name, part.name) == ("core", "core_est")
    assert 6 * 2 <= len(part.records["task"]) < len(whole.records["task"])
    columns = ("task", "line", "chosen", "losses")
    known = {(task, line): rest for task, line, *rest in zip(*(whole.records[c] for c in columns), strict=True)}
    for task, line, chosen, losses in zip(*(part.records[c] for c in columns), strict=True):
        assert known[task, line][0] == chosen
        np.testing.assert_allclose(known[task, line][1], losses, atol=1e-5)


def test_the_error_of_an_estimate_is_that_of_a_part_of_a_finite_whole(place, monkeypatch):
    monkeypatch.setattr(estimate, "_LEAST", 2)
    part = evaluate(place, tiny_model(257, context=4096), budget=0.5)
    for task in part.tasks:
        alone = math.sqrt(task.accuracy * (1 - task.accuracy) / (task.n - 1))
        assert task.error == pytest.approx(alone * math.sqrt(1 - task.n / task.of))
    assert any(task.error > 0 for task in part.tasks)


def test_a_file_of_the_users_own_is_an_evaluation(place, model, result):
    config = JsonlEvalConfig(
        file=str(place[0] / "eval_data/some/arc_easy.jsonl"), type="choice", shots=3, delimiter="\nAnswer: ",
        baseline=25.0, label="mine",
    )  # fmt: skip
    evaluation = registry.build(config)
    evaluation.prepare(ByteTokenizer(), 300, place[1])
    found = evaluation.evaluate(model)
    same = next(task for task in result.tasks if task.label == "arc_easy")
    assert (found.tasks[0].label, found.tasks[0].accuracy, found.core[0]) == ("mine", same.accuracy, same.centred[0])
    with pytest.raises(UserError, match=r"nowhere\.jsonl: no such file"):
        registry.build(JsonlEvalConfig(file="nowhere.jsonl", type="lm")).prepare(ByteTokenizer(), 300, place[1])


def test_an_estimate_spends_its_budget_where_it_tells_most():
    counts, cost = np.array([100, 10_000, 10_000]), np.array([10.0, 1000.0, 100.0])
    taken = allocate(counts, cost, np.array([2.0, 1.0, 1.0]), 200_000.0)
    assert taken[0] == 100  # a tiny task is run whole
    assert taken[2] / taken[1] == pytest.approx(math.sqrt(10), rel=0.02)
    assert 0.98 < (taken * cost).sum() / 200_000 <= 1.0
    assert allocate(counts, cost, np.ones(3), 1e12).tolist() == counts.tolist()


def test_a_picture_shows_several_results(result, tmp_path):
    draw([result, result], ["first", "second"], tmp_path / "core.svg")
    text = (tmp_path / "core.svg").read_text()
    assert text.startswith("<?xml")
    draw([result], ["one"], tmp_path / "core.png", version=1)
    with pytest.raises(UserError, match=r"\.png"):
        draw([result], ["one"], tmp_path / "core.doc")


def test_budget_and_max_per_task_exclude_each_other():
    with pytest.raises(ValueError, match="two ways of running less"):
        CoreEvalConfig(budget=0.2, max_per_task=100)
