"""Fixtures for whole runs: a small corpus and a run file that trains on it in seconds."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # tests run beside each other; and sums do not depend on the cores

ROOT = Path(__file__).resolve().parents[1]

TINY = """
run: {{name: tiny, dir: {dir}, seed: 7, steps: 20}}
tokenizer: byte
data:
  sources: [{{text: {{files: ["{corpus}/*.txt"]}}}}]
  validation: {{documents: 8}}
  sequence_length: 64
  cache_dir: {cache}
  workers: 1
model:
  transformer:
    hidden_size: 32
    num_hidden_layers: 2
    num_attention_heads: 2
    num_key_value_heads: 1
    max_position_embeddings: 64
    mlp: relu2
    qk_norm: true
    residual_scalars: true
    value_embeddings: alternate
    logit_softcap: 15.0
optimizer:
  composite:
    matrix: {{muon: {{lr: 0.02}}}}
    default: {{adamw: {{lr: 0.003}}}}
precision: {{standard: {{compute: fp32}}}}
train: {{global_batch_tokens: 512, micro_batch: 4, compile: false}}
callbacks:
  checkpoint: {{every: 5}}
  eval: {{every: 10}}
  sample: {{every: 10, max_new_tokens: 8, prompts: ["The "]}}
  tensorboard: false
"""

WORDS = (
    "the a river stone old walks under light with slow house green and sings over cold winter morning bread of "
    "quiet hands they we she found told little wide sea boat wind which when because early"
).split()


def write_corpus(directory: Path, documents: int = 120) -> None:
    """Plain text documents of varying length, the same every time."""
    directory.mkdir(parents=True, exist_ok=True)
    chooser = random.Random(3)
    for index in range(documents):
        words = [chooser.choice(WORDS) for _ in range(chooser.randint(5, 120))]
        (directory / f"{index:03}.txt").write_text(" ".join(words).capitalize() + ".\n")


@pytest.fixture(scope="session")
def corpus(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("corpus")
    write_corpus(directory)
    return directory


@pytest.fixture(scope="session")
def cache(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def tiny(tmp_path, corpus, cache) -> Path:
    """A run file that trains 20 steps of a tiny model; its run directory is beside it."""
    path = tmp_path / "tiny.yaml"
    path.write_text(TINY.format(dir=tmp_path / "run", corpus=corpus, cache=cache))
    return path


def little_lm(*arguments: object, timeout: float = 180, **options) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own."""
    command = [sys.executable, "-m", "littlelm.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False, **options)
