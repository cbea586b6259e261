"""`little-lm data ...` as a user meets it: bad input in one message, shards that survive kill -9 and a bad hub."""

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import ROOT, WORDS, little_lm

from littlelm.cli import main

sys.path.insert(0, str(Path(__file__).parents[1] / "data"))
from hub_server import Random, serve

RUN = """
extends: {demo}
run: {{name: data, dir: {here}/run, steps: {steps}}}
tokenizer: byte
train: {{global_batch_tokens: 512}}
data:
  sources: [{source}]
  validation: {{documents: 4}}
  sequence_length: 64
  cache_dir: {here}/cache
  shard_tokens: 20000
  workers: 1
"""


def run_file(here, source, steps=2, name="run.yaml"):
    path = here / name
    path.write_text(RUN.format(demo=ROOT / "configs" / "demo.yaml", here=here, steps=steps, source=source))
    return path


def command(monkeypatch, capsys, *arguments):
    """Run the command line in this process: (exit code, what it printed)."""
    monkeypatch.setattr(sys, "argv", ["little-lm", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    shown = capsys.readouterr()
    return ended.value.code or 0, shown.out + shown.err


def documents(count, seed=1):
    chooser = random.Random(seed)
    return [" ".join(chooser.choice(WORDS) for _ in range(chooser.randint(20, 200))) for _ in range(count)]


def write_parquet(path, texts):
    pq.write_table(pa.table({"text": texts}), path, row_group_size=20)


def missing_column(here):
    pq.write_table(pa.table({"txt": ["a"]}), here / "a.parquet")
    return "parquet: {files: ['%s/a.parquet']}", "no column 'text'; did you mean 'txt'?"


def numbers(here):
    pq.write_table(pa.table({"text": [1, 2]}), here / "a.parquet")
    return "parquet: {files: ['%s/a.parquet']}", "column 'text' holds int64, not text"


def truncated(here):
    write_parquet(here / "a.parquet", documents(50))
    (here / "a.parquet").write_bytes((here / "a.parquet").read_bytes()[:-100])
    return "parquet: {files: ['%s/a.parquet']}", "not a readable parquet file"


def empty_parquet(here):
    (here / "a.parquet").write_bytes(b"")
    return "parquet: {files: ['%s/a.parquet']}", "not a readable parquet file"


def no_rows(here):
    write_parquet(here / "a.parquet", pa.array([], pa.string()))
    return "parquet: {files: ['%s/a.parquet']}", "the corpus is empty"


def mixed_types(here):
    (here / "a.jsonl").write_text('{"text": "fine"}\n{"text": 5}\n')
    return "jsonl: {files: ['%s/a.jsonl']}", "a.jsonl:2: field 'text' holds int, not text"


def latin1(here):
    (here / "a.jsonl").write_bytes(b'{"text": "caf\xe9"}\n' * 30)
    return "jsonl: {files: ['%s/a.jsonl']}", "30 of 30 documents are not valid UTF-8, the first at byte 0"


def only_white_space(here):
    (here / "a.jsonl").write_text('{"text": ""}\n{"text": "  "}\n')
    return "jsonl: {files: ['%s/a.jsonl']}", "the corpus is empty"


@pytest.mark.parametrize(
    "made", [missing_column, numbers, truncated, empty_parquet, no_rows, mixed_types, latin1, only_white_space]
)
def test_bad_data_is_one_clear_error(tmp_path, monkeypatch, capsys, made):
    source, message = made(tmp_path)
    code, shown = command(monkeypatch, capsys, "data", "prepare", run_file(tmp_path, "{" + source % tmp_path + "}"))
    assert code == 2
    assert message in shown
    assert "Traceback" not in shown
    assert not list(tmp_path.glob("cache/data/*/manifest.json"))


def test_what_is_left_out_is_counted_and_shown(tmp_path, monkeypatch, capsys):
    lines = [json.dumps({"text": text}).encode() for text in documents(300)]
    lines += [b'{"text": "caf\xe9"}', b'{"text": ""}', b'{"text": null}']
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(lines))
    path = run_file(tmp_path, f"{{jsonl: {{files: ['{tmp_path}/a.jsonl']}}}}")
    code, shown = command(monkeypatch, capsys, "data", "prepare", path)
    assert code == 0
    for reason in ("empty", "invalid utf8", "null"):
        assert f"left out {reason}" in shown


def test_one_looks_into_what_was_prepared(tmp_path, monkeypatch, capsys):
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in documents(200)))
    path = run_file(tmp_path, f"{{jsonl: {{files: ['{tmp_path}/a.jsonl']}}}}", steps=20)
    assert command(monkeypatch, capsys, "data", "prepare", path)[0] == 0
    code, shown = command(monkeypatch, capsys, "data", "show", path, "--step", 3, "--row", 1)
    assert (code, "a.jsonl, byte" in shown) == (0, True)
    line = next(line for line in shown.splitlines() if "a.jsonl, byte" in line)
    text = shown.splitlines()[shown.splitlines().index(line) + 1][:40]
    code, shown = command(monkeypatch, capsys, "data", "where", path, text)
    assert (code, "step 3 row 1" in shown) == (0, True)
    code, shown = command(monkeypatch, capsys, "data", "stats", path, "--out", tmp_path / "lengths.png")
    assert (code, "8,192" in shown, "largest files" in shown) == (0, True, True)
    assert (tmp_path / "lengths.png").read_bytes().startswith(b"\x89PNG")
    code, shown = command(monkeypatch, capsys, "data", "verify", path)
    assert (code, "match their digests" in shown) == (0, True)
    code, shown = command(monkeypatch, capsys, "data", "plan", path)
    assert (code, "the bottleneck is" in shown) == (0, True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["show", "--step", "99"], "the run has 2 steps, counted from 0"),
        (["show", "--row", "8"], "a step has 8 rows, counted from 0"),
        (["prepare", "--shard-range", "2/2"], "expected i/n with i from 0 to n - 1"),
        (["stats", "--out", "/nowhere/a.png"], "/nowhere/a.png: cannot be written"),
    ],
)
def test_a_mistake_on_the_command_line_is_one_clear_error(tmp_path, monkeypatch, capsys, arguments, message):
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in documents(60)))
    path = run_file(tmp_path, f"{{jsonl: {{files: ['{tmp_path}/a.jsonl']}}}}")
    code, shown = command(monkeypatch, capsys, "data", arguments[0], path, *arguments[1:])
    assert (code, message in shown) == (2, True), shown


