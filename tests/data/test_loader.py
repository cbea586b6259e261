"""Rows are a pure function of the step; the order of tokens survives any way of asking for them."""

import numpy as np
import pytest
from rich.console import Console

from littlelm.data import loader as loader_module
from littlelm.data.configs import BestFitConfig, ConcatConfig, DataConfig, ValidationConfig
from littlelm.data.permutation import invert, permute
from littlelm.data.prepare import prepare
from littlelm.data.source_configs import TextSourceConfig
from littlelm.errors import UserError
from littlelm.tokenizers.configs import ByteTokenizerConfig


def config(corpus, cache, **options):
    options = {"packing": BestFitConfig(), "sequence_length": 64, "workers": 1, **options}
    return DataConfig(
        sources=[TextSourceConfig(files=[f"{corpus}/*.txt"])],
        validation=options.pop("validation", ValidationConfig(documents=8)),
        cache_dir=str(cache),
        **options,
    )


@pytest.fixture(scope="module")
def prepared(corpus, cache):
    return prepare(config(corpus, cache), ByteTokenizerConfig(), Console(quiet=True))


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 1000, 4097])
def test_permutation_is_one_to_one_and_differs_by_key(size):
    numbers = np.arange(size)
    once = permute(numbers, size, 5)
    assert sorted(once.tolist()) == numbers.tolist()
    assert (permute(numbers[::-1], size, 5)[::-1] == once).all()
    if size > 6:
        assert (permute(numbers, size, 6) != once).any()
        assert (once != numbers).any()


def test_permutation_leaves_no_order_behind():
    size = 20_000
    once = permute(np.arange(size), size, 3)
    assert abs(np.corrcoef(np.arange(size), once)[0, 1]) < 5 / np.sqrt(size)
    assert abs(np.corrcoef(once[:-1], once[1:])[0, 1]) < 5 / np.sqrt(size)


def test_step_batch_is_pure(prepared):
    loader, other = prepared.train_loader(8, 1), prepared.train_loader(8, 1)
    first = [loader.batch(step, 0, 8) for step in range(6)]
    for step in (5, 0, 3, 3):
        for left, right in zip(first[step], other.batch(step, 0, 8), strict=True):
            assert (left == right).all()
    assert (prepared.train_loader(8, 2).batch(0, 0, 8)[0] != first[0][0]).any()


