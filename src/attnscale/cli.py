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


if __name__ == "__main__":
    app()
