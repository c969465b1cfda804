"""What ran is read from the kernels, and named when it is not what was asked for."""

import pytest

from attnscale.evidence.backend import ran, why_mismatch
from attnscale.evidence.categories import rows
from tests.evidence.profiles import CORES, FLASH, NVJET, Writer, profile


@pytest.mark.parametrize("backend", CORES)
def test_each_backend_has_its_fingerprint(backend: str) -> None:
    found = rows(profile(backend))
    assert ran(found, causal=True) == backend
    for asked in CORES:
        why = why_mismatch(asked, ran(found, causal=True), found, causal=True)
        assert (why is None) == (asked == backend)
    assert why_mismatch("auto", ran(found, causal=True), found, causal=True) is None


def test_a_mismatch_says_what_ran() -> None:
    found = rows(profile("math"))
    why = why_mismatch("flash", ran(found, causal=True), found, causal=True)
    assert str(why).startswith("asked for flash, and math ran: ")
    assert "triu_tril_kernel" in str(why)


def test_layers_that_differ_are_mixed() -> None:
    writer = Writer()
    writer.add(FLASH, "layers.0.attention.core", "", 1)
    writer.add(CORES["cudnn"][0][0], "layers.1.attention.core", "", 1)
    found = rows(writer.profile())
    assert ran(found, causal=True) == "mixed: cudnn, flash"
    assert why_mismatch("flash", ran(found, causal=True), found, causal=True)


def test_a_matrix_product_alone_is_no_attention() -> None:
    writer = Writer()
    writer.add(NVJET, "layers.0.attention.core", "aten::matmul", 1)
    found = rows(writer.profile())
    assert ran(found, causal=True) is None
    assert "no known backend ran" in str(why_mismatch("naive", None, found, causal=True))


def test_without_a_mask_both_naive_ones_are_the_same_kernels() -> None:
    writer = Writer()
    for name, op, us in CORES["naive_inplace"]:
        if "masked_fill" not in op:
            writer.add(name, "layers.0.attention.core", op, us)
    found = rows(writer.profile())
    assert ran(found, causal=False) == "naive"
    assert why_mismatch("naive_inplace", "naive", found, causal=False) is None
    assert ran(found, causal=True) is None, "a causal forward without a mask is none of them"


def test_nothing_is_read_from_outside_attention() -> None:
    writer = Writer()
    writer.add(FLASH, "head", "", 1)
    assert ran(rows(writer.profile()), causal=True) is None
