"""The attention backends, each pinned alone, and why one is refused.

Shapes: ``q: [batch, heads, seq, head_dim]``, ``k, v: [batch, kv_heads, seq, head_dim]``, and the
result like q. What was asked for runs or the case ends as unsupported; nothing here falls back.
"""

import contextlib
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from attnscale.case import Case

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]

_PINNED = {
    "math": SDPBackend.MATH,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}
_NAMES = {backend.value: name for name, backend in _PINNED.items()}

# These take one K and V head a query head only: K and V are repeated in memory for them.
_NEEDS_EQUAL_HEADS = frozenset({"naive", "naive_inplace", "efficient"})

_CUDA_ONLY = frozenset({"efficient", "cudnn"})

# "Cannot run this" in the words of PyTorch, cuDNN and CUDA. The last two are the grid limit of 65,535.
# cuDNN's other errors are left out on purpose: its execution failures start with the same words.
_REFUSALS = (
    "No available kernel",
    "No viable backend",
    "No execution plans support the graph",
    "No valid engine configs",
    "No valid execution plans",
    "no kernel found to launch",
    "is not supported",
    "does not support",
    "not implemented for",
    "only supports",
    "CUDA error: invalid argument",
    "CUDA error: invalid configuration argument",
)
_HEADER = re.compile(
    r"(?:Memory efficient|Flash attention|CuDNN attention|cuDNN attention) kernel not used because:"
)
_SOURCE = re.compile(r"\s*\(Triggered internally at .*|\s*\(function \w+\)$|^Exception raised from .*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """One backend, ready for one case."""

    backend: str
    attend: Attend
    """(q, k, v) -> out."""
    gqa: str
    """none, native (enable_gqa) or materialised (K and V repeated to all heads)."""
    causal: bool

    def pinned(self) -> contextlib.AbstractContextManager[object]:
        """Leaves PyTorch this backend alone. Enter it outside the timed region: it costs host time."""
        if self.backend in _PINNED:
            return sdpa_kernel([_PINNED[self.backend]])
        return contextlib.nullcontext()


def build(case: Case) -> Attention:
    """The backend of ``case``; what it needs once a case (the naive mask) lies on the device."""
    gqa = "none"
    if case.kv_heads != case.heads:
        gqa = "materialised" if case.backend in _NEEDS_EQUAL_HEADS else "native"
    if case.backend in ("naive", "naive_inplace"):
        attend = _naive(case)
    else:
        attend = _sdpa(causal=case.causal, enable_gqa=gqa == "native")
    if gqa == "materialised":
        attend = _with_repeated_heads(attend, case.heads // case.kv_heads)
    return Attention(backend=case.backend, attend=attend, gqa=gqa, causal=case.causal)


def why_refused(case: Case, attention: Attention) -> str | None:
    """Run it once at the case's shape: None when it ran, else the library's reasons in one line.

    Running out of memory and unknown errors are not refusals and are raised.
    """
    q, k, v = inputs(case)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            with attention.pinned():
                attention.attend(q, k, v)
                if case.device == "cuda":
                    torch.cuda.synchronize()  # a refused launch may surface only here
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            if not any(words in str(error) for words in _REFUSALS):
                raise
            texts = [str(warning.message) for warning in caught]
            return _reasons(case, str(error), texts)
    return None


def chosen(case: Case, attention: Attention) -> str:
    """The backend that PyTorch's dispatcher picks under this backend's switches.

    For the naive ones, which do not ask the dispatcher, it is their own name.
    """
    if case.backend in ("naive", "naive_inplace"):
        return case.backend
    q, k, v = inputs(case)
    if attention.gqa == "materialised":
        k, v = (_repeat_heads(tensor, case.heads // case.kv_heads) for tensor in (k, v))
    with attention.pinned():
        number = torch._fused_sdp_choice(  # the dispatcher's own question; no public name asks it
            q, k, v, None, 0.0, attention.causal, enable_gqa=attention.gqa == "native"
        )
    return _NAMES.get(number, f"backend {number}")


def _naive(case: Case) -> Attend:
    """matmul, scale, masked_fill, softmax, matmul: five kernels when the inputs are contiguous.

    The mask is built once a case. Out-of-place masked_fill first copies the scores, which the
    in-place one does not.
    """
    scale = case.head_dim**-0.5
    hidden = None
    if case.causal:
        square = torch.ones(case.seq, case.seq, dtype=torch.bool, device=case.device)
        hidden = square.triu_(diagonal=1)
    fill = Tensor.masked_fill_ if case.backend == "naive_inplace" else Tensor.masked_fill

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = torch.matmul(q, k.transpose(-2, -1)) * scale
        if hidden is not None:
            scores = fill(scores, hidden, float("-inf"))
        return torch.matmul(torch.softmax(scores, dim=-1), v)

    return attend


def _sdpa(*, causal: bool, enable_gqa: bool) -> Attend:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=enable_gqa)

    return attend


def _with_repeated_heads(attend: Attend, times: int) -> Attend:
    def repeated(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attend(q, _repeat_heads(k, times), _repeat_heads(v, times))

    return repeated


def _repeat_heads(tensor: Tensor, times: int) -> Tensor:
    """Copies, for an expanded view (stride 0) makes ``efficient`` compute wrong results."""
    return tensor.repeat_interleave(times, dim=1)


def inputs(case: Case) -> tuple[Tensor, Tensor, Tensor]:
    """Random normal q, k, v of the case, laid out as views of one fused projection, as in the model."""
    width = (case.heads + 2 * case.kv_heads) * case.head_dim
    generator = torch.Generator(device=case.device).manual_seed(case.seed)
    fused = torch.randn(
        case.batch,
        case.seq,
        width,
        generator=generator,
        device=case.device,
        dtype=getattr(torch, case.dtype),
    )
    heads = split_heads(fused, case.head_dim).transpose(1, 2)
    q, k, v = torch.split(heads, [case.heads, case.kv_heads, case.kv_heads], dim=1)
    return q, k, v


def split_heads(fused: Tensor, head_dim: int) -> Tensor:
    """[batch, seq, heads * head_dim] as a view, [batch, seq, heads, head_dim]."""
    return fused.view(*fused.shape[:-1], -1, head_dim)


def _reasons(case: Case, error: str, texts: list[str]) -> str:
    """The warnings that say something, without headers, source lines and "runtime disabled"."""
    said: list[str] = []
    for text in texts:
        line = " ".join(_SOURCE.sub("", text).split())
        if not line or _HEADER.fullmatch(line) or "has been runtime disabled" in line:
            continue
        if line not in said:
            said.append(line)
    if not said:
        said = [_SOURCE.sub("", error.strip().splitlines()[0]).strip()]
        if case.device == "cpu" and case.backend in _CUDA_ONLY:  # no warning says so there
            said.insert(0, "PyTorch has this kernel for CUDA devices only")
    return f"{case.backend} on {case.device}: {'; '.join(said)}"