def contents(cache):
    return {
        str(path.relative_to(cache)): path.read_bytes()
        for part in ("shards", "validation", "data")
        for path in (cache / part).rglob("*")
        if path.is_file() and path.suffix != ".lock"
    }


@pytest.mark.parametrize("keep_raw", ["true", "false"])
def test_a_bad_hub_and_five_kills_change_no_byte(tmp_path, keep_raw):
    """Cut, stalled and wrong answers, and kill -9 as soon as another shard is there: what results is what a calm hub
    and an undisturbed process give."""
    for number in range(8):
        (tmp_path / "repo").mkdir(exist_ok=True)
        write_parquet(tmp_path / "repo" / f"{number:02}.parquet", documents(80, seed=number))

    def prepare(place, url):
        (tmp_path / place).mkdir(exist_ok=True)
        source = (
            f"{{hub: {{repo: some/words, endpoint: '{url}', held_out: [07.parquet], keep_raw: {keep_raw}, "
            "backoff_seconds: 0.05, stall_seconds: 1.0, parallel_downloads: 2}}"
        )
        path = run_file(tmp_path / place, source, steps=500)
        line = [sys.executable, "-m", "littlelm.cli", "data", "prepare", str(path)]
        return subprocess.Popen(line, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    kills = 0
    with serve(tmp_path / "repo", misbehave=Random(seed=5, rate=0.4)) as hub:
        while True:
            process = prepare("bad", hub.url)
            shards = len(list(tmp_path.glob("bad/cache/shards/*/*.json")))
            while kills < 5 and process.poll() is None:
                if len(list(tmp_path.glob("bad/cache/shards/*/*.json"))) > shards:
                    process.send_signal(signal.SIGKILL)
                    kills += 1
                    break
                time.sleep(0.002)
            shown, _ = process.communicate()
            if process.returncode != -signal.SIGKILL:
                assert process.returncode == 0, shown
                break
    assert kills >= 3
    with serve(tmp_path / "repo") as hub:
        process = prepare("calm", hub.url)
        shown, _ = process.communicate()
        assert process.returncode == 0, shown
    assert contents(tmp_path / "bad" / "cache") == contents(tmp_path / "calm" / "cache")
    raw = list(tmp_path.glob("bad/cache/hub/**/*.parquet"))
    assert bool(raw) == (keep_raw == "true")


def test_items_of_a_benchmark_in_the_text_are_reported_by_task(tmp_path, monkeypatch, capsys):
    sys.path.insert(0, str(Path(__file__).parents[1] / "evals" / "core"))
    from core_bundles import content, write_bundle

    from littlelm.evals.core.bundle import item_texts, open_bundle

    bundle = open_bundle(str(write_bundle(tmp_path / "bundle", content())), tmp_path)
    task, item = next(
        (t, i) for t in bundle.tasks for i in bundle.items(t) if len(" ".join(item_texts(t, i)).split()) > 20
    )
    texts = [*documents(60), "Here it stands: " + " ".join(item_texts(task, item)).upper() + " -- and goes on."]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    path = run_file(tmp_path, f"{{jsonl: {{files: ['{tmp_path}/a.jsonl']}}}}")
    code, shown = command(monkeypatch, capsys, "data", "contamination", path, "--bundle", tmp_path / "bundle")
    assert code == 0, shown
    line = next(line for line in shown.splitlines() if line.split()[:1] == [task.label])
    assert int(line.split()[3]) >= 1
    assert f"{task.label} item" in shown
    code, shown = command(monkeypatch, capsys, "data", "contamination", path, "--bundle", tmp_path / "nowhere")
    assert (code, "no such bundle" in shown) == (2, True)


def test_a_prolonged_run_keeps_the_files_it_began_with(tiny, tmp_path):
    for number in range(6):
        (tmp_path / "repo").mkdir(exist_ok=True)
        write_parquet(tmp_path / "repo" / f"{number:02}.parquet", documents(30, seed=number))
    with serve(tmp_path / "repo") as hub:
        source = (
            f"[{{hub: {{repo: some/words, endpoint: '{hub.url}', held_out: [05.parquet], tokens_per_raw_byte: 1.0}}}}]"
        )
        options = ["--set", f"data.sources={source}", "--set", f"data.cache_dir={tmp_path}/cache"]
        first = little_lm("train", tiny, *options)
        assert first.returncode == 0, first.stderr
        fetched = sorted(path.name for path in tmp_path.glob("cache/hub/**/*.parquet"))
        asked = len(hub.requests)
    longer = little_lm("train", tiny, *options, "--set", "run.steps=60")  # and the hub is gone
    assert longer.returncode == 0, longer.stdout + longer.stderr
    assert "data: 'corpus' is read" in longer.stdout
    assert 2 <= len(fetched) < 6
    assert sorted(path.name for path in tmp_path.glob("cache/hub/**/*.parquet")) == fetched
    assert asked == len(hub.requests)
