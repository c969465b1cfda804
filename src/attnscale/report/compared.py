"""A comparison of two sweeps in words: a table of 80 columns, or JSON."""

import dataclasses
import json
import math

from attnscale.analyse.compare import Compared, Comparison, Verdict
from attnscale.report.numbers import number, printable


def as_json(comparison: Comparison) -> str:
    """Every field."""
    made = dataclasses.asdict(comparison)
    for case, raw in zip(comparison.cases, made["cases"], strict=True):
        raw["ratio"] = case.ratio
    return json.dumps(made, indent=1)


def show(comparison: Comparison) -> None:
    """The cases, the most slowed down first; then what else differs."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for header in ("case", "A, ms", "B, ms", "B / A", "verdict"):
        table.add_column(
            header, justify="left" if header in ("case", "verdict") else "right", overflow="fold"
        )
    for case in comparison.cases:
        ratio = f"{case.ratio:.3f}" + ("" if case.half_width is None else f" ±{_percent(case)}")
        table.add_row(case.slug, number(case.a_ms), number(case.b_ms), ratio, case.verdict.value)
    Console(highlight=False).print(table)
    for line in said(comparison):
        print(printable(line))


def said(comparison: Comparison) -> list[str]:
    """Counts of verdicts, then every difference that is no time."""
    counts = {v: sum(case.verdict is v for case in comparison.cases) for v in Verdict}
    lines = [", ".join(f"{count} {verdict}" for verdict, count in counts.items())]
    if any(case.half_width is None for case in comparison.cases):
        lines.append(
            "unclear where the noise between runs is unknown: measure both sweeps with repeats=3 or more"
        )
    lines += [f"environment, {line}" for line in comparison.environment]
    lines += [f"outcome, {line}" for line in comparison.changed_outcomes]
    lines += [
        f"kernels, {case.slug}: {', '.join(case.kernels)}" for case in comparison.cases if case.kernels
    ]
    for side, slugs in (("A", comparison.only_a), ("B", comparison.only_b)):
        if slugs:
            some = ", ".join(slugs[:3]) + (", ..." if len(slugs) > 3 else "")
            lines.append(f"only in {side}: {len(slugs)} ({some})")
    return lines


def slower_than(comparison: Comparison, fraction: float) -> list[Compared]:
    """Cases that are slower in B by more than ``fraction``, beyond noise."""
    return [
        case for case in comparison.cases if case.verdict is Verdict.SLOWER and case.ratio > 1 + fraction
    ]


def _percent(case: Compared) -> str:
    return f"{math.expm1(case.half_width or 0.0):.1%}"
