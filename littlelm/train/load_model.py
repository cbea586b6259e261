"""A trained model back from a run directory, for sampling and evaluation. Never unpickles."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from littlelm import registry
from littlelm.errors import UserError
from littlelm.tokenizers import check_fingerprint
from littlelm.tokenizers import load as load_tokenizer
from littlelm.train import distributed
from littlelm.train.checkpoint import latest_checkpoint, load_checkpoint
from littlelm.train.configs import RunConfig, load_run


@dataclass
class LoadedModel:
    """A model in evaluation mode with its tokenizer, config and the step it was saved at."""

    model: Any
    tokenizer: Any
    config: RunConfig
    step: int
    checkpoint: Path


def resolve_checkpoint(path: Path) -> tuple[Path, Path]:
    """(run directory, checkpoint) for a run directory or one of its checkpoints. Raises UserError for neither."""
    path = path.resolve()
    if path.name == "checkpoints" and path.is_dir() and not (path / "config.yaml").exists():  # else a run of that name
        path = path.parent
    if (path / "manifest.json").is_file():
        return path.parent.parent, path
    if not path.is_dir():
        raise UserError(f"{path}: no such run directory; `little-lm train FILE` makes one under runs/")
    checkpoint = latest_checkpoint(path / "checkpoints")
    if checkpoint is None:
        raise UserError(f"{path}: holds no checkpoint yet; train it first, or give another run directory")
    return path, checkpoint


def load_model(path: Path, device: str = "auto") -> LoadedModel:
    """Load the newest (or the given) checkpoint of a run."""
    directory, checkpoint_path = resolve_checkpoint(path)
    config = load_run(checkpoint_path / "config.yaml").config
    checkpoint = load_checkpoint(checkpoint_path)
    tokenizer = load_tokenizer(directory / "tokenizer")
    check_fingerprint(checkpoint.state["tokenizer_fingerprint"], tokenizer, str(checkpoint_path))
    target = distributed.pick_device(device)
    precision = registry.build(config.precision, target.type)
    with torch.device("meta"):
        model = registry.build(config.model, tokenizer.vocab_size)
    model = model.to(dtype=precision.master_dtype).to_empty(device=target)
    model.init_weights(torch.Generator().manual_seed(0))  # fills what is computed and not saved, such as rotary tables
    weights = checkpoint.tensors("model")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(weights[name])
    model.compute_dtype = precision.compute_dtype
    model.eval()
    return LoadedModel(model, tokenizer, config, checkpoint.state["step"], checkpoint_path)
