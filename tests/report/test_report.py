"""report.html: self-contained, true to the run's files, and written whatever state the run is in."""

import errno
import json
import re
from html.parser import HTMLParser

import pytest

from littlelm import units
from littlelm.config.load import dump
from littlelm.errors import UserError
from littlelm.report import write_report
from littlelm.report.charts import MAX_POINTS, NARROW, Curve, bins, line_chart
from littlelm.report.config_listing import listing
from littlelm.report.contents import read_run
from littlelm.report.sections import learning_rates
from littlelm.train.configs import load_run

HOUR = 3_600_000_000_000
FACTS = {
    "parameters": 48_000,
    "flops_per_token": 221_184.0,
    "peak_flops": 1e11,
    "peak_source": "measured <float32> product",
    "precision": "compute fp32, as the file says",
    "world_size": 2,
}


def train_record(step, **values):
    facts = {"loss": 8.0 / step, "grad_norm": 0.5, "lr": 0.02, "lr_matrix": 0.02, "lr_head": 0.01}
    speed = {"tokens_per_second": 5000.0 + step, "mfu": 0.25, "step_seconds": 0.1, "data_wait_seconds": 0.0}
    return {"kind": "train", "step": step, "tokens": 512 * step, "seconds": step / 10, **facts, **speed, **values}


def eval_record(step, bits_per_byte):
    measured = {"bits_per_byte": bits_per_byte, "loss": 3.0, "targets": 900, "bytes": 4321}
    return {"kind": "eval", "step": step, "tokens": 512 * step, "seconds": step / 10, **measured}


def sample_record(step, prompt, text):
    return {"kind": "sample", "step": step, "tokens": 512 * step, "seconds": step / 10, "prompt": prompt, "text": text}


@pytest.fixture
def bare(tiny, tmp_path):
    """A run directory that holds only its config (20 steps)."""
    directory = tmp_path / "my run"
    directory.mkdir()
    (directory / "config.yaml").write_text(dump(load_run(tiny).config))
    return directory


@pytest.fixture
def run(bare):
    """A complete run of two sessions, with a price."""
    records = [train_record(step) for step in range(1, 21)]
    records += [eval_record(10, 2.5), eval_record(15, 1.9), eval_record(20, 2.0)]
    records += [sample_record(10, "Once", " early"), sample_record(20, "Once", " late"), sample_record(20, "Two", " x")]
    write_records(bare, records)
    environment = {"schema_version": 1, "cpu": {"model": "A CPU", "torch_threads": 2}, "git_dirty": True, "run": FACTS}
    (bare / "environment.json").write_text(json.dumps(environment))
    sessions = [
        {"started_unix": 1.79e9, "usd_per_hour": 2.0, "parts_ns": {"train": 3 * HOUR, "evaluate": HOUR}},
        {"started_unix": 1.80e9, "usd_per_hour": 4.0, "parts_ns": {"train": 1 * HOUR, "lost": HOUR // 2}},
    ]
    (bare / "ledger.json").write_text(json.dumps({"schema_version": 1, "usd_per_hour": 4.0, "sessions": sessions}))
    return bare


def write_records(directory, records):
    (directory / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))


class Page(HTMLParser):
    """Tags, attributes and visible text of a page; fails on tags that do not nest."""

    VOID = frozenset({"meta", "br", "img", "link", "hr", "input"})

    def __init__(self, source):
        super().__init__()
        self.source = source
        self.open: list[str] = []
        self.tags: list[tuple[str, dict]] = []
        self.words: list[str] = []
        self.feed(source)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.words.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())


def page_of(directory):
    return Page(write_report(directory).read_text(encoding="utf-8"))


def test_the_page_is_one_file_that_asks_for_nothing(run):
    page = page_of(run)
    names = {tag for tag, _ in page.tags}
    assert not names & {"script", "link", "img", "iframe", "object", "base", "form"}
    for tag, attributes in page.tags:
        for name, value in attributes.items():
            assert not name.startswith("on"), f"<{tag} {name}>"
            if name in ("href", "xlink:href", "src", "clip-path", "style") and value:
                assert "//" not in value, f"<{tag} {name}={value}>"
    style = page.source[page.source.index("<style>") : page.source.index("</style>")]
    assert "@import" not in style and "url(" not in style


def test_ids_are_unique_and_every_reference_has_its_target(run):
    page = page_of(run)
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    for target in re.findall(r"(?:url\(#|href=\"#)([^)\"]+)", page.source):
        assert target in ids


def test_pictures_take_every_colour_from_the_page(run):
    page = page_of(run)
    pictures = re.findall(r"<svg.*?</svg>", page.source, flags=re.DOTALL)
    assert len(pictures) == 6
    for picture in pictures:
        assert re.findall(r"#[0-9a-fA-F]{6}\b", picture) == []
        for variable in set(re.findall(r"var\((--[a-z0-9-]+)\)", picture)):
            assert page.source.count(f"{variable}: ") >= 2 or variable == "--font", f"{variable} has no dark value"


