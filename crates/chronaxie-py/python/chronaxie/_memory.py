"""What memory there is, and who has it. Imports no framework."""

from __future__ import annotations

import ctypes
import os
import sys
from typing import Any, Callable, Iterator

from . import _native
from ._errors import DeviceError


class MemoryInfo(tuple):  # type: ignore[type-arg]
    """Free and total memory, bytes: a pair ``(free, total)``, with what more is known beside it.

    free, total: as the driver (of the CPU: the system) says.
    process: what this process holds; None where NVML does not say (in a container it may not know its processes).
    torch_allocated, torch_reserved: what PyTorch's tensors hold on the device, and its allocator with what it keeps for the
        next; None for the CPU, and where PyTorch is not imported.
    """

    process: int | None
    torch_allocated: int | None
    torch_reserved: int | None

    def __new__(
        cls, free: int, total: int, process: int | None = None, torch_allocated: int | None = None, torch_reserved: int | None = None
    ) -> MemoryInfo:
        made = super().__new__(cls, (free, total))
        made.process, made.torch_allocated, made.torch_reserved = process, torch_allocated, torch_reserved
        return made

    def __iter__(self) -> Iterator[int]:
        return super().__iter__()

    @property
    def free(self) -> int:
        return self[0]  # type: ignore[no-any-return]

    @property
    def total(self) -> int:
        return self[1]  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        more = (f"{n}={getattr(self, n)}" for n in ("process", "torch_allocated", "torch_reserved"))
        return f"MemoryInfo(free={self.free}, total={self.total}, {', '.join(more)})"


class _Process(ctypes.Structure):
    # nvmlProcessInfo_t of the third version of the call.
    _fields_ = [
        ("pid", ctypes.c_uint), ("used", ctypes.c_ulonglong), ("instance", ctypes.c_uint), ("compute_instance", ctypes.c_uint)
    ]  # fmt: skip


class _Memory(ctypes.Structure):
    # nvmlMemory_t.
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


def _pci_address(index: int) -> bytes | None:
    """Where a CUDA device sits, as the driver says without a context on it."""
    driver, device, address = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(), ctypes.create_string_buffer(32)
    if driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), index):
        return None
    return None if driver.cuDeviceGetPCIBusId(address, len(address), device) else address.value


def _nvml(index: int, ask: Callable[[Any, Any], int | None]) -> int | None:
    """What NVML answers about a CUDA device, or None; no context is made on it."""
    try:
        lib = ctypes.CDLL("libnvidia-ml.so.1")
        if lib.nvmlInit_v2() != 0:
            return None
        try:
            address, handle = _pci_address(index), ctypes.c_void_p()
            if address is None or lib.nvmlDeviceGetHandleByPciBusId_v2(address, ctypes.byref(handle)) != 0:
                return None
            return ask(lib, handle)
        finally:
            lib.nvmlShutdown()
    except (OSError, AttributeError):
        return None


def _held(lib: Any, handle: Any) -> int | None:
    """Bytes that this process holds."""
    count = ctypes.c_uint(256)
    found = (_Process * count.value)()
    if lib.nvmlDeviceGetComputeRunningProcesses_v3(handle, ctypes.byref(count), found) != 0:
        return None
    mine = [p.used for p in found[: count.value] if p.pid == os.getpid() and p.used != ctypes.c_ulonglong(-1).value]
    return int(mine[0]) if mine else None


def _free(lib: Any, handle: Any) -> int | None:
    """Bytes that nobody holds."""
    memory = _Memory()
    return None if lib.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) != 0 else int(memory.free)


def free_memory(index: int) -> int | None:
    """Free bytes of a CUDA device without a context on it, which takes hundreds of megabytes there; None where NVML does not
    say."""
    return _nvml(index, _free)


def _of_torch(index: int) -> tuple[Any, Any]:
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    # A question must not start CUDA in this process.
    if cuda is None or not cuda.is_available() or not cuda.is_initialized():
        return None, None
    return cuda.memory_allocated(index), cuda.memory_reserved(index)


def memory_info(device: str = "cuda:0") -> MemoryInfo:
    """The memory of ``cpu`` or ``cuda:N`` now, bytes.

    Raises:
        BackendUnavailableError: there is no CUDA driver.
        DeviceError: there is no device of that index.
    """
    name, _, index = str(device).partition(":")
    if name == "cpu" and not index:
        page = os.sysconf("SC_PAGE_SIZE")
        try:
            with open("/proc/self/statm", encoding="ascii") as file:
                held: int | None = page * int(file.read().split()[1])
        except OSError:
            held = None
        return MemoryInfo(page * os.sysconf("SC_AVPHYS_PAGES"), page * os.sysconf("SC_PHYS_PAGES"), held)
    if name != "cuda" or not (index or "0").isdecimal():
        raise DeviceError(f"device `{device}` is not one of cpu, cuda, cuda:N (N an index from 0)")
    at = int(index or 0)
    return MemoryInfo(*_native.memory_info(at), _nvml(at, _held), *_of_torch(at))
