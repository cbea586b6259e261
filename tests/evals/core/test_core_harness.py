"""lm-evaluation-harness over our engine: the log-likelihoods are those of the model, one BOS, cuts counted."""

import json
from types import SimpleNamespace

import pytest
import torch
from core_bundles import tiny_model

from littlelm.errors import UserError
from littlelm.evals.harness import LittleLM, run_tasks
from littlelm.inference import generate
from littlelm.tokenizers.byte import ByteTokenizer

TASK = """
task: little_letters
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}} Answer:"
doc_to_choice: "{{{{options}}}}"
doc_to_target: "{{{{gold}}}}"
metric_list: [{{metric: acc}}, {{metric: acc_norm}}]
"""


@pytest.fixture(scope="module")
def model():
    return tiny_model(257, context=128)


@pytest.fixture
def harness(model):
    return LittleLM(model=model, tokenizer=ByteTokenizer())


def requests(*arguments):
    return [SimpleNamespace(args=given) for given in arguments]


def naive(model, tokens, scored):
    """(log-likelihood of the last `scored` tokens, whether they are the likeliest)."""
    with torch.inference_mode():
        logits = model.logits(model(torch.tensor([tokens[:-1]])))[0].double().log_softmax(-1)[-scored:]
    targets = torch.tensor(tokens[-scored:])
    return float(logits[range(scored), targets].sum()), bool((logits.argmax(-1) == targets).all())


def test_log_likelihoods_are_those_of_the_model_with_one_bos(harness, model):
    pairs = [("The sky is", " blue"), ("The sky is", " green"), ("The sky is", " blue"), ("", "Once"), ("A b ", "c"),
             ("<|bos|>The sky is", " blue")]  # fmt: skip
    answers = harness.loglikelihood(requests(*pairs), disable_tqdm=True)
    for (context, continuation), (loglikelihood, greedy) in zip(pairs, answers, strict=True):
        text = (context + continuation).removeprefix("<|bos|>").encode()
        scored = len((context + continuation).encode()) - len(context.rstrip().encode())
        expected = naive(model, [256, *text], scored)
        assert loglikelihood == pytest.approx(expected[0], abs=1e-4)
        assert greedy == expected[1]
    assert answers[0] == answers[2] == answers[5]
    assert harness.truncated == 0


def test_what_greedy_decoding_gives_is_called_greedy(harness, model):
    ids = list(generate(model, harness.tok_encode("Hello"), 4, temperature=0.0))
    (answer,) = harness._loglikelihood_tokens([(None, harness.tok_encode("Hello"), ids)])
    assert answer[1] is True


def test_a_long_context_loses_its_beginning_and_that_is_counted(harness, model):
    tokens = harness.tok_encode("x" * 150 + "y")
    ((loglikelihood, _),) = harness.loglikelihood(requests(("x" * 150, "y")), disable_tqdm=True)
    assert loglikelihood == pytest.approx(naive(model, tokens[-129:], 1)[0], abs=1e-4)
    assert (harness.truncated, harness.tokens_cut) == (1, 152 - 129)
    with pytest.raises(UserError, match="does not fit"):
        harness.loglikelihood(requests(("x", "y" * 200)), disable_tqdm=True)


def test_a_rolling_log_likelihood_counts_every_token_once(harness, model):
    short, long = "A short text.", "word " * 60
    first, second = harness.loglikelihood_rolling(requests((short,), (long,)))
    assert first == pytest.approx(naive(model, [256, *short.encode()], len(short))[0], abs=1e-4)
    ids = list(long.encode())
    windows = [naive(model, [256, *ids[:128]], 128)]
    windows.append(naive(model, ids[127:256], 128))
    windows.append(naive(model, ids[-129:], len(ids) - 256))
    assert second == pytest.approx(sum(window[0] for window in windows), abs=1e-3)


def test_generation_stops_at_the_stop_text(harness, model):
    free = harness.generate_until(requests(("Hi", {"until": [], "max_gen_toks": 12})))[0]
    tokenizer = ByteTokenizer()
    ids = list(generate(model, harness.tok_encode("Hi"), 12, temperature=0.0, stop_ids=[256]))
    assert free == tokenizer.decode(ids)
    stop = free[2:4]
    stopped = harness.generate_until(requests(("Hi", {"until": [stop], "max_gen_toks": 12})))[0]
    assert stopped == free[: free.index(stop)]
    with pytest.raises(UserError, match="num_beams"):
        harness.generate_until(requests(("Hi", {"num_beams": 2})))


def test_a_task_of_the_harness_runs_offline_and_its_accuracy_is_ours(harness, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "hf"))
    documents = [
        {"question": f"Question {n} about {'abc' * n}?", "options": ["yes", "no way", "perhaps"], "gold": n % 3}
        for n in range(12)
    ]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(document) + "\n" for document in documents))
    (tmp_path / "little_letters.yaml").write_text(TASK.format(file=tmp_path / "data.jsonl"))
    results, table = run_tasks(harness, ["little_letters"], None, None, tmp_path, False)
    right = 0
    for document in documents:
        context = f"{document['question']} Answer:"
        options = [f" {option}" for option in document["options"]]
        found = harness.loglikelihood(requests(*[(context, option) for option in options]), disable_tqdm=True)
        right += max(range(3), key=lambda n, found=found: found[n][0]) == document["gold"]
    assert results["results"]["little_letters"]["acc,none"] == pytest.approx(right / 12)
    assert "little_letters" in table
    with pytest.raises(UserError, match="no task 'little_lettres'"):
        run_tasks(harness, ["little_lettres"], None, None, tmp_path, False)