def test_the_headline_says_what_was_reached_and_of_what(run):
    text = page_of(run).text
    assert "complete, 20 steps" in text
    assert "bits per byte 2.0000 validation, 4,321 bytes; best 1.9000 at 7.68k tokens" in text
    assert "tokens/s 5,010" in text  # the median of 5001..5020
    assert "MFU 25.0% of 200 GFLOP/s; formula below" in text  # two processes
    assert "parameters 48k" in text
    assert "tokens 10.2k" in text
    assert "time 5 h 30 min 1 restart" in text
    assert "cost $14.00 at $4.00 an hour" in text
    assert "2 processes on A CPU, 2 threads" in text


def test_every_utilisation_stands_beside_its_formula_and_the_source_of_its_peak(run):
    text = page_of(run).text
    assert "6 × matmul parameters" in text and "221 kFLOP" in text
    assert "100 GFLOP/s × 2 processes, measured <float32> product" in text


def test_time_and_money_of_all_sessions_add_up(run):
    contents = read_run(run)
    assert [(part.name, part.seconds, part.usd) for part in contents.parts] == [
        ("train", 4 * 3600.0, 10.0), ("evaluate", 3600.0, 2.0), ("lost", 1800.0, 2.0),
    ]  # fmt: skip
    assert contents.seconds == 5.5 * 3600
    assert contents.usd == 14.0
    text = page_of(run).text
    assert "train forward, backward, optimizer 4 h 0 min 72.7% $10.00" in text
    assert "in all 5 h 30 min 100.0% $14.00" in text


def test_a_session_without_a_price_counts_in_time_alone(run):
    ledger = json.loads((run / "ledger.json").read_text())
    for session in ledger["sessions"]:
        session["usd_per_hour"] = None
    (run / "ledger.json").write_text(json.dumps(ledger))
    text = page_of(run).text
    assert "$" not in text
    ledger["sessions"][0]["usd_per_hour"] = 2.0
    (run / "ledger.json").write_text(json.dumps(ledger))
    text = page_of(run).text
    assert "cost $8.00" in text
    assert "lost steps that a kill made to be done again 30 min 0 s 9.1% –" in text


def test_time_that_a_kill_left_unknown_is_said_beside_the_sum(run):
    ledger = json.loads((run / "ledger.json").read_text())
    first, last = ledger["sessions"]
    first["closed"], last["closed"] = True, False  # the newest is under way, not killed
    (run / "ledger.json").write_text(json.dumps(ledger))
    assert "killed:" not in page_of(run).text
    first["closed"] = False
    (run / "ledger.json").write_text(json.dumps(ledger))
    assert "1 session was killed: up to 10 s before each kill are not in this sum" in page_of(run).text


def test_samples_show_the_newest_and_keep_the_earlier(run):
    text = page_of(run).text
    assert "Once late step 20, after 10.2k tokens 1 earlier step 10 early" in text
    assert "Two x step 20" in text


def test_text_of_the_model_cannot_become_markup(run):
    evil = "<script>alert(1)</script>$title ${x} & \x00\x1b[31m </p></blockquote>"
    write_records(run, [train_record(1), sample_record(1, evil, evil)])
    page = page_of(run)
    assert "script" not in {tag for tag, _ in page.tags}
    assert "<script>alert(1)</script>$title ${x} & \ufffd\ufffd[31m </p></blockquote>" in page.text
    assert "\x00" not in page.source and "\x1b" not in page.source


def test_a_run_directory_with_nothing_but_a_config_has_a_report(bare):
    text = page_of(bare).text
    assert "step 0 of 20 (0%)" in text
    for empty in ("No evaluation yet", "No samples yet", "No ledger yet", "appear with the second step"):
        assert empty in text
    assert "little-lm train" in text


