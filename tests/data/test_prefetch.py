"""Reading ahead changes nothing but when rows are read."""

import threading

import pytest
from conftest import write_corpus
from rich.console import Console

from littlelm.data.configs import BestFitConfig, DataConfig, ValidationConfig
from littlelm.data.prefetch import Prefetcher
from littlelm.data.prepare import prepare
from littlelm.data.source_configs import TextSourceConfig
from littlelm.tokenizers.configs import ByteTokenizerConfig


@pytest.fixture(scope="module")
def loader(tmp_path_factory):
    directory = tmp_path_factory.mktemp("prefetch")
    write_corpus(directory / "text", documents=60)
    data = DataConfig(
        sources=[TextSourceConfig(files=[f"{directory}/text/*.txt"])],
        validation=ValidationConfig(documents=4),
        sequence_length=64,
        packing=BestFitConfig(),
        cache_dir=str(directory / "cache"),
        workers=1,
    )
    return prepare(data, ByteTokenizerConfig(), Console(quiet=True)).train_loader(8, 1)


class Recording:
    """A loader that notes what is read, and in which thread."""

    def __init__(self, loader):
        self.loader = loader
        self.read = []

    def batch(self, *request):
        self.read.append((request, threading.current_thread().name))
        return self.loader.batch(*request)


class Clock:
    """Time passes only while reading, so that reading always seems worth hiding; or never."""

    def __init__(self, passes=True):
        self.now, self.passes = 0.0, passes

    def __call__(self):
        self.now += self.passes
        return self.now


def requests(steps, start, stop, rows):
    return [(s, b, min(b + rows, stop)) for s in range(steps) for b in range(start, stop, rows)]


@pytest.mark.parametrize(("start", "stop", "rows"), [(0, 8, 8), (4, 8, 2), (0, 8, 3)])
def test_batches_are_those_of_the_loader_and_read_once_ahead(loader, start, stop, rows):
    recording = Recording(loader)
    batches = Prefetcher(recording, start, stop, rows, clock=Clock())
    asked = requests(5, start, stop, rows)
    for request in asked:
        for left, right in zip(batches.batch(*request), loader.batch(*request), strict=True):
            assert (left == right).all()
    batches.close()
    read = [request for request, _ in recording.read]
    assert len(read) == len(set(read))
    assert set(asked) <= set(read)
    direct = [request for request, thread in recording.read if not thread.startswith("read-ahead")]
    assert direct == asked[:2]  # the first has nothing before it to compare its time with


def test_a_jump_is_read_at_once(loader):
    batches = Prefetcher(loader, 0, 8, 4, clock=Clock())
    batches.batch(0, 0, 4)
    assert (batches.batch(3, 4, 8)[0] == loader.batch(3, 4, 8)[0]).all()
    assert (batches.batch(1, 2, 5)[0] == loader.batch(1, 2, 5)[0]).all()
    batches.close()


def test_what_the_thread_raises_is_raised_where_the_batch_is_asked_for(loader):
    class Failing(Recording):
        def batch(self, step, start, stop):
            if step == 1:
                raise OSError("the disk is gone")
            return super().batch(step, start, stop)

    batches = Prefetcher(Failing(loader), 0, 8, 4, clock=Clock())
    batches.batch(0, 0, 4)
    batches.batch(0, 4, 8)
    with pytest.raises(OSError, match="the disk is gone"):
        batches.batch(1, 0, 4)
    batches.close()


def test_quick_reads_are_not_read_ahead(loader):
    """With the data in memory a thread would only take a core from the step."""
    recording = Recording(loader)
    batches = Prefetcher(recording, 0, 8, 4, clock=Clock(passes=False))
    asked = requests(5, 0, 8, 4)
    for request in asked:
        batches.batch(*request)
    batches.close()
    assert [request for request, _ in recording.read] == asked
    assert {thread.startswith("read-ahead") for _, thread in recording.read} == {False}
