"""`little-lm eval core` and `eval compare` as a user meets them, on a Hugging Face directory."""

import json
import os
import socket
import subprocess
import sys

import pyarrow.parquet as pq
import pytest
from conftest import little_lm
from core_bundles import tiny_model, write_bundle
from safetensors.torch import save_file

from littlelm.evals.core.hf_tokenizer import HFTokenizer
from littlelm.model.hf import _BLOCK
from littlelm.tokenizers.byte import ByteTokenizer

LLAMA = {"mlp": "swiglu", "norm_weight": True, "embedding_norm": False, "num_key_value_heads": 2,
         "tie_embeddings": True, "intermediate_size": 64, "pad_vocab_multiple": 1}  # fmt: skip


def hf_directory(path, context=300):
    """A tiny Llama-type model with a byte tokenizer, as a Hugging Face directory."""
    model = tiny_model(257, context, **LLAMA)
    theirs = {ours: name for name, ours in _BLOCK.items()}
    state = {}
    for name, parameter in model.named_parameters():
        if name.startswith("blocks."):
            _, layer, *middle, _ = name.split(".")
            state[f"model.layers.{layer}.{theirs['.'.join(middle)]}.weight"] = parameter.detach().clone()
        else:
            state[{"embedding.weight": "model.embed_tokens.weight", "norm.weight": "model.norm.weight"}[name]] = (
                parameter.detach().clone()
            )
    path.mkdir()
    save_file(state, str(path / "model.safetensors"))
    config = model.config
    described = {
        "model_type": "llama", "vocab_size": 257, "hidden_size": config.hidden_size, "intermediate_size": 64,
        "num_hidden_layers": config.num_hidden_layers, "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": 2, "max_position_embeddings": context, "rms_norm_eps": config.norm_eps,
        "rope_theta": config.rope_theta, "hidden_act": "silu", "tie_word_embeddings": True,
    }  # fmt: skip
    (path / "config.json").write_text(json.dumps(described))
    ByteTokenizer().save(path)
    (path / "tokenizer_config.json").write_text('{"bos_token": "<|bos|>"}')
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return hf_directory(tmp_path_factory.mktemp("hf") / "model")


@pytest.fixture(scope="module")
def options(tmp_path_factory):
    place = tmp_path_factory.mktemp("bundle")
    return ["--bundle", str(write_bundle(place / "bundle")), "--cache-dir", str(place / "cache")]


def test_the_tokenizer_of_a_directory_is_the_one_that_was_saved(model):
    ours, theirs = ByteTokenizer(), HFTokenizer(model)
    texts = ["The quick café \n\n 東京 <|bos|>", ""]
    assert [ids.tolist() for ids in theirs.encode_batch(texts)] == [ours.encode(text) for text in texts]
    assert (theirs.bos_id, theirs.vocab_size) == (ours.bos_id, ours.vocab_size)
    assert theirs.token_bytes.tolist() == ours.token_bytes.tolist()
    assert theirs.decode(theirs.encode(texts[0])) == texts[0]


def test_three_processes_give_the_very_records_of_one_and_a_comparison_finds_no_difference(model, options, tmp_path):
    done = little_lm("eval", "core", model, *options)
    assert done.returncode == 0, done.stderr
    assert "CORE v1" in done.stdout and "not the 22 of CORE" in done.stdout and "arc_easy" in done.stdout
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "3", "--master-addr", "127.0.0.1",
        "--master-port", str(port), "-m", "littlelm.cli", "eval", "core", str(model), *options,
        "--out", str(tmp_path / "three"),
    ]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    three = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)
    assert three.returncode == 0, three.stderr
    assert three.stdout.count("CORE v1") == 1
    first = pq.read_table(model / "evals" / "core" / "records.parquet")
    second = pq.read_table(tmp_path / "three" / "records.parquet")
    assert first.equals(second) or repr(first.to_pydict()) == repr(second.to_pydict())  # NaN is not equal to itself
    assert (model / "evals" / "core" / "core.png").stat().st_size > 1000
    compared = little_lm("eval", "compare", model, tmp_path / "three", "--out", tmp_path / "both.svg")
    assert compared.returncode == 0, compared.stderr
    assert "CORE v1, B - A: +0.0000" in compared.stdout
    assert (tmp_path / "both.svg").is_file()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--max-per-task", "2"], "needs 4 items"),
        (["--policy", "error"], "longer than the model's 300"),
        (["--policy", "cut"], "policy"),
        (["--budget", "0.5", "--max-per-task", "8"], "two ways of running less"),
        (["--task", "winogrand"], "did you mean 'winograd'"),
    ],
)
def test_a_users_mistake_is_one_clear_error(model, options, arguments, message, monkeypatch, capsys):
    from littlelm import cli

    monkeypatch.setattr(sys, "argv", ["little-lm", "eval", "core", str(model), *options, *arguments])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 2
    error = capsys.readouterr().err
    assert message in error and "Traceback" not in error


def test_without_a_bundle_it_says_what_one_is(model, monkeypatch, capsys):
    from littlelm import cli

    monkeypatch.delenv("LITTLE_LM_CORE_BUNDLE", raising=False)
    monkeypatch.setattr(sys, "argv", ["little-lm", "eval", "core", str(model)])
    with pytest.raises(SystemExit):
        cli.main()
    assert "eval_bundle.zip" in capsys.readouterr().err
