"""A synthetic bundle of all three types of tasks, and a tiny model, for the tests of CORE."""

from __future__ import annotations

import json
import random
import zipfile
from pathlib import Path
from typing import Any

import torch
import yaml

from littlelm.model.configs import TransformerConfig
from littlelm.model.transformer import Transformer

WORDS = (
    "the a river stone old walks under light slow house green and sings over cold winter bread of quiet hands".split()
)


def text(chooser: random.Random, low: int, high: int) -> str:
    return " ".join(chooser.choice(WORDS) for _ in range(chooser.randint(low, high)))


def stories(chooser: random.Random) -> list[dict[str, Any]]:
    """Questions on three texts, each after the ones before it, as CoQA asks them."""
    items = []
    for _ in range(3):
        story, asked = "Story: " + text(chooser, 60, 70), ""
        for _ in range(4):
            question, answer = text(chooser, 3, 6), text(chooser, 1, 2)
            items.append({"context": f"{story}{asked}\n\nFinal: {question}?\nAnswer: ", "continuation": answer})
            asked += f"\nQuestion: {question}?\nAnswer: {answer}"
    return items


def content() -> dict[str, tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Label -> (entry of core.yaml, items)."""
    chooser = random.Random(5)

    def choices(count: int, letters: bool = False) -> dict[str, Any]:
        options = list("ABCD")[:count] if letters else [text(chooser, 2, 8) for _ in range(count)]
        return {"query": text(chooser, 5, 30), "choices": options, "gold": chooser.randrange(count)}

    def schema() -> dict[str, Any]:
        start, end = text(chooser, 3, 9), text(chooser, 2, 5)
        return {"context_options": [f"{start} he", f"{start} the winter"], "continuation": end,
                "gold": chooser.randrange(2)}  # fmt: skip

    repeated = choices(3)
    repeated["choices"] = [repeated["choices"][0]] * 2 + [repeated["choices"][0] + " and more"]
    return {
        "arc_easy": (
            {"num_fewshot": [3], "icl_task_type": "multiple_choice", "continuation_delimiter": "\nAnswer: "},
            [choices(4) for _ in range(12)],
        ),
        "commonsense_qa": (
            {"num_fewshot": [3], "icl_task_type": "multiple_choice"},
            [choices(4, letters=True) for _ in range(10)],
        ),
        "copa": ({"num_fewshot": [0], "icl_task_type": "multiple_choice"}, [choices(2) for _ in range(7)] + [repeated]),
        "winograd": ({"num_fewshot": [0], "icl_task_type": "schema"}, [schema() for _ in range(9)]),
        "jeopardy": (
            {"num_fewshot": [2], "icl_task_type": "language_modeling", "continuation_delimiter": "\nAnswer: "},
            [{"context": text(chooser, 5, 20), "continuation": text(chooser, 1, 3)} for _ in range(9)],
        ),
        "coqa": ({"num_fewshot": [0], "icl_task_type": "language_modeling"}, stories(chooser)),
    }


def write_bundle(directory: Path, tasks: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]] | None = None) -> Path:
    """Write a bundle directory."""
    tasks = content() if tasks is None else tasks
    (directory / "eval_data" / "some").mkdir(parents=True, exist_ok=True)
    entries = []
    table = ["Eval Task,Task Category,Task Type,#shots,#datapoints,Random baseline"]
    for label, (entry, items) in tasks.items():
        entries.append({"label": label, "dataset_uri": f"some/{label}.jsonl", **entry})
        lines = "".join(json.dumps(item) + "\n" for item in items)
        (directory / "eval_data" / "some" / f"{label}.jsonl").write_text(lines)
        table.append(f"{label},some,some,{entry['num_fewshot'][0]},{len(items)},25")
    (directory / "core.yaml").write_text(yaml.safe_dump({"icl_tasks": entries}))
    (directory / "eval_meta_data.csv").write_text("\n".join(table) + "\n")
    return directory


def write_zip(path: Path, directory: Path) -> Path:
    """A zip of a bundle directory, below a directory of its own."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(directory.rglob("*")):
            if file.is_file():
                archive.write(file, Path("bundle") / file.relative_to(directory))
    return path


def tiny_model(vocab_size: int, context: int = 512, **choices: Any) -> Transformer:
    """A small model with every weight moved off its initial value."""
    given = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, **choices}
    model = Transformer(TransformerConfig(max_position_embeddings=context, **given), vocab_size)
    generator = torch.Generator().manual_seed(1)
    model.init_weights(generator)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
    return model.eval()
