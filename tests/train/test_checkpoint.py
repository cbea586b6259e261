"""What a checkpoint promises on a good day, and what it says on a bad one. For crashes see test_crash.py."""

import json
import re

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from littlelm import filesystem
from littlelm.errors import UserError
from littlelm.train.checkpoint import latest_checkpoint, load_checkpoint, save_checkpoint
from littlelm.train.manifest import find_steps
from littlelm.train.tensor_file import _bytes_of, read_tensors, tensor_file_bytes, write_tensors

FILES = ("model.safetensors", "rng.safetensors", "state.json", "config.yaml", "manifest.json")


def save(directory, step, **options):
    tensors = {"model": {"w": torch.full((40, 3), float(step))}, "rng": {"torch": torch.arange(64, dtype=torch.uint8)}}
    return save_checkpoint(directory, step, tensors, {"step": step, "tokens": 7 * step}, "run: {name: ü}\n", **options)


def names(directory):
    return sorted(path.name for path in directory.iterdir())


def bits(tensor):
    return tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)


def every_kind_of_tensor():
    generator = torch.Generator().manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(4, 6, generator=generator))
    numbers = torch.randn(5, generator=generator)
    dtypes = (
        torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2,
        torch.int64, torch.int32, torch.int16, torch.int8, torch.uint64, torch.uint32, torch.uint16, torch.uint8,
        torch.bool, torch.complex64,
    )  # fmt: skip
    return {
        **{str(dtype): (numbers.abs() * 3).to(dtype) for dtype in dtypes},
        "weight": weight,
        "tied": weight,
        "transposed": weight.t(),
        "a row of it": weight[1],
        "every other column": weight[:, ::2],
        "expanded": numbers.expand(3, 5),
        "conjugated": torch.randn(3, dtype=torch.complex64, generator=generator).conj(),
        "scalar": torch.tensor(3.5),
        "empty": torch.empty(0, 4),
        "also empty": torch.empty(2, 0),
        "nan, inf, -0": torch.tensor([float("nan"), float("inf"), -0.0]),
        'ä "quoted"\n': torch.ones(1),
    }


def test_a_checkpoint_reads_back_what_was_saved(tmp_path):
    directory = tmp_path / "run" / "checkpoints"  # made when missing
    path = save(directory, 100)
    assert path == directory / "step-00000100" == latest_checkpoint(directory)
    assert names(path) == sorted(FILES)
    for verify in (True, False):
        loaded = load_checkpoint(path, verify=verify)
        assert (loaded.path, loaded.step, loaded.stems) == (path, 100, ("model", "rng"))
        assert loaded.state == {"schema_version": 1, "step": 100, "tokens": 700}
        assert loaded.config_text == "run: {name: ü}\n"
        assert torch.equal(loaded.tensors("model")["w"], torch.full((40, 3), 100.0))
    with pytest.raises(UserError, match=r"has no optimizer\.safetensors; it has: model, rng"):
        loaded.tensors("optimizer")


def test_every_dtype_and_layout_survives_bit_by_bit_and_the_library_reads_it(tmp_path):
    tensors = every_kind_of_tensor()
    size, _ = write_tensors(tmp_path / "t.safetensors", tensors)
    assert size == (tmp_path / "t.safetensors").stat().st_size == tensor_file_bytes(tensors)
    read = read_tensors(tmp_path / "t.safetensors")
    assert read.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert (read[name].dtype, read[name].shape) == (tensor.dtype, tensor.shape), name
        assert torch.equal(bits(read[name]), bits(tensor)), name
    library = load_file(tmp_path / "t.safetensors")
    assert library.keys() == tensors.keys() - {"tied"}
    assert all(torch.equal(bits(library[name]), bits(read[name])) for name in library)


def test_tied_tensors_are_stored_once_and_read_as_one(tmp_path):
    tensors = every_kind_of_tensor()
    write_tensors(tmp_path / "t.safetensors", {name: tensors[name] for name in ("weight", "tied")})
    read = read_tensors(tmp_path / "t.safetensors")
    assert read["tied"] is read["weight"]
    assert (tmp_path / "t.safetensors").stat().st_size < 2 * tensors["weight"].nbytes + 300


def test_a_contiguous_tensor_is_written_from_its_own_memory():
    tensor = torch.nn.Parameter(torch.randn(8, 8))
    view = np.frombuffer(_bytes_of(tensor), dtype=np.uint8)
    assert view.ctypes.data == tensor.data_ptr()


