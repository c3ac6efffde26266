"""The original's names (torchium's ``utils.cuda_kernels``), each with the meaning that its documentation promises.

On the CPU they compute there; nothing falls back to anything in silence.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any, Callable

import torch
from torch import Tensor, nn

from .._memory import free_memory, memory_info
from ._matmul import matmul
from ._matrix import batched_matmul, inverse_root, kron
from ._per_sample import per_sample_gradients

__all__ = [
    "CUDAGradientOps",
    "CUDAMatrixOps",
    "CUDAMemoryOps",
    "cuda_memory_info",
    "get_cuda_device_count",
    "get_optimal_device",
    "is_cuda_available",
]


class CUDAMatrixOps:
    """Matrix functions."""

    @staticmethod
    def matrix_sqrt_inv_eigen(matrix: Tensor, power: float = -0.25, eps: float = 1e-8) -> Tensor:
        """``(matrix + eps I)^power`` of symmetric matrices ``[..., n, n]``, for any power.

        Powers -q/p with whole numbers up to 64 are :func:`chronaxie.optim.inverse_root`'s; for others, and in float64, eigenvalues
        below eps count as eps. bfloat16 and float16 are computed in float32.
        """
        exact = Fraction(power).limit_denominator(64)
        if power < 0 and float(exact) == power and -exact.numerator <= 64 and matrix.dtype is not torch.float64:
            return inverse_root(matrix, -1 / exact, absolute=eps, relative=0.0)  # type: ignore[return-value]
        wide = matrix if matrix.dtype is torch.float64 else matrix.float()
        values, vectors = torch.linalg.eigh((wide + wide.mT) / 2)
        return ((vectors * (values + eps).clamp_min(eps).pow(power)[..., None, :]) @ vectors.mT).to(matrix.dtype)

    @staticmethod
    def kronecker_product_approx(A: Tensor, B: Tensor) -> Tensor:
        """The Kronecker product ``[m p, n q]`` of ``[m, n]`` and ``[p, q]``: exact. :func:`chronaxie.optim.kron_apply` multiplies by it
        without making it."""
        return kron(A, B)

    @staticmethod
    def batch_matrix_multiply(A: Tensor, B: Tensor) -> Tensor:
        """``[b, m, k]`` times ``[b, k, n]``."""
        return batched_matmul(A, B)


class CUDAGradientOps:
    """Gradients of single samples."""

    @staticmethod
    def per_sample_gradients(model: nn.Module, loss_fn: Callable[..., Tensor], inputs: Tensor, targets: Tensor) -> list[Tensor]:
        """For every parameter that is trained, in the order of ``model.parameters()``, the gradients of the samples ``[B, *p.shape]``;
        ``.grad`` stays. ``loss_fn`` is a mean over the batch."""
        return list(per_sample_gradients(model, loss_fn, inputs, targets).values())


class CUDAMemoryOps:
    """Memory."""

    @staticmethod
    def efficient_tensor_creation(shape: Any, device: Any = "cuda", dtype: torch.dtype = torch.float32) -> Tensor:
        """A tensor of zeros, in one allocation on its device. (The original's had never been written to.)"""
        return torch.zeros(shape, device=device, dtype=dtype)

    @staticmethod
    def memory_efficient_matmul(A: Tensor, B: Tensor) -> Tensor:
        """``A B`` with at most 256 MiB beside the result: :func:`chronaxie.optim.matmul`."""
        return matmul(A, B)


def is_cuda_available() -> bool:
    """Whether PyTorch can use a CUDA device."""
    return torch.cuda.is_available()


def get_cuda_device_count() -> int:
    """How many CUDA devices PyTorch sees."""
    return torch.cuda.device_count()


def get_optimal_device() -> torch.device:
    """The CUDA device with the most free memory, as NVML says, or the CPU. No context is made on any device (where NVML is missing
    and there are several devices, the driver must be asked, which makes one on each)."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    count = torch.cuda.device_count()
    free = [free_memory(i) for i in range(count)] if count > 1 else [0]
    if None in free:
        free = [memory_info(f"cuda:{i}").free for i in range(count)]
    return torch.device("cuda", max(range(count), key=lambda i: free[i] or 0))


def cuda_memory_info() -> dict[str, Any]:
    """``available``, ``device`` and bytes of the current device: ``total_memory`` and ``free_memory`` as the driver says,
    ``allocated_memory`` and ``cached_memory`` of PyTorch; without one the keys are there too, with None and 0."""
    if not torch.cuda.is_available():
        return {"available": False, "device": None, "total_memory": 0, "allocated_memory": 0, "cached_memory": 0, "free_memory": 0}
    index = torch.cuda.current_device()
    free, total = memory_info(f"cuda:{index}")
    return {
        "available": True,
        "device": torch.device("cuda", index),
        "total_memory": total,
        "allocated_memory": torch.cuda.memory_allocated(index),
        "cached_memory": torch.cuda.memory_reserved(index),
        "free_memory": free,
    }
