"""How far a time can be trusted: agreement with other tools, repeatability, coverage, cost.

    python benchmarks/trust.py measure FOLDER [--device cuda] [--rounds 10] [--pairs 2]
    python benchmarks/trust.py read FOLDER

Twelve pinned cases: six backends at a shape where the host is slower than the GPU and at one where it is
not. ``measure`` writes FOLDER/records.jsonl.xz, whole records, and FOLDER/peers.json; ``read`` computes
all of the following from those two and prints it.

- Agreement: each case by attnscale, by other tools in another process (peers.py), by attnscale, and so
  on: theirs over the mean of ours before and after, median of the pairs.
- Repeatability: all cases in a new random order each round; (max - min) / median.
- Coverage: how often the 95% interval of one run holds the median of all rounds. The noise between runs
  is what a sweep would know: its sentinels in that round and the next three.
- Cost: seconds a case, in all and without settling and sampling.
"""

import argparse
import itertools
import json
import lzma
import random
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path

from omegaconf import OmegaConf

from attnscale.analyse.noise import TIMES, Noise, measured_noise, widened
from attnscale.case import Case, Timing
from attnscale.config import TimingConfig
from attnscale.job import MEASURING
from attnscale.measure.cost import costs
from attnscale.record import Record, Status
from attnscale.sweep.devices import CPU, chosen_gpus
from attnscale.sweep.sentinels import Sentinels
from attnscale.sweep.worker import ProcessWorker

ROOT = Path(__file__).parent.parent
BACKENDS = ("naive", "naive_inplace", "math", "efficient", "flash", "cudnn")
SHAPES = {
    "cuda": ({"seq": 256, "head_dim": 64}, {"seq": 4096, "head_dim": 128}),
    "cpu": ({"seq": 16, "head_dim": 8}, {"seq": 128, "head_dim": 16}),
}
AGAIN = 3
"""config.yaml's repeats."""
Once = Callable[[Case, str], None]
SAMPLING = ("settling", "device", "latency")


def main() -> None:
    plain = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=plain)
    parser.add_argument("what", choices=["measure", "read"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--pairs", type=int, default=2)
    arguments = parser.parse_args()
    if arguments.what == "measure":
        arguments.folder.mkdir(parents=True)
        measure(arguments.folder, arguments.device, arguments.rounds, arguments.pairs)
    read(arguments.folder)


def pinned(device: str) -> list[Case]:
    default = OmegaConf.load(ROOT / "conf" / "timing" / "default.yaml")
    config = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(TimingConfig), default))
    assert isinstance(config, TimingConfig)
    timing = Timing(**asdict(config))
    backends = BACKENDS if device == "cuda" else ("naive", "math", "flash")
    return [
        Case(
            model="gpt",
            arch="gpt",
            backend=backend,
            batch=1,
            heads=16,
            kv_heads=16,
            ffn_dim=4 * 16 * shape["head_dim"],
            layers=8,
            vocab=8192,
            dtype="bfloat16" if device == "cuda" else "float32",
            causal=True,
            device=device,
            seed=0,
            timing=timing,
            **shape,
        )
        for shape in SHAPES[device]
        for backend in backends
    ]


def measure(folder: Path, device: str, rounds: int, pairs: int) -> None:
    """Agreement first, then the rounds. What was measured before an error is on disk."""
    cases = pinned(device)
    ours = Ours(device)
    with lzma.open(folder / "records.jsonl.xz", "wt") as file:

        def once(case: Case, part: str) -> None:
            record = ours.measured(case, part)
            file.write(record.model_dump_json() + "\n")
            print(f"{part} {record.slug}: {told(record)}", file=sys.stderr, flush=True)

        try:
            theirs = measured_in_turn(cases, pairs, once)
            (folder / "peers.json").write_text(json.dumps(theirs, indent=1) + "\n")
            for number in range(rounds):
                for case in random.Random(number).sample(cases, len(cases)):
                    once(case, f"round {number}")
        finally:
            ours.worker.end()


def measured_in_turn(cases: Sequence[Case], pairs: int, once: Once) -> dict[str, list[dict[str, float]]]:
    """Ours, theirs, ours, theirs, ours. By key, what theirs gave."""
    found: dict[str, list[dict[str, float]]] = {}
    with Peers() as peers:
        for case in cases:
            once(case, "agreement")
            for _ in range(pairs):
                found.setdefault(case.key, []).append(peers.timed(case))
                once(case, "agreement")
    return found


