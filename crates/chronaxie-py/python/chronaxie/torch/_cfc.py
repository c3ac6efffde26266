"""CfC, CfCCell and WiredCfCCell, under the names, arguments and state_dict keys of ncps."""

from __future__ import annotations

from contextlib import contextmanager
from threading import get_ident
from typing import Any, Iterator, Mapping, NamedTuple, Sequence

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling

from .._errors import ConfigError, ShapeError
from . import _checks, _eager, _functional, _op, wirings
from ._options import PRECISIONS
from ._sequence import LSTMCell, SequenceModule, cell_times

_GATED = ("ff1", "ff2", "time_a", "time_b")
_HEADS = {"default": _GATED, "pure": ("ff1",), "no_gate": _GATED}


class LeCun(nn.Module):
    """``1.7159 tanh(0.666 x)``."""

    def forward(self, x: Tensor) -> Tensor:
        return 1.7159 * torch.tanh(0.666 * x)


_ACTIVATIONS = {"lecun_tanh": LeCun, "tanh": nn.Tanh, "relu": nn.ReLU, "gelu": nn.GELU, "silu": nn.SiLU}


class Options(NamedTuple):
    """What of a layer does not change from call to call; ``text`` is how the registry spells it."""

    text: str
    cells: tuple[int, ...]
    mode: str
    layers: int
    activation: str
    masked: bool
    mixed: bool
    # The linear maps of a cell.
    heads: tuple[str, ...]


def _options(
    inputs: int, cells: tuple[int, ...], mode: str, layers: int, units: int, activation: str, masked: bool, mixed: bool,
    precision: str,
) -> Options:  # fmt: skip
    text = (
        f"_D{inputs}_H{sum(cells)},mode={mode},layers={layers},units={units},activation={activation},"
        f"cells={'+'.join(map(str, cells))},masked={str(masked).lower()},mixed={str(mixed).lower()},precision={precision}"
    )
    return Options(text, cells, mode, layers, activation, masked, mixed, _HEADS[mode])


# Who sees every map of a call, by thread, instead of the native path: see chronaxie.optim.
_TAPES: dict[int, Any] = {}


@contextmanager
def taped(tape: Any) -> Iterator[None]:
    """Calls of this thread go by PyTorch's operations, with every map shown to ``tape``, in the form of :class:`_eager.Plain`."""
    _TAPES[get_ident()] = tape
    try:
        yield
    finally:
        del _TAPES[get_ident()]


def _run(
    opts: Options, parameters: list[Tensor], x: Tensor, h: Any, c: Any, elapsed: Any, force_eager: bool = False
) -> tuple[Tensor, ...]:
    if not is_compiling() and _TAPES and get_ident() in _TAPES:
        return _eager.cfc((x, h, c, elapsed, *parameters), opts, by=_TAPES[get_ident()])
    layer = None if is_compiling() else _op.plain_layer("cfc", opts.text)
    tensors = (x, h, c, elapsed, *parameters)
    states = 3 if opts.mixed else 2
    # Every mask is among the parameters: there are no lists, and no key.
    eager = lambda tensors: _eager.cfc(tensors, opts)  # noqa: E731
    return _functional.dispatch("cfc", opts.text, states, layer, tensors, None, 0, eager, force_eager)