@pytest.mark.parametrize("count", [1, 2, 13])
def test_a_run_under_way_or_torn_by_a_kill_has_a_report(bare, count):
    write_records(bare, [train_record(step, mfu=None) for step in range(1, count + 1)])
    with (bare / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "st')
    text = page_of(bare).text
    assert f"step {count} of 20 ({count / 20:.0%})" in text
    assert f"training loss {8 / count:.4f} not evaluated yet" in text


def test_values_that_are_not_finite_are_gaps_and_skipped_steps_are_named(run):
    records = [train_record(step) for step in range(1, 21)]
    records[4] = train_record(5, loss=None, grad_norm=None, skipped=True)
    write_records(run, [*records, eval_record(10, None), eval_record(20, 1.5)])
    page = page_of(run)
    assert "not finite: step 5." in page.text
    assert "bits per byte 1.5000" in page.text
    assert re.search(r"\bnan\b", page.source, flags=re.IGNORECASE) is None


def test_the_next_command_is_ready_to_type(run):
    text = page_of(run).text
    assert "little-lm train" not in text  # complete
    assert "little-lm sample" not in text  # no checkpoint
    (run / "checkpoints" / "step-00000020").mkdir(parents=True)
    assert f"little-lm sample '{run}' --prompt" in page_of(run).text  # the space in its name is quoted


def test_the_report_of_a_checkpoint_is_that_of_its_run(run):
    checkpoint = run / "checkpoints" / "step-00000020"
    checkpoint.mkdir(parents=True)
    (checkpoint / "manifest.json").write_text("{}")
    assert write_report(checkpoint) == write_report(checkpoint.parent) == run / "report.html"


def test_the_same_run_gives_the_same_bytes(run):
    first = write_report(run).read_bytes()
    assert write_report(run).read_bytes() == first


def test_config_choices_stand_out_from_defaults(tiny):
    shown = listing(load_run(tiny).config, "")
    assert "<b>  hidden_size: 32</b>\n" in shown
    assert "<b>optimizer: composite</b>" in shown
    assert "\n  rope_theta: 10000.0\n" in shown  # a default: plain
    assert "<b>    - text</b>\n" in shown
    plain = re.sub("</?b>", "", shown)
    assert "  prompts: ['The ']" in plain.replace("&#x27;", "'")
    assert listing(None, "a: <b>") == "a: &lt;b&gt;"


def test_a_config_whose_plugin_is_gone_is_shown_as_it_is(run):
    path = run / "config.yaml"
    path.write_text(path.read_text().replace("plugins: []", "plugins: [gone.py]"))
    text = page_of(run).text
    assert "gone.py" in text
    assert "step 20" in text and "hidden_size: 32" in text


def test_a_directory_that_is_no_run_is_a_user_error(tmp_path):
    with pytest.raises(UserError, match="no such run directory"):
        write_report(tmp_path / "absent")
    with pytest.raises(UserError, match=r"holds no config\.yaml"):
        write_report(tmp_path)


@pytest.mark.parametrize("content", ["{", "[1]", '{"schema_version": 2}'])
@pytest.mark.parametrize("name", ["ledger.json", "environment.json"])
def test_a_damaged_or_later_file_is_a_user_error_that_names_it(run, name, content):
    (run / name).write_text(content)
    with pytest.raises(UserError, match=name):
        write_report(run)
    assert not (run / "report.html").exists()


def test_long_curves_are_drawn_with_a_bounded_number_of_points():
    points = [(float(i), float(i % 7)) for i in range(100_001)]
    groups = bins(points, MAX_POINTS)
    assert len(groups) <= MAX_POINTS
    assert min(group[2] for group in groups) == 0 and max(group[3] for group in groups) == 6  # extremes survive
    assert sum(group[0] for group in groups) / len(groups) == pytest.approx(50_000, rel=0.01)
    curve = Curve("y", [x for x, _ in points], [y for _, y in points], smooth=True)
    assert len(line_chart("t", [curve], NARROW)) < 60_000


def test_a_curve_without_any_finite_value_is_an_empty_picture():
    assert line_chart("t", [Curve("y", [1.0, 2.0], [None, float("nan")])], NARROW).startswith("<svg")


def test_roles_that_share_a_learning_rate_share_a_curve():
    records = [train_record(step, lr_head=0.01, lr_embedding=0.01) for step in (1, 2)]
    assert sorted(curve.label for curve in learning_rates(records)) == ["embedding, head", "matrix"]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (units.human(7_412_352), "7.41M"), (units.human(999_999), "1M"), (units.human(0), "0"),
        (units.human(65e9), "65B"), (units.human(512), "512"), (units.human(0.25), "0.25"),
        (units.flops(2.25e15), "2.25 PFLOP"), (units.flops(37.7e6), "37.7 MFLOP"),
        (units.duration(0.012), "12 ms"), (units.duration(8.44), "8.4 s"), (units.duration(59.99), "1 min 0 s"),
        (units.duration(3599.7), "1 h 0 min"), (units.duration(155_400), "43 h 10 min"),
        (units.usd(998.2), "$998.20"), (units.usd(0.0123), "$0.0123"), (units.usd(0), "$0.00"),
        (units.usd(1234.5), "$1,234.50"),
    ],
)  # fmt: skip
def test_numbers_read_as_people_write_them(text, wanted):
    assert text == wanted


def test_a_report_that_cannot_be_written_is_a_user_error(run, monkeypatch):
    def full(path, data):
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr("littlelm.report.write.write_atomically", full)
    with pytest.raises(UserError, match=r"report.html: cannot be written: No space left on device"):
        write_report(run)
