"""From a run directory to report.html."""

from __future__ import annotations

import datetime
from pathlib import Path
from string import Template

from littlelm import __version__
from littlelm.filesystem import write_atomically, writing
from littlelm.report import sections
from littlelm.report.config_listing import listing
from littlelm.report.contents import RunContents, read_run

_PAGE = Path(__file__).with_name("page.html")


def render(run: RunContents) -> str:
    """The whole page. Everything is inline: it opens without a network, from a mail or a bucket, in ten years."""
    started = min((session["started_unix"] for session in run.sessions), default=None)
    when = "" if started is None else datetime.datetime.fromtimestamp(started, datetime.UTC).strftime("%d %B %Y")
    subtitle = ", ".join(part for part in (sections.device(run), when) if part)
    return Template(_PAGE.read_text(encoding="utf-8")).substitute(
        title=sections.text(run.name),
        state=sections.state(run),
        subtitle=sections.text(subtitle),
        headline=sections.headline(run),
        validation_chart=sections.validation_chart(run),
        core_chart=sections.core_chart(run),
        training_charts=sections.training_charts(run),
        samples=sections.samples(run),
        time_and_money=sections.time_and_money(run),
        next_commands=sections.next_commands(run),
        meaning=sections.meaning(run),
        config=listing(run.config, run.config_text),
        config_note=sections.text(run.config_problem or "Bold: not the default. Every other value is the default."),
        environment=sections.environment(run),
        version=sections.text(__version__),
    )


def write_report(run_directory: Path) -> Path:
    """Write `report.html` into a run directory, whatever state the run is in; returns its path.

    Raises:
        UserError: no run directory, a damaged file in it, or no permission to write.
    """
    run = read_run(Path(run_directory))
    path = run.directory / "report.html"
    page = render(run).encode()
    with writing(path):
        write_atomically(path, page)
    return path