class Ours:
    """The worker of a sweep, which does here what it does there."""

    def __init__(self, device: str) -> None:
        lane = chosen_gpus("all")[0] if device == "cuda" else CPU
        self.worker = ProcessWorker(lane, MEASURING, timeout_s=120, keep=True, stop=threading.Event())

    def measured(self, case: Case, part: str) -> Record:
        """``part`` becomes the record's sweep."""
        environment = self.worker.ready()
        with tempfile.TemporaryDirectory() as scratch:
            answer = self.worker.measure(case, Path(scratch) / "log.txt")
        return Record(
            sweep_id=part,
            key=case.key,
            slug=case.slug,
            case=case,
            outcome=answer.outcome,
            costs=costs(case, ran=answer.outcome.backend_chosen),
            environment=environment,
            started_at=answer.started_at,
            ended_at=answer.ended_at,
        )


class Peers:
    """peers.py, kept running, for it must not start a CUDA context a case."""

    def __enter__(self) -> "Peers":
        command = [sys.executable, str(ROOT / "benchmarks" / "peers.py")]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=ROOT)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def timed(self, case: Case) -> dict[str, float]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(asdict(case)) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"peers.py ended at {case.slug}")
        found: dict[str, float] = json.loads(line)
        return found


def told(record: Record) -> str:
    metrics = record.outcome.metrics
    if record.outcome.status is not Status.OK:
        return f"{record.outcome.status}: {record.outcome.reason}"
    times = ", ".join(f"{name} {value(record, name) or float('nan'):.4f}" for name in TIMES)
    settled = "settled" if record.outcome.settling and record.outcome.settling.settled else "unsettled"
    return f"{times} ms, {metrics.sm_clock_mhz} MHz, {settled}, {seconds(record):.2f} s"


def value(record: Record, time: str) -> float | None:
    found: float | None = getattr(record.outcome.metrics, f"{time}_ms")
    return found


def read(folder: Path) -> None:
    """Every number of the four parts, from the two files."""
    with lzma.open(folder / "records.jsonl.xz", "rt") as file:
        records = [Record.model_validate_json(line) for line in file]
    theirs = json.loads((folder / "peers.json").read_text())
    bad = [record for record in records if record.outcome.status is not Status.OK]
    for record in bad:
        print(f"{record.slug} ended as {record.outcome.status}: {record.outcome.reason}")
    records = [record for record in records if record.outcome.status is Status.OK]
    first = records[0].environment
    print(f"{first.device_name}, torch {first.torch}, {records[0].started_at}")
    rounds = [record for record in records if record.sweep_id.startswith("round")]
    print_agreement([record for record in records if record.sweep_id == "agreement"], theirs)
    print_repeatability(rounds)
    print_coverage(rounds)
    print_cost(records)


def by_key(records: Sequence[Record]) -> Iterator[list[Record]]:
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(record.key, []).append(record)
    yield from groups.values()


def print_agreement(ours: Sequence[Record], theirs: dict[str, list[dict[str, float]]]) -> None:
    print("\nAgreement: theirs over ours")
    against = (
        ("device", "triton_ms"),
        ("device", "kernels_ms"),
        ("latency", "blocked_ms"),
        ("latency", "single_ms"),
    )
    worst: dict[tuple[str, str], float] = {}
    for runs in by_key(ours):
        cells = []
        for time, peer in against:
            ratios = [
                pair[peer] / statistics.mean((before, after))
                for (one, two), pair in zip(itertools.pairwise(runs), theirs[runs[0].key], strict=True)
                if peer in pair and (before := value(one, time)) and (after := value(two, time))
            ]
            if ratios:
                ratio = statistics.median(ratios)
                cells.append(f"{time}/{peer} {ratio:.4f}")
                kind = str(runs[0].outcome.kind)
                worst[kind, peer] = max(worst.get((kind, peer), 0.0), abs(ratio - 1))
        print(f"  {runs[0].slug:<44} {runs[0].outcome.kind:<13} {'  '.join(cells)}")
    for (kind, peer), most in worst.items():
        print(f"  worst of {kind}, {peer}: {most:.2%}")


