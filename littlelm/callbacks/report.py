"""report.html, kept up to date while the run goes on."""

from __future__ import annotations

from littlelm.callbacks.base import Callback, Run


class ReportCallback(Callback):
    """Writes the report when due and at the end."""

    phase = Callback.PRESENT

    def on_due(self, run: Run) -> None:
        if run.state.step < run.total_steps:  # the one at the end is written by on_end
            self._write(run)

    def on_end(self, run: Run) -> None:
        self._write(run)

    def _write(self, run: Run) -> None:
        if not run.is_main:
            return
        from littlelm.report import write_report

        with run.ledger.part("report"):
            run.ledger.write()
            try:
                write_report(run.directory)
            except Exception as error:  # a picture is not worth a run: say so, and how to see the whole error
                run.console.print(
                    f"the report could not be written: {type(error).__name__}: {error}\n"
                    f"training is not affected; `little-lm report {run.directory}` shows the error in full",
                    markup=False,
                )
