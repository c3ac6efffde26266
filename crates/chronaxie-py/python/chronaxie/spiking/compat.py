"""The original 4D-Neural-Cognition's model, by its own names.

Its configuration, its cells on lattice sites, its senses and its steps of 1 ms, run by the engines of
:mod:`chronaxie.spiking`: cells are of the model they say they are (``lif``, ``izhikevich``, ``hodgkin_huxley``) and step
exactly, inhibitory cells and synapses inhibit, delays of any length arrive, weights change as ``plasticity`` and
``neuromodulation`` of the configuration say, cells die and are born as ``cell_lifecycle`` says, and a saved model goes on to the bit.
"""

from __future__ import annotations

import io
import json
import math
import os
import tempfile
import warnings
from typing import Any, Callable, Mapping, NamedTuple, Sequence

import numpy as np

from .. import _native
from .._errors import CheckpointError, ConfigError
from ._network import Network
from ._simulation import Simulation
from ._spikes import path_of

_INHIBITORY = ("inhibitory", "fast_spiking")
_TYPES = ("excitatory", "inhibitory", "regular_spiking", "fast_spiking", "bursting")
_MODELS = ("lif", "izhikevich", "hodgkin_huxley")
_LIF = {"tau_m": 20.0, "v_rest": -65.0, "v_reset": -70.0, "v_threshold": -50.0, "refractory_period": 5.0}
_IZHIKEVICH = {"izh_a": 0.02, "izh_b": 0.2, "izh_c": -65.0, "izh_d": 8.0}
# What of a neuron's params a child differs in, by this engine's names; what is in one list goes by one draw.
_MUTATING: dict[str, list[Any]] = {
    "lif": [["lif_delta.C_m", "lif_delta.tau_m"], *(f"lif_delta.{name}" for name in ("E_L", "V_reset", "V_th", "t_ref"))],
    "izhikevich": [f"izhikevich.{name}" for name in "abcd"],
    "hodgkin_huxley": [],
}
_OF_TYPE = {"fast_spiking": (0.1, 2.0, -65.0), "inhibitory": (0.1, 2.0, -65.0), "bursting": (0.02, 4.0, -55.0)}


class Neuron(NamedTuple):
    """A cell: its number, its site, and what it is."""

    id: int
    x: int
    y: int
    z: int
    w: int
    neuron_type: str
    model_type: str
    params: Mapping[str, float]

    def position(self) -> tuple[int, int, int, int]:
        """Its site."""
        return (self.x, self.y, self.z, self.w)

    def is_inhibitory(self) -> bool:
        """Whether what it sends inhibits."""
        return self.neuron_type in _INHIBITORY


