"""The native part. What is public of it is in the packages; names here may change."""

from collections.abc import Callable, Sequence
from typing import Any, final

__all__ = [
    "Array",
    "Caller",
    "Connectivity",
    "Framework",
    "Kernel",
    "Plan",
    "Problem",
    "cases",
    "devices",
    "draw_wiring",
    "families",
    "inspect",
    "memory_info",
    "num_threads",
    "prepare",
    "problem",
    "require_device",
    "run",
    "run_bench",
    "run_check",
    "set_num_threads",
    "set_python_sites",
    "version",
]

_Tensor = tuple[str, str, list[int], str, str, bool]

def version() -> str: ...
def run(argv: Sequence[str]) -> int: ...
def devices() -> str: ...
def set_python_sites(sites: list[str]) -> None: ...
def memory_info(index: int) -> tuple[int, int]: ...
def require_device(device: str) -> None: ...
def num_threads() -> int: ...
def set_num_threads(threads: int) -> None: ...
def run_check(families: list[str], cases: list[str], backend: str, repeats: int, seed: int) -> str: ...
def run_bench(
    families: list[str], cases: list[str], backend: str, precision: str | None, seconds: float
) -> str: ...
def families() -> list[str]: ...
def cases(entry: str) -> list[str]: ...
def problem(entry: str, case: str, prepared: Connectivity | None = None) -> Problem: ...
def prepare(recurrent: bytes, sensory: bytes, inputs: int, hidden: int) -> Connectivity: ...
def draw_wiring(rule: list[tuple[str, str]], inputs: int) -> tuple[int, int, int, bytes, bytes]: ...
@final
class Problem:
    @property
    def entry(self) -> str: ...
    def signature(self, pass_name: str) -> tuple[list[_Tensor], list[_Tensor]]: ...
    def tolerance(self, pass_name: str, output: str) -> tuple[str, float, str] | None: ...
    def plan(self, device: str) -> Plan: ...

@final
class Plan:
    @property
    def config(self) -> str: ...
    @property
    def variant(self) -> str: ...
    def scratch_bytes(self, pass_name: str) -> int: ...
    def run(
        self,
        pass_name: str,
        addresses: list[int],
        strides: list[tuple[int, list[int]]] = ...,
        scratch: int = 0,
        stream: int = 0,
    ) -> None: ...

def inspect(capsule: Any) -> tuple[int, str, list[int], list[int], str]: ...
@final
class Array:
    def __new__(cls, dtype: str, shape: Sequence[int], device: str) -> Array: ...
    @staticmethod
    def of(values: Sequence[float], dtype: str, shape: Sequence[int], device: str) -> Array: ...
    @property
    def address(self) -> int: ...
    @property
    def shape(self) -> list[int]: ...
    @property
    def dtype(self) -> str: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
    def __dlpack__(
        self,
        *,
        stream: Any | None = None,
        max_version: Any | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any: ...

@final
class Framework:
    def __new__(
        cls,
        read: Callable[[Any], Any],
        empty_like: Callable[[Any], Any],
        pattern: Callable[[tuple[int, ...], str, str], Any],
        stream: Callable[[int], int],
        exchange: Any | None = None,
    ) -> Framework: ...
    @property
    def exchanges(self) -> bool: ...

@final
class Caller:
    def __new__(
        cls, plan: Plan, framework: Framework, zero: Any, layout: Sequence[int | None] | None = None
    ) -> Caller: ...
    def run(
        self,
        pass_name: str,
        tensors: tuple[Any, ...],
        prepared: Any | None = None,
        gradients: tuple[Any, ...] | None = None,
        block: bool = False,
    ) -> list[Any]: ...
    def forward(self, tensors: tuple[Any, ...], prepared: Any | None = None) -> list[Any]: ...
    def backward(
        self, tensors: tuple[Any, ...], prepared: Any | None, gradients: tuple[Any, ...]
    ) -> tuple[Any, ...]: ...

@final
class Connectivity:
    @property
    def inputs(self) -> int: ...
    @property
    def hidden(self) -> int: ...
    @property
    def recurrent(self) -> int: ...
    @property
    def sensory(self) -> int: ...
    def lists(self) -> list[tuple[str, bytes]]: ...

@final
class Kernel:
    def __new__(cls, source: str, name: str, file: str, index: int, fmad: bool) -> Kernel: ...
    @property
    def registers(self) -> int: ...
    @property
    def local_bytes(self) -> int: ...
    def launch(
        self,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        arguments: list[int | float],
        shared_bytes: int,
        stream: int,
    ) -> None: ...
