"""The fault matrix on a real GPU: what ends a context, a true OOM, a kill; and who may use the GPU."""

import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from attnscale.record import Status, read_sweep
from attnscale.sweep import devices
from tests.faults import SEQ
from tests.processes import ROOT, Sweep

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
HALF = "dtype=bfloat16"
TOO_LONG = 300_000
"""Tokens whose score matrix, 2 heads * seq * seq * 2 bytes, is 335 GiB; flash needs none."""
MATRIX = {
    "illegal_access": (Status.FAILED, "illegal memory access"),
    "device_assert": (Status.FAILED, "device-side assert"),
    "hang": (Status.TIMEOUT, "no result within case_timeout_s=30 s"),
    "killed": (Status.CRASHED, "killed by SIGKILL"),
    "segfault": (Status.CRASHED, "killed by SIGSEGV"),
}


@pytest.fixture(scope="module")
def matrix(tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    """One sweep with every fault and a true OOM, each followed by a good case of the same shape."""
    seqs = ",".join(str(SEQ[name]) for name in MATRIX)
    overrides = ["backend=naive,flash", f"seq=64,{seqs},{TOO_LONG}", HALF, "case_timeout_s=30"]
    sweep = Sweep(tmp_path_factory.mktemp("matrix"), *overrides, real=True, device="cuda")
    sweep.ended(300)
    return sweep


@pytest.mark.parametrize("fault", MATRIX)
def test_a_fault_is_its_cases_outcome_and_its_neighbour_is_ok(matrix: Sweep, fault: str) -> None:
    status, reason = MATRIX[fault]
    outcome = matrix.outcomes()["naive", SEQ[fault]]
    assert outcome.status is status
    assert reason in str(outcome.reason)
    good = matrix.outcomes()["flash", SEQ[fault]]
    assert good.status is Status.OK
    assert good.metrics.baseline_allocated_bytes == 0


def test_a_true_oom_is_tried_twice_and_harms_nobody(matrix: Sweep) -> None:
    outcomes = matrix.outcomes()
    assert outcomes["naive", TOO_LONG].status is Status.OOM
    assert outcomes["naive", TOO_LONG].attempts == 2
    assert outcomes["flash", TOO_LONG].status is Status.OK
    assert outcomes["flash", TOO_LONG].metrics.baseline_allocated_bytes == 0


def test_a_sweep_of_faults_ends_well(matrix: Sweep) -> None:
    assert matrix.process.returncode == 1
    assert "Traceback" not in matrix.stderr
    assert (matrix.folder / "report.html").is_file()
    assert matrix.leaves_no_process()


def test_a_record_names_its_gpu_and_that_nobody_else_was_on_it(matrix: Sweep) -> None:
    records, _ = read_sweep(matrix.folder)
    visible = {device.uuid: device.name for device in devices.visible_gpus()}
    for record in records:
        environment = record.environment
        assert visible[environment.gpu_uuid] == environment.device_name
        assert environment.foreign_processes == [], environment.nulls


def test_a_killed_sweep_resumes(tmp_path: Path) -> None:
    grid = ["backend=flash,math", "seq=64,128,256", HALF]
    sweep = Sweep(tmp_path, *grid, real=True, device="cuda")
    sweep.wait_for("*/cases/*/record.json", count=2)
    sweep.process.kill()
    sweep.ended()
    assert sweep.leaves_no_process()
    held = len(sweep.outcomes())
    assert 2 <= held < 6
    again = Sweep(tmp_path, *grid, "resume=latest", real=True, device="cuda")
    assert again.ended(120) == 0, again.stderr
    assert f"{6 - held} of 6 cases are to do" in again.stderr
    assert len(again.outcomes()) == 6


def test_ctrl_c_ends_a_case_on_the_gpu(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path, "backend=naive", f"seq=64,{SEQ['hang']}", HALF, real=True, device="cuda")
    sweep.wait_for(f"*/cases/*s{SEQ['hang']}*/log.txt")
    sweep.process.send_signal(2)
    assert sweep.ended() == 130, sweep.stderr
    assert list(sweep.outcomes()) == [("naive", 64)]
    assert sweep.leaves_no_process()


BUSY = (
    "import torch, time; x = torch.ones(2**28, device='cuda'); print('on', flush=True); time.sleep(120)"
)


def test_a_foreign_process_on_the_gpu_is_noticed_and_refused_when_strict(tmp_path: Path) -> None:
    other = subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == "on\n"
        noticing = Sweep(tmp_path, "seq=64", HALF, real=True, device="cuda")
        assert noticing.ended(120) == 0, noticing.stderr
        (record,), _ = read_sweep(noticing.folder)
        assert len(record.environment.foreign_processes or []) == 1
        assert "beside another process" in noticing.stdout
        strict = Sweep(
            tmp_path, "seq=128", HALF, "strict_gpu=true", "resume=latest", real=True, device="cuda"
        )
        assert strict.ended(120) == 1
        refused = strict.outcomes()["flash", 128]
        assert refused.status is Status.FAILED
        assert "others compute on this GPU" in str(refused.reason)
    finally:
        other.kill()
        other.wait()


def test_two_sweeps_take_turns_on_one_gpu(tmp_path: Path) -> None:
    first = Sweep(
        tmp_path / "one",
        "backend=naive",
        f"seq=64,{SEQ['hang']}",
        HALF,
        "case_timeout_s=15",
        real=True,
        device="cuda",
    )
    first.wait_for("*/cases/*/record.json")
    second = Sweep(tmp_path / "two", "seq=64", HALF, real=True, device="cuda")
    time.sleep(4)
    assert not list(second.out.glob("*/cases/*/record.json"))
    assert "is leased by" in second.stderr
    assert first.ended(120) == 1
    assert second.ended(120) == 0, second.stderr


def test_the_lease_is_on_the_uuid_that_torch_sees() -> None:
    code = (
        "import torch; from attnscale.sweep.devices import visible_gpus\n"
        "assert visible_gpus()[0].uuid == f'GPU-{torch.cuda.get_device_properties(0).uuid}'"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=60)
