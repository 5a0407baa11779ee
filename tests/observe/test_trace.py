"""The activity of the device is read from a Chrome trace."""

from __future__ import annotations

import json

import pytest

from hotlap.observe.trace import kind_of_kernel, read_trace


def event(category: str, name: str, start: float, duration: float, **more) -> dict:
    return {"ph": "X", "cat": category, "name": name, "ts": start, "dur": duration, "pid": 0, "tid": 7, **more}


# Two steps, in microseconds: a matmul, a copy that overlaps it on another stream, an elementwise kernel later.
TRACE = [
    {"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "python"}},
    event("kernel", "ampere_sgemm_128x64_tn", 1000, 400),
    event("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", 1200, 300),
    event("kernel", "void at::native::vectorized_elementwise_kernel<4>", 2000, 100),
    event("kernel", "ampere_sgemm_128x64_tn", 3000, 400),
    event("gpu_memset", "Memset (Device)", 3100, 100),
    event("cuda_runtime", "cudaLaunchKernel", 900, 5),
    event("cuda_runtime", "cudaLaunchKernelExC", 1900, 5),
    event("cuda_driver", "cuLaunchKernel", 2900, 5),
    event("cuda_runtime", "cudaGraphLaunch", 2950, 5),
    event("cuda_runtime", "cudaMemcpyAsync", 1100, 5),
    event("cuda_runtime", "cudaStreamSynchronize", 1500, 50),
    event("cuda_runtime", "cudaDeviceSynchronize", 3500, 50),
    event("cuda_runtime", "cudaEventSynchronize", 3600, 50),
    event("cuda_runtime", "cudaEventQuery", 3700, 1),
    event("cpu_op", "aten::linear", 800, 100),
    {"ph": "i", "cat": "kernel", "name": "a mark without a duration", "ts": 1},
]


@pytest.fixture
def activity(tmp_path):
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": TRACE}))
    return read_trace(path, steps=2, mean_step_ms=1.0)


def test_the_device_is_busy_when_anything_runs_on_it(activity):
    """The busy times are 400, 100 (the copy that outlasts the kernel), 100 and 400 µs: overlapping work counts once."""
    assert activity.busy_ms_per_step == pytest.approx((0.5 + 0.1 + 0.4) / 2)
    assert activity.busy_share == pytest.approx(0.5)
    assert activity.steps == 2


def test_launches_and_waits_are_counted_per_step(activity):
    assert activity.launches_per_step == 2.0
    assert activity.syncs_per_step == 1.5


def test_kernels_come_largest_first_with_their_share_of_device_time(activity):
    first, second, *_ = activity.kernels
    assert (first.name, first.kind, first.per_step) == ("ampere_sgemm_128x64_tn", "matmul", 1.0)
    assert first.ms_per_step == pytest.approx(0.4)
    assert first.share == pytest.approx(800 / 1300)
    assert second.kind == "copy"
    assert sum(kernel.share for kernel in activity.kernels) == pytest.approx(1.0)


def test_a_share_is_never_above_one(tmp_path):
    """The profiler stretches the steps it watches beyond those that were timed."""
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": TRACE}))
    activity = read_trace(path, steps=2, mean_step_ms=0.1)
    assert activity is not None
    assert activity.busy_share == 1.0


@pytest.mark.parametrize("events", [[], [event("cpu_op", "aten::linear", 0, 1)]])
def test_a_trace_without_device_work_gives_nothing(tmp_path, events):
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    assert read_trace(path, steps=2, mean_step_ms=1.0) is None


def test_a_trace_without_a_step_gives_nothing(tmp_path):
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": TRACE}))
    assert read_trace(path, steps=0, mean_step_ms=1.0) is None


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ampere_sgemm_128x64_tn", "matmul"),
        ("nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_NTT", "matmul"),
        ("void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu>", "matmul"),
        ("sm80_xmma_fprop_implicit_gemm_f32f32_tf32f32", "convolution"),
        ("void cudnn::winograd_nonfused::winogradForwardData4x4<float>", "convolution"),
        ("void flash_fwd_kernel<Flash_fwd_kernel_traits<64>>", "attention"),
        ("fmha_cutlassF_f32_aligned_64x64_rf_sm80", "attention"),
        ("void LSTM_elementWise_fp<float>", "recurrent"),
        ("void RNN_blockPersist_fp_GRU<float>", "recurrent"),
        ("Memcpy HtoD (Pinned -> Device)", "copy"),
        ("void at::native::vectorized_elementwise_kernel<4, FillFunctor>", "memory"),
        ("triton_poi_fused_add_relu_0", "memory"),
        ("triton_poi_fused__to_copy_convolution_3", "memory"),
        ("triton_tem_fused_mm_1", "matmul"),
        ("void at::native::multi_tensor_apply_kernel<FusedAdam>", "memory"),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", "other"),
    ],
)
def test_the_kind_of_a_kernel_follows_from_its_name(name, kind):
    assert kind_of_kernel(name) == kind
