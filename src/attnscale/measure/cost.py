"""The work of one forward from the case alone: FLOPs, bytes, parameters. Pure integers, no clock.

Conventions
- A multiply-add is 2 operations. Matrix products only: norms, activations, softmax and rotary
  positions are left out, as in torch.utils.flop_counter and in Chowdhery et al., PaLM, appendix B.
- Attention is 4 * batch * heads * seq * keys * head_dim (scores, then values). A causal query at
  position i sees i + 1 keys, so the useful work is 4 * B * H * D * S * (S + 1) / 2. The naive and
  math backends execute the whole square; the fused ones skip the masked half, down to the edge of
  their blocks, which is left out. torch.utils.flop_counter counts the whole square for all.
- Fewest bytes: every weight matrix read once, of an embedding table only the rows looked up, token
  ids read, logits written, and Q, K, V read and O written once in each layer (Dao et al.,
  FlashAttention, section 3.2, for on-chip memory that holds what it needs). All else is taken to be
  fused away.
"""

from attnscale.case import DTYPE_BYTES, Case
from attnscale.record import Costs

_TOKEN_BYTES = 8  # int64
_FULL_SQUARE = frozenset({"naive", "naive_inplace", "math"})


def costs(case: Case, *, ran: str | None) -> Costs:
    """All closed forms of a case. ``ran`` is the backend that ran; None when auto's is unknown."""
    dense = _linear_flops(case)
    useful = dense + case.layers * attention_flops(case, full_square=False)
    ran = ran or (case.backend if case.backend != "auto" else None)
    executed = None
    if ran is not None:
        executed = dense + case.layers * attention_flops(case, full_square=ran in _FULL_SQUARE)
    return Costs(
        params=params(case),
        weight_bytes=params(case) * DTYPE_BYTES[case.dtype],
        useful_flops=useful,
        executed_flops=executed,
        min_bytes=min_bytes(case),
    )


def params(case: Case) -> int:
    """Weights of the model; gpt's tied embedding counts once."""
    block = _matrix_params(case) + _vector_params(case)
    norm = case.d_model * (2 if case.arch == "gpt" else 1)
    table = case.vocab * case.d_model
    beyond = table + case.seq * case.d_model if case.arch == "gpt" else 2 * table
    return case.layers * block + norm + beyond


def attention_flops(case: Case, *, full_square: bool) -> int:
    """Scores and values of one layer; the causal half unless the full square is computed."""
    pairs = case.seq * case.seq
    if case.causal and not full_square:
        pairs = case.seq * (case.seq + 1) // 2
    return 4 * case.batch * case.heads * case.head_dim * pairs


def min_bytes(case: Case) -> int:
    """Fewest bytes through device memory in one forward."""
    size = DTYPE_BYTES[case.dtype]
    table = case.vocab * case.d_model
    read_tables = 0 if case.arch == "gpt" else table  # llama's embedding; gpt's is its unembedding
    looked_up = min(case.tokens, case.vocab) * case.d_model if case.arch == "llama" else 0
    weights = params(case) - read_tables + looked_up
    qkvo = case.tokens * case.head_dim * (2 * case.heads + 2 * case.kv_heads)
    logits = case.tokens * case.vocab
    return size * (weights + case.layers * qkvo + logits) + _TOKEN_BYTES * case.tokens


def _linear_flops(case: Case) -> int:
    """Every projection of every layer, and the unembedding of every token."""
    matrices = case.layers * _matrix_params(case) + case.vocab * case.d_model
    return 2 * case.tokens * matrices


def _matrix_params(case: Case) -> int:
    """Of one block: fused qkv, output, and the two (gpt) or three (llama) matrices of the MLP."""
    qkv = case.d_model * (case.heads + 2 * case.kv_heads) * case.head_dim
    mlp = case.d_model * case.ffn_dim * (2 if case.arch == "gpt" else 3)
    return qkv + case.d_model * case.d_model + mlp


def _vector_params(case: Case) -> int:
    """Of one block: two norms, and gpt's biases."""
    if case.arch == "llama":
        return 2 * case.d_model
    biases = 3 * case.d_model + case.d_model + case.ffn_dim + case.d_model
    return 4 * case.d_model + biases
