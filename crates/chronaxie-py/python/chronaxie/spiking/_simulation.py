"""A simulation under way."""

from __future__ import annotations

import os
from typing import Any, NamedTuple, Sequence

import numpy as np

from .. import _native
from .._errors import ConfigError, ShapeError
from ._spikes import Spikes, index, number, path_of, whole


class Population(NamedTuple):
    """A population of a simulation: ``first`` is the number of its first cell, ``variables`` are ``{name: unit}``, and
    ``positions`` are ``[size, 4]`` or nothing."""

    name: str
    model: str
    size: int
    first: int
    variables: dict[str, str]
    weight_unit: str
    positions: np.ndarray | None


class Drive(NamedTuple):
    """An input as it is now: ``rate`` (arrivals a second and cell) and ``weight`` of a ``poisson`` drive, active from
    ``start`` to ``stop`` ms, or ``current`` of a ``dc`` one."""

    target: str
    kind: str
    rate: float | None
    current: float | None
    weight: float | None
    start: float
    stop: float


class Replica(NamedTuple):
    """One of several networks side by side: what it sets, and its populations in :attr:`Simulation.populations`."""

    set: dict[str, Any]
    populations: range


class Synapses(NamedTuple):
    """Synapses, column by column: cells of the source and of the target population (u32, from 0), weights (f32, as they are
    delivered) and delays (f32, ms)."""

    source: np.ndarray
    target: np.ndarray
    weight: np.ndarray
    delay: np.ndarray


class Trace(NamedTuple):
    """What one recorder has gathered: times (f64, ms, at the ends of steps), and ``[samples, cells]`` of each variable."""

    population: str
    cells: np.ndarray
    time: np.ndarray
    values: dict[str, np.ndarray]


