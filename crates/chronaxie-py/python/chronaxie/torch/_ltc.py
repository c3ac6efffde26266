"""LTC and LTCCell, under the names, arguments and state_dict keys of ncps."""

from __future__ import annotations

from operator import itemgetter
from typing import Any

import torch
from torch import Tensor, nn

from .._errors import ShapeError
from . import _checks, _options
from . import wirings
from ._module import MaskedModule, uniform
from ._sequence import LSTMCell, SequenceModule, cell_times


class LTCCell(MaskedModule):
    """One step of a liquid time-constant network; drop-in for ``ncps.torch.LTCCell``.

    Args:
        wiring: of :mod:`chronaxie.torch.wirings`, or anything with the methods of ncps's.
        in_features: D, where the wiring is not built yet.
        input_mapping, output_mapping: ``affine``, ``linear`` or ``none``.
        ode_unfolds: semi-implicit Euler steps a step, 1 to 1024.
        epsilon: added to each denominator.
        implicit_param_constraints: softplus of w, sensory_w, cm and gleak; otherwise they are used as they are, and
            :meth:`apply_weight_constraints` is to be called after each optimizer step.
        precision: ``exact`` or ``fast``.
    """

    def __init__(
        self,
        wiring: Any,
        in_features: int | None = None,
        input_mapping: str = "affine",
        output_mapping: str = "affine",
        ode_unfolds: int = 6,
        epsilon: float = 1e-8,
        implicit_param_constraints: bool = False,
        *,
        precision: str = "exact",
    ) -> None:
        super().__init__()
        self._wiring = wiring = wirings.built(wiring, in_features, "LTCCell", "in_features")
        _checks.sizes("LTCCell", in_features=wiring.input_dim, ode_unfolds=ode_unfolds)
        _checks.positive("LTCCell", 0.0, epsilon=epsilon)
        self._implicit_param_constraints = implicit_param_constraints
        self._arguments = {
            "input_mapping": input_mapping,
            "output_mapping": output_mapping,
            "ode_unfolds": ode_unfolds,
            "epsilon": epsilon,
            "implicit_param_constraints": implicit_param_constraints,
            "precision": precision,
        }
        self._options = _options.options(
            wiring.output_dim,
            unfolds=ode_unfolds,
            epsilon=epsilon,
            input_mapping=input_mapping,
            output_mapping=output_mapping,
            implicit_param_constraints=implicit_param_constraints,
            precision=precision,
        )
        _checks.problem("ltc", f"B1_T1_D{wiring.input_dim}_H{wiring.units}{self._options.text}")
        self._names = self._options.names
        self._pick = itemgetter(*self._names)
        units, inputs = wiring.units, wiring.input_dim
        erev, sensory_erev = wirings.matrices(wiring)
        self.gleak = uniform(0.001, 1.0, units)
        self.vleak = uniform(-0.2, 0.2, units)
        self.cm = uniform(0.4, 0.6, units)
        for prefix, polarity in (("", erev), ("sensory_", sensory_erev)):
            for name, low, high in (("sigma", 3.0, 8.0), ("mu", 0.3, 0.8), ("w", 0.001, 1.0)):
                self.register_parameter(prefix + name, uniform(low, high, *polarity.shape))
            self.register_parameter(f"{prefix}erev", nn.Parameter(polarity.clone()))
        for prefix, polarity in (("", erev), ("sensory_", sensory_erev)):
            mask = nn.Parameter(polarity.abs(), requires_grad=False)
            self.register_parameter(f"{prefix}sparsity_mask", mask)
        for prefix, mapping, size in (("input", input_mapping, inputs), ("output", output_mapping, wiring.output_dim)):
            if mapping in ("affine", "linear"):
                self.register_parameter(f"{prefix}_w", nn.Parameter(torch.ones(size)))
            if mapping == "affine":
                self.register_parameter(f"{prefix}_b", nn.Parameter(torch.zeros(size)))
        self.prepare()

    @property
    def state_size(self) -> int:
        """H."""
        return self._wiring.units

    @property
    def sensory_size(self) -> int:
        """D."""
        return self._wiring.input_dim

    @property
    def motor_size(self) -> int:
        """M."""
        return self._wiring.output_dim

    output_size = motor_size

    @property
    def synapse_count(self) -> int:
        """Synapses between neurons."""
        return int((self._masks()[0] != 0).sum())

    @property
    def sensory_synapse_count(self) -> int:
        """Synapses from inputs."""
        return int((self._masks()[1] != 0).sum())

    def apply_weight_constraints(self) -> None:
        """Sets negative w, sensory_w, cm and gleak to 0, unless constraints are implicit."""
        if not self._implicit_param_constraints:
            with torch.no_grad():
                for name in ("w", "sensory_w", "cm", "gleak"):
                    getattr(self, name).clamp_(min=0)

    def forward(
        self, inputs: Tensor, states: Tensor, elapsed_time: float | Tensor = 1.0
    ) -> tuple[Tensor, Tensor]:
        """One step.

        Args:
            inputs: ``[B, D]``.
            states: ``[B, H]``.
            elapsed_time: a number, or a tensor of one element, ``[B]`` or ``[B, 1]``.

        Returns:
            outputs ``[B, M]`` and the next state ``[B, H]``.
        """
        if inputs.dim() != 2:
            raise ShapeError(f"LTCCell: inputs.shape = {tuple(inputs.shape)} does not match [B, D]")
        elapsed = cell_times("LTCCell: elapsed_time", elapsed_time, inputs, self.w)
        out, state = self._call(inputs.unsqueeze(1), states, elapsed)
        return out.squeeze(1), state

    def get_config(self) -> dict[str, Any]:
        """Plain values from which :meth:`from_config` makes a cell of the same kind, with new parameters."""
        return {"wiring": wirings.config_of(self._wiring), "in_features": self.sensory_size, **self._arguments}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> LTCCell:
        """The cell of a :meth:`get_config`."""
        return cls(**{**config, "wiring": wirings.from_config(config["wiring"])})

    def extra_repr(self) -> str:
        return f"{self._wiring!r}, inputs={self.sensory_size}, outputs={self.motor_size}"