@pytest.mark.parametrize(
    "tensor", [torch.ones(3, device="meta"), torch.eye(3).to_sparse(), torch.ones(2, dtype=torch.complex128)]
)
def test_a_tensor_that_cannot_be_stored_is_named_before_anything_is_written(tmp_path, tensor):
    with pytest.raises(TypeError, match="odd: "):
        save_checkpoint(tmp_path, 1, {"model": {"odd": tensor}}, {}, "")
    assert names(tmp_path) == []


def test_large_pieces_are_hashed_as_they_are_written(tmp_path, monkeypatch):
    """Through the second thread, over several pieces, with writes that the system cuts short."""
    monkeypatch.setattr(filesystem, "PIECE", 300_000)

    class Short(filesystem.Disk):
        def write(self, descriptor, data):
            return super().write(descriptor, data[:200_001])

    monkeypatch.setattr(filesystem, "disk", Short())
    data = np.random.default_rng(0).integers(0, 256, 1_000_003, dtype=np.uint8).data
    written = filesystem.write_file(tmp_path / "f", [data, b"", b"tail"])
    assert written == filesystem.sha256_of_file(tmp_path / "f")
    assert (tmp_path / "f").read_bytes() == bytes(data) + b"tail"


def test_no_checkpoint_is_no_error(tmp_path):
    assert latest_checkpoint(tmp_path / "nowhere") is None
    assert latest_checkpoint(tmp_path) is None
    (tmp_path / "step-1").mkdir()
    (tmp_path / "step-00000009.bak").mkdir()
    (tmp_path / ".tmp-step-00000009").mkdir()
    assert latest_checkpoint(tmp_path) is None


def test_the_newest_is_by_step_and_not_by_name_or_time(tmp_path):
    save(tmp_path, 100_000_000)
    save(tmp_path, 99_999_999)
    assert latest_checkpoint(tmp_path).name == "step-100000000"