def cfc(
    x: Tensor,
    cells: Sequence[Mapping[str, Any]],
    *,
    lstm: tuple[Tensor, Tensor, Tensor] | None = None,
    h0: Tensor | None = None,
    c0: Tensor | None = None,
    elapsed: Tensor | None = None,
    mode: str = "default",
    activation: str = "lecun_tanh",
    precision: str = "exact",
) -> tuple[Tensor, ...]:
    """Closed-form continuous-time cells over a batch of sequences, each of which reads what the one before it gives.

    Axes: B batch, T time, D inputs, H neurons of all cells, M of the last, n of one. Weights are ``[outputs, inputs]``.

    Args:
        x: ``[B, T, D]``, any strides.
        cells: for each cell ``ff1`` and, but with mode pure, ``ff2``, ``time_a`` and ``time_b``, each a pair of weight and
            bias; ``backbone``, a list of such pairs, the same for every cell; with mode pure ``w_tau`` and ``A`` ``[n]``; and
            ``mask`` in the shape of ff1's weight, which multiplies those of ff1 and ff2, in every cell or in none.
        lstm: weight ``[4 H, D]``, bias ``[4 H]`` and recurrent weight ``[4 H, H]`` of an LSTM cell ahead of each step.
        h0, c0: initial states ``[B, H]``, else 0; c0 is the LSTM's.
        elapsed: times ``[B, T]``, else 1.
        mode: ``default``, ``pure`` or ``no_gate``.
        activation: of the backbone: ``lecun_tanh``, ``tanh``, ``relu``, ``gelu`` or ``silu``.
        precision: ``exact`` or ``fast``.

    Returns:
        ``(out, final_state)``, ``[B, T, M]`` and ``[B, H]``, and the LSTM's final state with one. Gradients flow through all.

    Raises:
        ShapeError, DtypeError, DeviceError, ConfigError: a sentence with the values.
    """
    _check_names(mode, activation, precision)
    if not cells:
        raise ConfigError("cfc: there is no cell")
    heads = _HEADS[mode]
    masked, layers = "mask" in cells[0], len(cells[0].get("backbone", ()))
    parameters: list[Tensor] = []
    for at, cell in enumerate(cells):
        names = {*heads, *(("w_tau", "A") if mode == "pure" else ()), *(("mask",) if masked else ())}
        if names - cell.keys() or cell.keys() - names - {"backbone"} or len(cell.get("backbone", ())) != layers:
            raise ConfigError(
                f"cfc: cell {at} holds {', '.join(sorted(cell))}; {', '.join(sorted(names))} and {layers} backbone layers are "
                "needed"
            )
        for pair in (*cell.get("backbone", ()), *(cell[head] for head in heads)):
            parameters += pair
        parameters += [cell[name] for name in ("w_tau", "A", "mask") if name in cell]
    sizes = tuple(cell["ff1"][0].shape[0] for cell in cells)
    units = cells[0]["backbone"][0][0].shape[0] if layers else 0
    opts = _options(x.shape[-1], sizes, mode, layers, units, activation, masked, lstm is not None, precision)
    if lstm is not None:
        parameters += lstm
        if (h0 is None) != (c0 is None):
            raise ConfigError("cfc: with an LSTM, h0 and c0 are given together or not at all")
    elif c0 is not None:
        raise ConfigError("cfc: c0 is given without an LSTM")
    return _run(opts, parameters, x, h0, c0, elapsed)


def _check_names(mode: str, activation: str, precision: str) -> None:
    if precision not in PRECISIONS:
        raise ConfigError(f"cfc: precision `{precision}` is not one of {', '.join(PRECISIONS)}")
    if mode not in _HEADS:
        raise ConfigError(f"cfc: mode `{mode}` is not one of {', '.join(_HEADS)}")
    if activation not in _ACTIVATIONS:
        raise ConfigError(f"cfc: activation `{activation}` is not one of {', '.join(_ACTIVATIONS)}")


