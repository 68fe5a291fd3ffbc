"""The table of operators: what counts as what, and that a table with a contradiction is refused."""

from importlib import resources

import pytest

from federation.protocol.toml_tables import BadTable
from tenant_client.doctor.workload.operators import (
    class_of,
    classes_of,
    is_part_of_a_model,
    kernel_family,
    kernel_multiplies,
    multiplies,
    narrow_precision,
    parse,
    precision,
    role_of,
    table,
)

TEXT = resources.files("tenant_client.doctor.workload").joinpath("operators.toml").read_text(encoding="utf-8")


# ---- the table -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("found", "instead", "complaint"),
    [
        ('gelu = ["gelu",', 'gelu = ["gelu", "bmm",', "an operator must have one class"),
        ('attention = ["batched_matmul", "softmax"]', 'attention = ["soft"]', r"unknown entries: \['soft'\]"),
        ('attention = ["batched_matmul", "softmax"]', 'attn = ["softmax"]', r"unknown entries: \['attn'\]"),
        ('operators = ["aten::linear",', 'operators = ["aten::dot",', r"unknown entries: \['aten::dot'\]"),
    ],
)
def test_a_table_that_contradicts_itself_is_refused(found: str, instead: str, complaint: str) -> None:
    assert parse(TEXT) == table()
    assert TEXT.count(found) == 1
    with pytest.raises(BadTable, match=complaint):
        parse(TEXT.replace(found, instead))


def test_every_operator_that_has_a_weight_of_work_has_a_class() -> None:
    assert table().heavy
    assert all(class_of(operator) for operator in table().heavy)
    assert set(table().weights) > table().heavy


# ---- classes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operator", "name"),
    [
        ("aten::linear", "linear"),
        ("aten::relu_", "relu"),
        ("aten::relu__", ""),
        ("aten::_scaled_dot_product_flash_attention", "attention"),
        ("aten::miopen_convolution", "convolution"),
        ("aten::cudnn_convolution", "convolution"),
        ("aten::add", ""),
        ("aten::embedding", ""),
        ("linear", ""),
        ("torchvision::linear", ""),
        ("", ""),
    ],
)
def test_operators_have_the_class_of_what_they_do(operator: str, name: str) -> None:
    assert class_of(operator) == name


def test_fused_attention_implies_the_steps_that_another_backend_takes() -> None:
    eager = ["aten::bmm", "aten::softmax"]
    assert classes_of(eager) == {"batched_matmul", "softmax"}
    assert classes_of([*eager, "aten::scaled_dot_product_attention"]) == {"attention"}
    assert classes_of(["aten::add", "custom::thing"]) == frozenset()


# ---- what is part of a model ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "operator",
    [
        *(
            "aten::linear",
            "aten::add",
            "aten::_softmax",
            "aten::_scaled_mm",
            "aten::convolution",
            "aten::embedding_bag",
        ),
        *("fbgemm::split_embedding", "torchvision::nms", "torch_scatter::sum", "flash_attn::_flash_attn_forward"),
        *("aten::one_hot", "aten::topk", "aten::scatter_add_", "glooming::op", "nccl_tests::op"),
    ],
)
def test_what_a_model_computes_is_part_of_it(operator: str) -> None:
    assert is_part_of_a_model(operator)


@pytest.mark.parametrize(
    "operator",
    [
        *("aten::cudnn_convolution", "aten::miopen_batch_norm", "aten::_scaled_dot_product_efficient_attention"),
        *("aten::_flash_attention_forward", "aten::_batch_norm_impl_index", "aten::_foreach_add_", "aten::to"),
        *("aten::_fused_adam_", "aten::copy_", "aten::empty_strided", "aten::detach", "aten::item"),
        *("autograd::engine::evaluate_function: AddmmBackward0", "torch::autograd::AccumulateGrad"),
        *("torch.distributed.ddp.reducer::copy_bucket_to_grad", "c10d::allreduce_", "_c10d_functional::all_reduce"),
        *("c10d_functional::all_reduce", "fsdp::all_gather_copy_in", "profiler::_record_function_enter_new"),
        *("nccl:all_reduce", "ProfilerStep#3", "record_param_comms", "## forward ##", ""),
    ],
)
def test_what_backend_optimiser_and_runtime_do_is_not(operator: str) -> None:
    assert not is_part_of_a_model(operator)


