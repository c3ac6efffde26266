"""A network as it is described."""

from __future__ import annotations

import itertools
import json
import math
import os
from typing import TYPE_CHECKING, Any, Iterable, Mapping, Sequence

import numpy as np

from .. import _native
from .._errors import ConfigError, ShapeError
from ._spikes import mapping, path_of, whole

if TYPE_CHECKING:
    from ._simulation import Simulation


def _drawn(kind: str, low: float | None, high: float | None, outside: str | None, **values: Any) -> dict[str, Any]:
    bounds = {"low": low, "high": high, "outside": outside}
    return {"distribution": kind, **values, **{k: v for k, v in bounds.items() if v is not None}}


def normal(
    mean: float, sd: float, *, low: float | None = None, high: float | None = None, outside: str | None = None
) -> dict[str, Any]:
    """A normal distribution. What falls outside of ``low`` and ``high`` is drawn again, or clipped (``outside="clip"``)."""
    return _drawn("normal", low, high, outside, mean=mean, sd=sd)


def lognormal(
    mu: float,
    sigma: float,
    *,
    negative: bool = False,
    low: float | None = None,
    high: float | None = None,
    outside: str | None = None,
) -> dict[str, Any]:
    """``e^x``, or ``-e^x``, for a normal x of this mean and standard deviation; bounds as of :func:`normal`."""
    return _drawn("lognormal", low, high, outside, mu=mu, sigma=sigma, negative=negative)


def uniform(low: float, high: float) -> dict[str, Any]:
    """A uniform distribution."""
    return {"distribution": "uniform", "low": low, "high": high}


def velocity(speed: float, offset: float = 0.0) -> dict[str, Any]:
    """A delay of ``offset`` ms and the distance between the cells at ``speed`` units of length a ms."""
    return {"velocity": speed, "offset": offset}


def _plain(value: Any, what: str) -> Any:
    """``value`` as JSON has it."""
    if isinstance(value, np.ndarray):
        value = value.tolist()
    elif isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, Mapping):
        return {str(k): _plain(v, f"{what}.{k}") for k, v in value.items()}
    if isinstance(value, (list, tuple, range)):
        return [_plain(v, what) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"network: {what} is {value}")
    if not isinstance(value, (bool, int, float, str)):
        raise ConfigError(f"network: {what} is of type {type(value).__name__}; numbers, words, lists and mappings are known")
    return value


def _points(seeds: Any, grid: Any) -> list[dict[str, Any]] | None:
    """What each of several networks side by side sets; nothing for one network."""
    if seeds is None and grid is None:
        return None
    if grid is None or isinstance(grid, Mapping):
        for name, values in (grid or {}).items():
            if isinstance(values, (str, bytes)) or np.ndim(values) == 0 and not isinstance(values, Sequence):
                raise ConfigError(f"network: grid[{name!r}] = {values!r} is not a list of values")
        lists = [list(getattr(v, "tolist", lambda v=v: v)()) for v in (grid or {}).values()]
        points = [dict(zip(grid or {}, values)) for values in itertools.product(*lists)]
    else:
        points = [dict(p) for p in grid]
    if seeds is not None:
        if isinstance(seeds, (str, bytes)) or not isinstance(seeds, Iterable):
            raise ConfigError(f"network: seeds = {seeds!r} is not a list of whole numbers")
        points = [{"simulation.seed": whole("network: a seed", seed), **p} for seed in seeds for p in points]
    if not points:
        raise ConfigError("network: 0 networks cannot run side by side; at least 1 seed and 1 value of each field")
    return [{k: _plain(v, k) for k, v in p.items()} for p in points]


def _column(values: Any, what: str) -> np.ndarray:
    column = np.asarray(values)
    if column.ndim != 1 or column.dtype.kind not in "biuf":
        raise ShapeError(f"network: {what} is an array of {column.dtype} with shape {column.shape}, not one row of numbers")
    return column.astype(np.float64)


