"""Wirings: which synapses exist and whether they excite or inhibit, drawn from a seed.

``FullyConnected``, ``Random``, ``NCP`` and ``AutoNCP`` take ncps's arguments and give ncps's masks and polarities to the
bit for the same seed; ``Bernoulli`` is the independent draw of ltc-cuda. Neurons are ordered motor, command, inter, so
that the first ``output_dim`` are the outputs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import _native
from .._errors import ConfigError
from ._checks import sizes, whole

__all__ = ["NCP", "AutoNCP", "Bernoulli", "FullyConnected", "Random", "Wiring"]


def _tensor(data: bytes, units: int) -> Tensor:
    sources = len(data) // units if units else 0
    if not data:
        return torch.zeros(sources, units, dtype=torch.int32)
    return torch.frombuffer(bytearray(data), dtype=torch.int8).view(sources, units).to(torch.int32)


class Wiring:
    """A wiring of ``units`` neurons without synapses, to be made by :meth:`add_synapse`, and the base of the others.

    Attributes:
        units: H.
        input_dim: D, or None before :meth:`build`.
        output_dim: how many neurons, the first ones, are outputs.
        adjacency: ``[H, H]`` int32, row by source: 1 excites, -1 inhibits, 0 is no synapse.
        sensory_adjacency: ``[D, H]``, likewise, or None before :meth:`build`.
    """

    def __init__(self, units: int) -> None:
        sizes("wiring", units=units)
        self.units = int(units)
        self.input_dim: int | None = None
        self.output_dim: int | None = None
        self.command_neurons = 0
        self.adjacency = torch.zeros(self.units, self.units, dtype=torch.int32)
        self.sensory_adjacency: Tensor | None = None

    @property
    def adjacency_matrix(self) -> Any:
        """:attr:`adjacency` as a NumPy array, as ncps has it."""
        return self.adjacency.numpy()

    @property
    def sensory_adjacency_matrix(self) -> Any:
        """:attr:`sensory_adjacency` as a NumPy array, as ncps has it."""
        return None if self.sensory_adjacency is None else self.sensory_adjacency.numpy()

    def is_built(self) -> bool:
        """Whether the number of inputs is known."""
        return self.input_dim is not None

    def build(self, input_dim: int) -> None:
        """Fixes the number of inputs, once, and draws what depends on it."""
        if self.input_dim is not None:
            if self.input_dim != input_dim:
                raise ConfigError(f"wiring: it was built for {self.input_dim} inputs and is used with {input_dim}")
            return
        self.set_input_dim(input_dim)

    def set_input_dim(self, input_dim: int) -> None:
        """Fixes the number of inputs; no input has a synapse yet."""
        sizes("wiring", input_dim=input_dim)
        self.input_dim = int(input_dim)
        self.sensory_adjacency = torch.zeros(self.input_dim, self.units, dtype=torch.int32)

    def set_output_dim(self, output_dim: int) -> None:
        """Makes the first ``output_dim`` neurons the outputs."""
        sizes("wiring", output_dim=output_dim)
        if output_dim > self.units:
            raise ConfigError(f"wiring: output_dim = {output_dim} is more than units = {self.units}")
        self.output_dim = int(output_dim)

    def erev_initializer(self, shape: Any = None, dtype: Any = None) -> Any:
        """The polarities, where reversal potentials start."""
        return self.adjacency_matrix.copy()

    def sensory_erev_initializer(self, shape: Any = None, dtype: Any = None) -> Any:
        """The polarities of synapses from inputs."""
        matrix = self.sensory_adjacency_matrix
        return None if matrix is None else matrix.copy()

    @property
    def num_layers(self) -> int:
        """1, or 3 for an NCP: inter, command, motor."""
        return 1

    def get_neurons_of_layer(self, layer_id: int) -> list[int]:
        """The neurons of a layer."""
        return list(range(self.units))

    def get_type_of_neuron(self, neuron_id: int) -> str:
        """``motor``, ``command`` or ``inter``."""
        if neuron_id < (self.output_dim or 0):
            return "motor"
        return "command" if neuron_id < (self.output_dim or 0) + self.command_neurons else "inter"

    def _add(self, matrix: Tensor, kind: str, src: int, dest: int, polarity: int) -> None:
        for name, neuron, count in (("source", src, matrix.shape[0]), ("target", dest, matrix.shape[1])):
            if not 0 <= neuron < count:
                raise ConfigError(f"wiring: the {name} {neuron} of a {kind} is not in 0 .. {count}")
        if polarity not in (-1, 1):
            raise ConfigError(f"wiring: a polarity of {polarity} is not one of -1, 1")
        matrix[src, dest] = polarity

    def add_synapse(self, src: int, dest: int, polarity: int) -> None:
        """A synapse between neurons; polarity 1 excites, -1 inhibits."""
        self._add(self.adjacency, "synapse", src, dest, polarity)

    def add_sensory_synapse(self, src: int, dest: int, polarity: int) -> None:
        """A synapse from an input to a neuron."""
        if self.sensory_adjacency is None:
            raise ConfigError("wiring: synapses from inputs can be added once build(input_dim) has been called")
        self._add(self.sensory_adjacency, "sensory synapse", src, dest, polarity)

    @property
    def synapse_count(self) -> int:
        """Synapses between neurons."""
        return int((self.adjacency != 0).sum())

    @property
    def sensory_synapse_count(self) -> int:
        """Synapses from inputs."""
        return 0 if self.sensory_adjacency is None else int((self.sensory_adjacency != 0).sum())

    def get_config(self) -> dict[str, Any]:
        """Plain values from which :meth:`from_config` makes the same wiring."""
        sensory = self.sensory_adjacency
        return {
            "units": self.units,
            "adjacency_matrix": self.adjacency.tolist(),
            "sensory_adjacency_matrix": None if sensory is None else sensory.tolist(),
            "input_dim": self.input_dim,
            "output_dim": self.output_dim,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Wiring:
        """The wiring of a :meth:`get_config`."""
        if cls is not Wiring:
            return cls(**config)
        wiring = Wiring(config["units"])
        if config["input_dim"] is not None:
            wiring.set_input_dim(config["input_dim"])
        wiring.output_dim = config["output_dim"]
        for name in ("adjacency", "sensory_adjacency"):
            given = config[f"{name}_matrix"]
            if given is not None:
                matrix = torch.tensor(given, dtype=torch.int32).view(-1, wiring.units)
                setattr(wiring, name, matrix)
        return wiring

    def get_graph(self, include_sensory_neurons: bool = True) -> Any:
        """A ``networkx.DiGraph`` with nodes ``neuron_i`` and ``sensory_i`` and edges with their ``polarity``."""
        import networkx

        if not self.is_built():
            raise ConfigError("wiring: the graph can be had once build(input_dim) has been called")
        graph = networkx.DiGraph()
        for i in range(self.units):
            graph.add_node(f"neuron_{i}", neuron_type=self.get_type_of_neuron(i))
        sides = [("neuron", self.adjacency)]
        if include_sensory_neurons and self.sensory_adjacency is not None:
            for i in range(self.input_dim or 0):
                graph.add_node(f"sensory_{i}", neuron_type="sensory")
            sides.insert(0, ("sensory", self.sensory_adjacency))
        for kind, matrix in sides:
            for src, dest in matrix.nonzero().tolist():
                polarity = "excitatory" if matrix[src, dest] > 0 else "inhibitory"
                graph.add_edge(f"{kind}_{src}", f"neuron_{dest}", polarity=polarity)
        return graph

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in self._summary().items())})"

    def _summary(self) -> dict[str, Any]:
        return {"units": self.units, "input_dim": self.input_dim, "output_dim": self.output_dim}


class _Drawn(Wiring):
    """A wiring that the library draws from its configuration."""

    _type: str
    # Whether the synapses between neurons can be drawn before the number of inputs is known.
    _early = True

    def __init__(self, **config: Any) -> None:
        self._config = config
        if config.get("output_dim") is not None:
            sizes("wiring", output_dim=config["output_dim"])
        units, outputs, command, _, _ = drawn = self._draw(0)
        super().__init__(units)
        self.command_neurons = command
        self.set_output_dim(outputs)
        if self._early:
            self.adjacency = _tensor(drawn[3], units)

    def _draw(self, inputs: int) -> tuple[int, int, int, bytes, bytes]:
        spell = {
            k: str(v).lower() if isinstance(v, bool) else str(v) for k, v in self._config.items() if v is not None
        }
        return _native.draw_wiring([("type", self._type), *spell.items()], inputs)

    def build(self, input_dim: int) -> None:
        if self.input_dim is None:
            sizes("wiring", input_dim=input_dim)
            _, _, _, adjacency, sensory = self._draw(int(input_dim))
            self.set_input_dim(input_dim)
            # Before it is built a wiring of this kind may have got synapses of the user's own.
            if not self._early:
                self.adjacency = _tensor(adjacency, self.units)
            self.sensory_adjacency = _tensor(sensory, self.units)
        else:
            super().build(input_dim)

    def get_config(self) -> dict[str, Any]:
        return dict(self._config)

    def _summary(self) -> dict[str, Any]:
        return self._config


class FullyConnected(_Drawn):
    """Every synapse; 2/3 of them excitatory."""

    _type = "fully_connected"

    def __init__(
        self, units: int, output_dim: int | None = None, erev_init_seed: int = 1111, self_connections: bool = True
    ) -> None:
        super().__init__(
            units=units, output_dim=output_dim, erev_init_seed=erev_init_seed, self_connections=self_connections
        )


class Random(_Drawn):
    """A fixed number of synapses at random places; ``sparsity_level`` in [0, 1) is the fraction left out."""

    _type = "random"

    def __init__(
        self, units: int, output_dim: int | None = None, sparsity_level: float = 0.0, random_seed: int = 1111
    ) -> None:
        super().__init__(units=units, output_dim=output_dim, sparsity_level=sparsity_level, random_seed=random_seed)


class Bernoulli(_Drawn):
    """Each synapse with the same probability, and at least one onto every neuron on each side; 80 % excitatory.

    ``density`` (which ltc-cuda calls sparsity) is the fraction kept; 1 or more is all.
    """

    _type = "bernoulli"

    def __init__(
        self,
        units: int,
        output_dim: int | None = None,
        density: float = 0.5,
        sensory_density: float | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(
            units=units, output_dim=output_dim, density=density, sensory_density=sensory_density, seed=seed
        )


class NCP(_Drawn):
    """A neural circuit policy: inputs -> inter -> command (recurrent) -> motor neurons, by fixed fan-outs and fan-ins."""

    _type = "ncp"
    _early = False

    def __init__(
        self,
        inter_neurons: int,
        command_neurons: int,
        motor_neurons: int,
        sensory_fanout: int,
        inter_fanout: int,
        recurrent_command_synapses: int,
        motor_fanin: int,
        seed: int = 22222,
    ) -> None:
        super().__init__(
            inter_neurons=inter_neurons,
            command_neurons=command_neurons,
            motor_neurons=motor_neurons,
            sensory_fanout=sensory_fanout,
            inter_fanout=inter_fanout,
            recurrent_command_synapses=recurrent_command_synapses,
            motor_fanin=motor_fanin,
            seed=seed,
        )

    @property
    def num_layers(self) -> int:
        return 3

    def get_neurons_of_layer(self, layer_id: int) -> list[int]:
        motor = self.output_dim or 0
        layers = [(motor + self.command_neurons, self.units), (motor, motor + self.command_neurons), (0, motor)]
        if not 0 <= layer_id < 3:
            raise ConfigError(f"wiring: layer {layer_id} is not one of 0 (inter), 1 (command), 2 (motor)")
        return list(range(*layers[layer_id]))


class AutoNCP(NCP):
    """An NCP whose sizes follow from two numbers; ``sparsity_level`` runs from 0.1 (dense) to 1 (sparse)."""

    _type = "auto_ncp"

    def __init__(self, units: int, output_size: int, sparsity_level: float = 0.5, seed: int = 22222) -> None:
        _Drawn.__init__(self, units=units, output_size=output_size, sparsity_level=sparsity_level, seed=seed)


def matrices(wiring: Any) -> tuple[Tensor, Tensor]:
    """Polarities of a wiring of ours, or of anything with ncps's methods."""
    if isinstance(wiring, Wiring):
        return wiring.adjacency.float(), wiring.sensory_adjacency.float()  # type: ignore[union-attr]
    both = wiring.erev_initializer(), wiring.sensory_erev_initializer()
    return tuple(torch.as_tensor(m).to(torch.float32) for m in both)  # type: ignore[return-value]


