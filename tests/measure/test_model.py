"""Both architectures against Hugging Face transformers with the same weights, and how they are made."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from attnscale.case import Case
from attnscale.measure import attention
from attnscale.measure.cost import params
from attnscale.measure.model import Transformer, build_model, random_tokens

GROUPED = {"arch": "llama", "heads": 4, "kv_heads": 2, "ffn_dim": 80}


def build(case: Case) -> Transformer:
    return build_model(case, attention.build(case))


def logits(case: Case, model: Any) -> Tensor:
    attend = attention.build(case)
    with torch.inference_mode(), attend.pinned():
        out = model(random_tokens(case))
    found = getattr(out, "logits", out)
    assert isinstance(found, Tensor)
    return found


@pytest.mark.parametrize("backend", ["naive", "naive_inplace", "math", "flash", "auto"])
def test_gpt_is_hugging_face_gpt2(make_case: Callable[..., Case], backend: str) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    case = make_case(backend=backend, seq=19)
    ours = build(case)
    config = GPT2Config(
        vocab_size=case.vocab,
        n_positions=case.seq,
        n_embd=case.d_model,
        n_layer=case.layers,
        n_head=case.heads,
        n_inner=case.ffn_dim,
    )
    theirs: Any = GPT2LMHeadModel(config)
    theirs.eval()
    copy_gpt(ours, theirs)
    torch.testing.assert_close(logits(case, ours), logits(case, theirs), atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("backend", ["naive", "naive_inplace", "math", "flash", "auto"])
def test_llama_is_hugging_face_llama(
    make_case: Callable[..., Case], backend: str, kv_heads: int
) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    case = make_case(backend=backend, seq=19, **GROUPED | {"kv_heads": kv_heads})
    ours = build(case)
    config = LlamaConfig(
        vocab_size=case.vocab,
        hidden_size=case.d_model,
        intermediate_size=case.ffn_dim,
        num_hidden_layers=case.layers,
        num_attention_heads=case.heads,
        num_key_value_heads=case.kv_heads,
        max_position_embeddings=64,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 500_000.0},
        tie_word_embeddings=False,
    )
    theirs: Any = LlamaForCausalLM(config)
    theirs.eval()
    copy_llama(ours, theirs, case)
    torch.testing.assert_close(logits(case, ours), logits(case, theirs), atol=2e-5, rtol=1e-4)


@torch.no_grad()
def copy_gpt(ours: Any, theirs: Any) -> None:
    """Random values everywhere, also in norms and biases; Hugging Face keeps weights transposed."""
    for parameter in ours.parameters():
        parameter.normal_(0, 0.3)
    base = theirs.transformer
    base.wte.weight.copy_(ours.embedding.weight)
    base.wpe.weight.copy_(ours.positions.weight)
    base.ln_f.load_state_dict(ours.norm.state_dict())
    for mine, block in zip(ours.layers, base.h, strict=True):
        block.ln_1.load_state_dict(mine.attention_norm.state_dict())
        block.ln_2.load_state_dict(mine.mlp_norm.state_dict())
        for linear, conv in (
            (mine.attention.qkv, block.attn.c_attn),
            (mine.attention.output, block.attn.c_proj),
            (mine.mlp.up, block.mlp.c_fc),
            (mine.mlp.down, block.mlp.c_proj),
        ):
            conv.weight.copy_(linear.weight.T)
            conv.bias.copy_(linear.bias)


@torch.no_grad()
def copy_llama(ours: Any, theirs: Any, case: Case) -> None:
    for parameter in ours.parameters():
        parameter.normal_(0, 0.3)
    theirs.lm_head.weight.copy_(ours.head.weight)
    theirs.model.embed_tokens.weight.copy_(ours.embedding.weight)
    theirs.model.norm.weight.copy_(ours.norm.weight)
    kv = case.kv_heads * case.head_dim
    for mine, block in zip(ours.layers, theirs.model.layers, strict=True):
        block.input_layernorm.weight.copy_(mine.attention_norm.weight)
        block.post_attention_layernorm.weight.copy_(mine.mlp_norm.weight)
        parts = mine.attention.qkv.weight.split([case.d_model, kv, kv])
        for part, name in zip(parts, ("q_proj", "k_proj", "v_proj"), strict=True):
            getattr(block.self_attn, name).weight.copy_(part)
        block.self_attn.o_proj.weight.copy_(mine.attention.output.weight)
        gate, up = mine.mlp.gate_up.weight.chunk(2)
        block.mlp.gate_proj.weight.copy_(gate)
        block.mlp.up_proj.weight.copy_(up)
        block.mlp.down_proj.weight.copy_(mine.mlp.down.weight)


@pytest.mark.parametrize("shape", [{}, GROUPED, {"seq": 7, "vocab": 33}], ids=["gpt", "llama", "odd"])
def test_parameters_are_those_of_the_closed_form(
    make_case: Callable[..., Case], shape: dict[str, object]
) -> None:
    case = make_case(**shape)
    assert sum(parameter.numel() for parameter in build(case).parameters()) == params(case)


class Storages(TorchDispatchMode):
    """Every storage that an operation made off the meta device, kept alive so that none is reused."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.made: dict[int, torch.UntypedStorage] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor) and leaf.device.type != "meta":
                storage = leaf.untyped_storage()
                self.made[storage.data_ptr()] = storage
        return out


