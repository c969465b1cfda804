"""What a sweep costs besides measuring: a warm case, a worker's start, and the memory of the parent.

    python benchmarks/sweep.py [--device cuda] [--cases 1000] [--starts 3]

- A case outside the worker's own measuring: from the end of one case's measuring to the beginning of
  the next one's, both from the records: record, fsync, progress, hand-over. Mean over a sweep.
- A worker: from asking for it until it is ready, against a bare ``import torch`` with CUDA initialised,
  in turn. Median of the starts.
- A sweep of many trivial CPU cases: wall time a case, all included, and the parent's resident memory
  at each tenth of it.
"""

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from datetime import datetime
from pathlib import Path

import psutil

from attnscale.record import read_sweep
from attnscale.sweep.devices import CPU, chosen_gpus
from attnscale.sweep.worker import ProcessWorker

ROOT = Path(__file__).parent.parent
SMALL = ["heads=2", "head_dim=64", "layers=1", "vocab=64", "timing=quick", "tracker=none", "repeats=0"]
BARE = "import torch; torch.zeros(1, device='{}'); print('ready')"


def main() -> None:
    plain = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=plain)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cpu")
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--starts", type=int, default=3)
    arguments = parser.parse_args()
    device = arguments.device
    bare, own = starts(device, arguments.starts)
    print(f"bare torch on {device}   {bare:8.2f} s")
    print(f"worker ready          {own:8.2f} s    {own / bare:.2f} times the bare one")
    with tempfile.TemporaryDirectory() as scratch:
        dtype = "bfloat16" if device == "cuda" else "float32"
        run = ["run.py", *SMALL, f"device={device}", f"dtype={dtype}", f"output_dir={scratch}/a"]
        subprocess.run(
            [sys.executable, *run, "seq=range(64,864,8)"], cwd=ROOT, check=True, capture_output=True
        )
        gaps = between_cases(next(Path(scratch, "a").iterdir()))
        print(
            f"a warm case besides   {statistics.mean(gaps) * 1e3:8.1f} ms   mean of {len(gaps)}, "
            f"largest {max(gaps) * 1e3:.1f}"
        )
        run = ["run.py", *SMALL, "device=cpu", "dtype=float32", f"output_dir={scratch}/b"]
        wall, memory = watched(
            [*run, f"seq=range(1,{arguments.cases + 1})"], arguments.cases, Path(scratch, "b")
        )
        print(
            f"{arguments.cases} CPU cases        {wall:8.1f} s    "
            f"{wall / arguments.cases * 1e3:.1f} ms a case, composing and report included"
        )
        print(
            "parent's memory, MiB, at each tenth:",
            json.dumps([round(value / 2**20) for value in memory]),
        )


def starts(device: str, repeats: int) -> tuple[float, float]:
    """Medians of a bare start and of a worker's, A B A B after one of each."""
    from attnscale.job import MEASURING

    lane = chosen_gpus("all")[0] if device == "cuda" else CPU
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(repeats + 1):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", BARE.format(device)], check=True, capture_output=True)
        times[0].append(time.perf_counter() - began)
        worker = ProcessWorker(lane, MEASURING, timeout_s=60, keep=True, stop=threading.Event())
        began = time.perf_counter()
        worker.ready()
        times[1].append(time.perf_counter() - began)
        worker.end()
    return statistics.median(times[0][1:]), statistics.median(times[1][1:])


def between_cases(sweep: Path) -> list[float]:
    """Seconds from the end of each case's measuring to the beginning of the next one's."""
    records, _ = read_sweep(sweep)
    times = [(datetime.fromisoformat(r.started_at), datetime.fromisoformat(r.ended_at)) for r in records]
    return [(after - before).total_seconds() for (_, before), (after, _) in itertools.pairwise(times)]


def watched(command: list[str], cases: int, out: Path) -> tuple[float, list[int]]:
    """Wall time of a sweep, seconds, and its parent's resident bytes at each tenth of its cases."""
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, *command],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    parent = psutil.Process(process.pid)
    memory: list[int] = []
    for number, _ in enumerate(process.stderr, start=1):
        if number % (cases // 10) == 0:
            memory.append(parent.memory_info().rss)
    if process.wait() != 0:
        raise SystemExit(f"the sweep in {out} failed")
    return time.perf_counter() - began, memory


if __name__ == "__main__":
    main()
