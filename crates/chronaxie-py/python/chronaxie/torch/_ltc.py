"""LTC and LTCCell, under the names, arguments and state_dict keys of ncps."""

from __future__ import annotations

from operator import itemgetter
from typing import Any

import torch
from torch import Tensor, nn

from .._errors import ConfigError, ShapeError
from . import _call
from . import wirings as _wirings
from ._module import MaskedModule, uniform
from .wirings import Wiring


def _matrices(wiring: Any) -> tuple[Tensor, Tensor]:
    """Polarities of a wiring of ours, or of anything with ncps's methods."""
    if isinstance(wiring, Wiring):
        return wiring.adjacency.float(), wiring.sensory_adjacency.float()  # type: ignore[union-attr]
    both = wiring.erev_initializer(), wiring.sensory_erev_initializer()
    return tuple(torch.as_tensor(m).to(torch.float32) for m in both)  # type: ignore[return-value]


def _built(wiring: Any, inputs: int | None) -> Any:
    """The wiring, built; a drawn one that was built for other inputs is drawn anew for these."""
    if inputs is not None:
        if isinstance(wiring, _wirings._Drawn) and wiring.is_built() and wiring.input_dim != inputs:
            wiring = type(wiring)(**wiring.get_config())
        wiring.build(inputs)
    if not wiring.is_built():
        raise ConfigError("LTCCell: the number of inputs is not known: give in_features, or call wiring.build(inputs)")
    if wiring.output_dim is None:
        raise ConfigError("LTCCell: the wiring has no output_dim: call wiring.set_output_dim(outputs)")
    return wiring


def _wiring_config(wiring: Any) -> dict[str, Any]:
    kind = type(wiring).__name__
    if isinstance(wiring, _wirings._Drawn) and kind in _wirings.__all__:
        return {"type": kind, **wiring.get_config()}
    return {"type": "Wiring", **Wiring.get_config(_plain(wiring))}


def _plain(wiring: Any) -> Wiring:
    if isinstance(wiring, Wiring):
        return wiring
    plain = Wiring(wiring.units)
    plain.set_input_dim(wiring.input_dim)
    plain.set_output_dim(wiring.output_dim)
    plain.adjacency, plain.sensory_adjacency = (m.to(torch.int32) for m in _matrices(wiring))
    return plain


def _wiring_from(config: dict[str, Any]) -> Wiring:
    config = dict(config)
    kind = config.pop("type")
    if kind not in _wirings.__all__:
        raise ConfigError(f"wiring: type `{kind}` is not one of {', '.join(_wirings.__all__)}")
    return getattr(_wirings, kind).from_config(config)


