"""Numbers and text as a reader meets them, the same in terminal, page and figures."""

from typing import Any

GIB = 2**30


def number(value: Any, unit: float = 1) -> str:
    """Four figures, plain digits, thousands apart: 0.01234, 1.234, 1,234; a dash for null."""
    import pandas as pd

    if value is None or pd.isna(value):
        return "-"
    scaled = float(value) / unit
    if abs(scaled) >= 1000 or scaled == int(scaled):
        return f"{scaled:,.0f}"
    return f"{scaled:.4g}" if abs(scaled) >= 1e-4 else f"{scaled:.2e}"


def short(value: Any) -> str:
    """Four figures with k, M, G: 210.9k; a dash for null."""
    import pandas as pd

    if value is None or pd.isna(value):
        return "-"
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size * 0.99995:  # 999,960 is 1M, not 1000k
            return f"{value / size:.4g}{letter}"
    return f"{value:.4g}"


def interval(low: Any, high: Any) -> str:
    """low - high, or a dash when either is null."""
    import pandas as pd

    if pd.isna(low) or pd.isna(high):
        return "-"
    return f"{number(low)} - {number(high)}"


def printable(text: object) -> str:
    """One line without control characters: a label may hold any, and XML and terminals break on them."""
    line = " ".join(str(text).split())
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in line)
