"""The files in configs/ are what they say: valid for the loader, and for an editor with our schema."""

from pathlib import Path

import jsonschema
import pytest

from littlelm.config.nodes import read_yaml
from littlelm.config.schema import json_schema
from littlelm.train.configs import RunConfig, load_run

CONFIGS = Path(__file__).parents[2] / "configs"
FILES = sorted(CONFIGS.rglob("*.yaml"))


@pytest.fixture(scope="module")
def validator():
    schema = json_schema(RunConfig)
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.mark.parametrize("file", FILES, ids=lambda path: path.name)
def test_every_shipped_file_loads_and_suits_the_schema(file, validator):
    load_run(file)
    assert [error.message for error in validator.iter_errors(read_yaml(file).plain())] == []


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [("run", "stps", 1), ("run", "tokens", "65X"), ("train", "micro_batch", "big"), ("optimizer", "adamx", {})],
)
def test_the_schema_marks_mistakes(validator, section, key, value):
    plain = read_yaml(CONFIGS / "demo.yaml").plain()
    plain[section][key] = value
    assert list(validator.iter_errors(plain))


def test_a_ladder_is_three_lines():
    for file in (CONFIGS / "ladders").glob("*.yaml"):
        assert len([line for line in file.read_text().splitlines() if line.strip()]) <= 3


def test_the_recipe_has_the_published_parameters():
    from littlelm.plan.parameters import parameters_by_role

    recipe = load_run(CONFIGS / "little-3.8b.yaml").config
    assert sum(parameters_by_role(recipe.model, 50257).values()) == 3_848_798_264
    assert recipe.total_steps * recipe.tokens_per_step == pytest.approx(65e9, rel=1e-4)
    baseline = load_run(CONFIGS / "baselines" / "llama-858m.yaml").config
    assert sum(parameters_by_role(baseline.model, 50257).values()) == 858_064_896