def _times(t: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """Elapsed times on x's device; never in half precision, whatever x and the parameters are."""
    return t.to(x.device, torch.float64 if weight.dtype is torch.float64 else torch.float32)


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
        self._wiring = wiring = _built(wiring, in_features)
        self._implicit_param_constraints = implicit_param_constraints
        self._arguments = {
            "input_mapping": input_mapping,
            "output_mapping": output_mapping,
            "ode_unfolds": ode_unfolds,
            "epsilon": epsilon,
            "implicit_param_constraints": implicit_param_constraints,
            "precision": precision,
        }
        self._options = _call.options(
            wiring.output_dim,
            unfolds=ode_unfolds,
            epsilon=epsilon,
            input_mapping=input_mapping,
            output_mapping=output_mapping,
            implicit_param_constraints=implicit_param_constraints,
            precision=precision,
        )
        self._names = self._options.names
        self._pick = itemgetter(*self._names)
        units, inputs = wiring.units, wiring.input_dim
        erev, sensory_erev = _matrices(wiring)
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
        batch = inputs.shape[0]
        elapsed = None
        if isinstance(elapsed_time, Tensor):
            if elapsed_time.numel() not in (1, batch):
                raise ShapeError(
                    f"LTCCell: elapsed_time.shape = {tuple(elapsed_time.shape)} is neither one element nor [B] = ({batch},)"
                )
            elapsed = _times(elapsed_time, inputs, self.w).reshape(-1, 1).expand(batch, 1)
        elif elapsed_time != 1.0:
            elapsed = _times(torch.tensor(elapsed_time, dtype=torch.float64), inputs, self.w).expand(batch, 1)
        out, state = self._call(inputs.unsqueeze(1), states, elapsed)
        return out.squeeze(1), state

    def get_config(self) -> dict[str, Any]:
        """Plain values from which :meth:`from_config` makes a cell of the same kind, with new parameters."""
        return {"wiring": _wiring_config(self._wiring), "in_features": self.sensory_size, **self._arguments}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> LTCCell:
        """The cell of a :meth:`get_config`."""
        return cls(**{**config, "wiring": _wiring_from(config["wiring"])})

    def extra_repr(self) -> str:
        return f"{self._wiring!r}, inputs={self.sensory_size}, outputs={self.motor_size}"


class LSTMCell(nn.Module):
    """The memory of ``mixed_memory``: an LSTM cell with forget bias 1, in PyTorch operations."""

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        self.input_map = nn.Linear(input_size, 4 * hidden_size)
        self.recurrent_map = nn.Linear(hidden_size, 4 * hidden_size, bias=False)
        nn.init.xavier_uniform_(self.input_map.weight)
        nn.init.uniform_(self.input_map.bias, -0.1, 0.1)
        nn.init.orthogonal_(self.recurrent_map.weight)

    def forward(self, mapped: Tensor, states: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """The next ``(h, c)`` from ``input_map`` of the inputs ``[B, 4 H]``."""
        h, c = states
        new, take, keep, show = (mapped + self.recurrent_map(h)).chunk(4, -1)
        c = c * torch.sigmoid(keep + 1.0) + torch.tanh(new) * torch.sigmoid(take)
        return torch.tanh(c) * torch.sigmoid(show), c


class LTC(nn.Module):
    """A liquid time-constant network over sequences; drop-in for ``ncps.torch.LTC``.

    Args:
        input_size: D.
        units: H, fully connected, or a wiring of :mod:`chronaxie.torch.wirings` or ncps.
        return_sequences: every output, or the last one only.
        batch_first: ``[B, T, D]``, or ``[T, B, D]``.
        mixed_memory: an LSTM cell updates ``(h, c)`` before each step. For now the steps then follow each other in
            Python, the cell as PyTorch operations and each LTC step as one native call.
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
        wiring = _wirings.FullyConnected(units) if isinstance(units, int) else units
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

    def forward(self, input: Tensor, hx: Any = None, timespans: Tensor | None = None) -> tuple[Tensor, Any]:
        """Runs over a sequence.

        Args:
            input: ``[B, T, D]``, or ``[T, B, D]`` without batch_first, or ``[T, D]`` without a batch.
            hx: the state ``[B, H]`` (``[H]`` without a batch), with mixed_memory a pair of them; else 0.
            timespans: positive elapsed times before each step, ``[B, T]`` (``[T, B]`` without batch_first, ``[T]``
                without a batch), with or without a last axis of 1; else 1.

        Returns:
            ``(output, hx)``: ``[B, T, M]`` in the layout of the input, or ``[B, M]`` without return_sequences; and the
            state in the form of ``hx``.
        """
        batched = input.dim() == 3
        if input.dim() not in (2, 3) or input.shape[-1] != self.input_size:
            raise ShapeError(
                f"LTC: input.shape = {tuple(input.shape)} does not match {'[B, T, D]' if self.batch_first else '[T, B, D]'}"
                f" or [T, D] with D = {self.input_size}"
            )
        x = input if batched else input.unsqueeze(0)
        elapsed = timespans
        if elapsed is not None and elapsed.dim() == input.dim() and elapsed.shape[-1] == 1:
            elapsed = elapsed.squeeze(-1)
        if batched and not self.batch_first:
            x = x.transpose(0, 1)
            elapsed = elapsed if elapsed is None else elapsed.transpose(0, 1)
        elif elapsed is not None and not batched:
            elapsed = elapsed.unsqueeze(0)
        if elapsed is not None and elapsed.shape != x.shape[:2]:
            raise ShapeError(
                f"LTC: timespans.shape = {tuple(timespans.shape)} does not fit input.shape = {tuple(input.shape)}"  # type: ignore[union-attr]
            )
        if elapsed is not None:
            elapsed = _times(elapsed, x, self.rnn_cell.w)
        h, c = self._initial(hx, x.shape[0], batched)
        if self.use_mixed:
            out, h, c = self._mixed(x, h, c, elapsed)
        else:
            out, h = self.rnn_cell._call(x, h, elapsed)
        if not self.return_sequences:
            if x.shape[1] == 0:
                raise ShapeError("LTC: a sequence of no steps has no last output")
            out = out[:, -1]
        elif batched and not self.batch_first:
            out = out.transpose(0, 1)
        if not batched:
            out, h, c = (t if t is None else t.squeeze(0) for t in (out, h, c))
        return out, ((h, c) if self.use_mixed else h)

    def _initial(self, hx: Any, batch: int, batched: bool) -> tuple[Tensor | None, Tensor | None]:
        if hx is None:
            return None, None
        if self.use_mixed and (isinstance(hx, Tensor) or len(hx) != 2):
            raise ConfigError("LTC: with mixed_memory hx is a pair (h, c)")
        pair = hx if self.use_mixed else (hx, None)
        want = (batch, self.state_size) if batched else (self.state_size,)
        for name, t in zip(("h", "c"), pair):
            if t is not None and tuple(t.shape) != want:
                axes = "[B, H]" if batched else "[H]"
                raise ShapeError(f"LTC: {name} of hx has the shape {tuple(t.shape)}, which does not match {axes} = {want}")
        return tuple(t if t is None or batched else t.unsqueeze(0) for t in pair)  # type: ignore[return-value]

    def _mixed(
        self, x: Tensor, h: Tensor | None, c: Tensor | None, elapsed: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        if h is None or c is None:
            h = c = x.new_zeros(x.shape[0], self.state_size, dtype=self.rnn_cell.w.dtype)
        mapped = self.lstm.input_map(x)
        outputs = []
        for t in range(x.shape[1]):
            h, c = self.lstm(mapped[:, t], (h, c))
            step = None if elapsed is None else elapsed[:, t : t + 1]
            out, h = self.rnn_cell._call(x[:, t : t + 1], h, step)
            outputs.append(out)
        out = torch.cat(outputs, 1) if outputs else x.new_zeros(x.shape[0], 0, self.motor_size)
        return out, h, c

    def get_config(self) -> dict[str, Any]:
        """Plain values from which :meth:`from_config` makes a network of the same kind, with new parameters."""
        return {
            "input_size": self.input_size,
            "units": _wiring_config(self._wiring),
            "return_sequences": self.return_sequences,
            "batch_first": self.batch_first,
            "mixed_memory": self.use_mixed,
            **self.rnn_cell._arguments,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> LTC:
        """The network of a :meth:`get_config`."""
        return cls(**{**config, "units": _wiring_from(config["units"])})
