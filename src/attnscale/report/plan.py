"""Which figures a sweep needs and what each says in words: pure, no drawing.

One figure for each metric and each swept numeric axis; without such an axis, one by backend; and a
roofline. Nothing is averaged: a swept axis that is neither x nor the line is a facet, and the roofline
has a mark a case.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from attnscale.analyse.frame import NUMERIC_AXES, backends, fixed_axes, swept_axes
from attnscale.analyse.where import CATEGORY_COLUMNS, PART_COLUMNS
from attnscale.report.numbers import GIB, printable

if TYPE_CHECKING:
    import pandas

PANELS_A_FIGURE = 12
"""More than this on one page can't be read: then there are several, numbered."""
BARS_A_FIGURE = 28

_SHAPE = ("seq", "batch", "heads", "kv_heads", "head_dim", "layers", "ffn_dim", "vocab")


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A column that is drawn."""

    column: str
    label: str
    """With its unit."""
    name: str
    """In file names."""
    unit: float = 1.0
    """What a value is divided by before it is drawn."""
    interval: tuple[str, str] | None = None
    """Columns of its lower and upper end."""


METRICS = (
    Metric(
        column="latency_ms",
        label="latency (ms)",
        name="latency",
        interval=("latency_low_ms", "latency_high_ms"),
    ),
    Metric(
        column="device_ms",
        label="device time (ms)",
        name="device",
        interval=("device_low_ms", "device_high_ms"),
    ),
    Metric(
        column="host_ms", label="host time (ms)", name="host", interval=("host_low_ms", "host_high_ms")
    ),
    Metric(
        column="attention_share",
        label="attention's share of kernel time (%)",
        name="attention_share",
        unit=0.01,
    ),
    Metric(column="tokens_per_s", label="throughput (tokens/s)", name="tokens"),
    Metric(
        column="peak_allocated_bytes",
        label="peak memory allocated (GiB)",
        name="memory",
        unit=float(GIB),
    ),
)

ROOFLINE = Metric(column="useful_flops_per_s", label="useful work (TFLOP/s)", name="roofline", unit=1e12)
INTENSITY = "useful_flops_per_byte"


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One facet: what it holds fixed, and its rows."""

    title: str
    rows: "pandas.DataFrame"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One figure."""

    name: str
    """File name without ending."""
    metric: Metric
    x: str | None
    """The numeric axis, INTENSITY in a roofline; None is a bar a backend."""
    panels: Sequence[Panel]
    backends: Sequence[str]
    """In the order swept."""
    without: Sequence[str]
    """Those that have no number anywhere in this sweep."""
    title: str
    fixed: str
    """Model, dtype and the axes that have one value."""
    caption: Sequence[str]
    """How to read it, and what is not drawn, counted by reason."""

    @property
    def alt(self) -> str:
        """The figure in words, for those who can't see it."""
        lines = [f"{self.title}. {self.fixed}. Backends: {', '.join(self.backends)}."]
        return " ".join([*lines, *(f"{line}." for line in self.caption)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """A bar a case, of what its kernels took; what has no part in any case is left out of the legend."""

    name: str
    parts: Mapping[str, str]
    """Column -> label, in the order stacked."""
    rows: "pandas.DataFrame"
    labels: Sequence[str]
    """Of each bar."""
    title: str
    fixed: str
    caption: Sequence[str]

    @property
    def alt(self) -> str:
        """As that of a Plan."""
        return " ".join(f"{line}." for line in (self.title, self.fixed, *self.caption))


def plan_figures(table: "pandas.DataFrame") -> list[Plan | Shares]:
    """Every figure of a sweep; a metric that no case has gets none."""
    return [*_scaling_figures(table), *_roofline(table), *_shares(table)]


def _scaling_figures(table: "pandas.DataFrame") -> list[Plan]:
    swept = swept_axes(table)
    x_axes: Sequence[str | None] = [axis for axis in swept if axis in NUMERIC_AXES] or [None]
    return [
        plan
        for metric in METRICS
        if table[metric.column].notna().any()
        for x in x_axes
        for plan in _plans(table, metric, x, [axis for axis in swept if axis != x])
    ]


def _roofline(table: "pandas.DataFrame") -> Iterator[Plan]:
    """A panel a card and dtype, for they have their own roofs; of device time, and so none on a CPU."""
    seconds = table["device_ms"] / 1e3
    table = table.assign(
        **{
            ROOFLINE.column: table["useful_flops"] / seconds,
            "executed_flops_per_s": table["executed_flops"] / seconds,
            INTENSITY: table["useful_flops"] / table["min_bytes"],
        }
    )
    if table[ROOFLINE.column].notna().any():
        facets = [name for name in ("device_name", "dtype") if table[name].nunique() > 1]
        yield from _plans(table, ROOFLINE, INTENSITY, facets)


def _shares(table: "pandas.DataFrame") -> Iterator[Shares]:
    """Where the time goes, by category of kernel and by part of the model."""
    known = table[table["kernel_ms"].notna() & (table["status"] == "ok")]
    swept = swept_axes(table)
    by = ["backend", *swept]
    missing = len(table) - len(known)
    for name, what, parts in (
        ("category", "kind of kernel", CATEGORY_COLUMNS),
        ("part", "part of the model", PART_COLUMNS),
    ):
        chunks = [known[i : i + BARS_A_FIGURE] for i in range(0, len(known), BARS_A_FIGURE)]
        for number, chunk in enumerate(chunks, start=1):
            of = f", {number} of {len(chunks)}" if len(chunks) > 1 else ""
            devices = ", ".join(printable(name) for name in chunk["device_name"].unique())
            caption = ["the number beside a bar: its kernels' time, and how many"]
            if missing:
                caption.append(f"not drawn: {missing} cases without kernels")
            yield Shares(
                name=f"time_by_{name}" + (f"_{number}" if of else ""),
                parts=parts,
                rows=chunk,
                labels=[" ".join(printable(value) for value in row) for row in chunk[by].values],
                title=f"Where the time goes by {what} on {devices}{of}",
                fixed=_fixed_in_words(table),
                caption=[*caption, f"bars: {' '.join(by)}"],
            )


def missing_rows(rows: "pandas.DataFrame", metric: Metric) -> "pandas.DataFrame":
    """The cases without this number."""
    return rows[rows[metric.column].isna()]


def _plans(
    table: "pandas.DataFrame", metric: Metric, x: str | None, facets: Sequence[str]
) -> Iterator[Plan]:
    names = backends(table)
    known = set(table[table[metric.column].notna()]["backend"])
    panels = _panels(table, facets)
    chunks = [panels[i : i + PANELS_A_FIGURE] for i in range(0, len(panels), PANELS_A_FIGURE)]
    for number, chunk in enumerate(chunks, start=1):
        of = f", {number} of {len(chunks)}" if len(chunks) > 1 else ""
        yield Plan(
            name=_name(metric, x) + (f"_{number}" if of else ""),
            metric=metric,
            x=x,
            panels=chunk,
            backends=names,
            without=[name for name in names if name not in known],
            title=_title(table, metric, x) + of,
            fixed=_fixed_in_words(table),
            caption=_caption(chunk, metric, x),
        )


def _name(metric: Metric, x: str | None) -> str:
    return metric.name if metric is ROOFLINE else f"{metric.name}_by_{x or 'backend'}"


def _panels(table: "pandas.DataFrame", facets: Sequence[str]) -> list[Panel]:
    """A panel for every combination of the facets that was asked for."""
    if not facets:
        return [Panel(title="", rows=table)]
    return [
        Panel(title=_named(zip(facets, values, strict=True)), rows=rows)
        for values, rows in table.groupby(list(facets), dropna=False, sort=True)
    ]


def _named(pairs: "zip[tuple[str, object]]") -> str:
    return " · ".join(f"{name} = {printable(value)}" for name, value in pairs)


def _title(table: "pandas.DataFrame", metric: Metric, x: str | None) -> str:
    what = metric.label.partition(" (")[0].capitalize()
    devices = ", ".join(printable(name) for name in table["device_name"].unique())
    if metric is ROOFLINE:
        return f"Roofline of {devices}"
    return f"{what} by {x or 'backend'} on {devices}"


def _fixed_in_words(table: "pandas.DataFrame") -> str:
    fixed = fixed_axes(table)
    words = [printable(fixed[name]) for name in ("model", "dtype") if name in fixed]
    if fixed.get("arch", "") not in str(fixed.get("model", "")):
        words.insert(1, str(fixed["arch"]))
    if "causal" in fixed:
        words.append("causal" if fixed["causal"] else "not causal")
    if fixed.get("kv_heads") == fixed.get("heads"):
        fixed.pop("kv_heads", None)
    words += [f"{name} {fixed[name]}" for name in _SHAPE if name in fixed]
    return " · ".join(words)


def _caption(panels: Sequence[Panel], metric: Metric, x: str | None) -> list[str]:
    import pandas as pd

    lines = []
    if metric.interval:
        strokes = "upright" if x else "black"
        lines.append(f"{strokes} strokes: 95% interval, noise between runs included where known")
    if metric is ROOFLINE:
        lines.append("bytes are the fewest that a forward must move, time is device time")
        lines.append("strokes up from a mark: with the work that a causal mask makes needless")
    missing = missing_rows(pd.concat([panel.rows for panel in panels]), metric)
    if not missing.empty:
        lines.append(f"not drawn: {_counted(missing)}")
    return lines


def _counted(missing: "pandas.DataFrame") -> str:
    """3 oom (naive 2, math 1); 2 unsupported (cudnn 2)."""
    parts = []
    for status, rows in missing.groupby("status", sort=True):
        words = "ok without this number" if status == "ok" else str(status)
        of = ", ".join(f"{name} {int((rows['backend'] == name).sum())}" for name in backends(rows))
        parts.append(f"{len(rows)} {words} ({of})")
    return "; ".join(parts)
