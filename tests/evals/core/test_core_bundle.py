"""A bundle is read whole or refused with one clear error, before any model is needed."""

import functools
import http.server
import json
import threading
from pathlib import Path

import pytest
from core_bundles import content, write_bundle, write_zip

from littlelm.data.hub.client import Patience
from littlelm.errors import UserError
from littlelm.evals.core import baselines
from littlelm.evals.core.bundle import item_texts, open_bundle
from littlelm.evals.core.fetch import fetch
from littlelm.evals.core.prepared import prepare_rows
from littlelm.filesystem import sha256_of_file
from littlelm.tokenizers.byte import ByteTokenizer


@pytest.fixture
def directory(tmp_path):
    return write_bundle(tmp_path / "bundle")


def faults(directory, tmp_path, max_per_task=None) -> str:
    with pytest.raises(UserError) as caught:
        bundle = open_bundle(str(directory), tmp_path / "cache")
        prepare_rows(bundle, ByteTokenizer(), tmp_path / "cache", max_per_task)
    assert not list((tmp_path / "cache").glob("core/*/prepared.json"))
    return str(caught.value)


def tasks_with(label, entry=None, items=None):
    tasks = content()
    old_entry, old_items = tasks[label]
    tasks[label] = ({**old_entry, **(entry or {})}, old_items if items is None else items)
    return tasks


def test_a_directory_and_a_zip_of_it_are_the_same_bundle(directory, tmp_path):
    packed = write_zip(tmp_path / "bundle.zip", directory)
    first, second = open_bundle(str(directory), tmp_path), open_bundle(str(packed), tmp_path)
    assert first.fingerprint == second.fingerprint
    assert [task.label for task in first.tasks] == [task.label for task in second.tasks] == list(content())
    assert first.items(first.tasks[0]) == second.items(second.tasks[0]) == content()["arc_easy"][1]


def test_tasks_carry_what_core_yaml_and_the_tables_say(directory, tmp_path):
    tasks = {task.label: task for task in open_bundle(str(directory), tmp_path).tasks}
    easy = tasks["arc_easy"]
    assert (easy.type, easy.shots, easy.delimiter, easy.path) == (
        "choice",
        3,
        "\nAnswer: ",
        "eval_data/some/arc_easy.jsonl",
    )
    assert (tasks["winograd"].type, tasks["coqa"].type, tasks["coqa"].delimiter) == ("schema", "lm", " ")
    assert (tasks["commonsense_qa"].baseline_v1, tasks["commonsense_qa"].baseline_v2) == (20.0, 40.3)


def test_the_two_tables_of_baselines_differ_in_three_tasks_of_22():
    assert len(baselines.V1) == len(baselines.V2) == len(baselines.ITEMS) == 22
    assert [label for label in baselines.V1 if baselines.V1[label] != baselines.V2[label]] == [
        "commonsense_qa", "agi_eval_lsat_ar", "bigbench_language_identification",
    ]  # fmt: skip


def test_the_texts_of_an_item_are_what_is_asked_and_each_answer(directory, tmp_path):
    bundle = open_bundle(str(directory), tmp_path)
    for task, count in zip(bundle.tasks, (5, 5, 3, 3, 2, 2), strict=True):
        assert len(item_texts(task, bundle.items(task)[0])) == count


def test_some_tasks_can_be_selected_and_a_wrong_label_is_an_error_with_the_nearest(directory, tmp_path):
    bundle = open_bundle(str(directory), tmp_path)
    assert [task.label for task in bundle.select(["coqa", "copa"]).tasks] == ["copa", "coqa"]
    with pytest.raises(UserError, match="did you mean 'winograd'"):
        bundle.select(["winogrand"])


def test_a_missing_task_file_is_an_error(directory, tmp_path):
    (directory / "eval_data/some/copa.jsonl").unlink()
    assert "copa.jsonl: no such file" in faults(directory, tmp_path)


def test_a_wrong_number_of_items_is_an_error_unless_the_manifest_declares_it(directory, tmp_path):
    path = directory / "eval_data/some/copa.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:4]))
    assert "copa has 4 items, 8 or 100 are expected" in faults(directory, tmp_path)
    (directory / "MANIFEST.json").write_text(json.dumps([{"label": "copa", "n": 4}]))
    assert len(open_bundle(str(directory), tmp_path).items(open_bundle(str(directory), tmp_path).tasks[2])) == 4


def test_a_file_that_is_not_the_one_of_the_manifest_is_an_error(directory, tmp_path):
    (directory / "MANIFEST.json").write_text(json.dumps([{"label": "copa", "n": 8, "sha256": "00ff"}]))
    assert "MANIFEST.json says 00ff" in faults(directory, tmp_path)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"icl_task_type": "multiple_choise"}, "did you mean 'multiple_choice'"),
        ({"num_fewshot": [-1]}, "num_fewshot must be one number"),
        ({"num_fewshot": [40]}, "arc_easy: has 12 items, but each is shown 40 others"),
    ],
)
def test_a_task_that_cannot_be_asked_is_an_error(entry, message, tmp_path):
    assert message in faults(write_bundle(tmp_path / "b", tasks_with("arc_easy", entry)), tmp_path)


def test_max_per_task_must_leave_enough_items_to_show(directory, tmp_path):
    message = faults(directory, tmp_path, max_per_task=3)
    assert "arc_easy: max_per_task is 3" in message and "needs 4 items" in message and "commonsense_qa" in message
    assert "copa" not in message