class LTC(SequenceModule):
    """A liquid time-constant network over sequences; drop-in for ``ncps.torch.LTC``.

    float16 and bfloat16 inputs, and any under autocast, are taken as they are stored: the output has their type. States are
    float32, and so is what is computed.

    Args:
        input_size: D.
        units: H, fully connected, or a wiring of :mod:`chronaxie.torch.wirings` or ncps.
        return_sequences: every output, or the last one only.
        batch_first: ``[B, T, D]``, or ``[T, B, D]``.
        mixed_memory: an LSTM cell updates ``(h, c)`` before each step.
        input_mapping, output_mapping, ode_unfolds, epsilon, precision: as for :class:`LTCCell`.
        implicit_param_constraints: softplus of w, sensory_w, cm and gleak.
    """

    def __init__(
        self,
        input_size: int,
        units: Any,
        return_sequences: bool = True,
        batch_first: bool = True,
        mixed_memory: bool = False,
        input_mapping: str = "affine",
        output_mapping: str = "affine",
        ode_unfolds: int = 6,
        epsilon: float = 1e-8,
        implicit_param_constraints: bool = True,
        *,
        precision: str = "exact",
    ) -> None:
        super().__init__()
        _checks.sizes("LTC", input_size=input_size)
        wiring = wirings.wiring_of("LTC", units)
        self.input_size, self.wiring_or_units = input_size, units
        self.return_sequences, self.batch_first, self.use_mixed = return_sequences, batch_first, mixed_memory
        self.rnn_cell = LTCCell(
            wiring,
            input_size,
            input_mapping=input_mapping,
            output_mapping=output_mapping,
            ode_unfolds=ode_unfolds,
            epsilon=epsilon,
            implicit_param_constraints=implicit_param_constraints,
            precision=precision,
        )
        self._wiring = self.rnn_cell._wiring
        if mixed_memory:
            self.lstm = LSTMCell(input_size, self.state_size)

    state_size = property(lambda self: self.rnn_cell.state_size, doc="H.")
    sensory_size = property(lambda self: self.rnn_cell.sensory_size, doc="D.")
    motor_size = property(lambda self: self.rnn_cell.motor_size, doc="M.")
    output_size = motor_size
    synapse_count = property(lambda self: self.rnn_cell.synapse_count, doc="Synapses between neurons.")
    sensory_synapse_count = property(lambda self: self.rnn_cell.sensory_synapse_count, doc="Synapses from inputs.")

    def _weight(self) -> Tensor:
        return self.rnn_cell.w

    def _run(
        self, x: Tensor, h: Tensor | None, c: Tensor | None, elapsed: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        if self.use_mixed:
            if h is None or c is None:
                h = c = None
            lstm = (self.lstm.input_map.weight, self.lstm.input_map.bias, self.lstm.recurrent_map.weight)
            return self.rnn_cell._call_mixed(x, h, c, elapsed, lstm)
        return (*self.rnn_cell._call(x, h, elapsed), None)

    def get_config(self) -> dict[str, Any]:
        """Plain values from which :meth:`from_config` makes a network of the same kind, with new parameters."""
        return {
            "input_size": self.input_size,
            "units": wirings.config_of(self._wiring),
            "return_sequences": self.return_sequences,
            "batch_first": self.batch_first,
            "mixed_memory": self.use_mixed,
            **self.rnn_cell._arguments,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> LTC:
        """The network of a :meth:`get_config`."""
        return cls(**{**config, "units": wirings.from_config(config["units"])})
