"""Your own CUDA C++ on tensors: compiled for the exact device at first use, cached, launched on the current stream."""

from __future__ import annotations

import sys
from typing import Any, Sequence

from . import _native
from ._errors import ConfigError, DeviceError, DtypeError

__all__ = ["Kernel"]


def _extent(what: str, given: int | Sequence[int]) -> tuple[int, int, int]:
    sizes = (given,) if isinstance(given, int) else tuple(given)
    if not 1 <= len(sizes) <= 3 or any(not 0 < n < 2**32 for n in sizes):
        raise ConfigError(f"{what} = {given} is not one to three positive numbers")
    return (*sizes, 1, 1)[:3]  # type: ignore[return-value]


class Kernel:
    """One kernel of a source in CUDA C++.

    Args:
        source: it declares the kernel as ``extern "C" __global__ void name(...)``. No header is needed or found.
        name: the kernel's name.
        file: what the compiler's messages call the source.
        fmad: whether multiplications and additions may be fused.

    Example::

        scale = chronaxie.cuda.Kernel('''
            extern "C" __global__ void scale(float* x, float a, int n) {
                int i = blockIdx.x * blockDim.x + threadIdx.x;
                if (i < n) x[i] *= a;
            }''', "scale")
        scale(x, 2.0, x.numel(), grid=(x.numel() + 255) // 256, block=256)
    """

    def __init__(self, source: str, name: str, *, file: str = "user.cu", fmad: bool = True) -> None:
        self.source, self.name, self.file, self.fmad = source, name, file, fmad
        self._loaded: dict[int, Any] = {}

    def compile(self, device: int = 0) -> Any:
        """Compiles and loads it on the CUDA device of that index; its ``registers`` and ``local_bytes`` can be read.

        Raises:
            BackendUnavailableError: there is no driver or no compiler.
            CompileError: with the compiler's ``log``.
        """
        loaded = self._loaded.get(device)
        if loaded is None:
            loaded = _native.Kernel(self.source, self.name, self.file, device, self.fmad)
            self._loaded[device] = loaded
        return loaded

    def __call__(
        self,
        *args: Any,
        grid: int | Sequence[int],
        block: int | Sequence[int],
        shared_bytes: int = 0,
        stream: int | None = None,
    ) -> None:
        """Puts one launch on a stream and returns.

        Tensors (anything with ``data_ptr()`` and ``device``) pass their address, numbers their value in the width of the
        kernel's parameter: an int as an integer, so that a parameter of type float needs 2.0 and not 2. Types and extents
        of what a kernel reads are its author's business, as in C.

        Args:
            grid, block: blocks, and threads a block, in x, y, z.
            shared_bytes: dynamic shared memory a block.
            stream: a stream's handle; PyTorch's current one by default.
        """
        values, index = [], None
        for at, arg in enumerate(args):
            if not hasattr(arg, "data_ptr"):
                if not isinstance(arg, (int, float)):
                    raise DtypeError(f"{self.name}: argument {at} is a {type(arg).__name__}, not a tensor or a number")
                values.append(int(arg) if isinstance(arg, bool) else arg)
                continue
            if arg.device.type != "cuda":
                raise DeviceError(f"{self.name}: argument {at} lies on {arg.device}, not on a CUDA device")
            if index is not None and arg.device.index != index:
                raise DeviceError(f"{self.name}: argument {at} lies on {arg.device}, an earlier one on cuda:{index}")
            index = arg.device.index
            values.append(arg.data_ptr())
        torch = sys.modules.get("torch")
        cuda = torch.cuda if torch is not None and torch.cuda.is_available() else None
        if index is None:
            index = cuda.current_device() if cuda else 0
        kernel = self.compile(index)
        if stream is None:
            stream = cuda.current_stream(index).cuda_stream if cuda else 0
        kernel.launch(_extent("grid", grid), _extent("block", block), values, shared_bytes, stream)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_loaded": {}}

    def __repr__(self) -> str:
        return f"chronaxie.cuda.Kernel({self.name} of {self.file})"
