"""Sources by weight: each read as often as its share says, and no more often than it may be."""

import pytest
from conftest import write_corpus
from pydantic import ValidationError
from rich.console import Console

from littlelm.data.configs import BestFitConfig, DataConfig, MixtureConfig, StageConfig, ValidationConfig
from littlelm.data.prepare import prepare
from littlelm.data.reading import source_shares
from littlelm.data.source_configs import TextSourceConfig
from littlelm.errors import UserError
from littlelm.tokenizers.configs import ByteTokenizerConfig

QUIET = Console(quiet=True)


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """Two sources: words of `a` are letters, words of `b` digits."""
    directory = tmp_path_factory.mktemp("texts")
    write_corpus(directory / "a", documents=120)
    (directory / "b").mkdir()
    for number in range(40):
        (directory / "b" / f"{number:02}.txt").write_text(" ".join(str(number * k) for k in range(40, 100)))
    return directory


def config(texts, a=None, b=None, **options):
    sources = [
        TextSourceConfig(files=[f"{texts}/a/*.txt"], id="a", **(a or {})),
        TextSourceConfig(files=[f"{texts}/b/*.txt"], id="b", **(b or {})),
    ]
    return DataConfig(
        sources=sources,
        validation=ValidationConfig(documents=4),
        sequence_length=64,
        packing=BestFitConfig(),
        cache_dir=str(texts / "cache"),
        workers=1,
        **options,
    )


def opened(data):
    return prepare(data, ByteTokenizerConfig(), QUIET)


def share_of_digits(prepared, loader, steps):
    rows = [loader.batch(step, 0, loader.global_batch_rows)[0] for step in steps]
    digits = [prepared.tokenizer.decode(row)[:30].replace(" ", "").strip("0123456789") == "" for b in rows for row in b]
    return sum(digits) / len(digits)


def test_sources_are_read_by_weight(texts):
    prepared = opened(config(texts, {"weight": 3.0}, {"weight": 1.0}))
    loader = prepared.train_loader(8, 1, 60)
    assert share_of_digits(prepared, loader, range(60)) == pytest.approx(0.25, abs=0.06)
    assert loader.epochs(60)["b"] == pytest.approx(60 * 8 * 0.25 / loader.streams[1].rows, rel=0.15)


def test_a_mixed_step_is_pure_and_every_row_of_an_epoch_comes_once(texts):
    prepared = opened(config(texts, {"weight": 1.0}, {"weight": 1.0}))
    loader, other = prepared.train_loader(8, 1, 100), prepared.train_loader(8, 1, 100)
    for step in (70, 3, 3, 0):
        assert (loader.batch(step, 0, 8)[0] == other.batch(step, 0, 8)[0]).all()
    places = [loader.places(step, 0, 8) for step in range(100)]
    seen = [(s, r) for p in places for n, s, r in zip(p.stream, p.shard, p.row, strict=True) if n == 1]
    rows = loader.streams[1].rows
    assert len(seen) > rows
    assert len(set(seen[:rows])) == rows


def test_a_last_stage_reads_what_it_names(texts):
    stage = StageConfig(last=0.25, weights={"b": 1.0})
    prepared = opened(config(texts, {"weight": 1.0}, {"weight": 0.0}, stages=[stage]))
    loader = prepared.train_loader(8, 1, 40)
    assert share_of_digits(prepared, loader, range(30)) == 0
    assert share_of_digits(prepared, loader, range(30, 40)) == 1
    assert source_shares(prepared.config) == pytest.approx([0.75, 0.25])


def test_a_temperature_weighs_by_size(texts):
    prepared = opened(config(texts, mixture=MixtureConfig(temperature=1.0)))
    epochs = prepared.train_loader(8, 1).epochs(512)  # a block: exact shares
    assert epochs["a"] == pytest.approx(epochs["b"], rel=0.01)


def test_a_source_read_too_often_is_an_error_a_choice_or_the_end(texts):
    weights = ({"weight": 1.0}, {"weight": 1.0, "max_epochs": 2.0})
    prepared = opened(config(texts, *weights))
    with pytest.raises(UserError, match=r"the run reads 'b' .* times .*, more than the 2 that"):
        prepared.train_loader(8, 1, 400)
    said = []
    repeat = opened(config(texts, *weights, mixture=MixtureConfig(on_exhausted="repeat", max_epochs=100.0)))
    assert repeat.train_loader(8, 1, 400, said.append).total_steps == 400
    assert any("'b' is read" in line and "more than the 2 allowed" in line for line in said)
    stop = opened(config(texts, *weights, mixture=MixtureConfig(on_exhausted="stop", max_epochs=100.0)))
    loader = stop.train_loader(8, 1, 400, said.append)
    assert said[-1].startswith(f"the run ends at step {loader.total_steps:,} of 400")
    assert loader.epochs(loader.total_steps)["b"] <= 2.001 < loader.epochs(loader.total_steps + 2)["b"]


def test_without_weights_the_whole_corpus_may_be_read_four_times(texts):
    prepared = opened(config(texts))
    rows = prepared.train_loader(8, 1).rows_per_epoch
    prepared.train_loader(8, 1, 4 * rows // 8)
    with pytest.raises(UserError, match=r"the run reads 'corpus' 4\.\d+ times"):
        prepared.train_loader(8, 1, 4 * rows // 8 + 2)


@pytest.mark.parametrize(
    ("a", "b", "options", "message"),
    [
        ({"weight": 1.0}, {}, {}, "'b' has no weight while others have one"),
        ({"weight": 0.0}, {"weight": 0.0}, {}, "every weight is 0"),
        ({"weight": 1.0}, {"weight": 1.0}, {"mixture": MixtureConfig(temperature=2.0)}, "exclude each other"),
        (
            {"weight": 1.0},
            {"weight": 1.0},
            {"stages": [StageConfig(last=0.5, weights={"bb": 1.0})]},
            "did you mean 'b'",
        ),
        ({}, {}, {"stages": [StageConfig(last=0.2, weights={"b": 0.0})]}, "at least one is more than 0"),
        (
            {},
            {},
            {"stages": [StageConfig(last=0.2, weights={"b": 1.0}), StageConfig(last=0.5, weights={"a": 1.0})]},
            "must fall from stage to stage",
        ),
    ],
)
def test_a_mixture_that_makes_no_sense_is_an_error(texts, a, b, options, message):
    with pytest.raises(ValidationError, match=message):
        config(texts, a, b, **options)
