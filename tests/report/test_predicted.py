"""Predictions as a reader meets them: terminal, JSON, page, figure."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from attnscale import record as records
from attnscale.analyse.noise import Noise
from attnscale.case import Case
from attnscale.cli import app
from attnscale.record import Record, Status
from attnscale.report import plots, predicted
from attnscale.report.build import build_report

Make = Callable[..., Record]


@pytest.fixture
def ladder(make_record: Make, make_case: Callable[..., Case]) -> Callable[..., list[Record]]:
    def made(slopes: dict[str, float], depths: Sequence[int] = (1, 2, 4, 8)) -> list[Record]:
        return [
            make_record(
                make_case(device="cuda", backend=name, layers=n),
                latency_ms=1 + slope * n, device_ms=0.98 + slope * n, host_ms=0.1 + 0.01 * n,
                peak_allocated_bytes=2**30 * (1 + n),
            )
            for name, slope in slopes.items()
            for n in depths
        ]  # fmt: skip

    return made


def folder_of(made: Sequence[Record], path: Path) -> Path:
    for record in made:
        records.write(record, path)
    return path


Ladder = Callable[..., list[Record]]


def points(line: Any) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True)]


def test_predict_says_value_interval_formula_and_what_was_measured(
    ladder: Ladder, tmp_path: Path
) -> None:
    folder = folder_of(ladder({"flash": 1.0}, (1, 2, 4, 8, 80)), tmp_path)
    done = CliRunner().invoke(app, ["predict", str(folder)])
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    assert lines[0].strip() == "gpt-flash-s16-b2-h4-fp32-cuda, 80 layers from 1, 2, 4, 8"
    cells = next(line for line in lines if line.startswith("latency, ms")).split()
    assert cells[2] == "81"
    assert cells[-2:] == ["81", "+0.00%"]
    assert "device_ms = 0.98 + 1 * layers" in done.stdout
    assert all(len(line) <= 80 for line in lines if "layers:" not in line)


def test_predict_takes_any_depth_and_gives_json(ladder: Ladder, tmp_path: Path) -> None:
    folder = folder_of(ladder({"flash": 1.0, "math": 3.0}), tmp_path)
    done = CliRunner().invoke(app, ["predict", str(folder), "--layers", "40", "--json"])
    found = json.loads(done.stdout)
    assert found["refused"] == []
    latency = {
        series["backend"]: one["value"]
        for series in found["predicted"]
        for one in series["predictions"]
        if one["quantity"] == "latency_ms"
    }
    assert latency == {"flash": pytest.approx(41.0), "math": pytest.approx(121.0)}


def test_a_ladder_that_is_too_short_is_refused_with_what_to_run(ladder: Ladder, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["predict", str(folder_of(ladder({"flash": 1.0}, (4,)), tmp_path))])
    assert done.exit_code == 2
    assert "run it with layers=1,2,4,8" in done.stdout


def test_an_empty_folder_is_one_line(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["predict", str(tmp_path)])
    assert done.exit_code == 2
    assert done.stderr == f"attnscale: {tmp_path}: no readable record in cases/*/record.json\n"


@pytest.mark.parametrize(
    ("slopes", "words"),
    [
        ({"flash": 1.0, "cudnn": 1.004}, "a tie of flash, cudnn, 81 s a thousand forwards"),
        ({"flash": 1.0, "math": 3.0}, "flash is fastest, 81 s a thousand forwards; math takes 2.98"),
    ],
    ids=["tie", "apart"],
)
def test_backends_within_the_intervals_are_a_tie(
    ladder: Ladder, slopes: dict[str, float], words: str
) -> None:
    found, _ = predicted.every_series(ladder(slopes), 80, Noise())
    (line,) = predicted.ties(found)
    assert line.startswith(f"gpt-s16-b2-h4-fp32-cuda, 80 layers: {words}")


def test_the_report_predicts_by_itself_where_there_is_a_ladder(ladder: Ladder, tmp_path: Path) -> None:
    page = build_report(folder_of(ladder({"flash": 1.0, "math": 3.0}), tmp_path / "a")).page.read_text()
    assert "80 layers, predicted" in page
    assert (tmp_path / "a" / "figures" / "latency_by_depth.png").exists()
    short = build_report(folder_of(ladder({"flash": 1.0}, (4, 8)), tmp_path / "b")).page.read_text()
    assert "layers, predicted" not in short


def test_the_figure_has_marks_lines_and_ends(ladder: Ladder) -> None:
    plan = predicted.figure(ladder({"flash": 1.0, "math": 3.0}), 80, Noise())
    assert plan is not None
    (ax,) = plots.draw(plan).axes
    marks, line, *_ = (points(each) for each in ax.get_lines())
    assert marks == [(1, 2), (2, 3), (4, 5), (8, 9)]
    assert line[-1] == pytest.approx((80, 81))
    assert [text.get_text() for text in ax.texts] == ["81", "241"]
    assert "flash: 81 ms at 80 layers" in plan.alt


def test_ends_of_lines_do_not_overlap(ladder: Ladder) -> None:
    plan = predicted.figure(ladder({"flash": 1.0, "cudnn": 1.001, "math": 3.0}), 80, Noise())
    assert plan is not None
    (ax,) = plots.draw(plan).axes
    heights = [text.xy[1] for text in ax.texts]  # type: ignore[attr-defined]
    assert heights[1] - heights[0] > 0.04 * ax.get_ylim()[1]


def test_nothing_to_predict_is_no_figure(make_record: Make) -> None:
    assert predicted.figure([make_record(), make_record(status=Status.OOM)], 80, Noise()) is None