def test_token_order_survives_world_size(prepared):
    """Any split of a step's rows over ranks and micro-batches gives the same rows."""
    loader = prepared.train_loader(8, 1)
    whole = loader.batch(3, 0, 8)
    for world in (1, 2, 4, 8):
        for micro in (1, 2, 4, 8):
            if micro > 8 // world:
                continue
            parts = []
            for rank in range(world):
                begin = rank * 8 // world
                parts += [loader.batch(3, row, row + micro) for row in range(begin, begin + 8 // world, micro)]
            for column in (0, 1):
                assert (np.concatenate([part[column] for part in parts]) == whole[column]).all()


def test_global_rows_do_not_depend_on_the_batch(prepared):
    small, large = prepared.train_loader(4, 1), prepared.train_loader(8, 1)
    joined = np.concatenate([small.batch(2, 0, 4)[0], small.batch(3, 0, 4)[0]])
    assert (joined == large.batch(1, 0, 8)[0]).all()


def test_an_epoch_reads_every_row_once_and_the_next_one_in_another_order(prepared):
    loader = prepared.train_loader(1, 1)
    rows = loader.rows_per_epoch

    def epoch(number):
        return [loader.batch(number * rows + i, 0, 1)[0].tobytes() for i in range(rows)]

    assert len(set(epoch(0))) == rows
    assert sorted(epoch(0)) == sorted(epoch(1))
    assert epoch(0) != epoch(1)


def test_batches_cross_epochs(prepared):
    rows = prepared.train_loader(1, 1).rows_per_epoch
    size = rows - 1
    loader = prepared.train_loader(size, 1)
    singles = prepared.train_loader(1, 1)
    crossing = loader.batch(1, 0, size)[0]  # begins with the last row of epoch 0
    assert (crossing == np.concatenate([singles.batch(size + i, 0, 1)[0] for i in range(size)])).all()


def test_targets_are_the_next_tokens_and_padding_is_not_counted(prepared):
    loader = prepared.train_loader(8, 1)
    total = 0
    for step in range(-(-loader.rows_per_epoch // 8)):
        inputs, targets = loader.batch(step, 0, 8)
        counted = targets != -100
        assert (inputs[:, 1:][counted[:, :-1]] == targets[:, :-1][counted[:, :-1]]).all()
        assert int(counted.sum()) == loader.num_targets(step)
        total += int(counted.sum())
    assert total > 0


@pytest.mark.parametrize("packing", [BestFitConfig(), ConcatConfig()])
def test_training_rows_hold_every_training_token_and_no_validation_document(corpus, cache, packing):
    made = prepare(config(corpus, cache, packing=packing), ByteTokenizerConfig(), Console(quiet=True))
    loader = made.train_loader(1, 1)
    texts = {path.read_text() for path in corpus.glob("*.txt")}
    bos = made.tokenizer.bos_id
    held_out, tokens = [], made.validation_shards[0].tokens
    for document in np.split(tokens, np.flatnonzero(tokens == bos)[1:]):
        held_out.append(made.tokenizer.decode(document.tolist()))
    assert len(held_out) == 8
    assert set(held_out) <= texts
    expected = sum(len(text.encode()) + 1 for text in texts) - len(tokens)
    read = [loader.batch(step, 0, 1) for step in range(loader.rows_per_epoch)]
    filled = sum(int((targets != -100).sum()) + 1 for _, targets in read)
    assert filled == expected
    everything = " ".join(made.tokenizer.decode(inputs[0].tolist()) for inputs, _ in read)
    for text in held_out:
        assert text[:50] not in everything


def test_a_corpus_smaller_than_a_batch_says_what_to_change(prepared):
    with pytest.raises(
        UserError, match=r"fewer than one global batch of 100000 rows; lower train\.global_batch_tokens"
    ):
        prepared.train_loader(100_000, 1)


def test_rows_outside_of_the_global_batch_are_refused(prepared):
    loader = prepared.train_loader(8, 1)
    assert loader.batch(0, 3, 3)[0].shape == (0, 64)
    for start, stop in ((0, 9), (-1, 4), (5, 4)):
        with pytest.raises(ValueError, match="not within a global batch of 8 rows"):
            loader.batch(0, start, stop)


def test_epochs_are_counted(prepared):
    loader = prepared.train_loader(8, 1)
    assert [loader.epoch(step) for step in (0, (loader.rows_per_epoch - 1) // 8)] == [0, 0]
    assert loader.epoch(-(-loader.rows_per_epoch // 8)) == 1


def test_what_the_loader_keeps_changes_nothing(prepared, monkeypatch):
    """Places are worked out a block at a time; whatever the block, whatever was asked before, the rows are the same."""
    expected = [prepared.train_loader(8, 1).batch(step, 0, 8)[0] for step in range(40)]
    monkeypatch.setattr(loader_module, "_BLOCK_ROWS", 5)  # blocks that end within batches
    loader = prepared.train_loader(8, 1)
    for step in np.random.default_rng(0).integers(0, 40, 200).tolist():
        assert (loader.batch(step, 0, 8)[0] == expected[step]).all()
        assert (loader.batch(step, 2, 7)[0] == expected[step][2:7]).all()
    assert len(loader._blocks) <= loader_module._BLOCKS_KEPT


def test_invert_undoes_permute():
    for size in (1, 2, 7, 1000, 4097):
        numbers = np.arange(size)
        assert (invert(permute(numbers, size, 5), size, 5) == numbers).all()


def test_step_of_finds_the_step_that_reads_a_row(prepared):
    loader = prepared.train_loader(8, 1)
    for step in (0, 3, loader.rows_per_epoch // 8 + 2):
        places = loader.places(step, 0, 8)
        for number in range(8):
            epoch = (step * 8 + number) // loader.rows_per_epoch
            found = loader.step_of(0, int(places.shard[number]), int(places.row[number]), epoch)
            assert found == (step, number)
