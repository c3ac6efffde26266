"""What optimizers share whose groups can take the library's native step (``fused=True``)."""

from __future__ import annotations

from typing import Any, Sequence

import torch
from torch import Tensor

from .._errors import ConfigError, DtypeError
from ._base import Base
from ._flat import Flat
from ._owners import Ranks


class Fused(Base):
    """Whether a group takes native steps is its option ``fused``; state lies in the vectors of :class:`Flat` then."""

    # The native step's name, and what of a group it steps.
    _entry: str
    _steps = "parameters"
    # What processes have a share of each, and the name in the state of what is made of factors, where there are factors.
    _shares = "blocks"
    _made: Any = None
    _ranks: Ranks

    def _fusible(self, group: dict[str, Any]) -> list[Tensor]:
        """The parameters of a group that its native step is of."""
        return group["params"]  # type: ignore[no-any-return]

    def _case(self, group: dict[str, Any], given: list[tuple[int, Tensor, Tensor]], done: int) -> str:
        """The case of the native step behind ``done`` others."""
        raise NotImplementedError

    def _named(self, group: dict[str, Any], given: list[tuple[int, Tensor, Tensor]]) -> dict[str, tuple[str, list[Any]]]:
        """By native vectors of an element for each of the parameters' own: names in the state, and shapes by parameter."""
        raise NotImplementedError

    def _grids(self, group: dict[str, Any], given: list[tuple[int, Tensor, Tensor]]) -> list[Any]:
        """For each parameter the blocks whose factors and what is made of them are its state; None where it has neither."""
        return [None] * len(given)

    def _check_fused(self, group: dict[str, Any]) -> None:
        """Refuses the options of a group that no native step knows."""
        # A state that was saved before there was one has none.
        if group.setdefault("fused", False) and (group["capturable"] or self._ranks.count > 1):
            other = "capturable=True" if group["capturable"] else f"{self._shares} spread over {self._ranks.count} processes"
            raise ConfigError(f"{type(self).__name__}: fused=True and {other} exclude each other")

    def _accepts(self, group: dict[str, Any], given: list[tuple[int, Tensor, Tensor]]) -> None:
        super()._accepts(group, given)
        if not group.get("fused"):
            return
        self._check_fused(group)
        name, whole, known = type(self).__name__, self._fusible(group), {p for _, p, _ in given}
        # Where none of them is trained, there is no step.
        whole = [] if known.isdisjoint(whole) else whole
        for p in whole:
            if p not in known:
                raise ConfigError(
                    f"{name}: fused=True takes one step of all {self._steps} of a group, and one of shape {tuple(p.shape)} has no "
                    "gradient; put those that are trained now and then in a group of their own"
                )
            if p.dtype is not torch.float32:
                raise DtypeError(f"{name}: fused=True is for {self._steps} of float32, and one of shape {tuple(p.shape)} holds {p.dtype}")
        steps = {int(self.state.get(p, {}).get("step", 0)) for p in whole}
        if len(steps) > 1:
            raise ConfigError(f"{name}: fused=True is for {self._steps} that have taken as many steps, not {min(steps)} to {max(steps)}")

    def _places(self) -> dict[Tensor, Tensor]:
        flats = self.__dict__.get("_flats", {})
        found: dict[Tensor, Tensor] = {}
        for group in self.param_groups:
            flat = flats.get(id(group)) if group.get("fused") and not group["adamw"] else None
            if flat is not None and flat.holds([self.state.get(p, {}) for p in self._fusible(group)]):
                found.update(zip(self._fusible(group), flat.grads))
        return found

    def _fused(self, group: dict[str, Any], given: list[tuple[int, Tensor, Tensor]]) -> None:
        """The native step of these parameters of a group."""
        if not given:
            return
        states: Sequence[dict[str, Any]] = [self.state[p] for _, p, _ in given]
        done = int(states[0].get("step", 0))
        case = self._case(group, given, done)
        flats = self.__dict__.setdefault("_flats", {})
        flat = flats.get(id(group))
        if flat is None or not flat.holds(states):
            named, grids = self._named(group, given), self._grids(group, given)
            flat = flats[id(group)] = Flat(self._entry, case, [p for _, p, _ in given], named, self._made, grids, states)
        self._shrink(group)
        flat.step(case, given, group["lr"], group.get("most_lr", 0.0), done)
        for state in states:
            if "step" in state:
                state["step"] += 1

    def load_state_dict(self, state_dict: Any) -> None:
        self.__dict__.pop("_flats", None)
        super().load_state_dict(state_dict)

    load_state_dict.__doc__ = Base.load_state_dict.__doc__
