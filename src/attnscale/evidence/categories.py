"""What a kernel is for, from its name and the operators around it: a table, first match wins.

Names come from PyTorch's own kernels, cuBLAS (nvjet, xmma, ampere_*, *gemm*), CUTLASS, FlashAttention,
cuDNN's generated kernels and Triton, and on a CPU from the operators. A name that no rule knows is
``other`` and is listed (``unknown``), so that a gap in this table is seen.
"""

import enum
import re
from collections.abc import Sequence
from dataclasses import dataclass

from attnscale.profile import Kernel, Launch, Profile


class Category(enum.StrEnum):
    """In the order in which they are shown."""

    ATTENTION = "attention"
    """A fused attention kernel."""
    GEMM = "GEMM"
    SOFTMAX = "softmax"
    MASK = "mask"
    ELEMENTWISE = "elementwise"
    NORM = "norm"
    COPY = "copy and cast"
    EMBEDDING = "embedding"
    MEMCPY = "memcpy"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class _Rule:
    """Both must be found: in the kernel's name, and in the operators around it."""

    category: Category
    name: str
    op: str = ""


_RULES: Sequence[_Rule] = (
    # What moves memory is a class of its own in the trace, whatever it is called.
    _Rule(Category.MEMCPY, r"^Mem(cpy|set)\b"),
    # Fused attention: cuDNN, FlashAttention 2 to 4, xFormers' CUTLASS, CPU.
    _Rule(Category.ATTENTION, r"cudnn_generated\w*sdpa|cudnn\w*(flash|mha)_?f?prop"),
    _Rule(Category.ATTENTION, r"flash_fwd|flash_attn|FlashAttn|flash::|fmha_?cutlass|\bfmha_"),
    _Rule(Category.ATTENTION, r"^aten::_(scaled_dot_product_)?(flash|efficient|cudnn)_attention"),
    # The mask of SDPA's math backend is built by general kernels: the operator tells.
    _Rule(Category.SOFTMAX, r"softmax|SoftMax"),
    _Rule(Category.MASK, r"masked_fill|triu_tril|tril_|^aten::(tril|triu|masked_fill_?)$"),
    _Rule(Category.MASK, r"", r"aten::(tril|triu)\b|aten::masked_fill_?\b"),
    _Rule(Category.MASK, r"Fill|where|logical_not", r"_scaled_dot_product_attention_math"),
    _Rule(Category.SOFTMAX, r"", r"aten::_safe_softmax"),
    # Matrix products: cuBLAS, CUTLASS, Triton, CPU.
    _Rule(Category.GEMM, r"nvjet|gemm|GEMM|gemv|splitK|xmma_(?!cudnn)|cutlass.*(tensorop|simt)"),
    _Rule(Category.GEMM, r"^aten::(mm|bmm|addmm|baddbmm|addmv|mv|dot)$|mkldnn_linear|triton_.*mm"),
    _Rule(Category.NORM, r"layer_?norm|LayerNorm|rms_?norm|RMSNorm|RowwiseMoments|GammaBeta"),
    _Rule(Category.EMBEDDING, r"index_?[sS]elect|embedding|gather|indexFunc|index_elementwise"),
    _Rule(Category.COPY, r"copy|Copy|transpose_kernel|CatArray|cat_kernel|^aten::(clone|cat|_to_copy)$"),
    _Rule(Category.ELEMENTWISE, r"[eE]lementwise|gelu|silu|^triton_(poi|per|red)_|reduce_kernel"),
    _Rule(
        Category.ELEMENTWISE,
        r"^aten::(add|sub|mul|div|neg|pow|mean|rsqrt|sqrt|exp|cos|sin|gelu|silu|sigmoid|where|eq|all|any"
        r"|logical_not|fill|zero|addcmul|rotate|sum|max|clamp)_?$",
    ),
)
# Operators that only describe tensors: no data moves.
_KNOWN_OTHER = re.compile(
    r"^aten::(view|_unsafe_view|_reshape_alias|reshape|t|transpose|permute|as_strided|expand|split|split_with_sizes|chunk"
    r"|narrow|slice|select|unsqueeze|squeeze|flatten|unflatten|empty\w*|resolve_\w+|linear|matmul|to"
    r"|contiguous|type_as|_scaled_dot_product_attention_math|detach|lift_fresh|ones|zeros|scalar_tensor|result_type|_local_scalar_dense|item|unbind"
    r"|scaled_dot_product_attention|resize_|alias|arange|full|repeat_interleave|new_empty\w*)$"
)
_COMPILED = [(rule.category, re.compile(rule.name), re.compile(rule.op)) for rule in _RULES]

_TENSOR_CORES = re.compile(
    r"nvjet|wgmma|wmma|tensorop|hmma|s16816|s161616|s1688|h16816|i16832|bf16_s\d|_tst_"
)
_CUDA_CORES = re.compile(r"ffma|sgemm|simt|gemv|dgemm")
_DTYPES = (
    ("tf32", re.compile(r"tf32|s1688gemm|nvjet\w*_ss[st]_")),
    ("bfloat16", re.compile(r"bf16|bfloat16|nvjet\w*_t[st]t_|BFloat16")),
    ("float16", re.compile(r"f16f16|_h16816|fp16|half|nvjet\w*_h[sh]h_|s16816gemm_fp16|f16_s")),
    ("float32", re.compile(r"f32f32|sgemm|ffma|float")),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemm:
    """How a matrix product was computed, as far as its name says."""

    units: str
    """Tensor Cores, CUDA cores or unknown."""
    dtype: str
    """Of its inputs; tf32 for float32 on Tensor Cores; unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One piece of work of a forward, with all that is known of it."""

    kernel: Kernel
    category: Category
    known: bool
    """Whether a rule knew it."""
    module: str
    op: str
    launch: Launch

    @property
    def us(self) -> float:
        return self.launch.us

    @property
    def in_attention(self) -> bool:
        """Whether it belongs to attention itself, between the projections."""
        return self.module.endswith(".core")


def rows(profile: Profile) -> list[Row]:
    """In the order launched."""
    found = {}
    made = []
    for launch in profile.launches:
        pair = (launch.kernel, launch.op)
        kernel, op = profile.kernels[launch.kernel], profile.ops[launch.op]
        if pair not in found:
            found[pair] = categorised(kernel.name, op)
        category, known = found[pair]
        made.append(
            Row(
                kernel=kernel,
                category=category,
                known=known,
                module=profile.modules[launch.module],
                op=op,
                launch=launch,
            )
        )
    return made


def categorised(name: str, op: str = "") -> tuple[Category, bool]:
    """The category, and whether a rule knew the name."""
    for category, in_name, in_op in _COMPILED:
        if in_name.search(name) and in_op.search(op):
            return category, True
    return Category.OTHER, bool(_KNOWN_OTHER.match(name))


def unknown(found: Sequence[Row]) -> list[str]:
    """Names that no rule knows, each once."""
    return list(dict.fromkeys(row.kernel.name for row in found if not row.known))


def gemm(name: str) -> Gemm:
    """Of a kernel that is a matrix product."""
    units = "unknown"
    if _CUDA_CORES.search(name):
        units = "CUDA cores"
    elif _TENSOR_CORES.search(name):
        units = "Tensor Cores"
    dtype = next((dtype for dtype, pattern in _DTYPES if pattern.search(name)), "unknown")
    return Gemm(units=units, dtype=dtype)
