"""Whether predictions of deep models hold: ladders of at most 8 layers against real 80-layer runs.

    python benchmarks/depth.py measure FOLDER [--device cuda] [--deep 80]
    python benchmarks/depth.py read FOLDER [--deep 80]

Six backends at four shapes: two compute-bound, one of them with grouped heads; one memory-bound; one
launch-bound. ``measure`` runs one sweep a shape, layers 1, 2, 4, 8 and the deep one, into FOLDER/SHAPE.
``read`` predicts the deep ones from the shallower alone and prints every signed error by regime, how
often the 95% intervals hold the truth, how wide they are, and the ladder's cost beside the deep cases.
"""

import argparse
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from attnscale.analyse.depth import Prediction, TooFewDepths, all_series, predict
from attnscale.analyse.noise import measured_noise
from attnscale.record import Record, read_repeats, read_sweep

ROOT = Path(__file__).parent.parent
LADDER = (1, 2, 4, 8)
SHAPES = {
    "cuda": {
        "compute_gpt": "heads=16 head_dim=128 seq=4096",
        "compute_gqa": "arch=llama heads=32 kv_heads=8 head_dim=128 ffn_dim=14336 seq=2048",
        "memory_gqa": "arch=llama heads=32 kv_heads=8 head_dim=128 ffn_dim=14336 seq=64",
        "launch_gpt": "heads=16 head_dim=64 seq=256",
    },
    "cpu": {"small": "heads=4 head_dim=32 seq=64 vocab=256 dtype=float32"},
}
BACKENDS = {"cuda": "naive,naive_inplace,math,efficient,flash,cudnn", "cpu": "naive,math,flash"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """A prediction whose truth was measured."""

    shape: str
    backend: str
    regime: str
    one: Prediction

    @property
    def error(self) -> float:
        assert self.one.error is not None
        return self.one.error

    @property
    def holds(self) -> bool:
        assert self.one.measured is not None
        return self.one.low <= self.one.measured <= self.one.high

    @property
    def half_width(self) -> float:
        return (self.one.high - self.one.low) / 2 / self.one.value


def main() -> None:
    plain = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=plain)
    parser.add_argument("what", choices=["measure", "read"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--deep", type=int, default=80)
    arguments = parser.parse_args()
    if arguments.what == "measure":
        for shape, axes in SHAPES[arguments.device].items():
            measure(arguments.folder / shape, axes, arguments.device, arguments.deep)
    read(arguments.folder, arguments.deep)


def measure(folder: Path, axes: str, device: str, deep: int) -> None:
    layers = ",".join(map(str, (*LADDER, deep)))
    command = [sys.executable, "run.py", "-m", *axes.split(), f"layers={layers}"]
    command += [
        f"backend={BACKENDS[device]}",
        f"device={device}",
        "tracker=none",
        f"output_dir={folder}",
    ]
    subprocess.run(command, cwd=ROOT, check=False)  # a case that fails is in the records


def read(folder: Path, deep: int) -> None:
    checked: list[Checked] = []
    spent = {"ladder": 0.0, "deep": 0.0}
    for shape in sorted(path for path in folder.iterdir() if path.is_dir()):
        for sweep in shape.iterdir():
            records, _ = read_sweep(sweep)
            repeats, _ = read_repeats(sweep)
            for record in records:
                spent["deep" if record.case.layers == deep else "ladder"] += seconds(record)
            noise = measured_noise([r for r in records if r.case.layers != deep], repeats)
            for series in all_series(records):
                try:
                    made = predict(series, deep, noise)
                except TooFewDepths as error:
                    print(f"not predicted: {error}")
                    continue
                truth = series.records[-1]
                regime = str(truth.outcome.kind)
                checked += [
                    Checked(shape=shape.name, backend=series.backend, regime=regime, one=one)
                    for one in made
                    if one.measured
                ]
    for quantity in dict.fromkeys(each.one.quantity for each in checked):
        print_quantity(quantity, [each for each in checked if each.one.quantity == quantity])
    share = spent["ladder"] / spent["deep"] if spent["deep"] else float("nan")
    print(f"\nThe ladders took {spent['ladder']:.0f} s, the deep cases {spent['deep']:.0f}: {share:.2f}")


def print_quantity(quantity: str, checked: Sequence[Checked]) -> None:
    print(f"\n{quantity}")
    for each in checked:
        one = each.one
        inside = "" if each.holds else "  outside its interval"
        print(
            f"  {each.shape:<12} {each.backend:<14} {each.regime:<13} measured {one.measured:12.5g}, "
            f"predicted {one.value:12.5g} +-{each.half_width:6.2%}, error {each.error:+7.2%}{inside}"
        )
    for regime in dict.fromkeys(each.regime for each in checked):
        some = [each for each in checked if each.regime == regime]
        errors = [abs(each.error) for each in some]
        print(
            f"  {regime}: median |error| {statistics.median(errors):.2%}, worst {max(errors):.2%}; "
            f"{sum(each.holds for each in some)} of {len(some)} within; half-width, median "
            f"{statistics.median(each.half_width for each in some):.2%}"
        )


def seconds(record: Record) -> float:
    began, ended = (datetime.fromisoformat(at) for at in (record.started_at, record.ended_at))
    return (ended - began).total_seconds()


if __name__ == "__main__":
    main()
