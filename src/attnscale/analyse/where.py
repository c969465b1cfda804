"""Where the time of a forward goes, from its kernels: by category and by part of the model."""

import re
from collections.abc import Mapping, Sequence

from attnscale.evidence.categories import Category, Row, rows
from attnscale.record import Record

PARTS: Mapping[str, re.Pattern[str]] = {
    "attention": re.compile(r"\.core$"),
    "attention's projections": re.compile(r"\.attention(\.|$)"),
    "MLP": re.compile(r"\.mlp(\.|$)"),
    "norms": re.compile(r"(_norm|^norm)$"),
    "embedding": re.compile(r"^(embedding|positions)$"),
    "head": re.compile(r"^head$"),
    "residuals": re.compile(r"^layers\.\d+$"),
}
"""Part of the model -> paths of its modules; the first that fits."""
OUTSIDE = "outside any module"


CATEGORY_COLUMNS: Mapping[str, str] = {
    f"{category.value.split()[0].lower()}_kernels_us": category.value for category in Category
}
PART_COLUMNS: Mapping[str, str] = {
    f"in_{name.split()[-1].lower()}_us": name for name in (*PARTS, OUTSIDE)
}
"""Column of a table -> what it is: microseconds of one forward."""


def by_category(found: Sequence[Row]) -> dict[str, float]:
    """Microseconds of one forward, every category."""
    return {
        category.value: sum(row.us for row in found if row.category is category) for category in Category
    }


def by_part(found: Sequence[Row]) -> dict[str, float]:
    """Microseconds of one forward, every part, and what ran outside."""
    total = dict.fromkeys((*PARTS, OUTSIDE), 0.0)
    for row in found:
        total[part(row.module)] += row.us
    return total


def idle_us(found: Sequence[Row]) -> float:
    """Gaps between kernels of the profiled pass, in which launching takes longer than elsewhere."""
    idle, reached = 0.0, None
    for launch in sorted((row.launch for row in found), key=lambda one: one.at_us):
        if reached is not None:
            idle += max(0.0, launch.at_us - reached)
        reached = max(reached or 0.0, launch.at_us + launch.us)
    return idle


def part(module: str) -> str:
    """Of the model, or OUTSIDE."""
    return next((name for name, path in PARTS.items() if path.search(module)), OUTSIDE)


def evidence(record: Record) -> dict[str, float | int | None]:
    """The columns of a table that come from the kernels; None without a profile."""
    profile = record.outcome.profile
    if profile is None:
        names = ("kernels", "memcpys", "kernels_a_layer", "kernel_ms", "attention_share", "idle_us")
        return dict.fromkeys((*names, *CATEGORY_COLUMNS, *PART_COLUMNS))
    found = rows(profile)
    total_us = sum(row.us for row in found)
    categories, parts = by_category(found), by_part(found)
    in_layers = sum(row.module.startswith("layers.") for row in found)
    copies = sum(row.kernel.kind in ("memcpy", "memset") for row in found)
    return {
        "kernels": len(found) - copies,
        "memcpys": copies,
        "kernels_a_layer": in_layers / record.case.layers,
        "kernel_ms": total_us / 1e3,
        "attention_share": parts["attention"] / total_us if total_us else None,
        "idle_us": None if record.case.device == "cpu" else idle_us(found),
        **{column: categories[name] for column, name in CATEGORY_COLUMNS.items()},
        **{column: parts[name] for column, name in PART_COLUMNS.items()},
    }
