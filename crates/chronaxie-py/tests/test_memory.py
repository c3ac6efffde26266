"""Products with a bounded workspace, what memory there is, and the names of the original."""

import subprocess
import sys

import numpy as np
import pytest
import torch

import chronaxie
from chronaxie import optim

from conftest import distance
from test_optim import gram, normal
from test_per_sample import Peak


def test_memory_is_what_the_system_says():
    info = chronaxie.memory_info("cpu")
    free, total = info
    assert (free, total) == (info.free, info.total) and info.torch_allocated is None
    with open("/proc/self/status", encoding="ascii") as file:
        rss = next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmRSS"))
    assert abs(info.process - rss) < 0.2 * rss
    held = np.ones(1 << 24, dtype=np.float64)
    assert chronaxie.memory_info("cpu").process - info.process > 0.8 * held.nbytes
    assert "process=" in repr(info)


@pytest.mark.gpu
def test_memory_of_a_gpu(cuda):
    # PyTorch's share is known once it has begun there, which a question does not make it do.
    torch.zeros(1, device=cuda)
    before = chronaxie.memory_info("cuda:0")
    held = torch.empty(1 << 28, dtype=torch.uint8, device=cuda)
    after = chronaxie.memory_info("cuda:0")
    assert after.torch_allocated - before.torch_allocated == held.numel()
    assert after.torch_reserved >= after.torch_allocated and 0 < after.free <= before.free < after.total
    # In a container NVML may not know this process.
    assert after.process is None or after.process >= after.torch_reserved


ASK = """
import ctypes
from chronaxie import _memory
free, driver, flags, active = _memory.free_memory(0), ctypes.CDLL("libcuda.so.1"), ctypes.c_uint(), ctypes.c_int()
assert driver.cuInit(0) == 0 and driver.cuDevicePrimaryCtxGetState(0, ctypes.byref(flags), ctypes.byref(active)) == 0
print(free, active.value)
"""


@pytest.mark.gpu
def test_free_memory_is_known_without_a_context(cuda):
    free, active = subprocess.run([sys.executable, "-c", ASK], capture_output=True, text=True, check=True).stdout.split()
    assert active == "0"
    assert free == "None" or 0 < int(free) <= chronaxie.memory_info("cuda:0").total
    assert optim.compat.get_optimal_device().type == "cuda"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("limit", [1 << 10, 1 << 14, 1 << 28])
def test_pieces_make_the_product(dtype, limit):
    """Strided operands and results that are packed piece by piece; transposed ones are read as they are."""
    wide = normal(2 * 37, 3 * 300).to(dtype)
    strided = wide[::2, ::3]
    b = normal(29, 300, seed=1).to(dtype)
    whole = torch.empty(2 * 37, 2 * 29, dtype=dtype)
    out = whole[::2, ::2]
    if dtype is torch.bfloat16 and limit == 1 << 10:
        limit = 1 << 11
    plan = optim.matmul_plan(strided, b.mT, out=out, max_bytes=limit)
    assert plan.workspace_bytes <= limit and plan.output_bytes == 0 and plan.pinned_bytes == 0
    got = optim.matmul(strided, b.mT, out=out, max_bytes=limit)
    assert got is out
    bound = {torch.float32: 1e-6, torch.float64: 1e-14, torch.bfloat16: 4e-3}[dtype]
    assert distance(out, strided.double() @ b.double().mT) < bound
    assert optim.matmul(strided, b.mT).shape == (37, 29)


def test_the_workspace_is_what_was_said(capsys):
    a, b = normal(160, 120)[::2, ::2], normal(120, 100, seed=1)[::2]
    out = torch.empty(80, 100)
    for limit in (1 << 10, 1 << 12):
        told = []
        with Peak(a, b, out) as peak:
            optim.matmul(a, b, out=out, max_bytes=limit, tell=told.append)
        plan = optim.matmul_plan(a, b, out=out, max_bytes=limit)
        assert peak.peak <= plan.workspace_bytes <= limit, (peak.peak, plan)
        assert told == [str(plan)] and f"{plan.workspace_bytes} bytes of workspace" in told[0]
    with Peak(a, b, out) as peak:
        torch.mm(a.contiguous(), b, out=out)
    assert peak.peak >= 4 * a.numel(), "the measure sees what is packed whole"
    optim.matmul(a, b, tell=print)
    assert "matmul [80, 60] x [60, 100] on cpu in pieces of 80 x 100 x 60" in capsys.readouterr().out


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("out_on", ["cpu", "cuda"])
def test_host_matrices_are_streamed(cuda, dtype, out_on):
    a, b = normal(700, 900).to(dtype), normal(900, 600, seed=1).to(dtype)
    out = torch.empty(700, 600, dtype=dtype, device=out_on)
    torch.cuda.synchronize()
    start = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    limit = 1 << 20
    optim.matmul(a, b, out=out, device="cuda", max_bytes=limit)
    plan = optim.matmul_plan(a, b, out=out, device="cuda", max_bytes=limit)
    # The BLAS's own workspace is PyTorch's too.
    assert torch.cuda.max_memory_allocated() - start <= limit + (64 << 20) and plan.workspace_bytes <= limit >= plan.pinned_bytes
    assert distance(out, a.double() @ b.double()) < (1e-6 if dtype is torch.float32 else 4e-3)
    mixed = optim.matmul(a.to(cuda), b, max_bytes=limit)
    assert mixed.is_cuda and distance(mixed, a.double() @ b.double()) < (1e-6 if dtype is torch.float32 else 4e-3)


