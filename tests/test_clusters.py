"""The cluster launchers, on this machine: a sweep of eight CPU cases through each, as a user starts it.

Marked slow, and skipped where the extra is not installed; `make slow` installs both and runs this.
"""

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from attnscale.record import Status, read_sweep
from tests.processes import ROOT, TINY

pytestmark = pytest.mark.slow

LAUNCHERS = {
    "submitit_local": ["hydra.launcher.gpus_per_node=null"],
    "ray": ["hydra.launcher.ray.remote.num_gpus=0", "hydra.launcher.ray.init.num_cpus=2"],
}
PACKAGES = {"submitit_local": "submitit", "ray": "ray"}
GRID = ["backend=naive,math", "seq=8,16,24,32"]


def swept(launcher: str, output_dir: Path, *more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            *(sys.executable, "run.py", "-m", f"hydra/launcher={launcher}", *LAUNCHERS[launcher]),
            *(*TINY, *GRID, f"output_dir={output_dir}", *more),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"ATTNSCALE_TEST": str(output_dir)},
    )


@pytest.fixture(scope="module", params=LAUNCHERS)
def finished(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Path, subprocess.CompletedProcess[str]]:
    launcher: str = request.param
    pytest.importorskip(PACKAGES[launcher], reason=f"the extra {PACKAGES[launcher]} is not installed")
    output_dir = tmp_path_factory.mktemp(launcher) / "sweeps"
    return launcher, output_dir, swept(launcher, output_dir)


def test_eight_cases_meet_in_one_folder_with_one_report(
    finished: tuple[str, Path, subprocess.CompletedProcess[str]],
) -> None:
    launcher, output_dir, process = finished
    assert process.returncode == 0, process.stderr
    (folder,) = output_dir.iterdir()
    records, skipped = read_sweep(folder)
    assert skipped == []
    assert {(r.case.backend, r.case.seq) for r in records} == {
        (backend, seq) for backend in ("naive", "math") for seq in (8, 16, 24, 32)
    }
    assert {r.outcome.status for r in records} == {Status.OK}
    assert {r.environment.isolation for r in records} == {"worker"}
    assert list(output_dir.rglob("report.html")) == [folder / "report.html"]
    assert "Traceback" not in process.stderr
    assert not (ROOT / "multirun").exists()
    assert launcher != "submitit_local" or len(list(folder.glob(".submitit/*/*.pkl"))) == 16


def test_no_process_of_it_is_left(
    finished: tuple[str, Path, subprocess.CompletedProcess[str]],
) -> None:
    _, output_dir, _ = finished
    left = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("ATTNSCALE_TEST") == str(output_dir):
                left.append(process.name())
        except (psutil.AccessDenied, psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
    assert left == []


def test_a_resumed_sweep_submits_only_what_is_missing(
    finished: tuple[str, Path, subprocess.CompletedProcess[str]],
) -> None:
    launcher, output_dir, _ = finished
    (folder,) = output_dir.iterdir()
    records, _ = read_sweep(folder)
    gone = min(records, key=lambda record: record.case.key)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("record.json")}
    (lost,) = [path for path in before if gone.case.key in path.read_text()]
    lost.unlink()
    process = swept(launcher, output_dir, f"resume={folder}")
    assert process.returncode == 0, process.stderr
    after = {path: path.stat().st_mtime_ns for path in folder.rglob("record.json")}
    assert set(after) == set(before)
    assert {path for path in before if after[path] != before[path]} == {lost}