class CfCCell(nn.Module):
    """One step of a closed-form continuous-time network; drop-in for ``ncps.torch.CfCCell``.

    Args:
        input_size, hidden_size: D, H.
        mode: ``default``, ``pure`` (the solution of the differential equation itself) or ``no_gate``.
        backbone_activation: ``lecun_tanh``, ``tanh``, ``relu``, ``gelu`` or ``silu``.
        backbone_units, backbone_layers: of the layers between the inputs and the heads; with 0 layers there are none.
        backbone_dropout: behind each backbone layer but the first. Where it is not 0, a training step takes the eager
            path.
        sparsity_mask: ``[head inputs, H]`` as a NumPy array or a tensor, whose absolute values multiply ff1 and ff2.
        precision: ``exact`` or ``fast``.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        mode: str = "default",
        backbone_activation: str = "lecun_tanh",
        backbone_units: int = 128,
        backbone_layers: int = 1,
        backbone_dropout: float = 0.0,
        sparsity_mask: Any = None,
        *,
        precision: str = "exact",
    ) -> None:
        super().__init__()
        _check_names(mode, backbone_activation, precision)
        _checks.sizes("CfCCell", input_size=input_size, hidden_size=hidden_size)
        _checks.sizes("CfCCell", 0, backbone_layers=backbone_layers)
        if backbone_layers > 0:
            _checks.sizes("CfCCell", backbone_units=backbone_units)
        _checks.probabilities("CfCCell", backbone_dropout=backbone_dropout)
        self.input_size, self.hidden_size, self.mode = input_size, hidden_size, mode
        self.backbone_layers, self.backbone_dropout, self.precision = backbone_layers, backbone_dropout, precision
        if sparsity_mask is None:
            self.sparsity_mask = None
        else:
            mask = torch.as_tensor(sparsity_mask).to(torch.float32).t().abs().contiguous()
            self.sparsity_mask = nn.Parameter(mask, requires_grad=False)
        self.backbone = None
        if backbone_layers > 0:
            layers: list[nn.Module] = []
            for i in range(backbone_layers):
                layers.append(nn.Linear(backbone_units if i else input_size + hidden_size, backbone_units))
                layers.append(_ACTIVATIONS[backbone_activation]())
                if i and backbone_dropout > 0.0:
                    layers.append(nn.Dropout(backbone_dropout))
            self.backbone = nn.Sequential(*layers)
        reads = backbone_units if backbone_layers > 0 else input_size + hidden_size
        if self.sparsity_mask is not None and tuple(self.sparsity_mask.shape) != (hidden_size, reads):
            shape = tuple(self.sparsity_mask.shape[::-1])
            raise ShapeError(f"CfCCell: sparsity_mask.shape = {shape} does not match [head inputs, H] = {(reads, hidden_size)}")
        self.ff1 = nn.Linear(reads, hidden_size)
        if mode == "pure":
            self.w_tau = nn.Parameter(torch.zeros(1, hidden_size))
            self.A = nn.Parameter(torch.ones(1, hidden_size))
        else:
            self.ff2, self.time_a, self.time_b = (nn.Linear(reads, hidden_size) for _ in range(3))
        self._options = _options(
            input_size, (hidden_size,), mode, backbone_layers, backbone_units if backbone_layers else 0, backbone_activation,
            sparsity_mask is not None, False, precision,
        )  # fmt: skip
        self.init_weights()

    def init_weights(self) -> None:
        """Draws every trained matrix as ncps does."""
        for w in self.parameters():
            if w.dim() == 2 and w.requires_grad:
                nn.init.xavier_uniform_(w)

    def _parameters_in_order(self) -> list[Tensor]:
        found: list[Tensor] = []
        # Plain loops: PyTorch 2.4 traces no generators.
        if self.backbone is not None:
            for m in self.backbone:
                if isinstance(m, nn.Linear):
                    found += [m.weight, m.bias]
        for head in self._options.heads:
            m = getattr(self, head)
            found += [m.weight, m.bias]
        if self.mode == "pure":
            found += [self.w_tau.view(-1), self.A.view(-1)]
        if self.sparsity_mask is not None:
            found.append(self.sparsity_mask)
        return found

    def _drops(self) -> bool:
        """Whether dropout takes part, of which only PyTorch's operations know."""
        return self.training and self.backbone_dropout > 0.0 and self.backbone_layers > 1

    def forward(self, input: Tensor, hx: Tensor, ts: float | Tensor = 1.0) -> tuple[Tensor, Tensor]:
        """One step from ``input`` ``[B, D]`` and the state ``hx`` ``[B, H]``; ``ts`` is the elapsed time, a number or a
        tensor of one element, ``[B]`` or ``[B, 1]``. Returns the next state twice, as output and as state."""
        if input.dim() != 2:
            raise ShapeError(f"CfCCell: input.shape = {tuple(input.shape)} does not match [B, D]")
        weight = self.ff1.weight
        elapsed = cell_times("CfCCell: ts", ts, input, weight)
        parameters = self._parameters_in_order()
        if self._drops():
            out, state = _eager.cfc((input.unsqueeze(1), hx, None, elapsed, *parameters), self._options, self.backbone_dropout)
        else:
            out, state = _run(self._options, parameters, input.unsqueeze(1), hx, None, elapsed)
        return out.squeeze(1), state


