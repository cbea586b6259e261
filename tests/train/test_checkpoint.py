"""Checkpoints survive a kill at any moment, and damage never passes for a checkpoint."""

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from littlelm.errors import UserError
from littlelm.train import checkpoint as module
from littlelm.train import filesystem
from littlelm.train.checkpoint import latest_checkpoint, list_checkpoints, load_checkpoint, save_checkpoint


def tensors(step):
    value = torch.arange(40, dtype=torch.float32).reshape(5, 8) + step
    return {
        "model": {"a": value, "b": value.bfloat16().t(), "empty": torch.empty(0), "scalar": torch.tensor(step)},
        "optimizer": {"a.momentum": -value},
    }


def save(directory, step, **options):
    return save_checkpoint(directory, step, tensors(step), {"step": step}, "run: {}\n", **options)


def assert_holds(path, step):
    loaded = load_checkpoint(path)
    assert loaded.state["step"] == step
    assert loaded.config_text == "run: {}\n"
    for stem, named in tensors(step).items():
        read = loaded.tensors(stem)
        assert read.keys() == named.keys()
        for name, tensor in named.items():
            assert torch.equal(read[name], tensor), name


def test_round_trip_is_bitwise_and_plain_safetensors(tmp_path):
    path = save(tmp_path, 7)
    assert_holds(path, 7)
    assert path.name == "step-00000007"
    assert torch.equal(load_file(path / "model.safetensors")["b"], tensors(7)["model"]["b"])
    assert {file.name for file in tmp_path.iterdir()} == {path.name}


def run_until_operation(number, torn, action):
    """Fork, perform `action`, and die at file-system operation `number`. Returns whether the child died there."""
    child = os.fork()
    if child == 0:
        seen = 0

        def hook(operation, path):
            nonlocal seen
            seen += 1
            if seen == number:
                if torn and operation == "write":
                    return "torn"
                os._exit(9)
            return None

        filesystem.hook = hook
        try:
            action()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


@pytest.mark.parametrize("torn", [False, True], ids=["killed", "torn write"])
@pytest.mark.parametrize("case", ["first", "second", "same step again", "retiring"])
def test_crash_at_every_write(tmp_path, torn, case):
    """A kill before any write, fsync, rename or removal leaves exactly the old or the new checkpoint."""
    number = 1
    while True:
        directory = tmp_path / f"{number}"
        directory.mkdir()
        old = None if case == "first" else 2
        new = 2 if case == "same step again" else 3
        if old is not None:
            save(directory, 1)
            save(directory, 2)
        died = run_until_operation(
            number, torn, lambda: save(directory, new, keep_last=1 if case == "retiring" else None)  # noqa: B023
        )
        found = latest_checkpoint(directory)
        if not died:
            assert number > 10
            assert_holds(found, new)
            return
        if found is None:
            assert old is None
        else:
            step = load_checkpoint(found).state["step"]
            assert step in (old, new)
            for _, path in list_checkpoints(directory):  # older ones are whole too
                load_checkpoint(path)
        # The next save works and sweeps up.
        assert_holds(save(directory, 4), 4)
        assert not [path for path in directory.iterdir() if path.name.startswith(".")]
        number += 1


def test_what_was_not_fsynced_may_be_lost(tmp_path):
    """Power loss: whatever a file got after its last fsync, and any file never fsynced, is garbage. The committed
    checkpoint holds nothing of that kind, because every file and directory is fsynced before the rename."""
    events = []
    filesystem.hook = lambda operation, path: events.append((operation, path.name))
    try:
        save(tmp_path, 5)
    finally:
        filesystem.hook = None
    commit = events.index(("rename", "step-00000005"))
    written = {name for operation, name in events[:commit] if operation == "write"}
    assert written == {"model.safetensors", "optimizer.safetensors", "state.json", "config.yaml", "manifest.json"}
    for name in written:
        last_write = max(i for i, event in enumerate(events[:commit]) if event == ("write", name))
        assert ("fsync", name) in events[last_write:commit]
    directory_syncs = [i for i, (operation, name) in enumerate(events) if operation == "fsync" and name.startswith(".tmp")]
    assert directory_syncs and directory_syncs[0] < commit
    assert ("fsync", tmp_path.name) in events[commit:]


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "state.json", "config.yaml"])
@pytest.mark.parametrize("damage", ["missing", "cut", "flipped"])
def test_any_damage_is_named(tmp_path, name, damage):
    path = save(tmp_path, 3)
    file = path / name
    data = bytearray(file.read_bytes())
    if damage == "missing":
        file.unlink()
    elif damage == "cut":
        file.write_bytes(data[:-1])
    else:
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
    with pytest.raises(UserError) as caught:
        load_checkpoint(path)
    assert str(file) in str(caught.value)
    assert f"delete {path}" in str(caught.value)


def test_a_manifest_that_is_no_json_or_from_the_future_is_refused(tmp_path):
    path = save(tmp_path, 3)
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps({**manifest, "schema_version": 99}))
    with pytest.raises(UserError, match="newer little-lm"):
        load_checkpoint(path)
    (path / "manifest.json").write_text("{")
    with pytest.raises(UserError, match=r"manifest\.json"):
        load_checkpoint(path)


def test_retention_keeps_the_newest_and_the_milestones(tmp_path):
    for step in range(1, 8):
        save(tmp_path, step, keep_last=2, keep_every=3)
    assert [step for step, _ in list_checkpoints(tmp_path)] == [3, 6, 7]


def test_a_full_disk_is_one_clear_error_and_the_old_checkpoint_stays(tmp_path, monkeypatch):
    save(tmp_path, 1)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(100, 100, 0))
    with pytest.raises(UserError, match="free space"):
        save(tmp_path, 2)
    monkeypatch.undo()

    def full(path, chunks):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module.filesystem, "write_file", full)
    with pytest.raises(UserError, match="no space left on the disk"):
        save(tmp_path, 2)
    assert [path.name for path in Path(tmp_path).iterdir()] == ["step-00000001"]
    assert_holds(latest_checkpoint(tmp_path), 1)
