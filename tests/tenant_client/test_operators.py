"""The table of operators: what counts as what, and that a table with a contradiction is refused."""

from importlib import resources

import pytest

from federation.protocol.toml_tables import BadTable
from tenant_client.workload.operators import (
    class_of,
    classes_of,
    is_part_of_a_model,
    kernel_family,
    parse,
    precision,
    table,
)

TEXT = resources.files("tenant_client.workload").joinpath("operators.toml").read_text(encoding="utf-8")


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