@pytest.mark.parametrize("shape", [{}, GROUPED], ids=["gpt", "llama"])
def test_building_stores_the_weights_once_and_nothing_else(
    make_case: Callable[..., Case], shape: dict[str, object]
) -> None:
    """No float32 copy, no second table for a tied head; the rotary tables are small."""
    case = make_case(dtype="bfloat16", vocab=5000, **shape)
    attend = attention.build(case)
    with Storages() as storages:
        build_model(case, attend)
    stored = sum(storage.nbytes() for storage in storages.made.values())
    rotary_bytes = 16 * case.seq * case.head_dim * 4 if case.arch == "llama" else 0
    assert params(case) * 2 <= stored <= params(case) * 2 + rotary_bytes


def test_all_layers_share_rotary_tables_that_no_checkpoint_holds(
    make_case: Callable[..., Case],
) -> None:
    model = build(make_case(layers=3, **GROUPED))
    assert sorted(name for name, _ in model.named_buffers()) == ["cos_S1D", "signed_sin_S1D"]
    assert sorted(model.state_dict()) == sorted(name for name, _ in model.named_parameters())


@pytest.mark.parametrize("shape", [{}, GROUPED], ids=["gpt", "llama"])
def test_initial_weights_follow_the_depth(
    make_case: Callable[..., Case], shape: dict[str, object]
) -> None:
    case = make_case(layers=8, vocab=2000, **shape)
    for name, weight in build(case).named_parameters():
        if name.endswith("bias"):
            assert not weight.any(), name
        elif "norm" in name:
            assert (weight == 1).all(), name
        else:
            scaled = name.endswith(("attention.output.weight", "mlp.down.weight"))
            expected = 0.02 / (4.0 if scaled else 1.0)  # 1 / sqrt(2 * 8 layers)
            assert weight.std().item() == pytest.approx(expected, rel=0.15), name


@pytest.mark.parametrize("shape", [{}, GROUPED], ids=["gpt", "llama"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_made_in_the_runs_dtype_and_finite(
    make_case: Callable[..., Case], shape: dict[str, object], dtype: str
) -> None:
    case = make_case(dtype=dtype, layers=6, **shape)
    model = build(case)
    tensors = [*model.parameters(), *model.buffers()]
    assert {tensor.dtype for tensor in tensors} == {getattr(torch, dtype)}
    assert not any(tensor.requires_grad for tensor in tensors)
    out = logits(case, model)
    assert out.shape == (case.batch, case.seq, case.vocab)
    assert out.isfinite().all()
    assert out.std() > 0


def test_the_seed_makes_weights_and_tokens(make_case: Callable[..., Case]) -> None:
    case, other = make_case(), make_case(seed=1)
    assert torch.equal(random_tokens(case), random_tokens(make_case(backend="flash")))
    assert not torch.equal(random_tokens(case), random_tokens(other))
    assert torch.equal(build(case).head.weight, build(case).head.weight)
    assert not torch.equal(build(case).head.weight, build(other).head.weight)


def test_gpt_ties_its_embedding(case: Case) -> None:
    model = build(case)
    assert model.head.weight is model.embedding.weight
