"""What the framework itself costs: ``--help``, a sweep of no case, and a case of a 100-case CPU sweep.

    python benchmarks/startup.py [--repeats 5]

Whole processes, wall time, median of the repeats after one warm-up. The bare Hydra application is
the yardstick for --help: an empty ``@hydra.main`` without a configuration, measured in turn with it.
A "no-op job" is a job whose measuring is empty: composing, validating, the record, the report.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent
BARE = """
import hydra
@hydra.main(version_base="1.3", config_path=None)
def main(config): pass
main()
"""
NO_OP = """
import sys
from attnscale import job
from attnscale.record import Outcome, Status
job.measure = lambda case: Outcome(status=Status.UNSUPPORTED, reason="a no-op")
sys.path.insert(0, ".")
import run
run.cli()
"""
TINY = [
    "device=cpu",
    "heads=2",
    "head_dim=8",
    "layers=1",
    "vocab=64",
    "dtype=float32",
    "tracker=none",
    "repeats=0",
]


def main() -> None:
    plain = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=plain)
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    with tempfile.TemporaryDirectory() as scratch:
        bare = Path(scratch) / "bare.py"
        bare.write_text(BARE)
        no_op = Path(scratch) / "no_op.py"
        no_op.write_text(NO_OP)
        out = f"output_dir={scratch}/out"
        yardstick, own = in_turn(
            lambda: run([str(bare), "--help"]), lambda: run(["run.py", "--help"]), repeats
        )
        print(f"bare Hydra --help      {yardstick:8.2f} s")
        print(f"run.py --help          {own:8.2f} s   {own / yardstick:.2f} times the bare one")
        one, hundred = in_turn(
            lambda: run([str(no_op), *TINY, out, "seq=8"]),
            lambda: run([str(no_op), *TINY, out, "seq=range(1,101)"]),
            max(2, repeats // 2),
        )
        print(f"one no-op job          {one:8.2f} s   torch, compose, record, report")
        further_ms = (hundred - one) / 99 * 1e3
        print(f"100 no-op jobs         {hundred:8.2f} s   {further_ms:.1f} ms a further job")
        sweep = [*TINY, out, "timing=quick", "seq=range(1,101)"]
        whole = measured(lambda: run(["run.py", *sweep]), 1)
        print(f"100-case CPU sweep     {whole:8.2f} s   {whole / 100 * 1e3:.1f} ms a case, all included")
        tracked = [*(part for part in sweep if part != "tracker=none"), "tracker=wandb"]
        whole = measured(lambda: run(["run.py", *tracked]), 1)
        print(f"  with offline W&B     {whole:8.2f} s   {whole / 100 * 1e3:.1f} ms a case, all included")


def run(arguments: Sequence[str]) -> None:
    subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, check=True)


def in_turn(first: Callable[[], None], second: Callable[[], None], repeats: int) -> tuple[float, float]:
    """Medians of two commands run A B A B, so that a drift of the machine meets both."""
    first()
    second()
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(repeats):
        for command, taken in zip((first, second), times, strict=True):
            taken.append(measured(command, 1))
    return statistics.median(times[0]), statistics.median(times[1])


def measured(command: Callable[[], None], repeats: int) -> float:
    """Median wall time, seconds."""
    taken = []
    for _ in range(repeats):
        start = time.perf_counter()
        command()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


if __name__ == "__main__":
    main()
