"""Neural dynamics on CUDA and the CPU.

This package imports no framework; :mod:`chronaxie.torch` is the face for PyTorch, :mod:`chronaxie.cuda` compiles and
launches kernels of your own.
"""

from __future__ import annotations

import json
import sys
from typing import Any, Sequence

from . import _native
from ._arrays import forward
from ._errors import (
    BackendUnavailableError,
    CheckpointError,
    ChronaxieError,
    CompileError,
    ConfigError,
    DataError,
    DeviceError,
    DtypeError,
    OutOfMemoryError,
    ShapeError,
)
from ._memory import MemoryInfo, memory_info

__version__: str = _native.version()

# NVRTC comes in wheels, and this Python may run without its environment being the active one.
_native.set_python_sites([p for p in sys.path if p.endswith(("site-packages", "dist-packages"))])

__all__ = [
    "BackendUnavailableError",
    "CheckpointError",
    "ChronaxieError",
    "CompileError",
    "ConfigError",
    "DataError",
    "DeviceError",
    "DtypeError",
    "MemoryInfo",
    "OutOfMemoryError",
    "ShapeError",
    "bench",
    "check",
    "devices",
    "families",
    "forward",
    "get_num_threads",
    "memory_info",
    "set_num_threads",
]


def devices() -> dict[str, Any]:
    """What this machine can run on: ``cpu``, ``driver``, ``nvrtc``, ``cache_dir`` and the list ``cuda``.

    The same object as ``chronaxie devices --json``: what is missing says why under ``missing``.
    """
    return json.loads(_native.devices())


def families() -> list[str]:
    """The names of all entries, as :func:`check` and :func:`bench` take them."""
    return _native.families()


def get_num_threads() -> int:
    """The number of threads of CPU work."""
    return _native.num_threads()


def set_num_threads(threads: int) -> None:
    """Sets the number of threads of CPU work. Results are the same bits for any number."""
    if not 1 <= threads <= 1024:
        raise ConfigError(f"threads = {threads} is not in 1 ..= 1024")
    _native.set_num_threads(threads)


def _names(names: str | Sequence[str] | None) -> list[str]:
    return [] if names is None else [names] if isinstance(names, str) else list(names)


def check(
    families: str | Sequence[str] | None = None,
    *,
    cases: str | Sequence[str] | None = None,
    backend: str = "all",
    repeats: int = 3,
    seed: int = 1,
) -> list[dict[str, Any]]:
    """Holds every implementation against its float64 reference.

    Args:
        families: entries by name; all by default.
        cases: such as ``"B24_T8_D128_H64,unfolds=6"``, instead of the declared ones.
        backend: ``all``, ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.
        repeats: runs whose bits must be equal, at least 2.
        seed: of the inputs.

    Returns:
        The records of ``chronaxie check --json``; ``status`` is ``passed``, ``failed`` or ``skipped``.
    """
    return json.loads(_native.run_check(_names(families), _names(cases), backend, repeats, seed))


def bench(
    families: str | Sequence[str] | None = None,
    *,
    cases: str | Sequence[str] | None = None,
    backend: str = "auto",
    precision: str | None = None,
    seconds: float = 1.0,
) -> list[dict[str, Any]]:
    """Times every implementation that passes its check; about ``seconds`` for each pass. Families of spiking networks too.

    Returns:
        The records of ``chronaxie bench --json``.

    Raises:
        DeviceError: a case failed its check, and was not timed.
    """
    return json.loads(_native.run_bench(_names(families), _names(cases), backend, precision, seconds))
