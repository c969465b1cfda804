"""What a sweep or a rebuilt report says in the terminal: a table of 80 columns, plain when piped."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from attnscale.analyse.utilisation import utilisation
from attnscale.analyse.where import evidence
from attnscale.evidence.findings import findings
from attnscale.record import Record, Skipped, Status, log_path, record_path
from attnscale.report.numbers import GIB, interval, number, printable, short

if TYPE_CHECKING:
    import pandas
    from rich.console import Console
    from rich.table import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class _Column:
    header: str
    cells: Sequence[str]
    justify: Literal["left", "right"] = "right"
    dispensable: int = 0
    """The column of the highest number goes first when all do not fit; 0 always stays."""

    @property
    def width(self) -> int:
        return max(len(line) for line in [*self.header.split("\n"), *self.cells])


def show(
    records: Sequence[Record], table: "pandas.DataFrame", skipped: Sequence[Skipped], folder: Path
) -> None:
    """The results of a sweep on stdout: one case in full, several as a table, then what failed."""
    from rich.console import Console

    console = Console(highlight=False)
    if len(records) == 1:
        console.print(_one_case(records[0]))
    elif records:
        _print_table(table, console)
    show_unexpected(records, skipped, folder, console)


def show_unexpected(
    records: Sequence[Record], skipped: Sequence[Skipped], folder: Path, console: "Console"
) -> None:
    """A line for each case that is not ok, with its reason, and for each file that can't be read."""
    for record in records:
        outcome = record.outcome
        if outcome.status is not Status.OK:
            reason = printable(outcome.reason)
            log = log_path(folder, record.case)
            where = log if log.exists() else record_path(folder, record.case)
            _print_line(f"{outcome.status}: {record.slug}: {reason} (more in {where})", console)
    for entry in skipped:
        _print_line(f"not read: {entry.path}: {printable(entry.why)}", console)


def _print_line(line: str, console: "Console") -> None:
    console.print(line, soft_wrap=True, markup=False)


def _print_table(table: "pandas.DataFrame", console: "Console") -> None:
    """As many columns as the console is wide enough for; those left out are named below."""
    from rich.table import Table
    from rich.text import Text

    columns = _columns(table)
    shown, gap = _fitting(columns, console.width)
    grid = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="bold")
    for column in shown:
        header = Text(column.header)
        grid.add_column(header, justify=column.justify, overflow="fold", vertical="bottom")
    for cells in zip(*(column.cells for column in shown), strict=True):
        grid.add_row(*(Text(cell) for cell in cells))
    console.print(grid)
    left_out = [column.header.replace("\n", " ") for column in columns if column not in shown]
    if left_out:
        _print_line(f"left out to fit {console.width} columns: {', '.join(left_out)}", console)


def _columns(table: "pandas.DataFrame") -> list[_Column]:
    """Of all that may be shown; what is null in every case is not worth a column."""
    from attnscale.analyse.frame import swept_axes

    def texts(name: str) -> list[str]:
        return [printable(value) for value in table[name]]

    ends = zip(table["latency_low_ms"], table["latency_high_ms"], strict=True)
    columns = [
        _Column(header="backend", cells=texts("backend"), justify="left"),
        *(_Column(header=axis.replace("_", "_\n"), cells=texts(axis)) for axis in swept_axes(table)),
        _Column(header="outcome", cells=texts("status"), justify="left"),
        _Column(header="latency\nms", cells=[number(value) for value in table["latency_ms"]]),
        _Column(header="95% interval\nms", cells=[interval(*pair) for pair in ends], dispensable=1),
        _Column(
            header="device\nms", cells=[number(value) for value in table["device_ms"]], dispensable=2
        ),
        _Column(header="host\nms", cells=[number(value) for value in table["host_ms"]], dispensable=3),
        _Column(
            header="error\n%", cells=[number(value, 0.01) for value in table["rel_error"]], dispensable=6
        ),
        _Column(header="MFU\n%", cells=[number(value, 0.01) for value in table["mfu"]], dispensable=5),
        _Column(
            header="tokens\n/s", cells=[short(value) for value in table["tokens_per_s"]], dispensable=7
        ),
        _Column(
            header="peak\nGiB",
            cells=[number(value, GIB) for value in table["peak_allocated_bytes"]],
            dispensable=4,
        ),
        _Column(
            header="first\ncall ms",
            cells=[number(value) for value in table["first_call_ms"]],
            dispensable=8,
        ),
    ]
    return [column for column in columns if set(column.cells) != {"-"}]