class WiredCfCCell(nn.Module):
    """One step of the cells that a wiring makes, an NCP's inter, command and motor neurons; drop-in for
    ``ncps.torch.WiredCfCCell``. Synapses among the neurons of one layer play no part, as in ncps.

    Args:
        input_size: D, or None where the wiring is built.
        wiring: of :mod:`chronaxie.torch.wirings`, or anything with the methods of ncps's.
        mode, precision: as for :class:`CfCCell`.
    """

    def __init__(self, input_size: int | None, wiring: Any, mode: str = "default", *, precision: str = "exact") -> None:
        super().__init__()
        self._wiring = wiring = wirings.built(wiring, input_size, "WiredCfCCell", "input_size")
        recurrent, sensory = wirings.matrices(wiring)
        features, before = wiring.input_dim, None
        for l in range(wiring.num_layers):
            neurons = list(wiring.get_neurons_of_layer(l))
            onto = sensory[:, neurons] if before is None else recurrent[before][:, neurons]
            mask = torch.cat([onto, torch.ones(len(neurons), len(neurons), device=onto.device)])
            cell = CfCCell(features, len(neurons), mode, "lecun_tanh", 0, 0, 0.0, mask, precision=precision)
            self.register_module(f"layer_{l}", cell)
            features, before = len(neurons), neurons
        self.mode = mode
        self._options = _options(
            wiring.input_dim, tuple(self.layer_sizes), mode, 0, 0, "lecun_tanh", True, False, precision
        )

    @property
    def state_size(self) -> int:
        """H."""
        return self._wiring.units

    @property
    def layer_sizes(self) -> list[int]:
        """The neurons of each layer."""
        return [len(self._wiring.get_neurons_of_layer(l)) for l in range(self.num_layers)]

    @property
    def num_layers(self) -> int:
        """The layers of the wiring."""
        return self._wiring.num_layers

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
        return int((wirings.matrices(self._wiring)[0] != 0).sum())

    @property
    def sensory_synapse_count(self) -> int:
        """Synapses from inputs."""
        return int((wirings.matrices(self._wiring)[1] != 0).sum())

    def _parameters_in_order(self) -> list[Tensor]:
        found: list[Tensor] = []
        for l in range(len(self._options.cells)):
            found += getattr(self, f"layer_{l}")._parameters_in_order()
        return found

    def _drops(self) -> bool:
        return False

    def forward(self, input: Tensor, hx: Tensor, timespans: float | Tensor = 1.0) -> tuple[Tensor, Tensor]:
        """As :meth:`CfCCell.forward`; returns the motor neurons ``[B, M]`` and the next state ``[B, H]``."""
        if input.dim() != 2:
            raise ShapeError(f"WiredCfCCell: input.shape = {tuple(input.shape)} does not match [B, D]")
        parameters = self._parameters_in_order()
        elapsed = cell_times("WiredCfCCell: timespans", timespans, input, parameters[0])
        out, state = _run(self._options, parameters, input.unsqueeze(1), hx, None, elapsed)
        return out.squeeze(1), state


