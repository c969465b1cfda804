"""``attnscale report`` in a fresh process that has no torch, and its errors."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from attnscale import __version__
from attnscale import record as records
from attnscale.case import Case
from attnscale.cli import app
from attnscale.record import Record, Status

WITHOUT = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "hydra", "omegaconf", "wandb"):
            raise ModuleNotFoundError(f"no {name} on this machine")
sys.meta_path.insert(0, Absent())
from attnscale.cli import app
app()
"""


def report_without_torch(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", WITHOUT, "report", str(folder)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_a_report_is_rebuilt_from_the_records_alone_without_torch(
    make_record: Callable[..., Record], make_case: Callable[..., Case], tmp_path: Path
) -> None:
    original = tmp_path / "made here"
    for seq in (16, 32):
        records.write(make_record(make_case(seq=seq)), original)
    records.write(make_record(make_case(seq=64), status=Status.OOM), original)
    moved = tmp_path / "moved there"
    shutil.copytree(original, moved)
    done = report_without_torch(moved)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert {"report.html", "results.csv", "results.parquet", "figures"} <= {
        p.name for p in moved.iterdir()
    }
    assert max(len(line) for line in done.stdout.splitlines() if "ok" in line) <= 80
    assert "oom: gpt-naive-s64" in done.stdout
    assert str(moved / "report.html") in done.stdout


def test_errors_are_one_line_and_exit_2(tmp_path: Path) -> None:
    done = report_without_torch(tmp_path / "nowhere")
    assert done.returncode == 2
    assert done.stderr.splitlines() == [f"attnscale: {tmp_path / 'nowhere'}: there is no such folder"]


def test_version() -> None:
    assert CliRunner().invoke(app, ["--version"]).stdout == f"attnscale {__version__}\n"


@pytest.mark.parametrize("words", ["report", "Rebuild tables, figures"])
def test_help_names_the_commands(words: str) -> None:
    assert words in CliRunner().invoke(app, ["--help"]).stdout


def test_help_answers_without_the_heavy_libraries() -> None:
    code = """
import sys
from typer.testing import CliRunner
from attnscale.cli import app
assert CliRunner().invoke(app, ["report", "--help"]).exit_code == 0
print(sorted({"pandas", "numpy", "matplotlib", "seaborn", "jinja2", "torch"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_damaged_record_is_named_and_the_rest_is_reported(
    make_record: Callable[..., Record], make_case: Callable[..., Case], tmp_path: Path
) -> None:
    records.write(make_record(), tmp_path)
    damaged = records.write(make_record(make_case(seq=32)), tmp_path)
    damaged.write_text(damaged.read_text()[:100])
    done = CliRunner().invoke(app, ["report", str(tmp_path)])
    assert done.exit_code == 0
    assert f"not read: {damaged}: " in done.stdout
    assert damaged.parent.name in (tmp_path / "report.html").read_text()
