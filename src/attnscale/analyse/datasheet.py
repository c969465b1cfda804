"""What the makers say their cards can do: dense peaks by dtype, and memory bandwidth.

The denominators of MFU and HFU. A card is looked up by the exact name that its driver reports; one that
is not listed has no datasheet peak here, rather than that of a card with a similar name.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Datasheet:
    """Of one card: tensor cores without sparsity; float32 without TF32."""

    flops_per_s: Mapping[str, float]
    """By dtype of a Case; one that the card has no unit for is absent."""
    bytes_per_s: float
    source: str


def datasheet(device_name: str) -> Datasheet | None:
    """None for a card that is not listed."""
    return _CARDS.get(device_name)


def _card(
    half: float, single: float, bandwidth: float, source: str, *, bfloat16: bool = True
) -> Datasheet:
    """TFLOP/s of float16 (and bfloat16), of float32, and TB/s."""
    peaks = {"float16": half * 1e12, "float32": single * 1e12}
    if bfloat16:
        peaks["bfloat16"] = half * 1e12
    return Datasheet(flops_per_s=peaks, bytes_per_s=bandwidth * 1e12, source=source)


_H100 = "NVIDIA H100 Tensor Core GPU Datasheet, https://www.nvidia.com/en-us/data-center/h100/"
_H200 = "NVIDIA H200 Tensor Core GPU Datasheet, https://www.nvidia.com/en-us/data-center/h200/"
_A100 = "NVIDIA A100 Tensor Core GPU Datasheet, https://www.nvidia.com/en-us/data-center/a100/"
_A30 = "NVIDIA A30 Tensor Core GPU Datasheet, https://www.nvidia.com/en-us/data-center/products/a30-gpu/"
_A10 = "NVIDIA A10 Tensor Core GPU Datasheet, https://www.nvidia.com/en-us/data-center/products/a10-gpu/"
_L4 = "NVIDIA L4 Tensor Core GPU Datasheet, https://www.nvidia.com/en-us/data-center/l4/"
_L40S = "NVIDIA L40S Datasheet, https://www.nvidia.com/en-us/data-center/l40s/"
_T4 = "NVIDIA T4 Tensor Core GPU Datasheet, https://www.nvidia.com/en-us/data-center/tesla-t4/"
_V100 = "NVIDIA V100 Tensor Core GPU Datasheet, https://www.nvidia.com/en-us/data-center/v100/"

_CARDS: Mapping[str, Datasheet] = {
    "NVIDIA H200": _card(989, 67, 4.8, _H200),
    "NVIDIA H200 NVL": _card(835, 60, 4.8, _H200),
    "NVIDIA H100 80GB HBM3": _card(989, 67, 3.35, _H100),
    "NVIDIA H100 NVL": _card(835, 60, 3.9, _H100),
    "NVIDIA H100 PCIe": _card(756, 51, 2.0, _H100),
    "NVIDIA A100-SXM4-80GB": _card(312, 19.5, 2.039, _A100),
    "NVIDIA A100-SXM4-40GB": _card(312, 19.5, 1.555, _A100),
    "NVIDIA A100 80GB PCIe": _card(312, 19.5, 1.935, _A100),
    "NVIDIA A100-PCIE-40GB": _card(312, 19.5, 1.555, _A100),
    "NVIDIA A30": _card(165, 10.3, 0.933, _A30),
    "NVIDIA A10": _card(125, 31.2, 0.6, _A10),
    "NVIDIA L4": _card(121, 30.3, 0.3, _L4),
    "NVIDIA L40S": _card(362, 91.6, 0.864, _L40S),
    "Tesla T4": _card(65, 8.1, 0.32, _T4, bfloat16=False),
    "Tesla V100-SXM2-16GB": _card(125, 15.7, 0.9, _V100, bfloat16=False),
    "Tesla V100-SXM2-32GB": _card(125, 15.7, 0.9, _V100, bfloat16=False),
}