def test_empty_products_and_mistakes():
    assert optim.matmul(torch.ones(0, 3), torch.ones(3, 2)).shape == (0, 2)
    assert torch.equal(optim.matmul(torch.ones(2, 0), torch.ones(0, 2)), torch.zeros(2, 2))
    a, b = torch.ones(4, 3), torch.ones(3, 5)
    for run, error, want in [
        (lambda: optim.matmul(a, a), chronaxie.ShapeError, r"a.shape = \(4, 3\) and b.shape = \(4, 3\)"),
        (lambda: optim.matmul(a, b.double()), chronaxie.DtypeError, "a holds float32 and b float64"),
        (lambda: optim.matmul(a, b, out=torch.ones(4, 4)), chronaxie.ShapeError, r"out.shape = \(4, 4\) does not match \(4, 5\)"),
        (lambda: optim.matmul(a, b, out=torch.ones(4, 5).double()), chronaxie.DtypeError, "out holds float64"),
        (lambda: optim.matmul(torch.ones(3, 3), torch.ones(3, 3), out=None, max_bytes=0), None, None),
        (lambda: optim.matmul(torch.ones(8, 8)[::2, ::2], a, max_bytes=3), chronaxie.ConfigError, "max_bytes = 3 is too little"),
        (lambda: optim.matmul(a.clone().requires_grad_(), b), chronaxie.ChronaxieError, "there is no gradient"),
        (lambda: optim.matmul(a, b.to("meta")), chronaxie.DeviceError, "b is on meta"),
    ]:
        if error is None:
            assert run().shape == (3, 3), "no workspace, no limit"
            continue
        with pytest.raises(error, match=want):
            run()
    square = torch.ones(3, 3)
    with pytest.raises(chronaxie.ConfigError, match="out shares memory"):
        optim.matmul(square, square, out=square)


def test_the_originals_names():
    compat = optim.compat
    a = gram(n=6)
    for power in (-0.25, -0.5, 0.5, -1.0, -0.3137):
        got = compat.CUDAMatrixOps.matrix_sqrt_inv_eigen(a, power, eps=1e-4)
        values, vectors = np.linalg.eigh(a.double().numpy())
        want = (vectors * (values + 1e-4) ** power) @ vectors.T
        assert np.abs(got.numpy() - want).max() < 1e-5 * np.abs(want).max(), power
    assert compat.CUDAMatrixOps.matrix_sqrt_inv_eigen(gram(3, n=6)).shape == (3, 6, 6)
    assert compat.CUDAMatrixOps.matrix_sqrt_inv_eigen(a.double(), -0.5).dtype is torch.float64
    indefinite = torch.diag(torch.tensor([1.0, -1.0]))
    assert compat.CUDAMatrixOps.matrix_sqrt_inv_eigen(indefinite, 0.5, eps=1e-2).isfinite().all()
    x, y = normal(2, 3), normal(4, 5, seed=1)
    torch.testing.assert_close(compat.CUDAMatrixOps.kronecker_product_approx(x, y), torch.kron(x, y))
    p, q = normal(2, 3, 4), normal(2, 4, 5, seed=1)
    torch.testing.assert_close(compat.CUDAMatrixOps.batch_matrix_multiply(p, q), torch.bmm(p, q))
    model, inputs, targets = torch.nn.Linear(4, 2), normal(5, 4), normal(5, 2, seed=1)
    got = compat.CUDAGradientOps.per_sample_gradients(model, torch.nn.functional.mse_loss, inputs, targets)
    want = optim.per_sample_gradients(model, torch.nn.functional.mse_loss, inputs, targets)
    assert [g.shape for g in got] == [(5, 2, 4), (5, 2)] and torch.equal(got[0], want["weight"])
    assert model.weight.grad is None
    made = compat.CUDAMemoryOps.efficient_tensor_creation((3, 2), device="cpu", dtype=torch.float64)
    assert torch.equal(made, torch.zeros(3, 2, dtype=torch.float64)), "not what was there before"
    torch.testing.assert_close(compat.CUDAMemoryOps.memory_efficient_matmul(p[0], q[0]), p[0] @ q[0])
    there = torch.cuda.is_available()
    info = compat.cuda_memory_info()
    keys = {"available", "device", "total_memory", "allocated_memory", "cached_memory", "free_memory"}
    assert set(info) == keys and info["available"] is there is compat.is_cuda_available()
    assert (info["total_memory"] > 0) is there and compat.get_cuda_device_count() == torch.cuda.device_count()
    assert compat.get_optimal_device().type == ("cuda" if there else "cpu")


def test_the_device_with_the_most_free_memory(monkeypatch):
    compat = optim.compat
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(compat, "free_memory", [5, 9, 7].__getitem__)
    assert compat.get_optimal_device() == torch.device("cuda", 1)
    # Without NVML the driver is asked.
    monkeypatch.setattr(compat, "free_memory", lambda index: None)
    monkeypatch.setattr(compat, "memory_info", lambda name: chronaxie.MemoryInfo([5, 6, 7][int(name[-1])], 9))
    assert compat.get_optimal_device() == torch.device("cuda", 2)
