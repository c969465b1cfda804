"""The transformer whose forward is measured: embedding, pre-norm blocks, final norm, unembedding.

Two architectures. gpt is GPT-2: LayerNorm, GELU (tanh) MLP, learned positions, biases, embedding and
unembedding tied. llama is Llama 3: RMSNorm, rotary positions, SwiGLU, grouped key and value heads,
no biases, untied. Query, key and value come from one fused projection, gate and up too. Weights are
random and made on the device in the run's dtype.

Shape suffixes: B batch, S seq, H heads, D head_dim, M d_model, F ffn_dim, V vocab.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnscale.case import Case
from attnscale.measure.attention import Attention, split_heads

_NORM_EPS = 1e-5
_ROPE_THETA = 500_000.0  # Llama 3
_INIT_STD = 0.02  # GPT-2


class SelfAttention(nn.Module):
    """Fused projection, the case's attention backend, output projection."""

    def __init__(self, case: Case, attention: Attention) -> None:
        super().__init__()
        bias = case.arch == "gpt"
        width = (case.heads + 2 * case.kv_heads) * case.head_dim
        self.qkv = nn.Linear(case.d_model, width, bias=bias)
        self.output = nn.Linear(case.d_model, case.d_model, bias=bias)
        self.case = case
        self.attend = attention.attend

    def forward(self, x_BSM: Tensor, rotary: tuple[Tensor, Tensor] | None) -> Tensor:
        heads, kv_heads = self.case.heads, self.case.kv_heads
        fused_BSHD = split_heads(self.qkv(x_BSM), self.case.head_dim)
        qk_BSHD, v_BSHD = torch.split(fused_BSHD, [heads + kv_heads, kv_heads], dim=2)
        if rotary is not None:
            qk_BSHD = rotate(qk_BSHD, *rotary)
        q_BSHD, k_BSHD = torch.split(qk_BSHD, [heads, kv_heads], dim=2)
        q, k, v = (each_BSHD.transpose(1, 2) for each_BSHD in (q_BSHD, k_BSHD, v_BSHD))
        out_BHSD = self.attend(q, k, v)
        out: Tensor = self.output(out_BHSD.transpose(1, 2).flatten(-2))
        return out


class GeluMlp(nn.Module):
    """GPT-2's MLP."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.up = nn.Linear(case.d_model, case.ffn_dim)
        self.down = nn.Linear(case.ffn_dim, case.d_model)

    def forward(self, x_BSM: Tensor) -> Tensor:
        out: Tensor = self.down(F.gelu(self.up(x_BSM), approximate="tanh"))
        return out


class SwiGlu(nn.Module):
    """Llama's MLP: silu(gate) * up, then down."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.gate_up = nn.Linear(case.d_model, 2 * case.ffn_dim, bias=False)
        self.down = nn.Linear(case.ffn_dim, case.d_model, bias=False)

    def forward(self, x_BSM: Tensor) -> Tensor:
        gate, up = self.gate_up(x_BSM).chunk(2, dim=-1)
        out: Tensor = self.down(F.silu(gate) * up)
        return out


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, case: Case, attention: Attention) -> None:
        super().__init__()
        self.attention_norm = _norm(case)
        self.attention = SelfAttention(case, attention)
        self.mlp_norm = _norm(case)
        self.mlp: nn.Module = GeluMlp(case) if case.arch == "gpt" else SwiGlu(case)

    def forward(self, x_BSM: Tensor, rotary: tuple[Tensor, Tensor] | None) -> Tensor:
        x_BSM = x_BSM + self.attention(self.attention_norm(x_BSM), rotary)
        out: Tensor = x_BSM + self.mlp(self.mlp_norm(x_BSM))
        return out


