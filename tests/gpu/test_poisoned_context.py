"""A device-side assert on a real GPU: every case of the sweep still has its record, and the exit code.

In a process of its own, for the context stays poisoned to its end. The cases after it fail as well
while they share a process with it.
"""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from attnscale.record import Status, read_sweep

ROOT = Path(__file__).parent.parent.parent
POISON = """
import sys
sys.path.insert(0, ".")
from attnscale.measure import forward
good = forward.random_tokens
forward.random_tokens = lambda case: good(case) + (10**6 if case.seq == 32 else 0)
import run
run.cli()
"""


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_device_side_assert_is_a_failed_case_and_the_sweep_ends_well(tmp_path: Path) -> None:
    overrides = ["seq=16,32,64", "device=cuda", "tracker=none", "timing=quick", f"output_dir={tmp_path}"]
    done = subprocess.run(
        [sys.executable, "-c", POISON, *overrides], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    (sweep,) = tmp_path.iterdir()
    records, skipped = read_sweep(sweep)
    assert [record.outcome.status for record in records] == [Status.OK, Status.FAILED, Status.FAILED]
    assert "device-side assert" in str(records[1].outcome.reason)
    assert skipped == []
    assert (sweep / "report.html").is_file()
