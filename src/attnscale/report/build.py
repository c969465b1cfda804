"""The report of a sweep from its records alone: tables, figures, page.

- results.csv, results.parquet: one row a case
- figures/*.png, *.svg: scaling curves, or bars where no numeric axis was swept
- report.html: all of it in one file
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from attnscale.record import CASES_FOLDER, Record, Skipped, read_sweep, write_atomically

if TYPE_CHECKING:
    import pandas

PAGE_NAME = "report.html"
FIGURES_FOLDER = "figures"


class ReportError(ValueError):
    """A folder that no report can be made of, in one line."""


@dataclass(frozen=True, slots=True)
class Report:
    """What was built."""

    folder: Path
    records: Sequence[Record]
    skipped: Sequence[Skipped]
    table: "pandas.DataFrame"
    figures: Sequence[Path]
    """The PNG files."""
    notes: Sequence[str]
    """What could not be built, and why."""

    @property
    def page(self) -> Path:
        return self.folder / PAGE_NAME


def build_report(folder: Path) -> Report:
    """Read every record under ``folder`` and write its report there.

    ReportError when it holds none or can't be written to.
    """
    if not folder.is_dir():
        raise ReportError(f"{folder}: there is no such folder")
    records, skipped = read_sweep(folder)
    if not records:
        unread = f"; {skipped[0].path.parent.name}: {skipped[0].why}" if skipped else ""
        raise ReportError(f"{folder}: no readable record in {CASES_FOLDER}/*/record.json{unread}")
    try:
        return _write(folder, records, skipped)
    except OSError as error:
        where = error.filename or folder
        raise ReportError(f"{where}: can't be written: {error.strerror or error}") from error


def _write(folder: Path, records: Sequence[Record], skipped: Sequence[Skipped]) -> Report:
    from attnscale.analyse.frame import frame, write_tables
    from attnscale.report import page, plots

    table = frame(records)
    notes = write_tables(table, folder)
    figures = plots.draw_all(table, _emptied(folder / FIGURES_FOLDER))
    html = page.render(records, table, skipped, figures, notes, sweep_id=folder.resolve().name)
    write_atomically(folder / PAGE_NAME, html)
    pngs = [figure.path.with_suffix(".png") for figure in figures]
    return Report(folder, records, skipped, table, pngs, notes)


def _emptied(folder: Path) -> Path:
    """The folder without the figures of an earlier build."""
    folder.mkdir(exist_ok=True)
    for path in folder.iterdir():
        if path.suffix in (".png", ".svg"):
            path.unlink()
    return folder
