"""Where a case runs, and what its record says of that."""

import pytest
import torch

from attnscale.measure import device

OF_THE_SWEEP = ("flash_implementation", "isolation", "foreign_processes")
"""Null is a value of the first; the others are for the sweep to say."""


def test_a_snapshot_explains_every_null() -> None:
    snapshot = device.snapshot("cpu")
    unexplained = {
        name
        for name, value in snapshot.model_dump().items()
        if value is None and name not in OF_THE_SWEEP
    } - set(snapshot.nulls)
    assert not unexplained
    assert snapshot.torch == torch.__version__
    assert set(snapshot.sdpa_switches) == {"flash", "efficient", "math", "cudnn"}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gpu_is_named_whole() -> None:
    snapshot = device.snapshot("cuda")
    assert snapshot.gpu_uuid is not None
    assert snapshot.gpu_uuid.startswith("GPU-")
    assert snapshot.cuda == torch.version.cuda
    assert snapshot.driver or "NVML" in snapshot.nulls["driver"]
