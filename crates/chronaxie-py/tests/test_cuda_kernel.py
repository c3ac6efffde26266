"""Kernels of the user's own."""

import pickle

import pytest
import torch

import chronaxie
from chronaxie.cuda import Kernel

SCALE = """
extern "C" __global__ void scale(float* x, float a, long long n) {
    long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < n) x[i] *= a;
}"""


def test_without_a_driver_the_error_says_so():
    if torch.cuda.is_available():
        pytest.skip("there is a driver")
    kernel = pickle.loads(pickle.dumps(Kernel(SCALE, "scale")))
    with pytest.raises(chronaxie.BackendUnavailableError, match="no CUDA driver"):
        kernel(1.0, 2, grid=1, block=32)
    with pytest.raises(chronaxie.DeviceError, match="argument 0 lies on cpu"):
        kernel(torch.zeros(3), 2.0, 3, grid=1, block=32)
    with pytest.raises(chronaxie.DtypeError, match="argument 1 is a str"):
        kernel(1.0, "2", grid=1, block=32)


@pytest.mark.gpu
def test_a_kernel_runs_on_the_current_stream(cuda):
    kernel, x = Kernel(SCALE, "scale"), torch.arange(1000, dtype=torch.float32, device=cuda)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(10_000_000)
        x.add_(1)
        kernel(x, 2.0, 1000, grid=4, block=256)
    stream.synchronize()
    assert torch.equal(x.cpu(), (torch.arange(1000) + 1.0) * 2)
    assert kernel.compile(0).registers > 0
    with pytest.raises(chronaxie.ConfigError, match="takes 3 arguments and 2 were given"):
        kernel(x, 2.0, grid=1, block=32)
    with pytest.raises(chronaxie.ConfigError, match="block = 0"):
        kernel(x, 2.0, 1000, grid=1, block=0)
    with pytest.raises(chronaxie.CompileError, match="user.cu") as e:
        Kernel("nonsense", "scale").compile()
    assert "nonsense" in e.value.log
