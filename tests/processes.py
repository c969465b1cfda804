"""A whole sweep as a process of its own, with faults put into its cases; and whom it leaves behind."""

import os
import subprocess
import sys
import time
from pathlib import Path
from resource import RLIM_INFINITY, RLIMIT_FSIZE, setrlimit

import psutil

from attnscale.record import Outcome, read_sweep

ROOT = Path(__file__).parent.parent
TINY = [
    "device=cpu",
    "heads=2",
    "head_dim=8",
    "layers=1",
    "vocab=64",
    "timing=quick",
    "timing.settle_seconds=0",
    "timing.max_seconds=0.01",
    "tracker=none",
    "repeats=0",
    "dtype=float32",
]
DRIVER = """
import sys
sys.path.insert(0, ".")
from attnscale import job
from attnscale.measure import worker
from attnscale.sweep.worker import Measuring
from tests import faults
job.MEASURING = Measuring({functions})
import run
if __name__ == "__main__":
    run.cli()
"""


class Sweep:
    """A command line running in the background."""

    def __init__(
        self,
        tmp_path: Path,
        *overrides: str,
        real: bool = False,
        limit_bytes: int = RLIM_INFINITY,
        device: str = "cpu",
    ) -> None:
        tmp_path.mkdir(exist_ok=True)
        script = tmp_path / "driver.py"
        real_ones = "worker.start, faults.measure"
        script.write_text(DRIVER.format(functions=real_ones if real else "faults.start, faults.pretend"))
        self.out = tmp_path / "out"
        self.log = tmp_path / "stderr.txt"
        where = [f"device={device}", "isolation=worker", f"output_dir={self.out}"]
        command = [sys.executable, str(script), *TINY, *where]
        self.marker = f"attnscale-test-{os.getpid()}-{time.monotonic_ns()}"
        with self.log.open("w") as err:
            self.process = subprocess.Popen(
                [*command, *overrides],
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=err,
                text=True,
                env=os.environ | {"MARKER": self.marker},
                preexec_fn=lambda: setrlimit(RLIMIT_FSIZE, (limit_bytes, limit_bytes)),
            )

    def ended(self, timeout: float = 60) -> int:
        self.stdout, _ = self.process.communicate(timeout=timeout)
        return self.process.returncode

    @property
    def stderr(self) -> str:
        return self.log.read_text()

    @property
    def folder(self) -> Path:
        (folder,) = self.out.iterdir()
        return folder

    def outcomes(self) -> dict[tuple[str, int], Outcome]:
        """By backend and seq."""
        records, skipped = read_sweep(self.folder)
        assert skipped == []
        return {(record.case.backend, record.case.seq): record.outcome for record in records}

    def wait_for(self, pattern: str, count: int = 1, timeout: float = 60) -> None:
        """Until so many paths of the output folder match."""
        deadline = time.monotonic() + timeout
        while len(list(self.out.glob(pattern))) < count:
            assert time.monotonic() < deadline, f"no {pattern}; {self.stderr}"
            assert self.process.poll() is None, self.stderr
            time.sleep(0.005)

    def processes(self) -> list[psutil.Process]:
        """Every process that this sweep started, whoever its parent is now."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get("MARKER") == self.marker:
                    found.append(process)
            except (psutil.AccessDenied, psutil.NoSuchProcess, psutil.ZombieProcess):
                continue
        return found

    def leaves_no_process(self, within_s: float = 5) -> bool:
        deadline = time.monotonic() + within_s
        while self.processes() and time.monotonic() < deadline:
            time.sleep(0.05)
        return not self.processes()
