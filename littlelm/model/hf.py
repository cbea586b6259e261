"""Hugging Face Llama-type weights in our transformer: the same function, so known models can check ours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from littlelm.errors import UserError
from littlelm.model.configs import TransformerConfig
from littlelm.model.transformer import Transformer

# Keys of config.json that must have these values (when present) for our transformer to be the same function.
_EXPECTED: dict[str, tuple[Any, ...]] = {
    "model_type": ("llama",),
    "hidden_act": ("silu",),
    "attention_bias": (False,),
    "mlp_bias": (False,),
    "rope_scaling": (None,),
}
INDEX = "model.safetensors.index.json"
_REQUIRED = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "max_position_embeddings", "rms_norm_eps",
)  # fmt: skip
_BLOCK = {
    "self_attn.q_proj": "attention.q",
    "self_attn.k_proj": "attention.k",
    "self_attn.v_proj": "attention.v",
    "self_attn.o_proj": "attention.out",
    "mlp.gate_proj": "mlp.gate",
    "mlp.up_proj": "mlp.up",
    "mlp.down_proj": "mlp.down",
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "mlp_norm",
}


def config_from_hf(config: dict[str, Any]) -> TransformerConfig:
    """Our config for a Llama-type config.json. Raises UserError for what our transformer cannot express."""
    missing = [key for key in _REQUIRED if key not in config]
    if missing:
        raise UserError(f"config.json: has no {', '.join(missing)}; is it a Llama-type model's?")
    for key, allowed in _EXPECTED.items():
        if key in config and config[key] not in allowed:
            raise UserError(f"config.json: {key} is {config[key]!r}; only {allowed[0]!r} can be expressed")
    rope = config.get("rope_parameters") or {}
    if rope.get("rope_type", "default") != "default":
        raise UserError(f"config.json: rope_type is {rope['rope_type']!r}; only 'default' can be expressed")
    return TransformerConfig(
        vocab_size=config["vocab_size"],
        pad_vocab_multiple=1,
        hidden_size=config["hidden_size"],
        intermediate_size=config["intermediate_size"],
        num_hidden_layers=config["num_hidden_layers"],
        num_attention_heads=config["num_attention_heads"],
        num_key_value_heads=config.get("num_key_value_heads"),
        head_dim=config.get("head_dim"),
        max_position_embeddings=config["max_position_embeddings"],
        rope_theta=float(config.get("rope_theta") or rope.get("rope_theta") or 10_000.0),
        norm_eps=config["rms_norm_eps"],
        norm_weight=True,
        embedding_norm=False,
        mlp="swiglu",
        tie_embeddings=bool(config.get("tie_word_embeddings", False)),
    )


def our_name(name: str) -> str | None:
    """Our name of a Hugging Face Llama tensor; None for one we do not keep. Raises UserError for a strange one."""
    fixed = {
        "model.embed_tokens.weight": "embedding.weight",
        "model.norm.weight": "norm.weight",
        "lm_head.weight": "head.weight",
    }
    if name in fixed:
        return fixed[name]
    if name.endswith("rotary_emb.inv_freq"):
        return None
    parts = name.split(".")
    middle = ".".join(parts[3:-1])
    if parts[:2] == ["model", "layers"] and middle in _BLOCK and parts[-1] == "weight":
        return f"blocks.{parts[2]}.{_BLOCK[middle]}.weight"
    raise UserError(f"{name}: no such tensor in a Llama-type model")


@torch.no_grad()
def load_hf_state(model: Transformer, state: dict[str, Tensor]) -> None:
    """Copy Hugging Face tensors into the model. Raises UserError naming what is missing, left over or misshapen."""
    parameters = dict(model.named_parameters())
    given = {ours: tensor for name, tensor in state.items() if (ours := our_name(name)) is not None}
    if model.head is None:
        given.pop("head.weight", None)  # some files carry the tied matrix twice
    odd = sorted(given.keys() ^ parameters.keys())
    if odd:
        raise UserError(f"the weights do not fit the model: missing or left over: {', '.join(odd[:5])}")
    for name, parameter in parameters.items():
        if parameter.shape != given[name].shape:
            raise UserError(f"{name}: {tuple(given[name].shape)} in the file, {tuple(parameter.shape)} in the model")
        parameter.copy_(given[name])


def weight_files(directory: Path) -> list[Path]:
    """The files with the weights: those that model.safetensors.index.json names, else every *.safetensors.

    A directory may hold more of them than belong to the model (a second format, an older sharding).
    Raises UserError when there is none, or one that the index names is missing.
    """
    index = directory / INDEX
    if not index.is_file():
        files = sorted(directory.glob("*.safetensors"))
        if not files:
            raise UserError(f"{directory}: holds no *.safetensors file")
        return files
    described = json.loads(index.read_text(encoding="utf-8"))
    places = described.get("weight_map") if isinstance(described, dict) else None
    if not isinstance(places, dict) or not places or not all(isinstance(name, str) for name in places.values()):
        raise UserError(f"{index}: has no weight_map from tensors to files; download it again")
    files = [directory / name for name in sorted(set(places.values()))]
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise UserError(f"{directory}: lacks {', '.join(missing)}, which {INDEX} names; download it again")
    return files


def load_hf_directory(directory: Path) -> Transformer:
    """The model of a Hugging Face directory (config.json and *.safetensors), fp32, on the CPU."""
    try:
        described = json.loads((directory / "config.json").read_text(encoding="utf-8"))
        if not isinstance(described, dict):
            raise UserError(f"{directory / 'config.json'}: is no mapping")
        config = config_from_hf(described)
        state: dict[str, Tensor] = {}
        for file in weight_files(directory):
            with safe_open(file, framework="pt") as opened:
                state |= {name: opened.get_tensor(name) for name in opened.keys()}
    except (OSError, ValueError, SafetensorError) as error:
        raise UserError(f"{directory}: is no readable Hugging Face directory: {error}") from None
    assert config.vocab_size is not None
    model = Transformer(config, config.vocab_size)
    model.init_weights(torch.Generator().manual_seed(0))
    load_hf_state(model, state)
    return model