def _fitting(columns: Sequence[_Column], width: int) -> tuple[list[_Column], int]:
    """The columns shown and the spaces between them: close together before any is left out."""
    shown = list(columns)
    for column in sorted(columns, key=lambda column: -column.dispensable):
        for gap in (2, 1):
            if sum(one.width + gap for one in shown) <= width + gap:
                return shown, gap
        if not column.dispensable:
            break
        shown.remove(column)
    return shown, 1


def _one_case(record: Record) -> "Table":
    """Everything that one case gave, a line a value."""
    from rich.table import Table
    from rich.text import Text

    shown = Table(box=None, show_header=False, pad_edge=False)
    shown.add_column(style="bold", no_wrap=True)
    shown.add_column(overflow="fold")
    for name, value in _lines_of(record).items():
        shown.add_row(name, Text(printable(value)))
    return shown


def _lines_of(record: Record) -> dict[str, str]:
    """Named as in the record and in results.csv."""
    outcome, environment = record.outcome, record.environment
    lines = {
        "case": record.slug,
        "device": f"{environment.device_name}, torch {environment.torch}",
        "outcome": outcome.status.value,
    }
    if outcome.backend_chosen and outcome.backend_chosen != record.case.backend:
        lines["PyTorch chose"] = outcome.backend_chosen
    if outcome.gqa and outcome.gqa != "none":
        lines["gqa"] = outcome.gqa
    if outcome.status is Status.OK:
        for name, value in outcome.metrics.model_dump().items():
            why = outcome.nulls.get(name)
            lines[name] = f"null: {why}" if value is None else _with_unit(name, value)
        for name, value in utilisation(record).items():
            if value is not None:
                lines[name] = str(value).lower() if isinstance(value, bool) else number(value)
        lines |= _how_timed(record) | _what_ran(record)
    for name, value in record.costs.model_dump().items():
        lines[name] = _with_unit(name, value)
    return lines


def _how_timed(record: Record) -> dict[str, str]:
    outcome = record.outcome
    lines = {"samples": str(len(outcome.latency_samples_ms))}
    if outcome.device_windows:
        lines["device_windows"] = f"{len(outcome.device_windows)}, by {outcome.device_timed_by}"
    if outcome.capture_refused:
        lines["capture_refused"] = outcome.capture_refused
    if outcome.settling:
        seconds = f"{number(outcome.settling.seconds)} s"
        lines["settled"] = (
            f"after {seconds}" if outcome.settling.settled else f"no: {outcome.settling.why}"
        )
    if outcome.stopped_by:
        lines["stopped_by"] = ", ".join(f"{name}: {why}" for name, why in outcome.stopped_by.items())
    return lines


def _what_ran(record: Record) -> dict[str, str]:
    outcome = record.outcome
    lines = {"ran": outcome.backend_ran or f"not proven: {outcome.nulls.get('backend_ran')}"}
    for name, found in evidence(record).items():
        if found is not None and not name.endswith("_us"):
            lines[name] = number(found)
    for finding in findings(record):
        lines[finding.name] = "; ".join(text for text in (finding.advice, finding.gain) if text)
    return lines


def _with_unit(name: str, value: float | None) -> str:
    """The unit is in the name; large ones are told in a handier unit too."""
    text = number(value)
    if value and name.endswith("_bytes"):
        return f"{text} ({number(value, GIB)} GiB)"
    if value and name.endswith("_flops"):
        return f"{text} ({number(value, 1e9)} GFLOP)"
    return text
