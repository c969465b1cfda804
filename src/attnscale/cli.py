"""``attnscale``: what can be done with a sweep's folder on any machine, without torch."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attnscale import __version__

if TYPE_CHECKING:
    from attnscale.analyse.noise import Noise
    from attnscale.record import Record

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"attnscale {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show it and exit.")
    ] = False,
) -> None:
    """Read what sweeps measured. Sweeps themselves: python run.py --help."""


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="Folder of a sweep, as under outputs/.")],
) -> None:
    """Rebuild tables, figures and report.html from the records of FOLDER alone."""
    from attnscale.report import terminal
    from attnscale.report.build import ReportError, build_report

    try:
        built = build_report(folder)
    except ReportError as error:
        print(f"attnscale: {error}", file=sys.stderr)
        raise typer.Exit(2) from None
    terminal.show(built.records, built.table, built.skipped, folder)
    for note in built.notes:
        print(note)
    print(f"report: {built.page}")


@app.command()
def compare(
    a: Annotated[Path, typer.Argument(help="Folder of a sweep.")],
    b: Annotated[Path, typer.Argument(help="Folder of another one of the same cases.")],
    fail_on_slower: Annotated[
        str | None, typer.Option(help="Exit with 1 when a case is slower in B by more, such as 3%.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Everything, as JSON.")] = False,
) -> None:
    """Compare the cases that sweeps A and B share: faster, slower, same or unclear."""
    from attnscale.analyse import compare as analysis
    from attnscale.report import compared

    limit = None if fail_on_slower is None else _percentage("--fail-on-slower", fail_on_slower)
    comparison = analysis.compare(*_sweep(a), *_sweep(b))
    if as_json:
        print(compared.as_json(comparison))
    else:
        compared.show(comparison)
    if not comparison.cases:
        print("attnscale: no case ended ok in both", file=sys.stderr)
        raise typer.Exit(2)
    if limit is not None and compared.slower_than(comparison, limit):
        raise typer.Exit(1)


@app.command()
def predict(
    folder: Annotated[Path, typer.Argument(help="Folder of a sweep that holds a ladder of depths.")],
    layers: Annotated[int, typer.Option(min=2, help="Depth to predict.")] = 80,
    as_json: Annotated[bool, typer.Option("--json", help="Everything, as JSON.")] = False,
) -> None:
    """Predict LAYERS layers for every series of FOLDER with three depths or more below it."""
    from attnscale.report import predicted

    records, noise = _sweep(folder)
    found, refused = predicted.every_series(records, layers, noise)
    if as_json:
        print(predicted.as_json(found, refused))
    else:
        predicted.show(found, refused)
    raise typer.Exit(0 if found else 2)


def _sweep(folder: Path) -> "tuple[list[Record], Noise]":
    """Its records and their noise; ends the command when there are none."""
    from attnscale.analyse.noise import measured_noise
    from attnscale.record import read_repeats, read_sweep

    records, skipped = read_sweep(folder)
    repeats, unread = read_repeats(folder)
    for entry in (*skipped, *unread):
        print(f"not read: {entry.path}: {entry.why}", file=sys.stderr)
    if not records:
        print(f"attnscale: {folder}: no readable record in cases/*/record.json", file=sys.stderr)
        raise typer.Exit(2)
    return records, measured_noise(records, repeats)


def _percentage(option: str, text: str) -> float:
    try:
        value = float(text.removesuffix("%")) / 100
    except ValueError:
        value = -1.0
    if not 0 <= value < 10:
        why = "a percentage from 0 to below 1000 is needed, such as 3%"
        print(f"attnscale: {option}={text}: {why}", file=sys.stderr)
        raise typer.Exit(2)
    return value


if __name__ == "__main__":
    app()
