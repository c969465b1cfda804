"""Records as a table: units, nulls, and which axes were swept."""

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from attnscale.analyse.answer import fastest
from attnscale.analyse.frame import fixed_axes, frame, swept_axes, write_tables
from attnscale.analyse.utilisation import RATIOS
from attnscale.case import Case
from attnscale.record import Record, Status

MakeRecord = Callable[..., Record]
MakeCase = Callable[..., Case]


def test_one_row_a_case_with_nulls_that_are_null(make_record: MakeRecord, make_case: MakeCase) -> None:
    table = frame([make_record(), make_record(make_case(backend="math"), status=Status.OOM)])
    assert list(table["backend"]) == ["naive", "math"]
    assert table["latency_ms"].tolist() == [2.0, pd.NA]
    assert table["peak_allocated_bytes"].isna().all()
    assert list(table["reason"].isna()) == [True, False]
    assert table["d_model"].tolist() == [32, 32]
    assert not any(table[column].dtype == object for column in table)


def test_every_measured_column_names_its_unit(make_record: MakeRecord) -> None:
    table = frame([make_record()])
    floats = [str(column) for column in table if table[column].dtype == "Float64"]
    units = ("_ms", "_us", "_per_s", "_seconds", "_flops", "_bytes", "_mhz", "_w", "_c")
    ratios = {*RATIOS, "host_over_device", "rel_error", "forward_rel_error", "timing_precision"}
    ratios |= {"attention_share", "kernels_a_layer"}
    assert {column for column in floats if not column.endswith(units)} == {*ratios, "params"}


@pytest.mark.parametrize(
    ("variants", "axes"),
    [
        ([{}, {"backend": "math"}], ()),
        ([{"seq": 16}, {"seq": 32}], ("seq",)),
        ([{"seq": s, "batch": b} for s in (16, 32) for b in (1, 2)], ("seq", "batch")),
        ([{"heads": h} for h in (2, 4)], ("heads",)),
        (
            [{"heads": h, "kv_heads": k, "arch": "llama"} for h in (4, 8) for k in (2, 4)],
            ("heads", "kv_heads"),
        ),
        ([{"model": "a", "layers": 1, "seq": 16}, {"model": "b", "layers": 2, "seq": 16}], ("model",)),
        (
            [{"model": m, "layers": n, "seq": s} for m, n in (("a", 1), ("b", 2)) for s in (16, 32)],
            ("model", "seq"),
        ),
        ([{"dtype": d} for d in ("float32", "bfloat16")], ("dtype",)),
        ([{"causal": c} for c in (True, False)], ("causal",)),
    ],
    ids=[
        "backend-only",
        "seq",
        "two",
        "followers",
        "gqa",
        "presets",
        "presets-and-seq",
        "dtype",
        "causal",
    ],
)
def test_swept_axes(
    make_record: MakeRecord,
    make_case: MakeCase,
    variants: list[dict[str, object]],
    axes: tuple[str, ...],
) -> None:
    table = frame([make_record(make_case(**values)) for values in variants])
    assert swept_axes(table) == axes
    assert not set(axes) & set(fixed_axes(table))


@pytest.mark.parametrize(
    ("variants", "axes"),
    [
        (
            [{"heads": h, "head_dim": d} for h, d in ((2, 8), (4, 8), (2, 16), (4, 16), (8, 16))],
            ("heads", "head_dim"),
        ),
        ([{"heads": 8, "kv_heads": k, "arch": "llama"} for k in (1, 2, 8)], ("kv_heads",)),
        ([{"ffn_dim": f} for f in (64, 128)], ("ffn_dim",)),
        ([{"seq": 16, "batch": 4}, {"seq": 64, "batch": 1}], ("seq", "batch")),
        ([{"model": "a", "seq": 16}, {"model": "b", "seq": 32}], ("model", "seq")),
        ([{"backend": "flash", "dtype": "float16"}, {"backend": "math"}], ("dtype",)),
        ([{"arch": "gpt"}, {"arch": "llama", "ffn_dim": 96}], ("arch",)),
    ],
    ids=["ffn-follows-two", "kv-alone", "ffn-alone", "together", "preset-and-seq", "by-backend", "arch"],
)
def test_an_axis_asked_for_is_never_taken_for_a_follower(
    make_record: MakeRecord,
    make_case: MakeCase,
    variants: list[dict[str, object]],
    axes: tuple[str, ...],
) -> None:
    assert swept_axes(frame([make_record(make_case(**values)) for values in variants])) == axes


