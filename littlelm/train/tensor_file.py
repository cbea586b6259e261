"""Tensors to a `.safetensors` file and back, without a second copy of them in memory.

The format (https://github.com/huggingface/safetensors): the header's length as 8 bytes little-endian, a JSON header
{name: {dtype, shape, data_offsets}}, then the tensors' bytes back to back. The library's own writer would have to be
followed by a second pass over the file for its digest, and cannot be watched by a fault injector; the header is all
that is written here by hand, and files are read by the library.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from littlelm.errors import UserError
from littlelm.filesystem import write_file

_DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8",
    torch.uint64: "U64", torch.uint32: "U32", torch.uint16: "U16", torch.uint8: "U8", torch.bool: "BOOL",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2", torch.complex64: "C64",
}  # fmt: skip

# Key of the header's metadata: JSON {name: name of the stored tensor it is one with}.
SHARED_KEY = "shared_tensors"


def _identity(tensor: Tensor) -> tuple[Any, ...]:
    """Equal for two tensors that are the same bytes read the same way (tied weights)."""
    return (tensor.device, tensor.untyped_storage().data_ptr(), tensor.storage_offset(), tuple(tensor.shape),
            tensor.stride(), tensor.dtype, tensor.is_conj(), tensor.is_neg())  # fmt: skip


def _find_shared(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Name -> the first name of the same tensor, for every name but the first. Partial overlaps are stored in full."""
    first: dict[tuple[Any, ...], str] = {}
    shared = {}
    for name, tensor in tensors.items():
        if tensor.numel() == 0:
            continue  # no bytes, and their null pointers would make strangers equal
        kept = first.setdefault(_identity(tensor), name)
        if kept != name:
            shared[name] = kept
    return shared


def _check(name: str, tensor: Tensor) -> None:
    if tensor.layout != torch.strided or tensor.device.type == "meta":
        raise TypeError(f"{name}: a {tensor.layout} tensor on {tensor.device} cannot be saved; only dense ones can")
    if tensor.dtype not in _DTYPES:
        raise TypeError(f"{name}: dtype {tensor.dtype} cannot be saved; known: {', '.join(map(str, _DTYPES))}")


def plan_tensor_file(tensors: Mapping[str, Tensor]) -> tuple[bytes, list[str]]:
    """The header of the file that holds `tensors`, length prefix included, and the order in which their bytes follow.

    Widest dtype first, so that every tensor begins at a multiple of its element size. Raises TypeError for tensors
    that have no dense bytes, or a dtype that the format lacks.
    """
    for name, tensor in tensors.items():
        _check(name, tensor)
    shared = _find_shared(tensors)
    order = sorted((name for name in tensors if name not in shared), key=lambda n: (-tensors[n].element_size(), n))
    metadata = {"format": "pt", **({SHARED_KEY: json.dumps(shared)} if shared else {})}
    header: dict[str, Any] = {"__metadata__": metadata}
    position = 0
    for name in order:
        size = tensors[name].numel() * tensors[name].element_size()
        header[name] = {
            "dtype": _DTYPES[tensors[name].dtype],
            "shape": list(tensors[name].shape),
            "data_offsets": [position, position + size],
        }
        position += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, order


def tensor_file_bytes(tensors: Mapping[str, Tensor]) -> int:
    """Size in bytes of the file that `write_tensors` would write."""
    header, order = plan_tensor_file(tensors)
    return len(header) + sum(tensors[name].numel() * tensors[name].element_size() for name in order)


def _bytes_of(tensor: Tensor) -> memoryview:
    """A tensor's elements in row-major order as bytes: its own memory when it is contiguous and on the CPU."""
    assert sys.byteorder == "little", "safetensors files are little-endian"
    plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    return plain.reshape(-1).view(torch.uint8).numpy().data


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> tuple[int, str]:
    """Write named tensors and fsync the file. Returns its size in bytes and its SHA-256 (hex).

    Tensors on a GPU or not contiguous are copied one at a time; no other is copied. A tensor under several names is
    written once. Raises TypeError as `plan_tensor_file` does, and OSError.
    """
    header, order = plan_tensor_file(tensors)

    def chunks() -> Iterator[memoryview | bytes]:
        yield header
        for name in order:
            if tensors[name].numel():
                yield _bytes_of(tensors[name])

    return write_file(path, chunks())


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read every tensor of a file by its names, on the CPU, memory-mapped: bytes are read when they are looked at.

    Raises UserError for a file that is no whole safetensors file.
    """
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}
            shared = json.loads((file.metadata() or {}).get(SHARED_KEY, "{}"))
            return {**tensors, **{name: tensors[kept] for name, kept in shared.items()}}
    except (SafetensorError, OSError, ValueError, KeyError) as error:
        raise UserError(f"{path}: cannot be read as safetensors: {error}") from None
