"""Spikes as columns."""

from __future__ import annotations

import operator
import os
from typing import Any, Mapping, Sequence

import numpy as np

from .._errors import ConfigError


def mapping(what: str, value: Any) -> Mapping[str, Any]:
    """Values by their names.

    Raises:
        ConfigError: it is something else.
    """
    if not isinstance(value, Mapping):
        raise ConfigError(f"{what} is of type {type(value).__name__}; values by their names are needed, as in a dict")
    return value


def index(names: Sequence[str], population: str | int) -> int:
    """The index of a population by its name, or the index itself.

    Raises:
        ConfigError: there is none.
    """
    if isinstance(population, str):
        if population not in names:
            raise ConfigError(f"{population!r} is no population; there are {', '.join(names)}")
        return names.index(population)
    at = whole("population", population)
    if not 0 <= at < len(names):
        raise ConfigError(f"population {population}: there are {len(names)}")
    return at


def whole(what: str, value: Any) -> int:
    """A whole number of any library.

    Raises:
        ConfigError: it is none.
    """
    try:
        return operator.index(value)
    except TypeError:
        raise ConfigError(f"{what} = {value!r} is of type {type(value).__name__}; a whole number is needed") from None


def path_of(what: str, value: Any, wanted: str = "a path") -> str:
    """A path.

    Raises:
        ConfigError: it is none; the message says what is ``wanted``.
    """
    if not isinstance(value, (str, os.PathLike)):
        raise ConfigError(f"{what} = {value!r} is of type {type(value).__name__}; {wanted} is needed")
    return os.fsdecode(value)


def number(what: str, value: Any, wanted: str) -> float:
    """One number.

    Raises:
        ConfigError: it is none; the message says what is ``wanted``.
    """
    if np.ndim(value) > 0:
        raise ConfigError(f"{what} is of type {type(value).__name__} with the shape {np.shape(value)}; {wanted} is needed")
    try:
        # Words are no numbers, though float() reads some.
        found = None if isinstance(value, (str, bytes)) else float(value)
    except (TypeError, ValueError):
        found = None
    if found is None:
        raise ConfigError(f"{what} = {value!r} is of type {type(value).__name__}; {wanted} is needed")
    return found


class Spikes:
    """Spikes in order of time, then cell, as NumPy arrays of one length.

    Attributes:
        step: u64, the step in which the cell fired, from 0.
        neuron: u32, the cell's number in the network.
        population: u16 (u32 of more than 65,536), the index of its population.
        names: of the populations.
        sizes: of the populations.
        dt: the step, ms.
        start, stop: the time in which they were gathered, ms.
        replicas: of several networks side by side, the first population of each; else nothing.
    """

    def __init__(
        self,
        step: np.ndarray,
        neuron: np.ndarray,
        names: Sequence[str],
        sizes: Sequence[int],
        dt: float,
        start: float,
        stop: float,
        replicas: Sequence[int] = (),
    ) -> None:
        self.step, self.neuron = step, neuron
        self.names, self.sizes = tuple(names), tuple(sizes)
        self.dt, self.start, self.stop = dt, start, stop
        self.replicas = tuple(replicas)
        self._first = np.concatenate([[0], np.cumsum(np.asarray(self.sizes, dtype=np.int64))])

    @property
    def time(self) -> np.ndarray:
        """f64, ms: the step times ``dt``."""
        return self.step * np.float64(self.dt)

    @property
    def population(self) -> np.ndarray:
        """u16 (u32 of more than 65,536), the index of each spike's population."""
        kind = np.uint16 if len(self.names) <= 65_536 else np.uint32
        return (np.searchsorted(self._first, self.neuron, side="right") - 1).astype(kind)

    def __len__(self) -> int:
        return len(self.step)

    def __repr__(self) -> str:
        return f"Spikes({len(self)} of {len(self.names)} populations from {self.start:g} to {self.stop:g} ms)"

    def index(self, population: str | int) -> int:
        """The index of a population by its name.

        Raises:
            ConfigError: there is none of that name.
        """
        return index(self.names, population)

    def of(self, population: str | int) -> tuple[np.ndarray, np.ndarray]:
        """The times (f64, ms) of one population's spikes, and its cells (u32, from 0)."""
        i = self.index(population)
        low, high = self._first[i], self._first[i + 1]
        own = (self.neuron >= low) & (self.neuron < high)
        return self.time[own], (self.neuron[own] - np.uint32(low)).astype(np.uint32)

    def replica(self, k: int) -> Spikes:
        """The spikes of one of several networks side by side, by its own names and numbers: those of a simulation of its own.

        Raises:
            ConfigError: there is none of that number.
        """
        if not 0 <= whole("replica", k) < len(self.replicas):
            raise ConfigError(f"replica {k}: there are {len(self.replicas)}")
        first, last = self.replicas[k], [*self.replicas, len(self.names)][k + 1]
        low, high = self._first[first], self._first[last]
        own = (self.neuron >= low) & (self.neuron < high)
        names = [name[: name.rindex("#")] for name in self.names[first:last]]
        cells = (self.neuron[own] - np.uint32(low)).astype(np.uint32)
        return Spikes(self.step[own], cells, names, self.sizes[first:last], self.dt, self.start, self.stop)

    def rates(self) -> dict[str, float]:
        """The mean rate of each population from ``start`` to ``stop``, Hz."""
        seconds = (self.stop - self.start) * 1e-3
        counts = np.bincount(self.population, minlength=len(self.names))
        return {n: float(c / max(s, 1) / seconds) if seconds > 0 else 0.0 for n, c, s in zip(self.names, counts, self.sizes)}

    def to_arrow(self) -> Any:
        """A ``pyarrow.Table`` with the columns time (ms), step, neuron, population (by name). Needs pyarrow."""
        import pyarrow as pa

        population = pa.DictionaryArray.from_arrays(pa.array(self.population), pa.array(list(self.names), pa.string()))
        columns = {"time": self.time, "step": self.step, "neuron": self.neuron, "population": population}
        return pa.table(columns)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the ``.npz`` that ``chronaxie simulate`` writes, which ``chronaxie analyze`` reads."""
        np.savez(
            path,
            time=self.time,
            step=self.step,
            neuron=self.neuron,
            population=self.population,
            population_names=np.array(self.names, dtype=str),
            population_sizes=np.array(self.sizes, dtype=np.uint32),
            dt=np.float64(self.dt),
            start=np.float64(self.start),
            stop=np.float64(self.stop),
        )