def wiring_of(name: str, units: Any) -> Any:
    """A wiring, or all synapses among so many units."""
    if whole(units) is None and not hasattr(units, "build"):
        raise ConfigError(f"{name}: units = {units!r} is neither a whole number nor a wiring")
    if whole(units) is None:
        return units
    sizes(name, units=units)
    return FullyConnected(int(units))


def built(wiring: Any, inputs: int | None, name: str, argument: str) -> Any:
    """The wiring, built; a drawn one that was built for other inputs is drawn anew for these."""
    if not hasattr(wiring, "build"):
        raise ConfigError(f"{name}: wiring = {wiring!r} is not a wiring, as of chronaxie.torch.wirings")
    if inputs is not None:
        sizes(name, **{argument: inputs})
        if isinstance(wiring, _Drawn) and wiring.is_built() and wiring.input_dim != inputs:
            wiring = type(wiring)(**wiring.get_config())
        wiring.build(inputs)
    if not wiring.is_built():
        raise ConfigError(f"{name}: the number of inputs is not known: give {argument}, or call wiring.build(inputs)")
    if wiring.output_dim is None:
        raise ConfigError(f"{name}: the wiring has no output_dim: call wiring.set_output_dim(outputs)")
    return wiring


def config_of(wiring: Any) -> dict[str, Any]:
    kind = type(wiring).__name__
    if isinstance(wiring, _Drawn) and kind in __all__:
        return {"type": kind, **wiring.get_config()}
    return {"type": "Wiring", **Wiring.get_config(_plain(wiring))}


def _plain(wiring: Any) -> Wiring:
    if isinstance(wiring, Wiring):
        return wiring
    plain = Wiring(wiring.units)
    plain.set_input_dim(wiring.input_dim)
    plain.set_output_dim(wiring.output_dim)
    plain.adjacency, plain.sensory_adjacency = (m.to(torch.int32) for m in matrices(wiring))
    return plain


def from_config(config: dict[str, Any]) -> Wiring:
    config = dict(config)
    kind = config.pop("type")
    if kind not in __all__:
        raise ConfigError(f"wiring: type `{kind}` is not one of {', '.join(__all__)}")
    return globals()[kind].from_config(config)