class Network:
    """A network: populations, projections, drives and recorders, as a TOML description has them.

    What is wrong is said by :meth:`build`, as a :class:`chronaxie.ConfigError` that names the field.

    Args:
        dt: the step, ms.
        seed: names every random number.

    Example:
        >>> net = Network(dt=0.1, seed=1)
        >>> net.population("E", "lif_exp", 800, parameters={"I_e": np.linspace(350.0, 450.0, 800)})
        >>> net.projection("E", "E", "fixed_indegree", indegree=80, weight=normal(40.0, 4.0), delay=1.5)
        >>> spikes = net.build().run(1000.0)
    """

    def __init__(self, dt: float = 0.1, seed: int = 1) -> None:
        self._path: str | None = None
        self._set: list[str] = []
        self._tables: dict[str, dict[str, np.ndarray]] = {}
        self._described: dict[str, Any] = {
            "schema": 1,
            "simulation": {"dt": _plain(dt, "dt"), "seed": _plain(seed, "seed")},
            "population": [],
            "projection": [],
            "drive": [],
            "record": [],
        }

    @classmethod
    def read(
        cls,
        path: str | os.PathLike[str],
        *,
        scale: float | None = None,
        seed: int | None = None,
        variant: str | None = None,
        set: Sequence[str] = (),
    ) -> Network:
        """The network of a TOML or JSON file.

        Args:
            path: the file.
            scale: a smaller network with the same statistics: this fraction of the cells and of each one's synapses.
            seed, variant: in place of the file's.
            set: further values, as ``"population.0.size=10"``; the command line's ``--set``.
        """
        network = cls()
        network._path = path_of("Network.read: path", path)
        flags = {"scale": scale, "seed": seed, "variant": variant}
        network._set = [*set, *(f"simulation.{k}={json.dumps(v)}" for k, v in flags.items() if v is not None)]
        return network

    def _list(self, kind: str) -> list[dict[str, Any]]:
        if self._path is not None:
            raise ConfigError(f"network: that of {self._path} is described there; add to the file, or begin with Network()")
        return self._described[kind]

    def _table(self, what: str, columns: Mapping[str, Any]) -> str:
        name = f"<{what}>"
        while name in self._tables:
            name = name[:-1] + "'>"
        self._tables[name] = {k: _column(v, f"{what}.{k}") for k, v in columns.items()}
        return name

    def _values(self, what: str, values: Mapping[str, Any] | None) -> dict[str, Any]:
        plain = {}
        for key, value in (values or {}).items():
            if isinstance(value, (np.ndarray, list, tuple)) and np.ndim(value) > 0:
                plain[key] = {"file": self._table(f"{what}.{key}", {key: value}), "column": key}
            else:
                plain[key] = _plain(value, f"{what}.{key}")
        return plain

    def population(
        self,
        name: str,
        model: str,
        size: int | None = None,
        *,
        preset: str | None = None,
        parameters: Mapping[str, Any] | None = None,
        initial: Mapping[str, Any] | None = None,
        positions: Any = None,
        box: Mapping[str, Sequence[int]] | None = None,
        density: float | None = None,
        spikes: tuple[Any, Any] | None = None,
        reference: Mapping[str, float] | None = None,
    ) -> None:
        """Cells of one model.

        Args:
            name: what projections call it.
            model: one of :func:`models`.
            size: how many; not with ``positions``, and with ``box`` only where that is to hold so many.
            preset: a named set of parameters.
            parameters: a number, a distribution or an array ``[size]`` each, in the units of :func:`models`.
            initial: likewise of the state variables at the start.
            positions: ``[size, 4]``, for rules and delays by distance.
            box: lattice sites ``{"x": [0, 19], ...}``, ends included, of which each has a cell with probability ``density``.
            spikes: of a population that replays: the times (ms) and the cells.
            reference: published ``rate_hz``, ``cv`` and ``correlation``; ``scale`` takes the rate.
        """
        section: dict[str, Any] = {"name": name, "model": model}
        plain = {"size": size, "preset": preset, "box": box, "density": density, "reference": reference}
        section.update({k: _plain(v, f"{name}.{k}") for k, v in plain.items() if v is not None})
        if positions is not None:
            places = np.asarray(positions)
            if places.ndim != 2 or places.shape[1] != 4 or size is not None and len(places) != size:
                raise ShapeError(f"network: {name}.positions has shape {places.shape}, not ({size or 'size'}, 4)")
            section.pop("size", None)
            section["places"] = {"file": self._table(f"{name}.positions", dict(zip("xyzw", places.T)))}
        if spikes is not None:
            if not isinstance(spikes, (tuple, list)) or len(spikes) != 2:
                raise ConfigError(f"network: {name}.spikes is of type {type(spikes).__name__}; a pair (times, cells) is needed")
            section["file"] = self._table(f"{name}.spikes", {"time": spikes[0], "cell": spikes[1]})
        for key, values in {"parameters": parameters, "initial": initial}.items():
            if values is not None and mapping(f"network: {name}.{key}", values):
                section[key] = self._values(name, values)
        self._list("population").append(section)

    def projection(
        self,
        source: str | Sequence[str],
        target: str | Sequence[str],
        rule: str = "all_to_all",
        *,
        weight: Any = None,
        delay: Any = None,
        edges: Mapping[str, Any] | None = None,
        plasticity: Mapping[str, Any] | None = None,
        synapses: str | None = None,
        weight_bits: int | None = None,
        **options: Any,
    ) -> None:
        """Synapses.

        Args:
            source, target: a population, or a list of them; then a number may be a matrix ``[targets, sources]``.
            rule: ``all_to_all``, ``one_to_one``, ``fixed_probability`` (``probability``), ``fixed_indegree``
                (``indegree``), ``fixed_outdegree`` (``outdegree``), ``fixed_total`` (``number`` or ``probability``),
                ``distance`` (``peak``, ``length``, ``radius``) or ``edges``.
            weight: a number or a distribution, in the unit of the target's model.
            delay: ms, a distribution of them, or :func:`velocity`.
            edges: the rule ``edges``: arrays ``source`` and ``target`` (cells, from 0), ``weight`` and ``delay`` (arrays or
                one number each).
            plasticity: how weights change: ``rule`` and its numbers. ``stdp`` (``A_plus``, ``A_minus``, ``tau_plus``,
                ``tau_minus``, ``w_min``, ``w_max``, ``dependence``, ``pairs``, ``delay``), ``modulated_stdp`` (besides ``modulator``,
                ``tau_eligibility``, ``tau_modulator``, ``baseline``, ``modulator_delay``), ``hebb`` (``A``, ``A_pre``, ``A_post``,
                ``tau``), ``bcm`` (``A``, ``target_rate``, ``tau``, ``tau_threshold``), ``homeostatic`` (``target_rate``, ``window``,
                ``scaling_rate``), ``coincidence`` (``A``, ``A_pre``: spikes of the same step), ``tsodyks_markram`` (``U``, ``tau_rec``,
                ``tau_fac``). Mappings ``homeostatic``, ``coincidence`` and ``short_term`` in it add those to another rule, and
                ``weight_decay`` takes so much a ms.
            synapses: ``stored`` (what they are if nothing is said), ``procedural``: drawn again whenever their source fires, by
                ``fixed_outdegree`` with multapses, ``all_to_all`` or ``one_to_one``, without plasticity; or ``auto``: likewise
                where stored ones would not fit in free memory. Spikes do not depend on it.
            weight_bits: 16 (what they are if nothing is said), or 32: weights of single precision, where others into the same cells
                are so much larger that 16 bits are refused; 8 bytes a synapse. Without plasticity.
            options: of the rule; ``multapses`` and ``autapses``; ``mutation_std_weights`` in place of :meth:`lifecycle`'s.
        """
        section: dict[str, Any] = {"source": _plain(source, "source"), "target": _plain(target, "target"), "rule": rule}
        if plasticity is not None:
            options["plasticity"] = dict(mapping(f"network: {source} -> {target}.plasticity", plasticity))
        if synapses is not None:
            options["synapses"] = synapses
        if weight_bits is not None:
            options["weight_bits"] = weight_bits
        label = f"{source} -> {target}"
        if edges is not None:
            both = {k: v for k, v in {"weight": weight, "delay": delay}.items() if v is not None}
            given = {**mapping(f"network: {label}.edges", edges), **both}
            missing = [k for k in ("source", "target", "weight", "delay") if k not in given]
            if missing:
                raise ConfigError(f"network: {label}: edges lack {' and '.join(missing)}")
            unknown = [k for k in given if k not in ("source", "target", "weight", "delay")]
            if unknown:
                raise ConfigError(f"network: {label}: edges have {' and '.join(unknown)}, but only source, target, weight and delay are known")
            count = len(_column(given["source"], f"{label}.source"))
            columns = {k: np.full(count, v) if np.ndim(v) == 0 else v for k, v in given.items()}
            section.update(rule="edges", file=self._table(label, columns))
        else:
            options = {"weight": weight, "delay": delay, **options}
        section.update({k: _plain(v, f"{label}.{k}") for k, v in options.items() if v is not None})
        self._list("projection").append(section)

    def drive(self, target: str | Sequence[str], kind: str = "poisson", *, frames: Any = None, **options: Any) -> None:
        """Input from outside.

        Args:
            target: a population, or a list of them; then a number may be a list.
            kind: ``poisson``, each cell's own arrivals of ``weight`` at ``rate`` Hz from each of ``sources`` (1), from
                ``start`` to ``stop`` ms; ``dc``, the ``current``; or ``frames``, input from a sense.
            frames: of that kind: ``[cell]`` or ``[frame, cell]``, or with ``axes`` (``"xy"``) ``[x, y]`` or ``[frame, x, y]``,
                whose element ``[i, j]`` goes to the cells at x = ``origin[0]`` + i, y = ``origin[1]`` + j (origin: zeros), of
                ``layer`` (``{"z": 0}``) alone if that is given. Each frame is shown for ``hold`` ms, from ``start`` (0) on, all
                of them ``repeat`` (1) times, and felt ``delay`` ms (a step) later; a value adds ``weight`` times itself in each
                step, in the unit of the model, or comes to ``current`` times itself. They are cells of a population ``TARGET frames``.
            options: those.
        """
        section = {"target": _plain(target, "target"), "kind": kind}
        if frames is not None:
            array = np.asarray(frames)
            if array.dtype.kind not in "biuf":
                raise ShapeError(f"network: drive of {target}: frames are an array of {array.dtype}, not of numbers")
            section["file"] = self._table(f"frames of {target}", {"frames": array.reshape(-1)})
            options = {"shape": list(array.shape), **options}
        section.update({k: _plain(v, f"drive of {target}.{k}") for k, v in options.items() if v is not None})
        self._list("drive").append(section)

    def lifecycle(
        self,
        *,
        max_age: float | str | None = None,
        health_decay: float | None = None,
        reproduction: bool = True,
        mutation_std_params: float = 0.0,
        mutation_std_weights: float = 0.0,
        mutating_params: Sequence[str | Sequence[str]] | None = None,
        initial_age: Any = None,
        interval: float | None = None,
        populations: str | Sequence[str] | None = None,
    ) -> None:
        """Cells die, and children stand in their places. What is said last holds.

        Draws are keyed by the cell, or the synapse, and the generation, and a cell's death follows from its age, so spikes are the
        same bits on the CPU, on a GPU, and in a simulation that was saved and restored across deaths. A network with a life cycle runs
        alone, on the CPU or one GPU.

        Args:
            max_age: a cell that is older dies, ms; none does of its age if this is not given.
            health_decay: a ms: health falls from 1, and below 0.1 a cell dies.
            reproduction: whether a child stands where a cell dies; if not, nothing fires there again.
            mutation_std_params: each parameter of a child is its parent's times 1 + N(0, this), held where its model runs.
            mutation_std_weights: N(0, this) is added to the weights of its synapses, in the unit of the target's model; they keep
                their sign and the bounds of their distribution or plasticity (without such, twice the largest that is drawn).
            mutating_params: which parameters, those of a list in the list by one draw; all but the current by default.
            initial_age: how old cells are at the start, ms: a number or a distribution, so that not all die in one step.
            interval: cells die at multiples of this, ms; 1, or the step where that is longer. Each such time costs what it takes to
                save and restore the network, or to make it anew.
            populations: whose cells; all that are no sources by default.
        """
        if self._path is not None:
            self._list("lifecycle")
        given = {
            "max_age": max_age,
            "health_decay": health_decay,
            "reproduction": reproduction,
            "mutation_std_params": mutation_std_params,
            "mutation_std_weights": mutation_std_weights,
            "mutating_params": mutating_params,
            "initial_age": initial_age,
            "interval": interval,
            "populations": populations,
        }
        self._described["lifecycle"] = {k: _plain(v, f"lifecycle.{k}") for k, v in given.items() if v is not None}

    def record(
        self, population: str, variables: Sequence[str] = ("V",), *, cells: Any, every: float = 1.0
    ) -> None:
        """State variables over time, for :meth:`Simulation.traces`.

        Args:
            population: whose.
            variables: which.
            cells: of the population, from 0.
            every: ms.
        """
        variables = [variables] if isinstance(variables, str) else list(variables)
        section = {"population": population, "variables": variables, "cells": cells, "every": every}
        self._list("record").append({k: _plain(v, f"record.{k}") for k, v in section.items()})

    def to_json(self) -> str:
        """The description as the JSON that ``chronaxie simulate`` reads.

        Raises:
            ConfigError: it holds arrays, or is a file's.
        """
        if self._path is not None or self._tables:
            what = f"is that of {self._path}" if self._path else f"holds the arrays {', '.join(self._tables)}"
            raise ConfigError(f"network: it {what}, which this text cannot hold")
        return json.dumps({k: v for k, v in self._described.items() if v != []}, indent=1, allow_nan=False)

    def build(
        self,
        backend: str = "auto",
        *,
        resume: Any = None,
        gpus: int | None = None,
        method: str = "auto",
        seeds: Sequence[int] | None = None,
        grid: Mapping[str, Sequence[Any]] | Sequence[Mapping[str, Any]] | None = None,
    ) -> Simulation:
        """Makes the network, at its first step or where a checkpoint was taken.

        Args:
            backend: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.
            resume: a :class:`Checkpoint` of the same network, or its path.
            gpus: how many GPUs share the network, from ``cuda:0`` on; the spikes are those of one.
            method: how they share it: ``auto``, ``index``, ``w_slice``, ``morton``, ``kmeans`` or ``metis``.
            seeds: several networks side by side in one simulation, one a seed, each with the spikes of a simulation of its own:
                small ones fill a GPU together. Populations are called ``NAME#K`` in network ``K``, from 0;
                :attr:`Simulation.replicas` says what each is, and :meth:`Spikes.replica` has its spikes.
            grid: likewise, values by field, of which every combination (with every seed) is a network, or a list of networks, as
                of :func:`chronaxie.ray.sweep`: ``{"drive.0.rate": [8.0, 9.0]}``.

        Raises:
            ConfigError, DataError, OutOfMemoryError, BackendUnavailableError, CheckpointError: a sentence with the values.
        """
        from ._simulation import Simulation

        if gpus is not None and whole("gpus", gpus) < 1:
            raise ConfigError(f"gpus = {gpus} is not at least 1")
        if not isinstance(backend, str):
            raise ConfigError(f"backend = {backend!r} is not one of auto, cpu, cuda and cuda:N")
        points = _points(seeds, grid)
        sets = [[f"{k}={json.dumps(v)}" for k, v in point.items()] for point in points or []]
        simulation = Simulation(_native.Session(*self._parts(), backend, gpus, method, sets), points or [])
        if resume is not None:
            simulation.restore(resume)
        return simulation

    def _parts(self) -> tuple[str | None, str | None, list[Any], list[str]]:
        """What the native side reads: JSON or a path, tables as bytes, overrides."""
        tables = [(name, [(k, v.tobytes()) for k, v in columns.items()]) for name, columns in self._tables.items()]
        text = None
        if self._path is None:
            text = json.dumps({k: v for k, v in self._described.items() if v != []}, allow_nan=False)
        return text, self._path, tables, self._set
