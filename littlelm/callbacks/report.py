"""report.html, kept up to date while the run goes on."""

from __future__ import annotations

from littlelm.callbacks.base import Callback, Run


class ReportCallback(Callback):
    """Writes the report when due and at the end."""

    phase = Callback.PRESENT

    def on_due(self, run: Run) -> None:
        if run.is_main:
            from littlelm.report import write_report

            with run.ledger.part("report"):
                run.ledger.write()
                write_report(run.directory)

    def on_end(self, run: Run) -> None:
        self.on_due(run)
