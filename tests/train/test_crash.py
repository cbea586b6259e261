"""A kill, a full disk or a power cut at any moment of a save leaves exactly the old or the new checkpoint."""

import errno
import os
import shutil
import signal
import sys

import pytest
import torch
from faulty_disk import OPERATIONS, ForgetfulDisk, KillingDisk, RaisingDisk, WatchedDisk, materialise

from littlelm import filesystem
from littlelm.errors import UserError
from littlelm.train.checkpoint import latest_checkpoint, load_checkpoint, save_checkpoint
from littlelm.train.manifest import find_steps

# case -> (steps that are there, step and version to save, options)
CASES = {
    "the first one": ([], 3, {}),
    "another one": ([1, 2], 3, {}),
    "retiring the old ones": ([1, 2], 3, {"keep_last": 1}),
    "the same step again": ([1, 2], 2, {"keep_last": 1}),
}


@pytest.fixture(autouse=True)
def fast_disk(monkeypatch):
    """Saves before and after the one under test need not wait for the disk either."""
    monkeypatch.setattr(filesystem, "disk", WatchedDisk())


def tensors(step, version):
    value = torch.arange(12, dtype=torch.float32).reshape(3, 4) + step + 100 * version
    return {"model": {"a": value, "b": value.bfloat16()}, "optimizer": {"a.momentum": -value}}


def save(directory, step, version=0, **options):
    return save_checkpoint(
        directory, step, tensors(step, version), {"step": step, "version": version}, "x: 1\n", **options
    )


def assert_whole(path):
    """The checkpoint at `path` holds, in every file, what one save wrote. Returns (step, version)."""
    loaded = load_checkpoint(path)
    step, version = loaded.state["step"], loaded.state["version"]
    assert loaded.step == step
    for stem, expected in tensors(step, version).items():
        read = loaded.tensors(stem)
        assert read.keys() == expected.keys()
        assert all(torch.equal(read[name], tensor) for name, tensor in expected.items())
    return step, version


def prepare(directory, case):
    """Make the state before the save under test. Returns (old, new, options), each (step, version) or None."""
    existing, step, options = CASES[case]
    directory.mkdir()
    for each in existing:
        save(directory, each)
    return (existing[-1], 0) if existing else None, (step, 1), options


def assert_old_or_new(directory, old, new):
    """What a reader finds is whole and is the one or the other; looking changes nothing. Returns what it found."""
    before = sorted(directory.rglob("*"))
    path = latest_checkpoint(directory)
    found = None if path is None else assert_whole(path)
    assert found in (old, new)
    for each in find_steps(directory).values():  # no half of an older one under a step's name either
        assert_whole(each)
    assert sorted(directory.rglob("*")) == before
    return found