def test_a_text_that_looks_like_null_is_kept(
    make_record: MakeRecord, make_case: MakeCase, tmp_path: Path
) -> None:
    labels = ["None", "NA", "null", 'a,"b"', "1e3"]
    table = frame([make_record(make_case(model=label)) for label in labels])
    write_tables(table, tmp_path)
    assert pd.read_parquet(tmp_path / "results.parquet")["model"].tolist() == labels
    csv = pd.read_csv(tmp_path / "results.csv", keep_default_na=False, na_values=[""])
    assert csv["model"].tolist() == labels


def test_no_record_is_an_empty_table_with_all_columns(make_record: MakeRecord) -> None:
    assert list(frame([])) == list(frame([make_record()]))


def test_tables_are_read_back_the_same(
    make_record: MakeRecord, make_case: MakeCase, tmp_path: Path
) -> None:
    table = frame([make_record(), make_record(make_case(backend="math"), status=Status.OOM)])
    assert write_tables(table, tmp_path) == []
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "results.parquet"), table)
    csv = pd.read_csv(tmp_path / "results.csv")
    assert list(csv.columns) == list(table.columns)
    assert csv["latency_ms"].isna().tolist() == [False, True]
    assert csv["gqa"][0] == "none", "a value, not a missing one"


def test_without_pyarrow_the_rest_is_written_and_the_note_says_how(
    make_record: MakeRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(*_: object, **__: object) -> None:
        raise ImportError("pyarrow")

    monkeypatch.setattr(pd.DataFrame, "to_parquet", missing)
    (tmp_path / "results.parquet").write_text("of an earlier build")
    notes = write_tables(frame([make_record()]), tmp_path)
    assert not (tmp_path / "results.parquet").exists()
    assert "pip install pyarrow" in notes[0]
    assert (tmp_path / "results.csv").is_file()


def test_the_fastest_with_ties_called_ties(make_record: MakeRecord, make_case: MakeCase) -> None:
    times = {"flash": 2.0, "cudnn": 2.05, "math": 5.0, "efficient": None}
    rows = [
        make_record(make_case(backend=name), latency_ms=ms)
        if ms
        else make_record(make_case(backend=name), status=Status.OOM)
        for name, ms in times.items()
    ]
    (answer,) = fastest(frame(rows))
    assert (answer.fastest, answer.ties, answer.runner_up) == ("flash", ["cudnn"], "math")
    assert answer.ratio == 2.5
    assert answer.without == {"efficient": "oom"}


def test_a_shape_where_all_failed_has_no_fastest(make_record: MakeRecord, make_case: MakeCase) -> None:
    rows = [make_record(make_case(seq=16)), make_record(make_case(seq=32), status=Status.FAILED)]
    good, bad = fastest(frame(rows))
    assert (good.shape, good.fastest) == ("seq = 16", "naive")
    assert (bad.shape, bad.fastest) == ("seq = 32", None)


def test_work_past_64_bits_is_a_row_like_any_other(make_record: MakeRecord, make_case: MakeCase) -> None:
    huge = make_record(make_case(backend="math"), status=Status.OOM)
    huge = huge.model_copy(update={"costs": huge.costs.model_copy(update={"executed_flops": 2**70})})
    assert frame([make_record(), huge])["executed_flops"].tolist() == [1e6, float(2**70)]


@pytest.mark.parametrize(
    ("changes", "has_intervals"),
    [({}, True), ({"latency_ci_low_ms": None}, False)],
    ids=["with-intervals", "too-few-samples"],
)
def test_without_intervals_there_is_a_ranking_but_no_claim(
    make_record: MakeRecord, make_case: MakeCase, changes: dict[str, None], has_intervals: bool
) -> None:
    fast, slow = make_record(latency_ms=1.0), make_record(make_case(backend="math"), latency_ms=3.0)
    metrics = fast.outcome.metrics.model_copy(update=changes)
    fast = fast.model_copy(update={"outcome": fast.outcome.model_copy(update={"metrics": metrics})})
    (answer,) = fastest(frame([fast, slow]))
    assert (answer.compared, answer.has_intervals) == (2, has_intervals)
    assert (answer.fastest, answer.ties, answer.ratio) == ("naive", [], 3.0)