def damage(file, how):
    data = bytearray(file.read_bytes())
    if how == "missing":
        file.unlink()
        return
    if how == "flipped":
        data[len(data) // 2] ^= 4
    file.write_bytes({"truncated": data[:-1], "longer": data + b"\n", "empty": b"", "flipped": data}[how])


@pytest.mark.parametrize("how", ["missing", "truncated", "longer", "empty", "flipped"])
@pytest.mark.parametrize("name", [name for name in FILES if name != "manifest.json"])
def test_any_damage_is_an_error_that_names_the_file_and_the_way_on(tmp_path, name, how):
    save(tmp_path, 90)
    path = save(tmp_path, 100)
    damage(path / name, how)
    with pytest.raises(UserError) as caught:
        load_checkpoint(path)
    message = str(caught.value)
    assert message.startswith(f"{path / name}: ")
    assert "step-00000090, delete this one: rm -r " + str(path) in message
    if how == "flipped":  # found by the digest alone
        assert re.search("SHA-256 is [0-9a-f]{64}, but manifest.json says [0-9a-f]{64}", message)
    else:
        with pytest.raises(UserError, match=re.escape(str(path / name))):
            latest_checkpoint(tmp_path)
        with pytest.raises(UserError, match=re.escape(str(path / name))):
            load_checkpoint(path, verify=False)
    assert load_checkpoint(tmp_path / "step-00000090").step == 90


@pytest.mark.parametrize(
    "content",
    [
        None, b"", b"{", b"\xff\xfe", b"[]", b"{}", b'{"schema_version": "1"}', b'{"schema_version": 1}',
        b'{"schema_version": 1, "step": 1, "files": []}', b'{"schema_version": 1, "step": 1, "files": {"a": {}}}',
        b'{"schema_version": 1, "step": 1, "files": {"a": 3}}', b'{"schema_version": 1, "step": 1, "files": {}}',
        b'{"schema_version": 1, "step": null, "files": {}}',
    ],
)  # fmt: skip
def test_a_bad_manifest_is_an_error_that_names_it(tmp_path, content):
    path = save(tmp_path, 1)
    (path / "manifest.json").unlink() if content is None else (path / "manifest.json").write_bytes(content)
    with pytest.raises(UserError, match=r"manifest\.json: .*There is no earlier one") as caught:
        load_checkpoint(path)
    assert f"rm -r {path}" in str(caught.value)


@pytest.mark.parametrize("name", ["manifest.json", "state.json"])
def test_a_newer_format_is_not_called_damage(tmp_path, name):
    path = save(tmp_path, 1)
    value = json.loads((path / name).read_text())
    (path / name).write_text(json.dumps({**value, "schema_version": 2}))
    if name == "state.json":  # with a manifest that agrees
        manifest = json.loads((path / "manifest.json").read_text())
        size, digest = filesystem.sha256_of_file(path / name)
        manifest["files"][name] = {"bytes": size, "sha256": digest}
        (path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(UserError, match=r"newer little-lm .* update little-lm") as caught:
        load_checkpoint(path)
    assert "rm -r" not in str(caught.value)


def test_what_is_no_safetensors_file_is_an_error_that_names_it(tmp_path):
    for content in (b"", b"\x80\x04pickle", b"\x08\0\0\0\0\0\0\0notjson!", b"\xff" * 100):
        (tmp_path / "x.safetensors").write_bytes(content)
        with pytest.raises(UserError, match=r"x\.safetensors: cannot be read as safetensors"):
            read_tensors(tmp_path / "x.safetensors")


def test_a_missing_checkpoint_is_named(tmp_path):
    with pytest.raises(UserError, match="step-00000007: no such checkpoint directory"):
        load_checkpoint(tmp_path / "step-00000007")


def test_retention_keeps_the_newest_the_protected_and_the_one_just_written(tmp_path):
    for step in range(1, 8):
        save(tmp_path, step, keep_last=2, keep_every=3)
    assert list(find_steps(tmp_path)) == [3, 6, 7]
    save(tmp_path, 4, keep_last=1)  # went back to an earlier step: newer ones of another past are there
    assert list(find_steps(tmp_path)) == [4, 7]
    save(tmp_path, 5)
    assert names(tmp_path) == ["step-00000004", "step-00000005", "step-00000007"]
    with pytest.raises(ValueError, match="keep_last"):
        save(tmp_path, 6, keep_last=0)


def test_saving_the_same_again_keeps_what_is_there(tmp_path):
    path = save(tmp_path, 1)
    inode = path.stat().st_ino
    assert save(tmp_path, 1) == path
    assert path.stat().st_ino == inode
    damage(path / "model.safetensors", "flipped")  # unless it has been damaged since
    save(tmp_path, 1)
    assert path.stat().st_ino != inode
    assert load_checkpoint(path).step == 1
    assert names(tmp_path) == [path.name]


def test_too_little_room_is_said_before_anything_is_written(tmp_path, monkeypatch):
    save(tmp_path, 1)
    monkeypatch.setattr(filesystem, "free_bytes", lambda path: 2**20)
    with pytest.raises(UserError, match=r"takes 0\.0 MiB, but only 1\.0 MiB are free; .* keep fewer"):
        save(tmp_path, 2)
    assert names(tmp_path) == ["step-00000001"]


def test_room_taken_by_leftovers_is_given_back_before_room_is_looked_for(tmp_path, monkeypatch):
    (tmp_path / ".tmp-step-00000001").mkdir()
    (tmp_path / ".tmp-step-00000001" / "model.safetensors").write_bytes(b"half")
    monkeypatch.setattr(filesystem, "free_bytes", lambda path: 2**30 if names(path) == [] else 0)
    save(tmp_path, 2)
    assert names(tmp_path) == ["step-00000002"]


def test_two_processes_saving_into_one_directory_is_an_error(tmp_path):
    (tmp_path / ".tmp-step-00000001").mkdir()
    lock = filesystem.hold_lock(tmp_path / ".tmp-step-00000001")
    assert lock is not None
    with pytest.raises(UserError, match="another process is saving a checkpoint here"):
        save(tmp_path, 2)
    assert names(tmp_path) == [".tmp-step-00000001"]


def test_a_directory_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"could not be saved: .*permissions"):
        save(tmp_path / "file" / "checkpoints", 1)


def test_write_atomically_replaces_and_clears_what_a_killed_process_left(tmp_path):
    (tmp_path / ".a.json.tmp").write_text("half of something longer")
    filesystem.write_atomically(tmp_path / "a.json", b"1")
    filesystem.write_atomically(tmp_path / "a.json", b"22")
    assert (tmp_path / "a.json").read_bytes() == b"22"
    assert names(tmp_path) == ["a.json"]
