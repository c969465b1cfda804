"""A sweep: its folder, its cases one after another, and how it closes.

Knows neither Hydra nor torch: a job is a case and a callable that leaves the case's record.
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from attnscale.case import Case, InvalidConfig
from attnscale.record import Record
from attnscale.report.tracker import Tracker

EXIT_OK = 0
EXIT_FAILED_CASES = 1
EXIT_INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class Job:
    """A case and what measures it; ``run`` writes the record before it returns it."""

    case: Case
    run: Callable[[], Record]


def new_folder(parent: Path) -> Path:
    """A new folder named by the second, numbered when another sweep started in the same one.

    mkdir is atomic, so two sweeps never share a folder. InvalidConfig when it can't be made.
    """
    stamp = datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    attempt = 1
    while True:
        folder = parent / (stamp if attempt == 1 else f"{stamp}-{attempt}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            if not parent.is_dir():
                raise InvalidConfig("output_dir", parent, "it is a file, a folder is needed") from None
            attempt += 1
        except OSError as error:
            raise InvalidConfig("output_dir", parent, f"{error.strerror}") from error
        else:
            return folder


def run_sweep(jobs: Sequence[Job], folder: Path, tracker: Tracker | None) -> int:
    """Run every distinct case, build the report from the records, print the table; the exit code."""
    console = Console(stderr=True)
    unique = _distinct(jobs, console)
    try:
        _run_all(unique, console)
        interrupted = False
    except KeyboardInterrupt:
        console.print("interrupted: the report holds what was measured until now")
        interrupted = True
    failed = _close(folder, tracker, planned=len(unique))
    if interrupted:
        return EXIT_INTERRUPTED
    return EXIT_FAILED_CASES if failed else EXIT_OK


def _distinct(jobs: Iterable[Job], console: Console) -> list[Job]:
    kept: dict[str, Job] = {}
    repeated: Counter[str] = Counter()
    for job in jobs:
        if job.case.key in kept:
            repeated[job.case.key] += 1
        kept.setdefault(job.case.key, job)
    for key, count in repeated.items():
        times = "once" if count == 1 else f"{count} times"
        console.print(f"{kept[key].case.slug} is asked for {times} more; it runs once", highlight=False)
    return list(kept.values())


def _run_all(jobs: Sequence[Job], console: Console) -> None:
    """One progress bar on a terminal, one line a case elsewhere.

    The bar moves between cases only: a thread that redraws it would run beside the measuring.
    """
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    quiet = not console.is_terminal
    with Progress(*columns, console=console, disable=quiet, auto_refresh=False) as progress:
        bar = progress.add_task("", total=len(jobs))
        for number, job in enumerate(jobs, start=1):
            progress.update(bar, description=job.case.slug, refresh=True)
            record = job.run()
            progress.advance(bar)
            progress.console.print(
                f"[{number}/{len(jobs)}] {job.case.slug} {_in_short(record)}",
                markup=False,
                highlight=False,
                soft_wrap=True,
            )


def _in_short(record: Record) -> str:
    outcome = record.outcome
    if outcome.metrics.latency_ms is None:
        return f"{outcome.status}: {outcome.reason}"
    return f"{outcome.status} {outcome.metrics.latency_ms:.3f} ms"


def _close(folder: Path, tracker: Tracker | None, planned: int) -> bool:
    """Report, W&B and table from the records on disk; whether a case ended otherwise than expected."""
    from attnscale.report import terminal
    from attnscale.report.build import ReportError, build_report

    try:
        built = build_report(folder)
    except ReportError as error:
        print(f"no report: {error}", file=sys.stderr)
        return True
    if tracker:
        tracker.log_report(folder.name, built.table, list(built.figures))
    terminal.show(built.records, built.table, built.skipped, folder)
    for note in built.notes:
        print(note)
    if len(built.records) < planned:
        print(f"{planned - len(built.records)} of {planned} cases did not run")
    print(f"report: {built.page}")
    return any(not record.outcome.status.expected for record in built.records)
