"""What a run ran on: versions, code, machine. Written beside the results so that they can be explained later."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import torch

from littlelm import __version__
from littlelm.precision.standard import cpu_flags

SCHEMA_VERSION = 1
_PACKAGES = (
    "torch",
    "numpy",
    "safetensors",
    "tokenizers",
    "tiktoken",
    "pyarrow",
    "pydantic",
    "triton",
    "liger-kernel",
    "transformers",
)
_FLAGS = ("amx_bf16", "amx_int8", "avx512_bf16", "avx512f", "avx2")


def _git(*arguments: str) -> str | None:
    """Output of a git command in the current directory, None without git or outside a repository."""
    try:
        done = subprocess.run(["git", *arguments], capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cpu_model() -> str:
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        return platform.processor()
    return platform.processor()


def recorded_peak(directory: Path, device: torch.device, dtype: torch.dtype) -> tuple[float, str] | None:
    """The measured peak (FLOP/s, source) of a run's earlier session on the same hardware in the same dtype, or None.

    A second measurement would give a slightly other figure, and so the utilisation a seam that training has not.
    """
    try:
        earlier: Any = json.loads((directory / "environment.json").read_text(encoding="utf-8"))
        run, gpus = earlier["run"], [each["name"] for each in earlier["gpus"]]
        cpu = earlier["cpu"]["model"], earlier["cpu"]["torch_threads"]
        peak, source = float(run["peak_flops"]), str(run["peak_source"])
    except (OSError, ValueError, KeyError, TypeError):  # none, or one that says nothing: measure
        return None
    if device.type == "cuda":
        same = bool(gpus) and gpus[0] == torch.cuda.get_device_name(device)
    else:
        same = cpu == (_cpu_model(), torch.get_num_threads())
    kind = str(dtype).removeprefix("torch.")
    return (peak, source) if same and source.startswith(f"measured {kind} ") else None


def describe_environment() -> dict[str, Any]:
    """A JSON-able description of software and hardware."""
    status = _git("status", "--porcelain", "--untracked-files=no")
    flags = cpu_flags()
    return {
        "schema_version": SCHEMA_VERSION,
        "little_lm": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: version for name in _PACKAGES if (version := _version(name)) is not None},
        "cuda": torch.version.cuda,
        "git_commit": _git("rev-parse", "HEAD"),
        "git_dirty": None if status is None else bool(status),
        "command": sys.argv,
        "cpu": {
            "model": _cpu_model(),
            "cores": psutil.cpu_count(logical=False),
            "threads": os.cpu_count(),
            "torch_threads": torch.get_num_threads(),
            "flags": [flag for flag in _FLAGS if flag in flags],
            "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        },
        "gpus": [
            {
                "name": torch.cuda.get_device_name(index),
                "compute_capability": "{}.{}".format(*torch.cuda.get_device_capability(index)),
                "memory_gib": round(torch.cuda.get_device_properties(index).total_memory / 2**30, 1),
            }
            for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0)
        ],
    }
