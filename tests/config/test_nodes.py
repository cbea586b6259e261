"""YAML is read safely, with the surprises of YAML 1.1 removed and every value's place kept."""

import math

import pytest

from littlelm.config.nodes import parse_override, parse_yaml
from littlelm.errors import UserError


def plain(text):
    return parse_yaml(text, "f.yaml").plain()


def test_scalars_follow_yaml_1_2():
    text = "a: 1e-3\nb: yes\nc: on\nd: 12:30\ne: 010\nf: 1_000\ng: null\nh: true\ni: 0x10\nj: .inf\nk: '1'\nl: -2.5E+4"
    assert plain(text) == {
        "a": 1e-3, "b": "yes", "c": "on", "d": "12:30", "e": 10, "f": 1000, "g": None, "h": True, "i": 16,
        "j": math.inf, "k": "1", "l": -25000.0,
    }  # fmt: skip


def test_every_value_and_key_knows_its_place():
    tree = parse_yaml("a:\n  b: 1\n  cc: [x, y]\n", "f.yaml")
    assert str(tree.find(("a", "b")).origin) == "f.yaml:2:6"
    assert str(tree.find(("a",)).key_origin("cc")) == "f.yaml:3:3"
    assert str(tree.find(("a", "cc", 1)).origin) == "f.yaml:3:11"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\na: 2", "f.yaml:2:1: the key 'a' stands twice; first at f.yaml:1:1"),
        ("a: [1", "f.yaml:1:6: not valid YAML"),
        ("a: !!python/object:os.system x", "tags are not accepted"),
        ("a: &x {b: 1}\nc:\n  <<: *x", "f.yaml:3:3: merge keys"),
        ("a: &x [*x]", "this alias contains itself"),
        ("? [a]\n: 1", "a key must be a plain word"),
        ("a:\n  b: " + "9" * 5000, "f.yaml:2:6: a number of 5000 characters"),
        ("a: " + "[" * 3000, "nested too deeply"),
    ],
)
def test_faults_of_syntax_name_their_place(text, message):
    with pytest.raises(UserError) as caught:
        plain(text)
    assert message in str(caught.value)


def test_aliases_that_multiply_are_refused():
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 8)]
    with pytest.raises(UserError, match="aliases that multiply"):
        plain("\n".join(lines))


def test_override_is_read_as_yaml():
    assert parse_override("a.b=[1, x]").plain() == {"a": {"b": [1, "x"]}}
    assert parse_override("a=").plain() == {"a": None}
    with pytest.raises(UserError, match=r"section\.key=value"):
        parse_override("a.b")


@pytest.mark.parametrize("text", ["3e-4", "089", "yes", "null", "1_000", "plain", "5%", "a: b", "0x1f", "~"])
def test_text_survives_being_written_and_read(text):
    import yaml

    from littlelm.config.nodes import PlainDumper

    assert plain(yaml.dump({"a": text}, Dumper=PlainDumper)) == {"a": text}
