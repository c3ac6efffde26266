"""The exceptions. The table from the library's errors to these classes is in ``src/errors.rs``."""

from __future__ import annotations


class ChronaxieError(Exception):
    """Anything that the library refuses. Each is a sentence with the values in it."""

    __module__ = "chronaxie"


class ShapeError(ChronaxieError, ValueError):
    """Sizes or strides that do not fit together."""

    __module__ = "chronaxie"


class DtypeError(ChronaxieError, TypeError):
    """An element type that the operation does not take."""

    __module__ = "chronaxie"


class DeviceError(ChronaxieError, RuntimeError):
    """A tensor on the wrong device, a device that does not exist, or one that failed."""

    __module__ = "chronaxie"


class BackendUnavailableError(ChronaxieError, RuntimeError):
    """A library, driver or capability that this machine lacks."""

    __module__ = "chronaxie"


class CompileError(ChronaxieError, RuntimeError):
    """A kernel that did not compile."""

    __module__ = "chronaxie"
    kernel: str = ""
    log: str = ""


class OutOfMemoryError(ChronaxieError, MemoryError):
    """The device has not enough memory."""

    __module__ = "chronaxie"
    asked: int = 0
    free: int = 0


class ConfigError(ChronaxieError, ValueError):
    """A wrong setting, or a value that is NaN, infinite or out of its range."""

    __module__ = "chronaxie"
    line: int | None = None


class DataError(ChronaxieError, ValueError):
    """A data file that cannot be used."""

    __module__ = "chronaxie"
    path: str = ""
    line: int | None = None


class CheckpointError(ChronaxieError, ValueError):
    """A checkpoint or model file that does not fit."""

    __module__ = "chronaxie"