class Checkpoint:
    """A file with everything that the rest of a simulation follows from.

    Attributes:
        path: of the file.
        step: the next step.
        spikes: how many there were until then.
        spikes_sha256: their hash, as of ``chronaxie simulate``; empty with ``simulation.hash = "none"``.

    Raises:
        CheckpointError: it is no checkpoint, cut off or damaged.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = path_of("Checkpoint: path", path)
        self.step, self.spikes, self.spikes_sha256 = _native.checkpoint(self.path)

    def __fspath__(self) -> str:
        return self.path

    def __repr__(self) -> str:
        return f"Checkpoint({self.path!r}, step {self.step}, {self.spikes} spikes)"


class Simulation:
    """A network in motion, made by :meth:`Network.build`. Any number of threads may use it; one at a time is served."""

    def __init__(self, session: _native.Session, points: Sequence[dict[str, Any]] = ()) -> None:
        self._session = session
        self.dt, self.seed, self.duration, self.synapse_count, self.backend, self.config, notes = session.facts
        self.notes: tuple[str, ...] = tuple(notes)
        self.populations = populations_of(session)
        firsts = [*session.replicas, len(self.populations)]
        #: Of several networks side by side, each; nothing of one.
        self.replicas = tuple(Replica(p, range(a, b)) for p, a, b in zip(points, firsts, firsts[1:]))

    def __repr__(self) -> str:
        cells = sum(p.size for p in self.populations)
        return f"Simulation({cells} cells, {self.synapse_count} synapses, at {self.time:g} ms on {self.backend})"

    @property
    def step(self) -> int:
        """The next step."""
        return self._session.at()[0]

    @property
    def time(self) -> float:
        """Model time, ms."""
        return self.step * self.dt

    @property
    def spike_count(self) -> int:
        """How many spikes there were."""
        return self._session.at()[1]

    @property
    def spikes_sha256(self) -> str:
        """The hash of all spikes, as ``chronaxie simulate`` prints it; empty with ``simulation.hash = "none"``."""
        return self._session.at()[2]

    def _index(self, population: str | int) -> int:
        return index([p.name for p in self.populations], population)

    def run(self, duration: float | None = None, *, steps: int | None = None, record: bool = True) -> Spikes:
        """Goes on for ``duration`` ms, or ``steps``, with the GIL released.

        Ctrl-C stops at the end of a chunk of some 0.1 s with ``KeyboardInterrupt``; the simulation can go on from there, and
        the next run, were it ``run(0)``, returns the spikes until there too.

        Args:
            duration: ms, a number and a multiple of ``dt``.
            record: whether spikes are returned; their number and hash are kept in any case.
        """
        if (duration is None) == (steps is None):
            raise ConfigError("run: say how long, either in ms or in steps")
        if steps is None:
            duration = number("run: duration", duration, "a number of milliseconds")
            count = duration / self.dt
            steps = round(count) if np.isfinite(count) else -1
            if steps < 0 or abs(count - steps) > 1e-6 * max(1.0, abs(count)):
                raise ConfigError(f"run: {duration} ms are not a whole number of steps of {self.dt} ms, from 0 on")
        elif not 0 <= (steps := whole("run: steps", steps)) < 2**50:
            raise ConfigError(f"run: {steps} steps; a number from 0 to 2^50 is needed")
        start = self.time
        when, cells = self._session.run(steps, record)
        step, neuron = np.frombuffer(when, np.uint64), np.frombuffer(cells, np.uint32)
        if len(step):
            start = min(start, float(step[0]) * self.dt)
        names, sizes = [p.name for p in self.populations], [p.size for p in self.populations]
        firsts = [r.populations.start for r in self.replicas]
        return Spikes(step, neuron, names, sizes, self.dt, start, self.time, firsts)

    def state(self, population: str | int) -> dict[str, np.ndarray]:
        """The state variables of a population, f32 ``[size]`` each, in the model's units; not a number where the model runs
        without one (equal time constants of synapses share a current)."""
        i = self._index(population)
        columns = self._session.state(i)
        return {name: np.frombuffer(c, np.float32) for name, c in zip(self.populations[i].variables, columns)}

    def _lives(self, population: str | int) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
        found = self._session.lives()
        if found is None:
            return None
        own = self.populations[self._index(population)]
        cells = slice(own.first, own.first + own.size)
        kinds = (np.uint32, np.uint64, np.bool_)
        generation, age, alive = (np.frombuffer(b, kind)[cells] for b, kind in zip(found[:3], kinds))
        return generation, age, alive

    def generations(self, population: str | int) -> np.ndarray:
        """How many cells stood before each cell of a population in its place, u32 ``[size]``: 0 in a network without a life cycle."""
        found = self._lives(population)
        return np.zeros(self.populations[self._index(population)].size, np.uint32) if found is None else found[0]

    def ages(self, population: str | int) -> np.ndarray:
        """How old the cells of a population are, ms, ``[size]``; of dead ones how old they became. In a network without a life cycle
        all are as old as the simulation."""
        found = self._lives(population)
        size = self.populations[self._index(population)].size
        return np.full(size, self.time) if found is None else found[1] * self.dt

    def alive(self, population: str | int) -> np.ndarray:
        """Which cells of a population live, bool ``[size]``. The state of one that does not is not a number."""
        found = self._lives(population)
        return np.ones(self.populations[self._index(population)].size, bool) if found is None else found[2]

    @property
    def deaths_and_births(self) -> tuple[int, int]:
        """How many cells have died, and how many children were born."""
        found = self._session.lives()
        return (0, 0) if found is None else (found[3], found[4])

    def set_state(self, population: str | int, **values: Any) -> None:
        """Sets state variables of a population, a number or an array ``[size]`` each, within single precision. Others keep their
        bits."""
        i = self._index(population)
        own = self.populations[i]
        columns = {k: _cells(v, own.size, f"{own.name}.{k}") for k, v in values.items()}
        for name, column in columns.items():
            most = float(np.finfo(np.float32).max)
            if (beyond := np.isfinite(column) & (np.abs(column) > most)).any():
                cell = int(beyond.argmax())
                raise ConfigError(
                    f"set_state: {own.name}.{name} of cell {cell} is {column[cell]:g}, which is beyond the range of single precision, "
                    f"-{most:g} to {most:g}"
                )
        self._session.set_state(i, [(k, column.tobytes()) for k, column in columns.items()])

    def synapses(self, source: str | int, target: str | int) -> Synapses:
        """All synapses from one population to another, with the weights that are delivered: drawn, then rounded to the
        target's unit; of plastic synapses as they are now, without what short-term plasticity takes from them. 16 bytes each.
        A row is the same synapse at all times."""
        pair = (self._index(source), self._index(target))
        parts = [self._session.synapses(i) for i, p in enumerate(self._session.projections) if p == pair]
        kinds = (np.uint32, np.uint32, np.float32, np.float32)
        columns = zip(*parts) if parts else ([], [], [], [])
        joined = [np.concatenate([np.frombuffer(b, k) for b in c] or [np.empty(0, k)]) for k, c in zip(kinds, columns)]
        return Synapses(*joined)

    def weights(self, source: str | int, target: str | int) -> np.ndarray:
        """The weights of :meth:`synapses`, in its order, as they are now."""
        return self.synapses(source, target).weight

    @property
    def drives(self) -> tuple[Drive, ...]:
        """The inputs from outside, as they are now."""
        found = []
        for target, kind, value, weight, start, stop in self._session.drives():
            name, poisson = self.populations[target].name, kind == "poisson"
            rate, current = (value, None) if poisson else (None, value)
            found.append(Drive(name, kind, rate, current, weight if poisson else None, start, stop))
        return tuple(found)

    def set_drive(self, drive: int, value: float) -> None:
        """Sets the rate or the current of ``drives[drive]``, one number, from the next step on."""
        found = self._session.drives()
        if not 0 <= (at := whole("set_drive: drive", drive)) < len(found):
            raise ConfigError(f"set_drive: drive = {drive}: there are {len(found)}")
        poisson = found[at][1] == "poisson"
        unit = "one number of arrivals a second, the same for all its cells," if poisson else "one number, the same for all its cells,"
        what = f"the {'rate' if poisson else 'current'} of the drive of {self.populations[found[at][0]].name}"
        self._session.set_drive(at, number(what, value, unit))

    def set_rate(self, population: str | int, rate: Any) -> None:
        """Sets the rate of a population's Poisson drive (arrivals a second and cell), or, of Poisson sources, of the sources
        themselves: Hz, one number or, of sources, an array ``[size]``."""
        i = self._index(population)
        own = self.populations[i]
        if own.model == "poisson":
            self._session.set_input(i, self._input(rate, own))
            return
        found = [n for n, d in enumerate(self._session.drives()) if d[0] == i and d[1] == "poisson"]
        if len(found) != 1:
            raise ConfigError(f"{own.name} has {len(found)} Poisson drives; choose one of drives for set_drive")
        self.set_drive(found[0], rate)

    def set_current(self, population: str | int, current: Any) -> None:
        """Sets the constant current of a population's cells (``I_e``; DC drives come on top), a number or ``[size]``, from
        the next step on."""
        i = self._index(population)
        if self.populations[i].model == "poisson":
            raise ConfigError(f"{self.populations[i].name} are Poisson sources, which have a rate and no current")
        self._session.set_input(i, self._input(current, self.populations[i]))

    @staticmethod
    def _input(values: Any, population: Population) -> bytes:
        what = f"{population.name}: {'rate' if population.model == 'poisson' else 'current'}"
        if np.ndim(values) == 0:
            return np.full(1, number(what, values, f"one number or an array of {population.size}")).tobytes()
        return _cells(values, population.size, what).tobytes()

    def traces(self) -> list[Trace]:
        """What each recorder of the network gathered since this was last called."""
        found = []
        for population, cells, times, values in self._session.take_traces():
            columns = {k: np.frombuffer(v, np.float32).reshape(-1, len(cells)) for k, v in values}
            name = self.populations[population].name
            found.append(Trace(name, np.array(cells, np.uint32), np.frombuffer(times, np.float64), columns))
        return found

    def save(self, path: str | os.PathLike[str]) -> Checkpoint:
        """Writes a checkpoint, atomically: the state, what is under way, and inputs that were changed."""
        self._session.save(path_of("save: path", path))
        return Checkpoint(path)

    def restore(self, checkpoint: Checkpoint | str | os.PathLike[str]) -> None:
        """Goes to where a checkpoint of the same network was taken, here or by ``chronaxie simulate``.

        Raises:
            CheckpointError: it is damaged, or of another network; then nothing has changed.
        """
        self._session.restore(path_of("restore: checkpoint", checkpoint, "a Checkpoint or a path"))


def populations_of(native: _native.Session | _native.Part) -> tuple[Population, ...]:
    """The populations of the whole network, in the order of their cells."""
    return tuple(
        Population(name, model, size, first, dict(variables), unit, _places(places))
        for name, model, size, first, variables, unit, places in native.populations
    )


def _places(places: bytearray | None) -> np.ndarray | None:
    return None if places is None else np.frombuffer(places, np.float32).reshape(-1, 4)


def _cells(values: Any, size: int, what: str) -> np.ndarray:
    try:
        column = np.asarray(values)
        column = column.astype(np.float64) if column.dtype.kind in "biuf" else None
    except ValueError:
        column = None
    if column is None:
        raise ConfigError(f"{what} is of type {type(values).__name__} and holds no numbers; one number or an array of {size} is needed")
    if column.ndim > 1 or column.ndim == 1 and len(column) != size:
        raise ShapeError(f"{what} has the shape {column.shape}; one number or ({size},) is needed")
    return np.ascontiguousarray(np.broadcast_to(column, (size,)))
