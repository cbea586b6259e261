"""Layering, components, plugins and errors of the config, on a small root of its own."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

import pytest
from pydantic import Field, model_validator

from littlelm import registry
from littlelm.config.base import ComponentConfig, ComponentOf, ConfigModel, Count
from littlelm.config.diff import MISSING, diff
from littlelm.config.load import dump, load
from littlelm.config.schema import json_schema
from littlelm.config.show import render
from littlelm.config.validate import ConfigError
from littlelm.errors import UserError
from littlelm.train.configs import load_run

registry.declare_kind("fruit", "something to eat")


class AppleConfig(ComponentConfig):
    """A round fruit."""

    weight: float = Field(0.2, gt=0, description="kg")
    colour: Literal["red", "green"] = "red"


class BasketConfig(ComponentConfig):
    """Holds other fruit."""

    first: Annotated[ComponentConfig | None, ComponentOf("fruit")] = None
    second: Annotated[ComponentConfig | None, ComponentOf("fruit")] = None


@registry.register("fruit", "apple", config=AppleConfig)
def apple(config):
    return ("apple", config.weight)


@registry.register("fruit", "basket", config=BasketConfig)
def basket(config):
    return [registry.build(each) for each in (config.first, config.second) if each]


class Size(ConfigModel):
    tokens: Count | None = None
    flag: bool = False
    either: int | Literal["auto"] = "auto"

    @model_validator(mode="after")
    def flag_needs_tokens(self):
        if self.flag and self.tokens is None:
            raise ValueError("flag needs tokens; give size.tokens")
        return self


class Run(ConfigModel):
    name: str


class Root(ConfigModel):
    run: Run
    size: Size = Size()
    title: str = "${run.name}!"
    plugins: list[str] = Field(default_factory=list)
    fruit: Annotated[ComponentConfig, ComponentOf("fruit")]
    table: Annotated[list[ComponentConfig], ComponentOf("fruit")] = Field(default_factory=list)
    shelf: Annotated[dict[str, ComponentConfig], ComponentOf("fruit")] = Field(default_factory=dict)

    def check(self) -> Iterator[tuple[tuple[str, ...], str]]:
        if self.size.tokens == 13:
            yield ("size", "tokens"), "13 brings bad luck"


@pytest.fixture
def read(tmp_path):
    def read(text, overrides=(), **files):
        for name, content in files.items():
            (tmp_path / name.replace("_", ".")).write_text(content)
        path = tmp_path / "f.yaml"
        path.write_text(text)
        return load(path, Root, overrides=list(overrides))

    return read


def errors(read, text, overrides=(), **files):
    with pytest.raises(UserError) as caught:
        read(text, overrides, **files)
    return str(caught.value)


@pytest.mark.parametrize("text", ["fruit: apple", "fruit: {apple: {}}", "fruit: {apple: }", "fruit: {name: apple}"])
def test_every_way_to_name_a_component_means_the_same(read, text):
    assert read(text).config.fruit == AppleConfig()


def test_shorthand_and_long_form_layer_alike(read):
    text = "extends: base.yaml\nfruit: {name: apple, colour: green}"
    fruit = read(text, base_yaml="fruit: {apple: {weight: 0.5}}").config.fruit
    assert fruit == AppleConfig(weight=0.5, colour="green")


def test_a_component_of_another_name_replaces_the_whole(read):
    fruit = read("extends: base.yaml\nfruit: basket", base_yaml="fruit: {apple: {weight: 0.5}}").config.fruit
    assert fruit == BasketConfig()


def test_keys_alone_change_the_component_below(read):
    base = "fruit: {basket: {first: {apple: {weight: 0.5}}}}"
    assert read(base, ["fruit.first.colour=green"]).config.fruit.first == AppleConfig(weight=0.5, colour="green")


def test_lists_are_replaced_and_single_items_overridden(read):
    base = "fruit: apple\ntable: [apple, {apple: {weight: 2.0}}]"
    assert len(read("extends: base.yaml\ntable: [apple]", base_yaml=base).config.table) == 1
    assert read(base, ["table.1.colour=green"]).config.table[1] == AppleConfig(weight=2.0, colour="green")
    assert "'7' is no item of this list (0 to 1)" in errors(read, base, ["table.7.colour=green"])


def test_entries_of_a_mapping_are_named_by_their_key_and_can_be_switched_off(read):
    base = "fruit: apple\nshelf: {apple: {weight: 1.0}, other: {name: apple}, gone: {name: apple}}"
    config = read(base, ["shelf.gone=false", "shelf.other.weight=3.0", "shelf.apple.colour=green"]).config
    assert config.shelf == {"apple": AppleConfig(weight=1.0, colour="green"), "other": AppleConfig(weight=3.0)}


def test_references_take_the_type_of_the_key_and_run_in_no_circle(read):
    config = read("run: {name: x}\nfruit: apple\nsize: {tokens: 7, either: '${size.tokens}'}").config
    assert config.size.either == 7
    assert config.title == "x!"
    assert "refers to itself" in errors(read, "fruit: apple\nrun: {name: '${title}'}\ntitle: ${run.name}")
    assert "there is no such key" in errors(read, "fruit: apple\ntitle: ${size.tokns}")


def test_counts_may_carry_a_suffix(read):
    for text, value in [("65B", 65 * 10**9), ("1.5k", 1500), ("2e3", 2000), ("4_096", 4096), ("7", 7)]:
        assert read(f"fruit: apple\nsize: {{tokens: {text}}}").config.size.tokens == value


def test_all_errors_at_once_each_with_place_and_remedy(read):
    text = (
        "fruit: {apple: {wieght: 1.0, colour: gren}}\n"
        "size:\n  tokens: many\n  flag: yes\n  either: [1]\n"
        "table: [aple, {apple: {weight: -1.0}}]\n"
        "shelf: {apple: {colour: 3}}\n"
        "tilte: x\nflag: true\n"
    )
    message = errors(read, text)
    for expected in [
        "f.yaml:1:17: unknown key 'wieght' in fruit (apple); did you mean 'weight'?",
        "f.yaml:1:38: fruit.colour: expected red or green, got 'gren'; did you mean 'green'?",
        "f.yaml:3:11: size.tokens: expected a whole number, got 'many'",
        "f.yaml:4:9: size.flag: expected true or false, got 'yes'; in this file only true and false are booleans",
        "f.yaml:5:11: size.either: expected a whole number or auto, got [1]",
        "f.yaml:6:9: unknown fruit 'aple'; did you mean 'apple'?",
        "f.yaml:6:32: table.1.weight: expected greater than 0, got -1.0",
        "f.yaml:7:25: shelf.apple.colour: expected red or green, got 3",
        "f.yaml:8:1: unknown key 'tilte' in the file; did you mean 'title'?",
        "f.yaml:9:1: unknown key 'flag' in the file; did you mean 'size.flag'?",
    ]:
        assert expected in message
    assert len(message.splitlines()) == 10


def test_contradictions_name_the_keys(read):
    assert "f.yaml:2:7: size: flag needs tokens; give size.tokens" in errors(read, "fruit: apple\nsize: {flag: true}")
    assert "f.yaml:2:16: 13 brings bad luck" in errors(read, "fruit: apple\nsize: {tokens: 13}")


def test_a_missing_key_says_where_and_what(read):
    assert "the key 'fruit' is missing in the file" in errors(read, "title: x")


def test_unknown_override_is_blamed_on_the_command_line(read):
    message = errors(read, "fruit: apple", ["fruit.wieght=1"])
    assert "--set fruit.wieght=1: unknown key 'wieght' in fruit (apple); did you mean 'weight'?" in message


def test_an_unknown_component_in_place_of_a_default_is_an_unknown_component(read):
    message = errors(read, "extends: base.yaml\nfruit: {aple: {weight: 1.0}}", base_yaml="fruit: apple")
    assert "f.yaml:2:9: unknown fruit 'aple'; did you mean 'apple'?" in message


def test_extends_faults_are_named(read):
    assert "no such file" in errors(read, "extends: nowhere.yaml\nfruit: apple")
    assert "runs in a circle" in errors(read, "extends: f.yaml\nfruit: apple")


PLUGIN = """
from littlelm.config.base import ComponentConfig
from littlelm.registry import register

