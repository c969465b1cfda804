"""Profiles of two-layer forwards by backend: names as Hopper cards have them, times invented."""

from collections.abc import Sequence
from typing import Any

from attnscale.profile import DeviceLimits, Kernel, Launch, Profile

H200 = DeviceLimits(
    capability=(9, 0),
    sm_count=132,
    threads_per_sm=2048,
    registers_per_sm=65536,
    shared_per_sm_bytes=228 * 1024,
    shared_per_block_optin_bytes=227 * 1024,
)
NVJET = "nvjet_sm90_tst_128x256_64x4_1x2_h_bz_coopA_TNT"
FFMA = "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x128x8_stage3_ffma_kernel"
FLASH = "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4>>"
CUDNN = "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128"
EFFICIENT = "fmha_cutlassF_bf16_aligned_64x64_rf_sm80(PyTorchMemEffAttention::Params)"
SOFTMAX = "void (anonymous namespace)::softmax_warp_forward<c10::BFloat16, float, 11>"
FILL = "elementwise_kernel<128, 4, (anonymous namespace)::masked_fill_kernel(x)>"
MUL = "void at::native::vectorized_elementwise_kernel<4, BinaryFunctor<mul>>"
COPY = "void at::native::elementwise_kernel<128, 4, direct_copy_kernel_cuda(x)>"
SDPA = "aten::scaled_dot_product_attention > aten::_scaled_dot_product"
MATH = f"{SDPA}_attention_math"

Piece = tuple[str, str, float]
"""Name, operators, microseconds."""

CORES: dict[str, Sequence[Piece]] = {
    "naive": [
        (NVJET, "aten::matmul > aten::bmm", 20),
        (MUL, "aten::mul", 15),
        ("Memcpy DtoD (Device -> Device)", "aten::masked_fill > aten::clone > aten::copy_", 12),
        (FILL, "aten::masked_fill > aten::masked_fill_", 14),
        (SOFTMAX, "aten::softmax > aten::_softmax", 16),
        (NVJET, "aten::matmul > aten::bmm", 20),
    ],
    "naive_inplace": [
        (NVJET, "aten::matmul > aten::bmm", 20),
        (MUL, "aten::mul", 15),
        (FILL, "aten::masked_fill_", 14),
        (SOFTMAX, "aten::softmax > aten::_softmax", 16),
        (NVJET, "aten::matmul > aten::bmm", 20),
    ],
    "math": [
        (COPY, f"{MATH} > aten::to > aten::_to_copy > aten::copy_", 10),
        ("vectorized_elementwise_kernel<4, FillFunctor<bool>>", f"{MATH} > aten::ones", 3),
        ("void at::native::triu_tril_kernel<bool, int>", f"{MATH} > aten::tril", 4),
        (FFMA, f"{MATH} > aten::matmul > aten::bmm", 90),
        (MUL, f"{MATH} > aten::add_", 30),
        (SOFTMAX, f"{MATH} > aten::_safe_softmax > aten::softmax > aten::_softmax", 30),
        ("reduce_kernel<512, 1, ReduceOp<x>>", f"{MATH} > aten::_safe_softmax > aten::all", 20),
        (FFMA, f"{MATH} > aten::matmul > aten::bmm", 90),
    ],
    "efficient": [(EFFICIENT, f"{SDPA}_efficient_attention > aten::_efficient_attention_forward", 18)],
    "flash": [(FLASH, f"{SDPA}_flash_attention > aten::_flash_attention_forward", 10)],
    "cudnn": [(CUDNN, f"{SDPA}_cudnn_attention > aten::_cudnn_attention_forward", 6)],
}


def profile(
    backend: str, *, layers: int = 2, linear_us: float = 10, also: Sequence[Piece] = ()
) -> Profile:
    """``also`` runs in each layer's attention, before its core."""
    made = Writer()
    for layer in range(2):
        path = f"layers.{layer}"
        made.add("vectorized_layer_norm_kernel<x>", f"{path}.attention_norm", "aten::layer_norm", 2)
        made.add(NVJET, f"{path}.attention.qkv", "aten::linear > aten::addmm", linear_us)
        for piece in also:
            made.add(piece[0], f"{path}.attention", piece[1], piece[2])
        for name, op, us in CORES[backend]:
            made.add(name, f"{path}.attention.core", op, us)
        made.add(NVJET, f"{path}.attention.output", "aten::linear > aten::addmm", linear_us)
        made.add(NVJET, f"{path}.mlp.up", "aten::linear > aten::addmm", linear_us)
        made.add("vectorized_elementwise_kernel<4, GeluCUDAKernelImpl>", f"{path}.mlp", "aten::gelu", 2)
    made.add(NVJET, "head", "aten::linear > aten::mm", linear_us)
    return made.profile()


class Writer:
    """A profile, one launch after another."""

    def __init__(self) -> None:
        self._kernels: dict[Kernel, int] = {}
        self._modules: dict[str, int] = {}
        self._ops: dict[str, int] = {}
        self._launches: list[Launch] = []

    def add(self, name: str, module: str, op: str, us: float, **changes: Any) -> None:
        kind = "memcpy" if name.startswith("Memcpy") else "kernel"
        shape: dict[str, Any] = {}
        if kind == "kernel":
            # What flash and cuDNN have on Hopper: many registers, much shared memory.
            shape = {"grid": (8, 128, 1), "block": (128, 1, 1), "registers": 255, "shared_bytes": 49152}
            shape["occupancy_raw"] = 0.0 if name == CUDNN else 0.12
        kernel = Kernel(name=name, kind=kind, api="cudaLaunchKernel", **shape | changes)
        self._launches.append(
            Launch(
                kernel=self._kernels.setdefault(kernel, len(self._kernels)),
                module=self._modules.setdefault(module, len(self._modules)),
                op=self._ops.setdefault(op, len(self._ops)),
                at_us=float(len(self._launches)),
                us=us,
                launch_us=4.0,
            )
        )

    def profile(self) -> Profile:
        return Profile(
            steps=3,
            kernels=list(self._kernels),
            modules=list(self._modules),
            ops=list(self._ops),
            launches=self._launches,
            limits=H200,
        )