def killed_at(number, torn, action):
    """Run `action` in a forked process that is killed at disk operation `number`. Returns whether it came to that."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            filesystem.disk = KillingDisk(number, torn)
            action()
            code = 0
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, -signal.SIGKILL)
    return code != 0


@pytest.mark.parametrize("torn", [False, True], ids=["killed", "killed in a write"])
@pytest.mark.parametrize("case", CASES)
def test_crash_at_every_write(tmp_path, case, torn):
    number, seen = 0, set()
    while True:
        number += 1
        directory = tmp_path / str(number)
        old, new, options = prepare(directory, case)
        died = killed_at(number, torn, lambda: save(directory, *new, **options))  # noqa: B023
        seen.add(assert_old_or_new(directory, old, new))
        if not died:
            break
        # The next process finishes the job and clears up.
        save(directory, *new, **options)
        assert assert_old_or_new(directory, old, new) == new
        assert not [path for path in directory.iterdir() if path.name.startswith(".")]
    assert seen == {old, new}
    assert number > (8 if torn else 20)


def test_a_crash_while_clearing_up_after_a_crash(tmp_path):
    """The recovery is as safe as the save: a second kill at every operation, when the first came amid a replacement."""
    wreckage = {}
    for number in range(1, 100):
        directory = tmp_path / str(number)
        old, new, options = prepare(directory, "the same step again")
        if not killed_at(number, False, lambda: save(directory, *new, **options)):  # noqa: B023
            break
        wreckage.setdefault(tuple(sorted(path.name for path in directory.iterdir())), directory)
    wreckage = {names: path for names, path in wreckage.items() if ".replaced-step-00000002" in names}
    assert len(wreckage) >= 2, wreckage.keys()
    for first in wreckage.values():
        for number in range(1, 100):
            directory = tmp_path / f"{first.name}-{number}"
            shutil.copytree(first, directory)
            died = killed_at(number, False, lambda: save(directory, *new, **options))  # noqa: B023
            assert_old_or_new(directory, old, new)
            if not died:
                break


@pytest.mark.parametrize("case", CASES)
def test_a_power_cut_at_every_write_leaves_the_old_or_the_new_one(tmp_path, monkeypatch, case):
    """Whatever was not fsynced is lost, garbled or reordered; once the save has returned, the new one is there."""
    directory = tmp_path / "real"
    old, new, options = prepare(directory, case)
    disk = ForgetfulDisk(directory)
    with monkeypatch.context() as patch:
        patch.setattr(filesystem, "disk", disk)
        save(directory, *new, **options)
    assert len(disk.images) > 20
    checked, found = set(), set()
    for moment in disk.images:
        for image in moment - checked:
            found.add(assert_old_or_new(materialise(image, tmp_path / f"{len(checked)}"), old, new))
            checked.add(image)
    assert found == {old, new}
    for index, image in enumerate(disk.images[-1]):
        assert assert_old_or_new(materialise(image, tmp_path / f"final-{index}"), old, new) == new


def test_the_power_cut_model_notices_a_missing_fsync(tmp_path, monkeypatch):
    """The model above is no rubber stamp: without its fsyncs a save does not survive it."""
    directory = tmp_path / "real"
    old, new, options = prepare(directory, "another one")
    disk = ForgetfulDisk(directory)
    disk.sync = lambda descriptor: None
    with monkeypatch.context() as patch:
        patch.setattr(filesystem, "disk", disk)
        save(directory, *new, **options)
    with pytest.raises((UserError, AssertionError)):
        for index, image in enumerate(set.union(*disk.images)):
            assert_old_or_new(materialise(image, tmp_path / f"{index}"), old, new)


@pytest.mark.parametrize(
    ("error", "once", "expected"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), False, UserError),
        (OSError(errno.EIO, "Input/output error"), True, UserError),
        (KeyboardInterrupt(), True, KeyboardInterrupt),
    ],
    ids=["disk full", "I/O error", "Ctrl-C"],
)
@pytest.mark.parametrize("case", CASES)
def test_an_error_at_every_write_leaves_no_temporary_and_the_old_one(
    tmp_path, monkeypatch, case, error, once, expected
):
    for number in range(1, 100):
        directory = tmp_path / str(number)
        old, new, options = prepare(directory, case)
        disk = RaisingDisk(number, error, once)
        with monkeypatch.context() as patch:
            patch.setattr(filesystem, "disk", disk)
            try:
                save(directory, *new, **options)
            except expected as raised:
                if isinstance(raised, UserError):
                    assert "untouched" in str(raised)
                    assert ("disk filled up" in str(raised)) == (error.errno == errno.ENOSPC)
        assert_old_or_new(directory, old, new)
        assert not [path.name for path in directory.iterdir() if path.name.startswith(".tmp-")]
        save(directory, *new, **options)
        assert assert_old_or_new(directory, old, new) == new
        if disk.count < number:
            return
    raise AssertionError("the save never came to its end")


def test_the_injector_sees_every_change_of_the_disk(tmp_path):
    """Python reports every opening for writing, every rename and removal: none may happen beside `filesystem.disk`."""
    directory = tmp_path / "checkpoints"
    prepare(directory, "retiring the old ones")
    (directory / ".tmp-step-00000009").mkdir()
    (directory / ".trash-step-00000001").mkdir()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            disk = WatchedDisk()
            inside, beside = [], []

            def marked(inner):
                def method(*arguments):
                    inside.append(True)
                    try:
                        return inner(*arguments)
                    finally:
                        inside.pop()

                return method

            for operation in OPERATIONS:
                setattr(disk, operation, marked(getattr(disk, operation)))

            def hook(event, arguments):
                changes = event in ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate", "os.link")
                if event == "open" and isinstance(arguments[2], int):
                    changes = bool(arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
                if changes and not inside:
                    beside.append((event, arguments))

            filesystem.disk = disk
            sys.addaudithook(hook)
            save(directory, 2, version=1)
            save(directory, 3, keep_last=1)
            (tmp_path / "outside").mkdir()  # the hook does see what happens beside
            code = 0 if len(beside) == 1 and disk.count > 40 else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
