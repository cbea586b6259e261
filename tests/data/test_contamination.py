"""What is found is what a plain comparison of all n-grams finds."""

import pickle
import random

import pytest
from conftest import WORDS

from littlelm.data import contamination
from littlelm.data.contamination import ContaminationIndex, Hits, words_of


def plain(items, documents, n):
    """Items that share an n-gram with a document, by sets of tuples."""
    found = set()
    for number, (_, _, texts) in enumerate(items):
        words = words_of(" ".join(texts))
        length = min(n, len(words))
        if len(words) < min(8, n):
            continue
        grams = {tuple(words[i : i + length]) for i in range(len(words) - length + 1)}
        for _, text in documents:
            given = words_of(text)
            if any(tuple(given[i : i + length]) in grams for i in range(len(given) - length + 1)):
                found.add(number)
    return found


def made_up(seed, count, low, high):
    chooser = random.Random(seed)
    return [[chooser.choice(WORDS) for _ in range(chooser.randint(low, high))] for _ in range(count)]


@pytest.mark.parametrize("n", [5, 13])
@pytest.mark.parametrize("batch", [50, 500_000])
def test_fast_path_equals_reference(monkeypatch, n, batch):
    monkeypatch.setattr(contamination, "_BATCH_WORDS", batch)
    chooser = random.Random(2)
    items = [("task", str(i), [" ".join(words)]) for i, words in enumerate(made_up(0, 60, 3, 40))]
    documents = []
    for number, words in enumerate(made_up(1, 80, 5, 60)):
        if number % 3 == 0:  # a part of an item, in other case and with punctuation
            given = items[chooser.randrange(60)][2][0].split()
            start = chooser.randrange(len(given))
            words[2:2] = given[start : start + chooser.randint(4, 20)]
        documents.append((str(number), ", ".join(words).upper()))
    index = pickle.loads(pickle.dumps(ContaminationIndex(items, n)))
    hits = index.scan(iter(documents))
    assert set(hits.found) == plain(items, documents, n)
    assert hits.found
    assert hits.documents == 80
    for number, example in hits.found.items():
        assert example.words in " ".join(words_of(items[number][2][0]))
        assert example.words in " ".join(words_of(dict(documents)[example.reference]))


def test_words_of_two_documents_are_not_one_text():
    item = [("task", "0", ["one two three four five six seven eight nine ten eleven twelve thirteen"])]
    index = ContaminationIndex(item)
    halves = [("a", "one two three four five six seven"), ("b", "eight nine ten eleven twelve thirteen")]
    assert not index.scan(halves).found
    assert index.scan([("c", " ".join(text for _, text in halves))]).found


def test_a_report_counts_by_task_and_shows_examples():
    long = "a text of quite a few words that stands in the corpus as it is written here"
    items = [("first", "0", [long]), ("first", "1", ["too short"]), ("second", "0", [long, "and more"])]
    items += [("second", "1", ["another text of quite a few words that stands nowhere else in the whole wide world"])]
    index = ContaminationIndex(items)
    hits = index.scan([("nothing", "no word of it")])
    hits.merge(index.scan([("file.txt, byte 0", f"Before. {long.upper()}! After.")]))
    first, second = index.report(hits)
    assert (first.task, first.items, first.too_short, first.found, first.share) == ("first", 2, 1, 1, 1.0)
    assert (second.items, second.too_short, second.found, second.share) == (2, 0, 1, 0.5)
    assert first.examples[0][1].reference == "file.txt, byte 0"
    assert first.examples[0][1].words == " ".join(words_of(long)[:13])
    assert hits.documents == 2


def test_the_earlier_example_stays():
    text = "a text of quite a few words that stands in the corpus as it is written here"
    index = ContaminationIndex([("task", "0", [text])])
    hits = Hits()
    for name in ("one", "two"):
        hits.merge(index.scan([(name, text)]))
    assert hits.found[0].reference == "one"
