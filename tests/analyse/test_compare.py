"""Two sweeps beside each other: only what the noise of both can't explain is a difference."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from attnscale import record as records
from attnscale.analyse.compare import Comparison, Verdict, compare
from attnscale.analyse.noise import Noise, Spread
from attnscale.case import Case
from attnscale.cli import app
from attnscale.record import Kind, Record, Status
from tests.conftest import ENVIRONMENT
from tests.evidence.profiles import profile

Make = Callable[..., Record]


def noise(half_width: float) -> Noise:
    spread = Spread(half_width=half_width, drift=0.0, sentinels=1, runs=4)
    return Noise(by_kind={kind: {"latency": spread, "device": spread} for kind in Kind})


LITTLE, MUCH = noise(0.005), noise(0.2)


@pytest.fixture
def at(make_record: Make, make_case: Callable[..., Case]) -> Make:
    def made(device_ms: float, **changes: Any) -> Record:
        axes = {name: changes.pop(name) for name in ("backend", "seq") if name in changes}
        case = make_case(**{"device": "cuda", "backend": "flash"} | axes)
        return make_record(case, device_ms=device_ms, latency_ms=device_ms, host_ms=0.01, **changes)

    return made


@pytest.mark.parametrize(
    ("ms", "known", "verdict"),
    [
        (10.0, LITTLE, Verdict.SAME),
        (10.1, LITTLE, Verdict.SAME),
        (11.0, LITTLE, Verdict.SLOWER),
        (9.0, LITTLE, Verdict.FASTER),
        (11.0, MUCH, Verdict.UNCLEAR),
        (10.0, MUCH, Verdict.UNCLEAR),
        (20.0, MUCH, Verdict.SLOWER),
        (20.0, Noise(), Verdict.UNCLEAR),
    ],
    ids=["same", "within", "slower", "faster", "noisy", "noisy-same", "beyond", "unknown-noise"],
)
def test_verdict(at: Make, ms: float, known: Noise, verdict: Verdict) -> None:
    (case,) = compare([at(10.0)], known, [at(ms)], known).cases
    assert case.verdict is verdict
    assert case.ratio == pytest.approx(ms / 10)


def test_the_noise_of_either_sweep_counts(at: Make) -> None:
    for noises in ((LITTLE, MUCH), (MUCH, LITTLE)):
        (case,) = compare([at(10.0)], noises[0], [at(11.0)], noises[1]).cases
        assert case.verdict is Verdict.UNCLEAR


def test_the_same_sweep_repeated_is_not_called_different(at: Make) -> None:
    """40 cases with 1% of noise between runs, of which the sentinels told."""
    rng, known = random.Random(0), noise(0.02)
    sweeps = [[at(10 * rng.gauss(1, 0.01), seq=seq) for seq in range(1, 41)] for _ in range(2)]
    verdicts = [case.verdict for case in compare(sweeps[0], known, sweeps[1], known).cases]
    assert verdicts.count(Verdict.SAME) >= 38


def test_every_case_is_told_of_once(at: Make, make_record: Make, make_case: Callable[..., Case]) -> None:
    oom = make_record(make_case(device="cuda", backend="math"), status=Status.OOM)
    a = [at(1.0), at(2.0, seq=32), oom]
    b = [at(1.0), at(3.0, seq=64), at(9.0, backend="math")]
    found = compare(a, LITTLE, b, LITTLE)
    assert [case.slug for case in found.cases] == ["gpt-flash-s16-b2-h4-l2-fp32-cuda"]
    assert found.changed_outcomes == ["gpt-math-s16-b2-h4-l2-fp32-cuda: oom, ok"]
    assert found.only_a == ["gpt-flash-s32-b2-h4-l2-fp32-cuda"]
    assert found.only_b == ["gpt-flash-s64-b2-h4-l2-fp32-cuda"]


def test_the_most_slowed_down_comes_first(at: Make) -> None:
    a = [at(1.0, seq=seq) for seq in (8, 16, 32)]
    b = [at(ms, seq=seq) for seq, ms in ((8, 1.0), (16, 0.5), (32, 2.0))]
    assert [case.ratio for case in compare(a, LITTLE, b, LITTLE).cases] == [2.0, 1.0, 0.5]


def test_changed_kernels_are_the_likely_cause(at: Make) -> None:
    def ran(record: Record, backend: str) -> Record:
        outcome = record.outcome.model_copy(update={"profile": profile(backend)})
        return record.model_copy(update={"outcome": outcome})

    (same,) = compare([ran(at(1.0), "flash")], LITTLE, [ran(at(1.0), "flash")], LITTLE).cases
    assert same.kernels == ()
    (other,) = compare([ran(at(1.0), "flash")], LITTLE, [ran(at(2.0), "cudnn")], LITTLE).cases
    assert [kernel[:8] for kernel in other.kernels] == ["-2 void ", "+2 cudnn"]


def test_another_environment_is_named(at: Make) -> None:
    newer = ENVIRONMENT.model_copy(update={"torch": "2.14.0"})
    found = compare([at(1.0)], LITTLE, [at(1.0, environment=newer)], LITTLE)
    assert found.environment == ["torch: 2.13.0+cpu in A, 2.14.0 in B"]


@pytest.fixture
def sweeps(at: Make, tmp_path: Path) -> tuple[str, str]:
    """B is 10% slower; each has measured its case four times."""
    for name, ms in (("a", 10.0), ("b", 11.0)):
        records.write(at(ms), tmp_path / name)
        for factor in (0.999, 1.001, 1.0):
            records.write_repeat(at(ms * factor), tmp_path / name)
    return str(tmp_path / "a"), str(tmp_path / "b")


@pytest.mark.parametrize(
    ("options", "code"),
    [([], 0), (["--fail-on-slower", "3%"], 1), (["--fail-on-slower", "20%"], 0)],
    ids=["say", "fail", "allow"],
)
def test_the_command(sweeps: tuple[str, str], options: list[str], code: int) -> None:
    done = CliRunner().invoke(app, ["compare", *sweeps, *options])
    assert done.exit_code == code
    assert "slower" in done.stdout
    assert "0 faster, 1 slower, 0 same, 0 unclear" in done.stdout
    assert all(len(line) <= 80 for line in done.stdout.splitlines())


def test_the_command_gives_json(sweeps: tuple[str, str]) -> None:
    done = CliRunner().invoke(app, ["compare", *sweeps, "--json"])
    (case,) = json.loads(done.stdout)["cases"]
    assert (case["verdict"], case["ratio"], case["time"]) == ("slower", pytest.approx(1.1), "device_ms")


@pytest.mark.parametrize("limit", ["x", "-1%", "%", "5000%"])
def test_a_bad_percentage_is_one_line(sweeps: tuple[str, str], limit: str) -> None:
    done = CliRunner().invoke(app, ["compare", *sweeps, "--fail-on-slower", limit])
    assert done.exit_code == 2
    assert done.stderr.startswith(f"attnscale: --fail-on-slower={limit}: a percentage")


def test_nothing_in_common_is_said(at: Make, tmp_path: Path) -> None:
    records.write(at(1.0), tmp_path / "a")
    records.write(at(1.0, seq=64), tmp_path / "b")
    done = CliRunner().invoke(app, ["compare", str(tmp_path / "a"), str(tmp_path / "b")])
    assert done.exit_code == 2
    assert "no case ended ok in both" in done.stderr


def test_no_field_is_lost() -> None:
    empty = Comparison(cases=[], changed_outcomes=[], only_a=[], only_b=[], environment=[])
    assert compare([], Noise(), [], Noise()) == empty