# ---- kernels and types ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kernel", "family"),
    [
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "collective"),
        ("volta_sgemm_128x64_nn", "cublas_gemm"),
        ("nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_NNT", "cublas_gemm"),
        ("Cijk_Ailk_Bljk_BBS_BH_MT128x128x32", "tensile_gemm"),
        ("void cutlass::Kernel<cutlass_80_wmma_tensorop_bf16>", "cutlass"),
        ("pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits>", "flash_attention"),
        ("attn_fwd.kd", "flash_attention"),
        ("miopenSp3AsmConv_v30_3_1_gfx94x", "miopen_convolution"),
        ("void cudnn::ops::nchwToNhwcKernel<__half>", "cudnn_convolution"),
        ("triton_poi_fused_add_0", "triton"),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor>", "elementwise"),
        ("void at::native::reduce_kernel<512, 1>", "reduction"),
        ("memcpy", "elementwise"),
        ("my_own_kernel", "other"),
        ("", "other"),
    ],
)
def test_kernels_belong_to_the_family_of_their_library(kernel: str, family: str) -> None:
    assert kernel_family(kernel) == family


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        *(("float", "fp32"), ("Tensor(float)", "fp32"), ("double", "fp64"), ("c10::Half", "fp16")),
        *(("c10::BFloat16", "bf16"), ("Tensor(c10::BFloat16)", "bf16"), ("c10::Float8_e4m3fn", "fp8")),
        *(("signed char", "int8"), ("long int", ""), ("bool", ""), ("Scalar", ""), ("", "")),
    ],
)
def test_types_have_one_name_in_every_format(dtype: str, name: str) -> None:
    assert precision(dtype) == name


# ---- multiplications -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operator", "types", "kind"),
    [
        ("aten::_scaled_mm", ("c10::Float8_e4m3fn", "c10::Float8_e5m2", "float", "float"), "fp8"),
        ("aten::_scaled_mm_v2", ("c10::Float4_e2m1fn_x2", "c10::Float4_e2m1fn_x2", "c10::Float8_e4m3fn"), "fp4"),
        ("aten::_scaled_grouped_mm", ("c10::Float8_e4m3fn", "c10::Float8_e4m3fn"), "fp8"),
        ("_C::cutlass_scaled_mm", ("c10::BFloat16", "c10::Float8_e4m3fn", "c10::Float8_e4m3fn"), "fp8"),
        ("_C::cutlass_scaled_mm", ("c10::BFloat16", "signed char", "signed char", "float", "float"), ""),
        ("_C::cutlass_scaled_fp4_mm", ("c10::BFloat16", "unsigned char", "unsigned char"), "fp4"),
        ("_C::cutlass_moe_mm", ("c10::BFloat16", "c10::Float8_e4m3fn"), "fp8"),
        ("sgl_kernel::fp8_blockwise_scaled_mm", (), "fp8"),
        ("trtllm::fp8_block_scaling_gemm", (), "fp8"),
        ("trtllm::nvfp4_gemm", ("unsigned char",), "fp4"),
        ("flashinfer::bmm_fp8", (), "fp8"),
        ("fbgemm::f8f8bf16_rowwise", ("c10::Float8_e4m3fn",), "fp8"),
        ("fbgemm::f4f4bf16", ("unsigned char",), "fp4"),
        ("fbgemm::mx8mx8bf16_grouped_mm", (), "fp8"),
        ("mslk::f8f8bf16_blockwise", (), "fp8"),
        ("vllm::w8a8_block_fp8_linear", (), "fp8"),
        ("aiter::gemm_a8w8_blockscale", ("c10::Float8_e4m3fnuz", "c10::Float8_e4m3fnuz"), "fp8"),
        ("aten::mm", ("c10::BFloat16", "c10::BFloat16"), ""),
        ("npu::npu_quant_matmul", ("signed char", "signed char"), ""),
    ],
)
def test_operators_that_multiply_by_weights_tell_fp8_and_fp4(operator: str, types: tuple[str, ...], kind: str) -> None:
    assert multiplies(operator)
    assert narrow_precision(operator, types) == kind


@pytest.mark.parametrize(
    "operator",
    [
        *("_C::dynamic_scaled_fp8_quant", "fbgemm::quantize_fp8_per_row", "_C::silu_and_mul_quant", "aten::bmm"),
        *("vllm::unified_attention_with_output", "aten::add", "aten::matmul", "_C::rms_norm", "aten::addmv"),
    ],
)
def test_quantising_attention_and_wrappers_are_no_multiplications(operator: str) -> None:
    assert not multiplies(operator)


