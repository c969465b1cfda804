"""Kernel names as they were seen on A100 and Hopper cards, and operators of a CPU."""

import pytest

from attnscale.evidence.categories import Category, categorised, gemm

_ELEMENTWISE = "void at::native::{}elementwise_kernel<4, at::native::{}, std::array<char*, 2ul> >"


@pytest.mark.parametrize(
    ("name", "op", "category"),
    [
        (
            "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7",
            "",
            "attention",
        ),
        (
            "cudnn_generated_fort_native_sdpa_sm80_flash_fprop_wmma_f16_knob_3i",
            "",
            "attention",
        ),
        (
            "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64>>",
            "",
            "attention",
        ),
        ("void pytorch_flash::flash_fwd_splitkv_combine_kernel<pytorch_flash::x>", "", "attention"),
        ("fmha_cutlassF_bf16_aligned_64x64_rf_sm80(PyTorchMemEffAttention::Params)", "", "attention"),
        (
            "void cutlass::device_kernel<flash::FlashAttnFwdSm90<x>>",
            "",
            "attention",
        ),
        ("nvjet_sm90_tst_128x256_64x4_1x2_h_bz_coopA_TNT", "aten::linear > aten::addmm", "GEMM"),
        ("ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_64x3_tn", "", "GEMM"),
        ("sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize32x32x8_stage3_ffma_kernel", "", "GEMM"),
        (
            "void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_32x32>",
            "",
            "GEMM",
        ),
        ("void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16>", "", "GEMM"),
        ("ampere_sgemm_128x64_tn", "", "GEMM"),
        ("triton_tem_fused_addmm_0", "", "GEMM"),
        ("void (anonymous namespace)::softmax_warp_forward<c10::BFloat16, float, 11>", "", "softmax"),
        ("void at::native::(anonymous namespace)::cunn_SoftMaxForward<8, c10::BFloat16>", "", "softmax"),
        (_ELEMENTWISE.format("", "(anonymous namespace)::masked_fill_kernel(x)"), "", "mask"),
        ("void at::native::triu_tril_kernel<bool, int, false, 16, true>", "", "mask"),
        (
            _ELEMENTWISE.format("vectorized_", "FillFunctor<bool>"),
            "aten::scaled_dot_product_attention > aten::_scaled_dot_product_attention_math > aten::ones",
            "mask",
        ),
        (_ELEMENTWISE.format("vectorized_", "FillFunctor<bool>"), "aten::zeros", "elementwise"),
        (
            "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<bool, x>>",
            "aten::_safe_softmax > aten::all",
            "softmax",
        ),
        (_ELEMENTWISE.format("vectorized_", "GeluCUDAKernelImpl(x)"), "", "elementwise"),
        (_ELEMENTWISE.format("unrolled_", "CUDAFunctor_add<c10::BFloat16>"), "", "elementwise"),
        (_ELEMENTWISE.format("", "direct_copy_kernel_cuda(x)"), "", "copy and cast"),
        (_ELEMENTWISE.format("unrolled_", "bfloat16_copy_kernel_cuda(x)"), "", "copy and cast"),
        ("void at::native::(anonymous namespace)::CatArrayBatchedCopy<x>", "", "copy and cast"),
        (
            "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<x>",
            "",
            "norm",
        ),
        (
            "void at::native::(anonymous namespace)::indexSelectLargeIndex<x>",
            "",
            "embedding",
        ),
        ("void at::native::vectorized_gather_kernel<16, long>", "", "embedding"),
        ("Memcpy DtoD (Device -> Device)", "aten::masked_fill > aten::clone > aten::copy_", "memcpy"),
        ("Memset (Device)", "", "memcpy"),
        ("triton_poi_fused_add_mul_3", "", "elementwise"),
        ("aten::_scaled_dot_product_flash_attention_for_cpu", "", "attention"),
        ("aten::addmm", "aten::linear > aten::addmm", "GEMM"),
        ("aten::native_layer_norm", "", "norm"),
        ("aten::masked_fill_", "", "mask"),
        ("aten::gelu", "", "elementwise"),
        ("aten::copy_", "", "copy and cast"),
        ("aten::index_select", "", "embedding"),
    ],
)
def test_category(name: str, op: str, category: str) -> None:
    assert categorised(name, op) == (Category(category), True)


@pytest.mark.parametrize("name", ["aten::view", "aten::transpose", "aten::empty_strided"])
def test_what_moves_no_data_is_other_and_known(name: str) -> None:
    assert categorised(name) == (Category.OTHER, True)


@pytest.mark.parametrize("name", ["my_kernel_v7", "", "aten::frobnicate"])
def test_an_unknown_name_is_other_and_said_to_be_unknown(name: str) -> None:
    assert categorised(name) == (Category.OTHER, False)


@pytest.mark.parametrize(
    ("name", "units", "dtype"),
    [
        ("nvjet_sm90_tst_128x256_64x4_1x2_h_bz_coopA_TNT", "Tensor Cores", "bfloat16"),
        ("nvjet_sm90_hsh_128x256_64x4_1x2_h_bz_coopA_TNT", "Tensor Cores", "float16"),
        ("ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_64x3_tn", "Tensor Cores", "bfloat16"),
        ("ampere_fp16_s16816gemm_fp16_128x128_ldg8_f2f_stages_32x5_tn", "Tensor Cores", "float16"),
        ("sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize32x32x8_stage3_ffma_k", "CUDA cores", "float32"),
        ("sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x16", "unknown", "tf32"),
        ("ampere_sgemm_128x64_tn", "CUDA cores", "float32"),
        ("cutlass_80_tensorop_s1688gemm_128x256_16x3_tn_align4", "Tensor Cores", "tf32"),
        ("aten::addmm", "unknown", "unknown"),
    ],
)
def test_gemm(name: str, units: str, dtype: str) -> None:
    found = gemm(name)
    assert (found.units, found.dtype) == (units, dtype)
