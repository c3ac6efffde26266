"""What modules refuse when they are made, and not at their first call."""

from __future__ import annotations

import math
import operator
from typing import Any

from .. import _native
from .._errors import ConfigError


def whole(n: Any) -> int | None:
    """A whole number of any library as Python's; None of what is none."""
    try:
        return None if isinstance(n, bool) else operator.index(n)
    except TypeError:
        return None


def sizes(name: str, least: int = 1, **given: Any) -> None:
    """Refuses what is no whole number from ``least`` on."""
    for what, n in given.items():
        found = whole(n)
        if found is None or found < least:
            raise ConfigError(f"{name}: {what} = {n!r} is not a whole number from {least} on")


def number(n: Any) -> float:
    """It as a float, NaN where it is none."""
    try:
        return math.nan if isinstance(n, (str, bytes, bool)) else float(n)
    except (TypeError, ValueError):
        return math.nan


def probabilities(name: str, **given: Any) -> None:
    """Refuses what is not within 0 .. 1."""
    for what, n in given.items():
        if not 0.0 <= number(n) <= 1.0:
            raise ConfigError(f"{name}: {what} = {n!r} is not within 0 .. 1")


def positive(name: str, least: float | None = None, **given: Any) -> None:
    """Refuses what is no finite number above 0, or from ``least`` on."""
    for what, n in given.items():
        value = number(n)
        if not (0.0 < value if least is None else least <= value) or value == math.inf:
            raise ConfigError(f"{name}: {what} = {n!r} is not a number {'above 0' if least is None else f'from {least:g} on'}")


def problem(entry: str, case: str) -> None:
    """Refuses options by the library's own sentence, of a problem of one step of one sequence."""
    _native.problem(entry, case)