def print_repeatability(rounds: Sequence[Record]) -> None:
    print("\nRepeatability: (max - min) / median over the rounds")
    worst: dict[tuple[str, str], float] = {}
    for runs in by_key(rounds):
        cells = []
        for time in TIMES:
            found = [one for run in runs if (one := value(run, time))]
            if found:
                spread = (max(found) - min(found)) / statistics.median(found)
                cells.append(f"{time} {statistics.median(found):8.4f} ms {spread:6.2%}")
                key = (str(runs[0].outcome.kind), time)
                worst[key] = max(worst.get(key, 0.0), spread)
        settled = sum(bool(run.outcome.settling and run.outcome.settling.settled) for run in runs)
        print(f"  {runs[0].slug:<44} {'  '.join(cells)}  {settled} of {len(runs)} settled")
    for (kind, time), most in worst.items():
        print(f"  worst of {kind}, {time}: {most:.2%}")


def print_coverage(rounds: Sequence[Record]) -> None:
    print("\nCoverage: runs whose 95% interval holds the median of all rounds")
    numbers = sorted({int(record.sweep_id.split()[1]) for record in rounds})
    in_round = {n: {r.key: r for r in rounds if r.sweep_id == f"round {n}"} for n in numbers}
    medians = {
        (runs[0].key, time): statistics.median(found)
        for runs in by_key(rounds)
        for time in TIMES
        if (found := [one for run in runs if (one := value(run, time))])
    }
    held: dict[tuple[str, str, str], list[bool]] = {}
    for number in numbers:
        noise = noise_known_to(number, in_round)
        for record in in_round[number].values():
            for time in TIMES:
                if (record.key, time) not in medians:
                    continue
                median = medians[record.key, time]
                for name, floor in (("its own", Noise()), ("with noise", noise)):
                    hit = holds(record, time, floor, median)
                    held.setdefault((str(record.outcome.kind), time, name), []).append(hit)
    for (kind, time, name), hits in held.items():
        print(f"  {kind:<13} {time:<8} {name:<11} {statistics.mean(hits):7.1%} of {len(hits)}")
    for name in ("its own", "with noise"):
        every = [hit for (_, _, which), hits in held.items() if which == name for hit in hits]
        print(f"  {'all':<13} {'all':<8} {name:<11} {statistics.mean(every):7.1%} of {len(every)}")


def noise_known_to(number: int, in_round: dict[int, dict[str, Record]]) -> Noise:
    """Of a sweep at that round that measured its sentinels again in the next ones, cyclically."""
    sentinels = Sentinels()
    for record in in_round[number].values():
        sentinels.consider(record)
    keys = {case.key for case in sentinels.chosen()}
    later = [in_round[(number + step) % len(in_round)] for step in range(1, AGAIN + 1)]
    first = [in_round[number][key] for key in keys]
    return measured_noise(first, [runs[key] for runs in later for key in keys if key in runs])


def holds(record: Record, time: str, noise: Noise, median: float) -> bool:
    metrics = record.outcome.metrics
    ends = (getattr(metrics, f"{time}_ci_low_ms"), getattr(metrics, f"{time}_ci_high_ms"))
    low, high = widened(value(record, time), ends, noise.half_width(record, time))
    return low is not None and high is not None and low <= median <= high


def seconds(record: Record) -> float:
    began, ended = (datetime.fromisoformat(at) for at in (record.started_at, record.ended_at))
    return (ended - began).total_seconds()


def print_cost(records: Sequence[Record]) -> None:
    print("\nCost, seconds a case: in all, and without settling and sampling")
    short = [r for r in records if (value(r, "latency") or 0.0) < 20.0]
    for name, runs in (
        ("under 20 ms", short),
        ("20 ms or more", [r for r in records if r not in short]),
    ):
        if not runs:
            continue
        totals = [seconds(run) for run in runs]
        others = [
            seconds(run) - sum(run.outcome.spent_s.get(part, 0.0) for part in SAMPLING) for run in runs
        ]
        print(
            f"  {name:<14} {len(runs)} runs: in all median {statistics.median(totals):.2f}, most "
            f"{max(totals):.2f}; without median {statistics.median(others):.2f}, most {max(others):.2f}"
        )
    parts = {part for run in records for part in run.outcome.spent_s}
    for part in sorted(parts):
        spent = [run.outcome.spent_s[part] for run in short]
        print(f"    {part:<11} median {statistics.median(spent):.3f}, most {max(spent):.3f}")


if __name__ == "__main__":
    main()