class PearConfig(ComponentConfig):
    "A pear."
    length: float = 1.0

@register("fruit", "pear", config=PearConfig)
def pear(config):
    return ("pear", config.length)
"""


def test_a_plugin_adds_a_component_without_touching_the_package(read):
    config = read("plugins: [mine.py]\nfruit: {pear: {length: 3.0}}", mine_py=PLUGIN).config
    assert registry.build(config.fruit) == ("pear", 3.0)
    assert config.plugins[0].endswith("mine.py")


def test_a_faulty_plugin_is_named_with_its_line(read):
    assert "bad.py:2: NameError" in errors(read, "plugins: [bad.py]\nfruit: apple", bad_py="x = 1\nx = y\n")
    assert "no such file" in errors(read, "plugins: [none.py]\nfruit: apple")


def test_shown_and_dumped_files_load_to_the_same_config(read, tmp_path):
    loaded = read("fruit: {basket: {first: apple}}\nsize: {tokens: 65B}\ntable: [apple]\nshelf: {a: {name: apple}}")
    for text in (dump(loaded.config), render(loaded.tree)):
        (tmp_path / "again.yaml").write_text(text)
        assert load(tmp_path / "again.yaml", Root).config == loaded.config


def test_show_gives_the_origin_of_every_value(read, tmp_path):
    text = render(read("fruit: apple\nsize: {flag: false}", ["fruit.weight=2.0"]).tree)
    lines = {line.split("#")[0].strip(): line.split("# ")[-1] for line in text.splitlines() if "#" in line}
    assert lines["weight: 2.0"] == "--set fruit.weight=2.0"
    assert lines["colour: red"] == "default"
    assert lines["flag: false"] == f"{tmp_path}/f.yaml:2:14"


def test_diff_compares_resolved_values_not_text(read):
    one = read("fruit: apple\nsize: {tokens: 1000}")
    same = read("size:\n    tokens: 1000\nfruit: {name: apple, weight: 0.2}")
    other = read("fruit: {basket: {first: apple}}\nsize: {tokens: 1000}")
    assert diff(one.tree, same.tree) == []
    changes = {item.key: (item.before, item.after) for item in diff(one.tree, other.tree)}
    assert changes["fruit"] == ("apple", "basket {first: apple}")  # other components: their keys do not compare
    heavier = read("fruit: {apple: {weight: 0.5}}\nsize: {tokens: 1000}\nshelf: {apple: {}}")
    changes = {item.key: (item.before, item.after) for item in diff(one.tree, heavier.tree)}
    assert changes["fruit.weight"] == (0.2, 0.5)
    assert changes["shelf.apple.weight"] == (MISSING, 0.2)


def test_schema_accepts_what_the_loader_accepts():
    schema = json_schema(Root)
    assert schema["additionalProperties"] is False
    assert {"fruit", "extends", "plugins"} <= schema["properties"].keys()
    titles = [option.get("title") for option in schema["$defs"]["fruit"]["anyOf"]]
    assert {"apple", "basket"} <= set(titles)


def test_two_components_of_one_name_are_refused():
    class Other(ComponentConfig):
        """Another."""

    with pytest.raises(UserError, match="registered twice"):
        registry.register("fruit", "apple", config=Other)(lambda config: None)


def test_config_error_lists_problems_in_file_order(read):
    with pytest.raises(ConfigError) as caught:
        read("zzz: 1\nfruit: apple\nsize: {flag: 3}")
    assert [problem.origin.line for problem in caught.value.problems] == [1, 3]


def test_mistakes_in_a_list_of_sections_are_placed_like_others(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(
        f"extends: {Path(__file__).parents[2] / 'configs' / 'demo.yaml'}\n"
        "data:\n"
        "  stages:\n"
        "    - {last: 2, weights: {builtin: x}}\n"
        "    - {lst: 0.1, weights: {builtin: 1}}\n"
    )
    with pytest.raises(UserError) as caught:
        load_run(path)
    lines = str(caught.value).splitlines()
    assert [line.split(": ")[0].removeprefix(f"{path}:") for line in lines] == ["4:14", "4:36", "5:7", "5:8"]
    assert "unknown key 'lst' in data.stages.1; did you mean 'last'?" in str(caught.value)
