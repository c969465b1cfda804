"""Figures read back: what is on them is what was measured, and what is not is counted."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from attnscale.analyse.frame import frame
from attnscale.case import Case
from attnscale.record import Record, Status
from attnscale.report import plots

MakeRecord = Callable[..., Record]
MakeCase = Callable[..., Case]
SEQS = (1024, 2048, 4096)


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> dict[str, Canvas]:
    """Every figure saved, by file name."""
    saved: dict[str, Canvas] = {}
    original = Canvas.savefig

    def savefig(self: Canvas, path: Path, **options: Any) -> None:
        saved[Path(path).stem] = self
        original(self, path, **options)

    monkeypatch.setattr(Canvas, "savefig", savefig)
    return saved


def sweep(make_record: MakeRecord, make_case: MakeCase) -> list[Record]:
    """Two batches; math is out of memory at the longest, cudnn never runs."""
    records = []
    for batch in (1, 4):
        for seq in SEQS:
            for backend, slow in (("flash", 1.0), ("math", 4.0), ("cudnn", 0.0)):
                status = Status.OK if slow else Status.UNSUPPORTED
                if backend == "math" and seq == 4096:
                    status = Status.OOM
                case = make_case(backend=backend, seq=seq, batch=batch)
                records.append(
                    make_record(
                        case,
                        status=status,
                        latency_ms=slow * batch * seq / 512,
                        peak_allocated_bytes=2**30 * seq // 1024,
                    )
                )
    return records


def panels(canvas: Canvas) -> list[Axes]:
    return [ax for ax in canvas.axes if ax.get_visible()]


def points(line: Line2D) -> tuple[list[float], list[float]]:
    xs, ys = line.get_data()
    return np.asarray(xs, float).tolist(), np.asarray(ys, float).tolist()


def test_a_figure_for_each_axis_and_metric_as_png_and_svg(
    make_record: MakeRecord, make_case: MakeCase, tmp_path: Path
) -> None:
    figures = plots.draw_all(frame(sweep(make_record, make_case)), tmp_path)
    expected = {f"{what}_by_{x}" for what in ("latency", "tokens", "memory") for x in ("seq", "batch")}
    assert {figure.path.name for figure in figures} == expected
    assert {path.name for path in tmp_path.iterdir()} == {
        f"{name}.{ending}" for name in expected for ending in ("png", "svg")
    }


def test_lines_are_the_records_and_nothing_is_averaged(
    make_record: MakeRecord, make_case: MakeCase, tmp_path: Path, drawn: dict[str, Canvas]
) -> None:
    records = sweep(make_record, make_case)
    plots.draw_all(frame(records), tmp_path)
    found = {
        (ax.get_title(), x, round(y, 9))
        for ax in panels(drawn["latency_by_seq"])
        for line in ax.get_lines()
        for x, y in zip(*points(line), strict=True)
    }
    assert found == {
        (f"batch = {r.case.batch}", r.case.seq, round(r.outcome.metrics.latency_ms, 9))
        for r in records
        if r.outcome.metrics.latency_ms is not None
    }


def test_ticks_are_the_swept_values_in_plain_digits(
    make_record: MakeRecord, make_case: MakeCase, tmp_path: Path, drawn: dict[str, Canvas]
) -> None:
    plots.draw_all(frame(sweep(make_record, make_case)), tmp_path)
    for ax in panels(drawn["latency_by_seq"]):
        assert [label.get_text() for label in ax.get_xticklabels(which="both")] == [
            "1024",
            "2048",
            "4096",
        ]
    svg = (tmp_path / "latency_by_seq.svg").read_text()
    assert "10^" not in svg
    assert "mathdefault" not in svg


def test_the_legend_lists_exactly_the_swept_backends(
    make_record: MakeRecord, make_case: MakeCase, tmp_path: Path, drawn: dict[str, Canvas]
) -> None:
    plots.draw_all(frame(sweep(make_record, make_case)), tmp_path)
    (legend,) = drawn["latency_by_seq"].legends
    assert [text.get_text() for text in legend.get_texts()] == ["flash", "math", "cudnn (no result)"]


def test_what_has_no_number_is_marked_at_its_place_and_counted(
    make_record: MakeRecord, make_case: MakeCase, tmp_path: Path, drawn: dict[str, Canvas]
) -> None:
    plots.draw_all(frame(sweep(make_record, make_case)), tmp_path)
    canvas = drawn["latency_by_seq"]
    marks = [(mark.xy[0], mark.get_text()) for mark in panels(canvas)[0].texts]  # type: ignore[attr-defined]
    assert sorted(marks) == sorted([(4096.0, "× oom"), *((float(seq), "× unsupported") for seq in SEQS)])
    caption = canvas.get_supxlabel()
    assert "2 oom (math 2); 6 unsupported (cudnn 6)" in " ".join(caption.split())


def test_one_shape_is_bars_with_a_row_for_what_failed(
    make_record: MakeRecord, make_case: MakeCase, tmp_path: Path, drawn: dict[str, Canvas]
) -> None:
    records = [
        make_record(make_case(backend="flash"), latency_ms=3.0),
        make_record(make_case(backend="math"), status=Status.FAILED),
        make_record(make_case(backend="cudnn"), latency_ms=1.0),
    ]
    plots.draw_all(frame(records), tmp_path)
    (ax,) = panels(drawn["latency_by_backend"])
    assert [label.get_text() for label in ax.get_yticklabels()] == ["flash", "math", "cudnn"]
    assert [text.get_text() for text in ax.texts] == ["3", "failed", "1"]
    bars = [patch for patch in ax.patches if isinstance(patch, Rectangle)]
    assert sorted(bar.get_width() for bar in bars) == [1.0, 3.0]


def test_a_metric_that_nobody_has_gets_no_figure(
    make_record: MakeRecord, make_case: MakeCase, tmp_path: Path
) -> None:
    cpu = [make_record(make_case(seq=seq)) for seq in SEQS]
    assert {f.path.name for f in plots.draw_all(frame(cpu), tmp_path)} == {
        "latency_by_seq",
        "tokens_by_seq",
    }
    failed = [make_record(make_case(seq=seq), status=Status.OOM) for seq in SEQS]
    assert plots.draw_all(frame(failed), tmp_path) == []


def test_many_facets_become_several_figures_and_many_values_fewer_ticks(
    make_record: MakeRecord, make_case: MakeCase, tmp_path: Path, drawn: dict[str, Canvas]
) -> None:
    many = [make_record(make_case(seq=seq, batch=batch)) for seq in (16, 32) for batch in range(1, 16)]
    plots.draw_all(frame(many), tmp_path)
    titles = [
        ax.get_title()
        for name, canvas in drawn.items()
        if re.match(r"latency_by_seq_\d", name)
        for ax in panels(canvas)
    ]
    assert sorted(titles) == sorted(f"batch = {batch}" for batch in range(1, 16))
    labels = panels(drawn["latency_by_batch"])[0].get_xticklabels()
    assert len(labels) <= 12
    assert {int(label.get_text()) for label in labels} <= set(range(1, 16))


def test_an_svg_is_the_same_at_every_build(
    make_record: MakeRecord, make_case: MakeCase, tmp_path: Path
) -> None:
    table = frame(sweep(make_record, make_case)[:9])
    texts = []
    for name in ("a", "b"):
        folder = tmp_path / name
        folder.mkdir()
        plots.draw_all(table, folder)
        texts.append((folder / "latency_by_seq.svg").read_text())
    assert texts[0] == texts[1]