@pytest.mark.parametrize(
    ("label", "item", "message"),
    [
        ("jeopardy", {"context": "a", "continuation": " "}, "jeopardy.jsonl:1: the continuation is empty"),
        ("arc_easy", {"query": "a", "choices": ["x", ""], "gold": 0}, "the continuation is empty"),
        ("arc_easy", {"query": "a", "choices": ["x", "y"], "gold": 2}, "'gold' is 2, it must be a number from 0 to 1"),
        ("arc_easy", {"query": "a", "choices": ["x"], "gold": 0}, "two or more"),
        ("winograd", {"context_options": ["x", "y"], "gold": 0}, "needs 'continuation'"),
        ("jeopardy", {"context": 3, "continuation": "x"}, "'context' must be a text"),
    ],
)
def test_a_faulty_item_is_an_error_naming_its_line(label, item, message, tmp_path):
    items = [item, *content()[label][1]]
    assert message in faults(write_bundle(tmp_path / "b", tasks_with(label, items=items)), tmp_path)


def test_every_fault_is_told_at_once(directory, tmp_path):
    (directory / "eval_data/some/copa.jsonl").unlink()
    (directory / "eval_data/some/coqa.jsonl").write_text("{broken\n")
    message = faults(directory, tmp_path)
    assert "copa.jsonl: no such file" in message and "coqa.jsonl:1: is no JSON" in message


def test_damaged_zips_and_places_without_a_bundle_are_errors(directory, tmp_path):
    packed = write_zip(tmp_path / "bundle.zip", directory)
    raw = bytearray(packed.read_bytes())
    (tmp_path / "short.zip").write_bytes(raw[: len(raw) // 2])
    assert "no readable zip" in faults(tmp_path / "short.zip", tmp_path)
    for place in range(200, 400):  # within the compressed bytes of the first file of items or of core.yaml
        raw[place] ^= 0xFF
    (tmp_path / "flipped.zip").write_bytes(raw)
    assert "flipped.zip" in faults(tmp_path / "flipped.zip", tmp_path)
    (tmp_path / "empty").mkdir()
    assert "no core.yaml" in faults(tmp_path / "empty", tmp_path)
    assert "no such bundle" in faults(tmp_path / "nowhere", tmp_path)
    (directory / "core.yaml").write_text("tasks: []\n")
    assert "icl_tasks" in faults(directory, tmp_path)


def test_a_pinned_digest_is_checked(directory, tmp_path):
    packed = write_zip(tmp_path / "bundle.zip", directory)
    digest = sha256_of_file(packed)[1]
    assert open_bundle(str(packed), tmp_path, digest.upper()).tasks
    with pytest.raises(UserError, match=f"not the pinned {'0' * 64}"):
        open_bundle(str(packed), tmp_path, "0" * 64)
    with pytest.raises(UserError, match="64 hex digits"):
        open_bundle(str(packed), tmp_path, "abc")
    with pytest.raises(UserError, match="is a directory"):
        open_bundle(str(directory), tmp_path, digest)


class Server(http.server.SimpleHTTPRequestHandler):
    """Serves a directory; the first requests fail as the server is told."""

    def do_GET(self):
        self.server.asked += 1
        trouble = self.server.troubles.pop(0) if self.server.troubles else None
        if trouble == "cut":
            self.send_response(200)
            self.send_header("Content-Length", "100000")
            self.end_headers()
            self.wfile.write(b"x" * 10)
        elif trouble is not None:
            self.send_error(int(trouble))
        else:
            super().do_GET()

    def log_message(self, *arguments):
        pass


@pytest.fixture
def server(directory, tmp_path):
    (tmp_path / "www").mkdir()
    write_zip(tmp_path / "www" / "bundle.zip", directory)
    handler = functools.partial(Server, directory=str(tmp_path / "www"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as served:
        served.asked, served.troubles = 0, []
        served.url = f"http://127.0.0.1:{served.server_port}/bundle.zip"
        served.digest = sha256_of_file(Path(tmp_path / "www" / "bundle.zip"))[1]
        thread = threading.Thread(target=served.serve_forever)
        thread.start()
        yield served
        served.shutdown()
        thread.join()


FAST = Patience(retries=3, backoff=0.01, stall=5)


def test_a_url_is_fetched_once_through_trouble(server, tmp_path):
    server.troubles = ["503", "cut"]
    said: list[str] = []
    path = fetch(server.url, server.digest, tmp_path / "cache" / "bundles", said.append, FAST)
    assert sha256_of_file(path)[1] == server.digest
    assert (server.asked, len(said)) == (3, 2)
    assert open_bundle(server.url, tmp_path / "cache", server.digest).tasks
    assert server.asked == 3


def test_a_url_that_cannot_be_had_is_an_error_and_leaves_nothing(server, tmp_path):
    quiet = lambda message: None  # noqa: E731
    with pytest.raises(UserError, match="HTTP 404"):
        fetch(server.url + "x", server.digest, tmp_path / "c", quiet, FAST)
    server.troubles = ["500"] * 9
    with pytest.raises(UserError, match="4 attempts"):
        fetch(server.url, server.digest, tmp_path / "c", quiet, FAST)
    server.troubles = []
    with pytest.raises(UserError, match="not the pinned"):
        fetch(server.url, "0" * 64, tmp_path / "c", quiet, FAST)
    assert not list((tmp_path / "c").glob("*.zip"))
    with pytest.raises(UserError, match="needs its sha256"):
        open_bundle(server.url, tmp_path)
