"""What the optimizers share."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from .._errors import ConfigError, DtypeError


def within(name: str, of: str, value: float, low: float, high: float, open_end: bool = False) -> None:
    """Refuses a value outside ``low .. high``."""
    v = float(value)
    if not (low <= v < high if open_end else low <= v <= high):
        raise ConfigError(f"{name}: {of} = {value} is not within {low} .. {high}")


class Base(Optimizer):
    """State stays float32 whatever the parameters are, also where it is loaded."""

    def _keeps(self, key: str) -> bool:
        return True

    def load_state_dict(self, state_dict: Any) -> None:
        """Loads what :meth:`state_dict` gave; tensors of state keep their own types."""
        super().load_state_dict(state_dict)
        # Optimizer casts floating-point state to the type of the parameter: taken again from what was given.
        groups = state_dict["param_groups"]
        ids = [i for g in groups for i in g["params"]]
        parameters = [p for g in self.param_groups for p in g["params"]]

        def placed(value: Any, device: Any) -> Any:
            if isinstance(value, Tensor):
                return value.detach().clone().to(device)
            if isinstance(value, (list, tuple)):
                return type(value)(placed(v, device) for v in value)
            return value

        for i, p in zip(ids, parameters):
            for key, value in state_dict["state"].get(i, {}).items():
                self.state[p][key] = value if key == "step" else placed(value, p.device)


def gradient(name: str, p: Tensor, maximize: bool) -> Tensor | None:
    """The gradient in float32, or None where there is none."""
    g = p.grad
    if g is None:
        return None
    if g.is_sparse:
        raise DtypeError(f"{name}: a parameter of shape {tuple(p.shape)} has a sparse gradient; make it dense")
    if g.is_complex():
        raise DtypeError(f"{name}: a parameter of shape {tuple(p.shape)} is complex; its real view is not")
    g = g.to(torch.float32)
    return -g if maximize else g