@pytest.mark.parametrize(
    ("kernel", "kind"),
    [
        ("nvjet_sm90_qqtst_128x256_128x4_NTN", "fp8"),
        ("nvjet_qqtst_128x128_128x6_2x1_v_bz_TNT", "fp8"),
        ("nvjet_sm100_qqtst_128x256_128x6_2x1_2cta_v_bz_Avec32UE8M0_Bvec32UE8M0_TNT", "fp8"),
        ("nvjet_sm100_ootst_128x128_256x7_4x1_2cta_v_bx_Avec16UE4M3_Bvec16UE4M3_TNT", "fp4"),
        ("nvjet_sm103_oohsh_128x128_256x7_2x2_2cta_v_bz_Avec16UE4M3_Bvec16UE4M3_TNT", "fp4"),
        ("nvjet_sm100_tst_64x8_64x16_4x1_v_bz_TNT", ""),
        ("sm90_xmma_gemm_e4m3bf16_e4m3f32_f32_tn_n_tilesize64x128x128_warpgroupsize1x1x1", "fp8"),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64", ""),
        ("void cutlass::Kernel2<cutlass_89_fp8_gemm>", "fp8"),
        ("void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cutlass::float_e4m3_t>>", "fp8"),
        ("cutlass3x_sm100_bstensorop_gemm_ue4m3xf4_ue4m3xf4_f32_f16_f16_256x192x256", "fp4"),
        ("void deep_gemm::sm90_fp8_gemm_1d2d_impl<0u, 7168u>", "fp8"),
        ("void deep_gemm::sm100_fp8_fp4_gemm_1d1d_impl<0u>", "fp4"),
        ("Cijk_Alik_Bljk_F8B8BS_BH_Bias_HA_S_SAB_SAV_UserArgs_MT256x256x128", "fp8"),
        ("Custom_Cijk_Alik_Bljk_F8BS_BH_MT256x256x128", "fp8"),
        ("Cijk_Alik_Bljk_B8F8HS_BH_MT16x16", "fp8"),
        ("Cijk_Ailk_Bljk_HHS_BH_Bias_HA_S_SAV_UserArgs_MT256x160x64", ""),
        ("Cijk_Alik_Bljk_BBS_BH_MT64x64x64", ""),
        ("void ck::kernel_gemm_xdl_cshuffle_v3<ck::GridwiseGemm<ck::f8_fnuz_t, ck::f8_fnuz_t>>", "fp8"),
        ("_w8a8_block_fp8_matmul", "fp8"),
        ("_kernel_matmul_fp8_row", "fp8"),
    ],
)
def test_kernels_tell_fp8_and_fp4_by_their_libraries_letters(kernel: str, kind: str) -> None:
    assert kernel_multiplies(kernel)
    assert narrow_precision(kernel) == kind


@pytest.mark.parametrize(
    "kernel",
    [
        "vllm::scaled_fp8_quant_kernel_strided",
        "void cutlass::device_kernel<flash::FlashAttnFwdSm90<cutlass::gemm::float_e4m3_t>>",
        "_ZN5aiter24fmha_fwd_hd128_fp16_causalE",
        "vectorized_layer_norm",
        "void fbgemm_gpu::permute_2D_lengths_kernel<int>(int, int, int const*)",
    ],
)
def test_kernels_of_attention_norms_and_quantising_are_no_multiplications(kernel: str) -> None:
    assert not kernel_multiplies(kernel)


@pytest.mark.parametrize(
    ("group", "role"),
    [
        *(("tp", "tp"), ("mesh_tp", "tp"), ("TENSOR_MODEL_PARALLEL_GROUP", "tp"), ("tp:0", "tp")),
        *(("PIPELINE_MODEL_PARALLEL_GROUP", "pp"), ("mesh_pp", "pp"), ("EXPERT_MODEL_PARALLEL_GROUP", "ep")),
        *(("CONTEXT_PARALLEL_GROUP", "cp"), ("DATA_PARALLEL_GROUP", "dp"), ("mesh_dp_shard", "dp")),
        *(("TENSOR_AND_DATA_PARALLEL_GROUP", ""), ("EXPERT_TENSOR_PARALLEL_GROUP", ""), ("mesh_dp_shard_cp", "")),
        *(("default_pg", ""), ("undefined", ""), ("", ""), ("http", ""), ("MODEL_PARALLEL_GROUP", "")),
    ],
)
def test_a_group_tells_its_role_where_it_names_one(group: str, role: str) -> None:
    assert role_of(group) == role
