"""The report of a run: one self-contained HTML file."""

from littlelm.report.write import write_report

__all__ = ["write_report"]
