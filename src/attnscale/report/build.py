"""The report of a sweep from its records alone: tables, figures, page.

- results.csv, results.parquet: one row a case
- kernels.csv: one row a case, kernel and part of the model
- noise.json: how far the same case comes out elsewhere when it is measured again
- figures/*.png, *.svg: scaling curves, or bars where no numeric axis was swept
- report.html: all of it in one file
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from attnscale.manifest import MANIFEST_NAME, Manifest, read_manifest
from attnscale.record import (
    CASES_FOLDER,
    Record,
    Skipped,
    Status,
    read_repeats,
    read_sweep,
    write_atomically,
)

if TYPE_CHECKING:
    import pandas

    from attnscale.analyse.noise import Noise

Text = TypeVar("Text", bound=str)

PAGE_NAME = "report.html"
FIGURES_FOLDER = "figures"
DEEP = 80
"""Layers that the report predicts where a sweep holds a ladder; ``attnscale predict`` takes any."""


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
    """What a reader must know besides: what could not be built, did not run, or was not alone."""
    not_run: Sequence[str]
    """Slugs of the cases that the sweep was meant to hold and has no readable record of."""

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
    from attnscale.analyse.found import unproven, unread
    from attnscale.analyse.frame import frame, write_tables
    from attnscale.analyse.guesses import mismatches
    from attnscale.analyse.kernels import kernel_frame
    from attnscale.analyse.noise import NOISE_NAME, measured_noise
    from attnscale.analyse.utilisation import impossible
    from attnscale.report import page, plots, predicted

    repeats, damaged = read_repeats(folder)
    noise = measured_noise(records, repeats)
    write_atomically(folder / NOISE_NAME, noise.model_dump_json(indent=1) + "\n")
    table = frame(records, noise)
    skipped = [*skipped, *damaged]
    kernels = kernel_frame(records).to_csv(index=False, lineterminator="\n")
    write_atomically(folder / "kernels.csv", kernels)
    manifest, damage = _manifest(folder)
    measured = {record.key for record in records}
    not_run = [one.slug for one in manifest.cases if one.key not in measured] if manifest else []
    notes = [
        *write_tables(table, folder),
        *damage,
        *_not_run(not_run, manifest),
        *_not_alone(records),
        *unproven(records),
        *unread(records),
        *impossible(records),
        *_unsettled(records),
        *_noise(records, noise),
    ]
    guesses = mismatches(records, manifest.guesses if manifest else [])
    commands = manifest.commands if manifest else distinct(r.environment.command for r in records)
    depth = predicted.figure(records, DEEP, noise)
    figures = plots.draw_all(table, _emptied(folder / FIGURES_FOLDER), depth)
    html = page.render(
        records,
        table,
        skipped,
        figures,
        notes,
        commands,
        guesses,
        predicted.every_series(records, DEEP, noise)[0],
        folder.resolve().name,
    )
    write_atomically(folder / PAGE_NAME, html)
    pngs = [figure.path.with_suffix(".png") for figure in figures]
    return Report(folder, records, skipped, table, pngs, notes, not_run)


def distinct(values: Iterable[Text]) -> list[Text]:
    """Each once, in the order first seen."""
    return list(dict.fromkeys(values))


def _manifest(folder: Path) -> tuple[Manifest | None, list[str]]:
    """It only says what is missing, so a damaged one costs no report."""
    try:
        return read_manifest(folder), []
    except ValueError as error:
        return None, [f"{MANIFEST_NAME} can't be read ({error}): which cases did not run is unknown"]


def _not_run(slugs: Sequence[str], manifest: Manifest | None) -> list[str]:
    if not slugs or manifest is None:
        return []
    some = ", ".join(slugs[:3]) + (", ..." if len(slugs) > 3 else "")
    return [f"{len(slugs)} of {len(manifest.cases)} cases did not run ({some}); resume=FOLDER runs them"]


def _not_alone(records: Sequence[Record]) -> list[str]:
    beside = [record for record in records if record.environment.foreign_processes]
    if not beside:
        return []
    seen = distinct(name for r in beside for name in r.environment.foreign_processes or [])
    return [
        f"{len(beside)} of {len(records)} cases were measured beside another process on their GPU, "
        f"which can slow them and take their memory: {', '.join(seen)}"
    ]


def _unsettled(records: Sequence[Record]) -> list[str]:
    """Those that were to settle and did not; one that was not asked to is no news."""
    marked = [
        record
        for record in records
        if record.case.timing.settle_seconds
        and record.outcome.settling
        and not record.outcome.settling.settled
    ]
    if not marked:
        return []
    settling = marked[0].outcome.settling
    why = settling.why if settling else None
    return [
        f"{len(marked)} of {len(records)} cases had not settled when sampling began "
        f"({marked[0].slug}: {why}); a longer timing.settle_seconds may help"
    ]


def _noise(records: Sequence[Record], noise: "Noise") -> list[str]:
    from attnscale.analyse.noise import in_words

    kinds = distinct(r.outcome.kind for r in records if r.outcome.status is Status.OK and r.outcome.kind)
    unknown = [kind for kind in kinds if kind not in noise.by_kind]
    said = in_words(noise)
    if unknown and len(records) > 1:
        said.append(
            f"the noise between runs is unknown for {' and '.join(unknown)} cases, for none was "
            "measured again: differences are judged by the intervals within each run alone"
        )
    return said


def _emptied(folder: Path) -> Path:
    """The folder without the figures of an earlier build."""
    folder.mkdir(exist_ok=True)
    for path in folder.iterdir():
        if path.suffix in (".png", ".svg"):
            path.unlink()
    return folder
