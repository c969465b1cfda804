"""Case: what its key covers, and names that are safe as folders."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from attnscale.case import Case, InvalidConfig, Timing

OTHER: dict[str, Any] = {
    "arch": "llama",
    "backend": "flash",
    "seq": 17,
    "batch": 3,
    "heads": 8,
    "kv_heads": 2,
    "head_dim": 16,
    "layers": 3,
    "ffn_dim": 65,
    "vocab": 98,
    "dtype": "bfloat16",
    "causal": False,
    "device": "cuda",
    "seed": 1,
    "timing": Timing(
        settle_seconds=1.0, precision=0.005, min_samples=10, max_seconds=0.7, flush_l2=False
    ),
}


def test_the_key_never_changes(make_case: Callable[..., Case]) -> None:
    assert make_case().key == "f1fafb6af155", "records on users' disks carry this key"


@pytest.mark.parametrize("field", sorted(OTHER))
def test_every_field_but_the_label_is_in_the_key(make_case: Callable[..., Case], field: str) -> None:
    base = make_case(arch="llama" if field in ("heads", "kv_heads") else "gpt")
    assert dataclasses.replace(base, **{field: OTHER[field]}).key != base.key


def test_the_label_is_not(make_case: Callable[..., Case]) -> None:
    assert make_case(model="gpt2").key == make_case().key


@pytest.mark.parametrize("label", ["../../etc", "a/b", "x" * 300, "naïve model", "", "..", "a b\n"])
def test_folder_names_are_short_and_safe(make_case: Callable[..., Case], label: str) -> None:
    case = make_case(model=label, backend="naive_inplace", seq=2**30, batch=2**30, layers=2**30)
    assert len(case.folder_name) <= 93
    assert not set(case.folder_name) & set("/\\ \n")
    assert not case.folder_name.startswith(".")
    assert case.folder_name.isascii()


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({"seq": 0}, "seq=0"),
        ({"seq": True}, "seq=True"),
        ({"seq": "16"}, "seq=16"),
        ({"seq": 2**31}, "seq=2147483648"),
        ({"heads": 4, "kv_heads": 3, "arch": "llama"}, "kv_heads=3: must divide heads=4: 1, 2, 4"),
        ({"head_dim": 7, "arch": "llama"}, "head_dim=7: rotary"),
        ({"backend": "nope"}, "backend=nope: must be one of naive,"),
        ({"causal": 1}, "causal=1: true or false"),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_invalid_values_name_themselves(
    make_case: Callable[..., Case], values: dict[str, object], line: str
) -> None:
    with pytest.raises(InvalidConfig) as caught:
        make_case(**values)
    assert str(caught.value).startswith(line)