class CfC(SequenceModule):
    """A closed-form continuous-time network over sequences; drop-in for ``ncps.torch.CfC``.

    Args:
        input_size: D.
        units: H, or a wiring of :mod:`chronaxie.torch.wirings` or ncps.
        proj_size: size of a linear map of the outputs, where one is wanted.
        return_sequences: every output, or the last one only.
        batch_first: ``[B, T, D]``, or ``[T, B, D]``.
        mixed_memory: an LSTM cell updates ``(h, c)`` before each step.
        mode: as for :class:`CfCCell`.
        activation, backbone_units, backbone_layers, backbone_dropout: of the backbone, which a wiring has not.
        precision: ``exact`` or ``fast``.
    """

    def __init__(
        self,
        input_size: int,
        units: Any,
        proj_size: int | None = None,
        return_sequences: bool = True,
        batch_first: bool = True,
        mixed_memory: bool = False,
        mode: str = "default",
        activation: str = "lecun_tanh",
        backbone_units: int | None = None,
        backbone_layers: int | None = None,
        backbone_dropout: float | None = None,
        *,
        precision: str = "exact",
    ) -> None:
        super().__init__()
        _checks.sizes("CfC", input_size=input_size)
        if proj_size is not None:
            _checks.sizes("CfC", proj_size=proj_size)
        if _checks.whole(units) is None and not hasattr(units, "build"):
            raise ConfigError(f"CfC: units = {units!r} is neither a whole number nor a wiring")
        self.input_size, self.wiring_or_units, self.proj_size = input_size, units, proj_size
        self.return_sequences, self.batch_first, self.use_mixed = return_sequences, batch_first, mixed_memory
        self._arguments = {
            "mode": mode, "activation": activation, "backbone_units": backbone_units, "backbone_layers": backbone_layers,
            "backbone_dropout": backbone_dropout, "precision": precision,
        }  # fmt: skip
        self.wired_mode = _checks.whole(units) is None
        if self.wired_mode:
            given = {n: v for n, v in self._arguments.items() if n.startswith("backbone") and v is not None}
            if given:
                raise ConfigError(f"CfC: {', '.join(given)} cannot be used with a wiring, which has no backbone")
            self.rnn_cell: Any = WiredCfCCell(input_size, units, mode, precision=precision)
            self.wiring = self.rnn_cell._wiring
            self.state_size, self.output_size = self.wiring.units, self.wiring.output_dim
        else:
            layers = 1 if backbone_layers is None else backbone_layers
            width = 128 if backbone_units is None else backbone_units
            dropout = 0.0 if backbone_dropout is None else backbone_dropout
            _checks.sizes("CfC", units=units)
            self.rnn_cell = CfCCell(input_size, units, mode, activation, width, layers, dropout, precision=precision)
            self.state_size = self.output_size = units
        if mixed_memory:
            self.lstm = LSTMCell(input_size, self.state_size)
            # The same options but for the LSTM.
            text = self.rnn_cell._options.text.replace("mixed=false", "mixed=true")
            self._options = self.rnn_cell._options._replace(text=text, mixed=True)
        else:
            self._options = self.rnn_cell._options
        # All neurons of the last cell, which of a wiring of one layer are more than its motor neurons.
        self.fc = nn.Identity() if proj_size is None else nn.Linear(self._options.cells[-1], proj_size)

    def _weight(self) -> Tensor:
        return next(iter(self.rnn_cell.parameters()))

    def _run(
        self, x: Tensor, h: Tensor | None, c: Tensor | None, elapsed: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        parameters = self.rnn_cell._parameters_in_order()
        if self.use_mixed:
            parameters += [self.lstm.input_map.weight, self.lstm.input_map.bias, self.lstm.recurrent_map.weight]
        if self.rnn_cell._drops():
            dropout = self.rnn_cell.backbone_dropout
            out, *states = _eager.cfc((x, h, c, elapsed, *parameters), self._options, dropout)
        else:
            out, *states = _run(self._options, parameters, x, h, c, elapsed)
        return self.fc(out), states[0], states[1] if self.use_mixed else None

    def get_config(self) -> dict[str, Any]:
        """Plain values from which :meth:`from_config` makes a network of the same kind, with new parameters."""
        return {
            "input_size": self.input_size,
            "units": wirings.config_of(self.wiring) if self.wired_mode else self.state_size,
            "proj_size": self.proj_size,
            "return_sequences": self.return_sequences,
            "batch_first": self.batch_first,
            "mixed_memory": self.use_mixed,
            **self._arguments,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> CfC:
        """The network of a :meth:`get_config`."""
        units = config["units"]
        return cls(**{**config, "units": units if isinstance(units, int) else wirings.from_config(units)})
