"""The fault matrix: each way in which a case can fail, beside good cases, as whole processes.

The command line runs for real, in a process of its own, with real workers; only the fault is put into
the case. Every row ends as ARCHITECTURE.md says: that case has its outcome, its neighbours are ok,
the exit code is right, and no process is left.
"""

import signal
import time
from pathlib import Path

import pytest

from attnscale.record import Status, read_sweep
from tests.faults import SEQ
from tests.processes import Sweep

DIED = "the worker died: "
MATRIX: dict[str, tuple[Status, str, str | None]] = {
    "segfault": (Status.CRASHED, DIED + "killed by SIGSEGV", "Fatal Python error: Segmentation"),
    "abort": (Status.CRASHED, DIED + "killed by SIGABRT", "the allocator is upset"),
    "exit_3": (Status.CRASHED, DIED + "it exited with code 3", None),
    "exit_0": (Status.CRASHED, DIED + "it exited with code 0", None),
    "sys_exit": (Status.FAILED, "SystemExit: leaving early", None),
    "hang": (Status.TIMEOUT, "no result within case_timeout_s=3 s", "about to hang"),
    "hang_hard": (Status.TIMEOUT, "no result within case_timeout_s=3 s", "in hang_hard"),
    "killed": (Status.CRASHED, DIED + "killed by SIGKILL (by the system", None),
    "raises": (Status.FAILED, "an illegal memory access was encountered", None),
    "leak": (Status.OK, "", None),
}
"""Fault -> outcome, a part of the reason, a part of the end of the log."""


@pytest.fixture(scope="module")
def matrix(tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    """One sweep with every fault, each followed by a good case of the same shape."""
    seqs = ",".join(str(SEQ[name]) for name in MATRIX)
    sweep = Sweep(
        tmp_path_factory.mktemp("matrix"), "backend=naive,math", f"seq={seqs}", "case_timeout_s=3"
    )
    sweep.ended(120)
    return sweep


@pytest.mark.parametrize("fault", MATRIX)
def test_a_fault_is_its_cases_outcome_and_its_neighbour_is_ok(matrix: Sweep, fault: str) -> None:
    status, reason, logged = MATRIX[fault]
    outcome = matrix.outcomes()["naive", SEQ[fault]]
    assert outcome.status is status
    assert reason in (outcome.reason or "")
    assert (logged or "") in (outcome.log_tail or "")
    assert matrix.outcomes()["math", SEQ[fault]].status is Status.OK


def test_a_sweep_of_faults_ends_well(matrix: Sweep) -> None:
    assert matrix.process.returncode == 1
    assert (matrix.folder / "report.html").is_file()
    assert "Traceback" not in matrix.stderr
    assert matrix.stdout.count("log.txt)") == sum(1 for _, _, logged in MATRIX.values() if logged)
    assert matrix.leaves_no_process()


def test_the_same_with_torch_and_real_forwards(tmp_path: Path) -> None:
    seqs = ",".join(str(SEQ[name]) for name in ("segfault", "raises"))
    sweep = Sweep(tmp_path, "backend=naive,math", f"seq={seqs}", real=True)
    assert sweep.ended(120) == 1, sweep.stderr
    outcomes = sweep.outcomes()
    for name in ("segfault", "raises"):
        assert outcomes["naive", SEQ[name]].status is MATRIX[name][0]
        assert outcomes["math", SEQ[name]].status is Status.OK
    assert "in segfault" in str(outcomes["naive", SEQ["segfault"]].log_tail)
    assert "in raises" in str(outcomes["naive", SEQ["raises"]].traceback)
    assert sweep.leaves_no_process()


def test_a_process_for_every_case(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path, "backend=naive,math", f"seq=8,{SEQ['segfault']}", "isolation=fresh")
    assert sweep.ended() == 1, sweep.stderr
    statuses = [outcome.status for outcome in sweep.outcomes().values()]
    assert sorted(statuses) == ["crashed", "ok", "ok", "ok"]
    records, _ = read_sweep(sweep.folder)
    assert {record.environment.isolation for record in records} == {"fresh"}


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "sigterm"])
def test_an_interrupt_ends_the_case_reports_and_leaves_nobody(
    tmp_path: Path, sent: signal.Signals
) -> None:
    sweep = Sweep(tmp_path, "backend=naive", f"seq=8,{SEQ['hang']},200")
    sweep.wait_for(f"*/cases/*s{SEQ['hang']}*/log.txt")
    began = time.monotonic()
    sweep.process.send_signal(sent)
    assert sweep.ended() == 130, sweep.stderr
    assert time.monotonic() - began < 15
    assert list(sweep.outcomes()) == [("naive", 8)]
    assert (sweep.folder / "report.html").is_file()
    assert "2 of 3 cases did not run" in sweep.stdout
    assert "Traceback" not in sweep.stderr
    assert sweep.leaves_no_process()


def test_a_killed_sweep_leaves_nobody_and_resumes(tmp_path: Path) -> None:
    hanging = SEQ["hang_hard"]  # nothing but SIGKILL ends its worker
    grid = ["backend=naive", f"seq=8,{hanging},200"]
    sweep = Sweep(tmp_path, *grid)
    sweep.wait_for(f"*/cases/*s{hanging}*/log.txt")
    sweep.process.kill()
    sweep.ended()
    assert sweep.leaves_no_process()
    (kept,) = sweep.folder.glob("cases/*/record.json")
    written_ns = kept.stat().st_mtime_ns
    again = Sweep(tmp_path, *grid, "resume=latest", "case_timeout_s=1")
    assert again.ended() == 1, again.stderr
    assert "2 of 3 cases are to do" in again.stderr
    assert again.folder == sweep.folder
    statuses = {seq: outcome.status for (_, seq), outcome in again.outcomes().items()}
    assert statuses == {8: Status.OK, hanging: Status.TIMEOUT, 200: Status.OK}
    assert kept.stat().st_mtime_ns == written_ns


def test_killed_at_any_moment_a_sweep_goes_on_without_loss(tmp_path: Path) -> None:
    """SIGKILL to the sweep five times, each after one more case has begun and some milliseconds."""
    out, held = tmp_path / "out", 0
    grid = "seq=range(8,88,8)"
    for attempt in range(5):
        manifests = list(out.glob("*/sweep.json"))
        sweep = Sweep(tmp_path, grid, *(["resume=latest"] if manifests else []))
        sweep.wait_for("*/cases/*", count=held + 1)
        time.sleep(0.007 * attempt)
        sweep.process.kill()
        sweep.ended()
        records, skipped = read_sweep(sweep.folder)
        assert skipped == []
        assert held <= len(records) < 10
        held = len(records)
    last = Sweep(tmp_path, grid, "resume=latest")
    assert last.ended() == 0, last.stderr
    assert len(last.outcomes()) == 10


def test_a_full_disk_is_named_and_earlier_records_are_intact(tmp_path: Path) -> None:
    """The limit is the system's own: no file may grow beyond 12 KB, which one record does."""
    sweep = Sweep(tmp_path, "timing.min_samples=7,5000", limit_bytes=12_000)
    assert sweep.ended() == 1
    (small,) = sweep.folder.glob("cases/*/record.json")
    (large,) = set(sweep.folder.glob("cases/*")) - {small.parent}
    assert f"{large / 'record.json'}: File too large; what was measured before is kept" in sweep.stderr
    assert "Traceback" not in sweep.stderr
    assert list(large.iterdir()) == []
    assert [outcome.status for outcome in sweep.outcomes().values()] == [Status.OK]
    assert sweep.leaves_no_process()
