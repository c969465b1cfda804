"""Where ticks and marks go."""

import pytest

from attnscale.report.layout import Word, XAxis, words


@pytest.mark.parametrize(
    ("values", "logarithmic"),
    [
        ((1, 2, 4, 8), True),
        ((512, 16384), True),
        ((8, 16, 24, 32), False),
        ((20, 22, 25), False),
        ((7,), False),
    ],
    ids=["powers", "two", "equal-steps", "narrow", "one"],
)
def test_scale(values: tuple[int, ...], logarithmic: bool) -> None:
    axis = XAxis(values)
    assert axis.logarithmic is logarithmic
    places = [axis.place(value) for value in values]
    assert places == sorted(places)
    assert all(0 < place < 1 for place in places)


def test_labels_slant_before_any_is_left_out() -> None:
    assert XAxis((1024, 2048, 4096)).labels(250.0) == (["1024", "2048", "4096"], False)
    close = XAxis((10_000, 11_000, 12_000, 13_000, 14_000, 15_000, 16_000, 17_000))
    assert close.labels(250.0) == ([str(value) for value in close.values], True)
    crowded, slanted = XAxis(range(1, 101)).labels(250.0)
    assert slanted
    assert 10 < sum(text != "" for text in crowded) < 25


@pytest.mark.parametrize(
    ("marks", "expected"),
    [
        ([(0.1, "oom"), (0.9, "oom")], [Word(0.5, False, "oom")]),
        ([(0.1, "oom"), (0.2, "oom")], "right"),
        ([(0.8, "oom"), (0.95, "oom")], "left"),
        ([(place / 10, "unsupported") for place in range(1, 10)], "above"),
    ],
    ids=["in-its-gap", "right-of-it", "left-of-it", "above-it"],
)
def test_a_run_of_one_status_is_said_once(
    marks: list[tuple[float, str]], expected: list[Word] | str
) -> None:
    found = words(marks, 250.0 if expected != "left" else 150.0)
    if isinstance(expected, list):
        assert found == expected
        return
    (word,) = found
    assert word.raised is (expected == "above")
    if expected == "right":
        assert word.place > marks[-1][0]
    if expected == "left":
        assert word.place < marks[0][0]


def test_each_status_is_said() -> None:
    found = words([(0.1, "oom"), (0.5, "failed"), (0.6, "oom")], 250.0)
    assert [word.text for word in found] == ["oom", "failed", "oom"]