class Transformer(nn.Module):
    """tokens: [batch, seq] int64 -> logits: [batch, seq, vocab]."""

    cos_S1D: Tensor
    signed_sin_S1D: Tensor

    def __init__(self, case: Case, attention: Attention) -> None:
        super().__init__()
        self.embedding = nn.Embedding(case.vocab, case.d_model)
        self.positions = nn.Embedding(case.seq, case.d_model) if case.arch == "gpt" else None
        self.layers = nn.ModuleList(Block(case, attention) for _ in range(case.layers))
        self.norm = _norm(case)
        self.head = nn.Linear(case.d_model, case.vocab, bias=False)

    def forward(self, tokens_BS: Tensor) -> Tensor:
        x_BSM = self.embedding(tokens_BS)
        rotary = None
        if self.positions is None:
            rotary = (self.cos_S1D, self.signed_sin_S1D)
        else:
            x_BSM = x_BSM + self.positions.weight
        for layer in self.layers:
            x_BSM = layer(x_BSM, rotary)
        out: Tensor = self.head(self.norm(x_BSM))
        return out


def build_model(case: Case, attention: Attention) -> Transformer:
    """The model on the case's device, weights random from its seed, without gradients.

    Built without storage first, so that no second copy of the weights ever exists.
    """
    with torch.device("meta"):
        model = Transformer(case, attention)
    if case.arch == "gpt":
        model.head.register_parameter("weight", None)  # to_empty would store the tied weight twice
    model = model.to(getattr(torch, case.dtype)).to_empty(device=case.device)
    if case.arch == "gpt":
        model.head.weight = model.embedding.weight
    else:
        cos, signed_sin = _rotary_table(case)
        model.register_buffer("cos_S1D", cos, persistent=False)
        model.register_buffer("signed_sin_S1D", signed_sin, persistent=False)
    model.requires_grad_(False)
    _initialise(model, case)
    return model.eval()


def random_tokens(case: Case) -> Tensor:
    """tokens: [batch, seq] int64, uniform over the vocabulary, the same for every backend."""
    generator = torch.Generator(device=case.device).manual_seed(case.seed)
    size = (case.batch, case.seq)
    return torch.randint(case.vocab, size, generator=generator, device=case.device)


def rotate(x_BSHD: Tensor, cos_S1D: Tensor, signed_sin_S1D: Tensor) -> Tensor:
    """Rotary positions; dimension i pairs with i + head_dim / 2, as in Hugging Face's Llama.

    Three kernels, once a layer for q and k together: the table carries the minus of the first half.
    """
    first, second = x_BSHD.chunk(2, dim=-1)
    swapped_BSHD = torch.cat((second, first), dim=-1)
    return torch.addcmul(x_BSHD * cos_S1D, swapped_BSHD, signed_sin_S1D)


def _rotary_table(case: Case) -> tuple[Tensor, Tensor]:
    """cos, signed sin: [seq, 1, head_dim], computed in float32 and then cast.

    The sine of the first half is negated, since x[i] * cos - x[i + head_dim / 2] * sin is due there.
    """
    even = torch.arange(0, case.head_dim, 2, device=case.device, dtype=torch.float32)
    frequencies = _ROPE_THETA ** (-even / case.head_dim)
    positions = torch.arange(case.seq, device=case.device, dtype=torch.float32)
    angles = torch.outer(positions, frequencies).unsqueeze(1)
    cos, sin = angles.cos(), angles.sin()
    dtype = getattr(torch, case.dtype)
    return torch.cat((cos, cos), dim=-1).to(dtype), torch.cat((-sin, sin), dim=-1).to(dtype)


def _norm(case: Case) -> nn.Module:
    kind = nn.LayerNorm if case.arch == "gpt" else nn.RMSNorm
    return kind(case.d_model, eps=_NORM_EPS)


def _initialise(model: Transformer, case: Case) -> None:
    """GPT-2's scheme: normal, residual outputs scaled by depth, norms at one, biases at zero."""
    generator = torch.Generator(device=case.device).manual_seed(case.seed)
    residual_std = _INIT_STD / (2 * case.layers) ** 0.5
    for name, weight in model.named_parameters():
        if name.endswith("bias"):
            weight.zero_()
        elif "norm" in name:
            weight.fill_(1.0)
        else:
            residual = name.endswith(("attention.output.weight", "mlp.down.weight"))
            weight.normal_(0.0, residual_std if residual else _INIT_STD, generator=generator)
