"""TrueLiquidTimeConstant, under the name, arguments and state_dict keys of ltc-cuda."""

from __future__ import annotations

from operator import itemgetter
from typing import Any, Sequence

import torch
from torch import Tensor, nn

from .._errors import ConfigError
from . import _checks, _options, wirings
from ._module import MaskedModule


_PICK_NORM = itemgetter("weight", "bias")


class TrueLiquidTimeConstant(MaskedModule):
    """A liquid time-constant network with a LayerNorm on its inputs; drop-in for ltc-cuda's.

    float16 and bfloat16 inputs, and any under autocast, are taken as they are stored, as in :class:`LTC`.

    Args:
        input_dim: D.
        hidden_dim: H; all neurons are outputs.
        dt: seconds a time step.
        ode_unfolds: semi-implicit Euler steps a time step; less than 1 counts as 1.
        sparsity, sensory_sparsity: the *density* of synapses between neurons and from inputs, as ltc-cuda has it; 1 or
            more is all. Masks are drawn from PyTorch's random numbers; one onto each neuron at the least.
        input_mapping: which of ``input_w`` and ``input_b`` train: ``affine`` both, ``linear`` the first, ``none``
            neither; what does not train is a buffer.
        epsilon: added to each denominator.
        precision: ``exact`` or ``fast``.
    """

    def __init__(
        self,
        input_dim: int,
        hidden_dim: int = 64,
        dt: float = 1.0 / 30.0,
        ode_unfolds: int = 6,
        sparsity: float = 0.5,
        sensory_sparsity: float = 0.5,
        input_mapping: str = "affine",
        epsilon: float = 1e-8,
        *,
        precision: str = "exact",
    ) -> None:
        super().__init__()
        if input_mapping not in ("affine", "linear", "none"):
            raise ConfigError(f"ltc: input_mapping `{input_mapping}` is not one of affine, linear, none")
        _checks.sizes("ltc", input_dim=input_dim, hidden_dim=hidden_dim)
        if _checks.whole(ode_unfolds) is None:
            raise ConfigError(f"ltc: ode_unfolds = {ode_unfolds!r} is not a whole number")
        _checks.positive("ltc", dt=dt)
        _checks.positive("ltc", 0.0, epsilon=epsilon)
        self.input_dim, self.hidden_dim = int(input_dim), int(hidden_dim)
        self.dt, self.ode_unfolds, self.epsilon = float(dt), int(max(1, ode_unfolds)), epsilon
        self.sparsity, self.sensory_sparsity, self.input_mapping = sparsity, sensory_sparsity, input_mapping
        self.precision = precision
        # ltc-cuda's switch: eager PyTorch operations, for comparisons.
        self._force_torchscript = False
        self._options = _options.options(
            hidden_dim, unfolds=self.ode_unfolds, dt=self.dt, epsilon=epsilon, norm=True, precision=precision
        )
        _checks.problem("ltc", f"B1_T1_D{int(input_dim)}_H{int(hidden_dim)}{self._options.text}")
        self._names = self._options.names
        # Of the input mapping, what does not train is a buffer.
        self._fixed = self._names[{"none": 11, "linear": 12, "affine": 13}[input_mapping] : 13]
        self._pick = itemgetter(*self._names[: 13 - len(self._fixed)])
        seed = int(torch.randint(2**62, (), device="cpu"))
        wiring = wirings.Bernoulli(hidden_dim, density=sparsity, sensory_density=sensory_sparsity, seed=seed)
        wiring.build(input_dim)
        for prefix, polarity in (("", wiring.adjacency.float()), ("sensory_", wiring.sensory_adjacency.float())):  # type: ignore[union-attr]
            for name, low, high in (("w", 0.001, 1.0), ("mu", 0.3, 0.8), ("sigma", 3.0, 8.0)):
                self.register_parameter(prefix + name, nn.Parameter(torch.empty(polarity.shape).uniform_(low, high)))
            self.register_buffer(f"{prefix}sparsity_mask", polarity.abs())
            self.register_parameter(f"{prefix}erev", nn.Parameter(polarity))
        self.gleak = nn.Parameter(torch.empty(hidden_dim).uniform_(0.001, 1.0))
        self.vleak = nn.Parameter(torch.empty(hidden_dim).uniform_(-0.2, 0.2))
        self.cm = nn.Parameter(torch.empty(hidden_dim).uniform_(0.4, 0.6))
        for name, value, trains in (
            ("input_w", torch.ones(input_dim), input_mapping != "none"),
            ("input_b", torch.zeros(input_dim), input_mapping == "affine"),
        ):
            if trains:
                self.register_parameter(name, nn.Parameter(value))
            else:
                self.register_buffer(name, value)
        self.input_norm = nn.LayerNorm(input_dim)
        self.prepare()

    @property
    def W_rec(self) -> nn.Parameter:
        """The recurrent weights, before softplus and mask."""
        return self.w

    def _sources(self, compiling: bool = False) -> Sequence[Tensor]:
        if not compiling:
            try:
                norm = self._modules["input_norm"]._parameters  # type: ignore[union-attr]
                fixed = [self._buffers[n] for n in self._fixed] if self._fixed else ()
                return (*self._pick(self._parameters), *fixed, *_PICK_NORM(norm))  # type: ignore[arg-type]
            except KeyError:
                # A parametrization took a parameter's place.
                pass
        norm = self.input_norm
        return [*(getattr(self, n) for n in self._names[:-2]), norm.weight, norm.bias]

    def forward(self, x: Tensor, h0: Any = None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Runs over ``x`` ``[B, T, D]`` from the state ``h0`` (``[B, H]``, or a tuple whose first it is; else 0).

        Returns:
            ``(out, (h, h))``: ``[B, T, H]`` and the final state ``[B, H]`` twice, as an LSTM has two.
        """
        if isinstance(h0, (tuple, list)):
            h0 = h0[0]
        out, state = self._call(x, h0, None, self._force_torchscript)
        return out, (state, state)

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        names = ("input_dim", "hidden_dim", "dt", "ode_unfolds", "sparsity", "sensory_sparsity", "input_mapping")
        return {n: getattr(self, n) for n in (*names, "epsilon", "precision")}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> TrueLiquidTimeConstant:
        """A network of the same kind, with new parameters and masks."""
        return cls(**config)

    def extra_repr(self) -> str:
        return f"{self.input_dim}, {self.hidden_dim}, dt={self.dt:.4g}, ode_unfolds={self.ode_unfolds}"
