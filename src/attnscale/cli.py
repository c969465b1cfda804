"""``attnscale``: what can be done with a sweep's folder on any machine, without torch."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from attnscale import __version__

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
def predict(
    folder: Annotated[Path, typer.Argument(help="Folder of a sweep that holds a ladder of depths.")],
    layers: Annotated[int, typer.Option(min=2, help="Depth to predict.")] = 80,
    as_json: Annotated[bool, typer.Option("--json", help="Everything, as JSON.")] = False,
) -> None:
    """Predict LAYERS layers for every series of FOLDER with three depths or more below it."""
    from attnscale.analyse.noise import measured_noise
    from attnscale.record import read_repeats, read_sweep
    from attnscale.report import predicted

    records, skipped = read_sweep(folder)
    repeats, unread = read_repeats(folder)
    for entry in (*skipped, *unread):
        print(f"not read: {entry.path}: {entry.why}", file=sys.stderr)
    if not records:
        print(f"attnscale: {folder}: no readable record in cases/*/record.json", file=sys.stderr)
        raise typer.Exit(2)
    noise = measured_noise(records, repeats)
    found, refused = predicted.every_series(records, layers, noise)
    if as_json:
        print(predicted.as_json(found, refused))
    else:
        predicted.show(found, refused)
    raise typer.Exit(0 if found else 2)


if __name__ == "__main__":
    app()
