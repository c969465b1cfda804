"""The noise between runs, and what it does to a comparison."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest
from scipy import stats

from attnscale import record as records
from attnscale.analyse.answer import fastest
from attnscale.analyse.frame import frame
from attnscale.analyse.noise import Noise, difference_seen, in_words, measured_noise
from attnscale.case import Case
from attnscale.record import Kind, Record
from attnscale.report.build import build_report

MakeRecord = Callable[..., Record]
MakeCase = Callable[..., Case]

RUNS = (2.00, 2.02, 2.01, 2.04)


@pytest.fixture
def runs(make_record: MakeRecord) -> list[Record]:
    return [
        make_record(latency_ms=ms, started_at=f"2026-12-01T00:0{i}:00+00:00")
        for i, ms in enumerate(RUNS)
    ]


def test_one_run_is_worth_students_t_times_the_deviation_of_the_logs(runs: list[Record]) -> None:
    spread = measured_noise(runs[:1], runs[1:]).by_kind[Kind.CPU]["latency"]
    logs = [math.log(ms) for ms in RUNS]
    assert spread.half_width == pytest.approx(stats.t.ppf(0.975, 3) * stats.tstd(logs))
    assert spread.drift == pytest.approx(2.04 / 2.00 - 1)
    assert (spread.sentinels, spread.runs) == (1, 4)


def test_kinds_do_not_share_their_noise(make_record: MakeRecord, make_case: MakeCase) -> None:
    steady = [make_record(device_ms=ms, host_ms=0.1) for ms in (2.0, 2.0, 2.0)]
    shaky = [make_record(make_case(seq=8), device_ms=0.1, host_ms=ms) for ms in (1.0, 1.2, 1.4)]
    noise = measured_noise([steady[0], shaky[0]], [*steady[1:], *shaky[1:]])
    assert noise.half_width(steady[0], "device") == 0.0
    assert noise.half_width(shaky[0], "host") > 0.1
    assert noise.half_width(steady[0], "host") == 0.0


def test_a_sentinel_of_several_gpus_is_compared_on_each_alone(make_record: MakeRecord) -> None:
    one, other = (
        [
            record.model_copy(
                update={"environment": record.environment.model_copy(update={"gpu_uuid": uuid})}
            )
            for record in [make_record(latency_ms=ms)] * 2
        ]
        for uuid, ms in (("GPU-a", 2.0), ("GPU-b", 3.0))
    )
    noise = measured_noise(one[:1], [*one[1:], *other])
    assert noise.by_kind[Kind.CPU]["latency"].half_width == 0.0
    assert noise.by_kind[Kind.CPU]["latency"].sentinels == 2


def test_without_repeats_nothing_is_known(make_record: MakeRecord) -> None:
    assert measured_noise([make_record()], []) == Noise()
    assert in_words(Noise()) == []


def test_an_interval_is_widened_in_quadrature(runs: list[Record]) -> None:
    noise = measured_noise(runs[:1], runs[1:])
    row = frame(runs[:1], noise).iloc[0]
    between, within = noise.half_width(runs[0], "latency"), math.log(1 / 0.98)
    assert math.log(row["latency_ms"] / row["latency_low_ms"]) == pytest.approx(
        math.hypot(between, within)
    )
    assert frame(runs[:1]).iloc[0]["latency_low_ms"] == pytest.approx(2.0 * 0.98)
    assert frame(runs[:1]).iloc[0]["device_low_ms"] is not None  # NA, as device_ms itself


def test_what_is_inside_the_noise_is_no_difference(
    make_record: MakeRecord, make_case: MakeCase, runs: list[Record]
) -> None:
    """Apart by their own intervals, and not once the noise between runs is known."""
    rival = make_record(make_case(backend="math"), latency_ms=2.07)
    (sure,) = fastest(frame([runs[0], rival]))
    (unsure,) = fastest(frame([runs[0], rival], measured_noise(runs[:1], runs[1:])))
    assert (sure.runner_up, list(sure.ties)) == ("math", [])
    assert (unsure.runner_up, list(unsure.ties)) == (None, ["math"])


@pytest.mark.parametrize(
    ("ratio", "seen"), [(1.02, False), (1 / 1.02, False), (1.04, True), (0.96, True)]
)
def test_a_ratio_is_seen_when_it_passes_both_half_widths_together(ratio: float, seen: bool) -> None:
    assert difference_seen(ratio, (0.02, 0.02)) is seen


def test_the_report_keeps_the_noise_with_the_sweep(runs: list[Record], tmp_path: Path) -> None:
    records.write(runs[0], tmp_path)
    for run in runs[1:]:
        records.write_repeat(run, tmp_path)
    built = build_report(tmp_path)
    kept = Noise.model_validate_json((tmp_path / "noise.json").read_text())
    assert kept == measured_noise(runs[:1], runs[1:])
    assert any("noise between runs of CPU cases, from 4 runs of 1 case" in note for note in built.notes)
    assert len(built.records) == 1