class BrainModel:
    """The original's ``BrainModel`` and ``Simulation`` in one.

    Neurons and synapses are added until the first :meth:`step`; if none were by then, they are what
    :meth:`initialize_neurons` and :meth:`initialize_random_synapses` make by default.

    Args:
        config: the configuration, as a mapping or the path of its JSON.
        backend: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.
        seed: of sites, synapses and weights.
        initial_age: how old neurons are at the start, in steps: a number or a distribution (:func:`chronaxie.spiking.uniform`); 0, as
            the original's, whose neurons then all die in one step.
        lifecycle_interval: neurons die at multiples of so many steps; 1, as the original's. Where each dies by itself, 10 or 100
            save the time that it takes to put a child into the network.

    Attributes:
        config: as a mapping.
        notes: what of the configuration is done in another way than the original's, a sentence each.

    Raises:
        ConfigError: a field is missing, unknown or wrong; the sentence names it.
    """

    def __init__(
        self,
        config: Mapping[str, Any] | str | os.PathLike[str],
        backend: str = "auto",
        *,
        seed: int = 0,
        initial_age: Any = None,
        lifecycle_interval: float = 1.0,
    ) -> None:
        if isinstance(config, Mapping):
            self.config: dict[str, Any] = json.loads(json.dumps(config, allow_nan=False))
            self.notes = tuple(_native.description_notes(json.dumps(self.config), None))
        else:
            config = path_of("BrainModel: config", config, "a mapping or the path of its JSON")
            self.notes = tuple(_native.description_notes(None, config))
            with open(config, encoding="utf-8") as file:
                self.config = json.load(file)
        for note in self.notes:
            warnings.warn(note, UserWarning, stacklevel=2)
        self.lattice_shape: tuple[int, ...] = tuple(self.config["lattice_shape"])
        self._default_model = self.config["neuron_model"].get("type", "LIF").lower().replace("-", "_")
        self._default_model = {"hodgkinhuxley": "hodgkin_huxley", "hh": "hodgkin_huxley"}.get(
            self._default_model, self._default_model
        )
        self.backend, self.seed = backend, seed
        self.initial_age, self.lifecycle_interval = initial_age, lifecycle_interval
        self._rng = np.random.default_rng(seed)
        self._neurons: list[Neuron] = []
        # Columns of (pre, post, weight, delay in ms) that were added, a group a call.
        self._synapses: list[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]] = []
        self._external: np.ndarray | None = None
        self._fed: set[int] = set()
        self._step = 0
        self._died = self._born = 0
        self._simulation: Simulation | None = None

    # What the configuration says, by the original's names.

    def get_neuron_model_params(self) -> dict[str, float]:
        """``neuron_model.params_default``."""
        return dict(self.config["neuron_model"]["params_default"])

    def get_lifecycle_config(self) -> dict[str, Any]:
        """``cell_lifecycle``."""
        return self.config["cell_lifecycle"]

    def get_plasticity_config(self) -> dict[str, Any]:
        """``plasticity``."""
        return self.config["plasticity"]

    def get_senses(self) -> dict[str, Any]:
        """``senses``."""
        return self.config["senses"]

    def get_areas(self) -> list[dict[str, Any]]:
        """``areas``."""
        return self.config["areas"]

    # Neurons and synapses.

    @property
    def neurons(self) -> dict[int, Neuron]:
        """All neurons by their numbers."""
        return {n.id: n for n in self._neurons}

    @property
    def current_step(self) -> int:
        """The next step, of 1 ms."""
        return self._step

    def _open(self) -> None:
        if self._simulation is not None:
            raise ConfigError("BrainModel: neurons and synapses can be added until the first step")

    def add_neuron(
        self,
        x: int,
        y: int,
        z: int,
        w: int,
        *,
        params: Mapping[str, float] | None = None,
        neuron_type: str = "excitatory",
        model_type: str | None = None,
    ) -> Neuron:
        """Adds a neuron at a site of the lattice; ``params`` are in place of the configuration's, one by one."""
        self._open()
        for name, at, size in zip("xyzw", (x, y, z, w), self.lattice_shape):
            if not 0 <= at < size:
                raise ConfigError(f"{name} = {at} is no coordinate of the lattice, which has {size}")
        model = model_type or self._default_model
        for what, value, known in (("neuron_type", neuron_type, _TYPES), ("model_type", model, _MODELS)):
            if value not in known:
                raise ConfigError(f"{what} = {value!r} is not one of {', '.join(known)}")
        own = {**self.get_neuron_model_params(), **(params or {})}
        neuron = Neuron(len(self._neurons), int(x), int(y), int(z), int(w), neuron_type, model, own)
        self._neurons.append(neuron)
        return neuron

    def initialize_neurons(
        self, area_names: Sequence[str] | None = None, density: float = 1.0, *, inhibitory_fraction: float = 0.2
    ) -> None:
        """A neuron at each site of the areas (all by default) with probability ``density``, of which this fraction is fast
        spiking, and inhibits."""
        self._open()
        for name, value in {"density": density, "inhibitory_fraction": inhibitory_fraction}.items():
            if not 0.0 <= value <= 1.0:
                raise ConfigError(f"{name} = {value} is not between 0 and 1")
        areas = {a["name"]: a for a in self.get_areas()}
        for name in areas if area_names is None else area_names:
            if name not in areas:
                raise ConfigError(f"{name!r} is no area; there are {', '.join(areas)}")
            ranges = [areas[name]["coord_ranges"][axis] for axis in "wzyx"]
            sites = np.indices([high - low + 1 for low, high in ranges]).reshape(4, -1).T + [low for low, _ in ranges]
            sites = sites[self._rng.random(len(sites)) <= density]
            kinds = self._rng.random(len(sites)) < inhibitory_fraction
            for (w, z, y, x), inhibits in zip(sites.tolist(), kinds.tolist()):
                self.add_neuron(x, y, z, w, neuron_type="fast_spiking" if inhibits else "excitatory")

    def add_synapse(
        self, pre_id: int, post_id: int, weight: float = 0.1, delay: float = 1, synapse_type: str = "excitatory"
    ) -> None:
        """Adds a synapse: its weight, and its delay in ms. It inhibits where it or the neuron before it is inhibitory; a
        negative weight inhibits in any case. Where weights change, one beyond ``weight_min`` or ``weight_max`` begins there."""
        if synapse_type not in ("excitatory", "inhibitory"):
            raise ConfigError(f"synapse_type = {synapse_type!r} is neither excitatory nor inhibitory")
        sign = -1.0 if synapse_type == "inhibitory" else 1.0
        self.add_synapses([pre_id], [post_id], sign * abs(weight) if sign < 0 else weight, delay)

    def add_synapses(self, pre: Any, post: Any, weight: Any = 0.1, delay: Any = 1.0) -> None:
        """Adds many: arrays of the neurons' numbers, weights and delays (ms), or one for all."""
        self._open()
        columns = np.broadcast_arrays(np.asarray(pre), np.asarray(post), np.asarray(weight), np.asarray(delay))
        ends = [c.astype(np.int64) for c in columns[:2]]
        for name, numbers in zip(("pre", "post"), ends):
            wrong = (numbers < 0) | (numbers >= len(self._neurons))
            if wrong.any():
                raise ConfigError(f"{name} = {numbers[wrong][0]} is no neuron; there are {len(self._neurons)}")
        weights, delays = (c.astype(np.float64) for c in columns[2:])
        if not np.isfinite(weights).all() or not (np.isfinite(delays) & (delays > 0)).all():
            raise ConfigError("weights must be finite, and delays finite and above 0 ms")
        self._synapses.append((ends[0], ends[1], weights, delays))

    def initialize_random_synapses(
        self, connection_probability: float = 0.01, weight_mean: float = 0.1, weight_std: float = 0.05
    ) -> None:
        """Joins each ordered pair of two neurons with this probability, by a normal weight and a delay of 1 ms."""
        if not 0.0 <= connection_probability <= 1.0 or not weight_std >= 0.0:
            raise ConfigError(
                f"connection_probability = {connection_probability} must be between 0 and 1, and "
                f"weight_std = {weight_std} at least 0"
            )
        count = len(self._neurons)
        pairs = count * (count - 1)
        if connection_probability == 0.0 or pairs == 0:
            return
        found, last = [], -1
        # From one pair that is joined to the next: as if each had been asked.
        while last < pairs:
            left = (pairs - last) * connection_probability
            gaps = self._rng.geometric(connection_probability, int(left + 4.0 * math.sqrt(left) + 16))
            found.append(last + np.cumsum(gaps))
            last = int(found[-1][-1])
        at = np.concatenate(found)
        at = at[at < pairs]
        pre, post = at // (count - 1), at % (count - 1)
        post += post >= pre
        self.add_synapses(pre, post, np.abs(self._rng.normal(weight_mean, weight_std, len(at))), 1.0)

    def coord_to_id_map(self) -> dict[tuple[int, int, int, int], int]:
        """The neuron at each site that has one."""
        return {n.position(): n.id for n in self._neurons}

    def get_area_neurons(self, area_name: str) -> list[Neuron]:
        """The neurons of an area; none where there is no such area."""
        for area in self.get_areas():
            if area["name"] == area_name:
                ranges = [area["coord_ranges"][axis] for axis in "xyzw"]
                inside = lambda n: all(lo <= c <= hi for c, (lo, hi) in zip(n.position(), ranges))  # noqa: E731
                return [n for n in self._neurons if inside(n)]
        return []

    # Motion.

    def _ready(self) -> Simulation:
        if self._simulation is None:
            if not self._neurons:
                self.initialize_neurons()
                if not self._synapses:
                    self.initialize_random_synapses()
            self._simulation = self._network().build(self.backend)
            self._external = np.zeros(len(self._neurons)) if self._external is None else self._external
        return self._simulation

    def _grouped(self) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """The neurons of each model, and each neuron's place among its own."""
        models = np.array([n.model_type for n in self._neurons])
        groups = {m: np.flatnonzero(models == m) for m in _MODELS if (models == m).any()}
        place = np.empty(len(models), np.int64)
        for members in groups.values():
            place[members] = np.arange(len(members))
        return groups, place

    def _arrival(self) -> np.ndarray:
        """What a weight of 1 is in the unit of each neuron's model, before what ``neuromodulation`` makes of it."""
        dt = 1.0 / self._substeps
        models = np.array([n.model_type for n in self._neurons])
        tau = np.array([float(n.params.get("tau_m", _LIF["tau_m"])) for n in self._neurons])
        # The engine refuses a tau_m of 0 by its name.
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            return np.where(models == "lif", -np.expm1(-dt / tau), np.where(models == "izhikevich", dt, 1.0))

    @property
    def _substeps(self) -> int:
        # Hodgkin and Huxley's equations bear no steps of 1 ms.
        return 20 if any(n.model_type == "hodgkin_huxley" for n in self._neurons) else 1

    def _network(self) -> Network:
        dt = 1.0 / self._substeps
        net = Network(dt=dt, seed=self.seed)
        groups, place = self._grouped()
        for model, members in groups.items():
            own = [self._neurons[i] for i in members]

            def column(key: str, default: float, own: list[Neuron] = own) -> np.ndarray:
                return np.array([float(n.params.get(key, default)) for n in own])

            if model == "lif":
                tau, rest, reset, threshold, refractory = (column(k, v) for k, v in _LIF.items())
                # With C_m = tau_m a current is the original's: dV/dt = (-(V - v_rest) + I) / tau_m. The step of the
                # spike counts as refractory there.
                parameters = {"C_m": tau, "tau_m": tau, "E_L": rest, "V_reset": reset, "V_th": threshold}
                parameters["t_ref"] = np.maximum(refractory - dt, 0.0)
            elif model == "izhikevich":
                parameters = {k[-1]: column(k, v) for k, v in _IZHIKEVICH.items()}
                for i, n in enumerate(own):
                    a, d, c = _OF_TYPE.get(n.neuron_type, (None, None, None))
                    for key, value in {"a": a, "c": c, "d": d}.items():
                        if value is not None and f"izh_{key}" not in n.params:
                            parameters[key][i] = value
            else:
                parameters = {}
            places = np.array([n.position() for n in own], dtype=float)
            net.population(model, {"lif": "lif_delta"}.get(model, model), positions=places, parameters=parameters)
        life = self.get_lifecycle_config()
        if life.get("enable_death", True):
            net.lifecycle(
                max_age=life.get("max_age", 100_000),
                health_decay=life.get("health_decay_per_step", 0.0001),
                reproduction=life.get("enable_reproduction", True),
                mutation_std_params=life.get("mutation_std_params", 0.05),
                mutating_params=[name for model in groups for name in _MUTATING[model]],
                initial_age=self.initial_age,
                interval=self.lifecycle_interval,
            )
        if not self._synapses:
            return net
        pre, post, weight, delay = (np.concatenate(c) for c in zip(*self._synapses))
        inhibits = np.array([n.is_inhibitory() for n in self._neurons])
        weight = np.where(inhibits[pre], -np.abs(weight), weight)
        kinds = self._kinds(weight, self._arrival()[post], dt)
        group = np.empty(len(self._neurons), np.int64)
        for g, members in enumerate(groups.values()):
            group[members] = g
        for s, source in enumerate(groups):
            for t, target in enumerate(groups):
                for of_kind, weights, plasticity, spread in kinds:
                    among = (group[pre] == s) & (group[post] == t) & of_kind
                    if among.any():
                        edges = {"source": place[pre[among]], "target": place[post[among]], "delay": delay[among]}
                        edges["weight"] = weights[among]
                        net.projection(source, target, edges=edges, plasticity=plasticity, mutation_std_weights=spread)
        return net

    def _kinds(
        self, weight: np.ndarray, unit: np.ndarray, dt: float
    ) -> list[tuple[np.ndarray, np.ndarray, dict[str, Any] | None, float | None]]:
        """Which synapses do the same, all weights in the unit of the model behind them, what those synapses do, and by what standard
        deviation those of a child differ."""
        both = _native.original_plasticity(json.dumps(self.config), dt)
        inhibits = weight < 0.0
        scaled = weight * unit * np.where(inhibits, both[1][0], both[0][0])
        life = self.get_lifecycle_config()
        spread = float(life.get("mutation_std_weights", 0.02)) if life.get("enable_death", True) else 0.0
        if spread == 0.0 and all(plasticity is None for _, shares in both for _, plasticity in shares):
            return [(np.ones(len(weight), bool), scaled, None, None)]
        # Which facilitate, of those that are mixed: the same whenever the model is made.
        drawn = np.random.default_rng([self.seed, 1]).random(len(weight))
        found: list[tuple[np.ndarray, np.ndarray, dict[str, Any] | None, float | None]] = []
        for sign, (gain, shares) in enumerate(both):
            begin = 0.0
            for k, (share, text) in enumerate(shares):
                end = begin + share if k + 1 < len(shares) else 2.0
                own = (inhibits == bool(sign)) & (begin <= drawn) & (drawn < end)
                begin = end
                if text is None and spread == 0.0:
                    found.append((own, scaled, None, None))
                    continue
                for size in np.unique(unit[own]):
                    plasticity: dict[str, Any] | None = None if text is None else json.loads(text)
                    of_size, weights = own & (unit == size), scaled
                    for key in ("w_min", "w_max", "weight_decay"):
                        if plasticity is not None and key in plasticity:
                            plasticity[key] *= float(size)
                    if plasticity is not None and "w_max" in plasticity:
                        sizes = np.clip(np.abs(scaled), plasticity["w_min"], plasticity["w_max"])
                        weights = -sizes if sign else sizes
                    found.append((of_size, weights, plasticity, spread * float(size) * gain or None))
        return found

    def feed_sense_input(self, sense_name: str, input_matrix: np.ndarray, z_layer: int = 0) -> None:
        """Adds a matrix ``[x, y]`` to the input of the neurons in a z-layer of the sense's area, for the next step.

        A matrix of another shape than the area goes in where both are, with a warning.
        """
        self._ready()
        if not isinstance(input_matrix, np.ndarray):
            raise TypeError(f"input_matrix must be a numpy array, got {type(input_matrix).__name__}")
        senses = self.get_senses()
        if input_matrix.ndim != 2 or not np.isfinite(input_matrix).all():
            raise ConfigError(f"input_matrix has the shape {input_matrix.shape}; two axes of finite numbers are needed")
        if sense_name not in senses:
            raise ConfigError(f"{sense_name!r} is no sense; there are {', '.join(senses)}")
        area = next(a for a in self.get_areas() if a["name"] == senses[sense_name]["areal"])
        (x0, x1), (y0, y1), (z0, z1), (w0, _) = (area["coord_ranges"][axis] for axis in "xyzw")
        if not 0 <= z_layer <= z1 - z0:
            raise ConfigError(f"z_layer = {z_layer} is not one of the {z1 - z0 + 1} of sense {sense_name!r}")
        expected = (x1 - x0 + 1, y1 - y0 + 1)
        if input_matrix.shape != expected:
            text = f"sense {sense_name!r}: the input has the shape {input_matrix.shape}, the area {expected}"
            warnings.warn(text, UserWarning, stacklevel=2)
        sites = self.coord_to_id_map()
        for ix in range(min(input_matrix.shape[0], expected[0])):
            for iy in range(min(input_matrix.shape[1], expected[1])):
                neuron = sites.get((x0 + ix, y0 + iy, z0 + z_layer, w0))
                if neuron is not None:
                    self.add_input(neuron, float(input_matrix[ix, iy]))

    def add_input(self, neuron_id: int, value: float) -> None:
        """Adds to the input of one neuron in the next step, the original's ``external_input``: mV for a LIF."""
        self._ready()
        if not 0 <= neuron_id < len(self._neurons):
            raise ConfigError(f"{neuron_id} is no neuron; there are {len(self._neurons)}")
        assert self._external is not None
        self._external[neuron_id] += value

    def step(self) -> dict[str, Any]:
        """One step of 1 ms.

        Returns:
            ``step``, ``spikes`` (the numbers of the neurons that fired), ``deaths`` and ``births`` (how many at its end).
        """
        simulation = self._ready()
        assert self._external is not None
        groups, _ = self._groups()
        for g, members in enumerate(groups.values()):
            current = self._external[members]
            if current.any() or g in self._fed:
                simulation.set_current(g, current)
                (self._fed.add if current.any() else self._fed.discard)(g)
        self._external[:] = 0.0
        spikes = simulation.run(steps=self._substeps)
        fired = [members[spikes.of(g)[1]] for g, members in enumerate(groups.values())]
        died, born = self._died, self._born
        self._died, self._born = simulation.deaths_and_births
        stats = {"step": self._step, "spikes": sorted(np.concatenate(fired).tolist())}
        self._step += 1
        return {**stats, "deaths": self._died - died, "births": self._born - born}

    def generations(self) -> np.ndarray:
        """How many neurons stood before each neuron at its site, u32: its number stays that of the site."""
        return self._gather(lambda simulation, g: simulation.generations(g), np.uint32)

    def ages(self) -> np.ndarray:
        """The age of every neuron, in steps of 1 ms; of a dead one that at its death."""
        return self._gather(lambda simulation, g: np.rint(simulation.ages(g)), np.int64)

    def health(self) -> np.ndarray:
        """The health of every neuron: 1 at its birth, less ``health_decay_per_step`` a step."""
        return 1.0 - self.ages() * float(self.get_lifecycle_config().get("health_decay_per_step", 0.0001))

    def alive(self) -> np.ndarray:
        """Which neurons live."""
        return self._gather(lambda simulation, g: simulation.alive(g), bool)

    def _gather(self, of: Callable[[Simulation, int], np.ndarray], kind: type) -> np.ndarray:
        simulation = self._ready()
        found = np.empty(len(self._neurons), kind)
        for g, members in enumerate(self._groups()[0].values()):
            found[members] = of(simulation, g)
        return found

    _cached: tuple[dict[str, np.ndarray], np.ndarray] | None = None

    def _groups(self) -> tuple[dict[str, np.ndarray], np.ndarray]:
        if self._cached is None:
            self._cached = self._grouped()
        return self._cached

    def weights(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """All synapses as they are: the neurons before and after them, weights in the configuration's unit, without what
        ``neuromodulation`` makes of them, and delays in ms; sorted by the first two."""
        simulation = self._ready()
        columns: list[list[np.ndarray]] = [[], [], [], []]
        gains = [gain for gain, _ in _native.original_plasticity(json.dumps(self.config), 1.0 / self._substeps)]
        members = list(self._groups()[0].values())
        arrival = self._arrival()
        for s, before in enumerate(members):
            for t, behind in enumerate(members):
                found = simulation.synapses(s, t)
                pre, post, weight = before[found.source], behind[found.target], found.weight.astype(np.float64)
                weight = weight / arrival[post] / np.where(weight < 0.0, gains[1], gains[0])
                for column, values in zip(columns, (pre, post, weight, found.delay)):
                    column.append(values)
        all_of = [np.concatenate(c) for c in columns]
        order = np.lexsort((all_of[1], all_of[0]))
        pre, post, weight, delay = (c[order] for c in all_of)
        return (pre, post, weight, delay)

    def potentials(self) -> np.ndarray:
        """The membrane potential of every neuron, mV, f32."""
        return self._gather(lambda simulation, g: simulation.state(g)["V"], np.float32)

    # Exact save and resume.

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes all of the model to one file, from which :meth:`load` goes on to the bit."""
        path = path_of("BrainModel.save: path", path)
        simulation = self._ready()
        with tempfile.TemporaryDirectory() as folder:
            state = np.fromfile(simulation.save(os.path.join(folder, "state")), np.uint8)
        neurons = [list(n[1:7]) + [dict(n.params)] for n in self._neurons]
        about = {"config": self.config, "neurons": neurons, "step": self._step, "seed": self.seed, "fed": sorted(self._fed)}
        about.update(initial_age=self.initial_age, lifecycle_interval=self.lifecycle_interval)
        pre, post, weight, delay = (np.concatenate(c) for c in zip(*self._synapses)) if self._synapses else [np.empty(0)] * 4
        buffer = io.BytesIO()
        text = np.frombuffer(json.dumps(about).encode(), np.uint8)
        np.savez(buffer, about=text, state=state, pre=pre, post=post, weight=weight, delay=delay, external=self._external)
        aside = f"{path}.{os.getpid()}.part"
        with open(aside, "wb") as file:
            file.write(buffer.getvalue())
        os.replace(aside, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str], backend: str = "auto") -> BrainModel:
        """The model of a file that :meth:`save` wrote, where it was.

        Raises:
            CheckpointError: the file is none, cut off or damaged.
        """
        path = path_of("BrainModel.load: path", path)
        try:
            with np.load(path, allow_pickle=False) as file:
                columns = {k: file[k] for k in ("about", "state", "pre", "post", "weight", "delay", "external")}
            about = json.loads(columns["about"].tobytes())
        except OSError as e:
            raise CheckpointError(f"cannot read {path}: {e}") from e
        except Exception as e:  # noqa: BLE001
            raise CheckpointError(f"{path}: it is no saved model, or a damaged one: {e}") from e
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            own = {k: about[k] for k in ("initial_age", "lifecycle_interval") if k in about}
            model = cls(about["config"], backend, seed=about["seed"], **own)
        for x, y, z, w, neuron_type, model_type, params in about["neurons"]:
            model.add_neuron(x, y, z, w, params=params, neuron_type=neuron_type, model_type=model_type)
        if len(columns["pre"]):
            model.add_synapses(columns["pre"], columns["post"], columns["weight"], columns["delay"])
        simulation = model._ready()
        with tempfile.TemporaryDirectory() as folder:
            state = os.path.join(folder, "state")
            columns["state"].tofile(state)
            simulation.restore(state)
        model._external, model._step = columns["external"].copy(), about["step"]
        model._fed = set(about["fed"])
        model._died, model._born = simulation.deaths_and_births
        return model
