"""What the optimizers share."""

from __future__ import annotations

import math
from contextlib import contextmanager
from typing import Any, Callable, Iterator, Optional, Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from .._errors import ConfigError, DataError, DeviceError, DtypeError
from ._stochastic import rounded

WEIGHT_DECAY = ("decoupled", "l2", "corrected", "independent")


def within(name: str, of: str, value: float, low: float, high: float, open_end: bool = False) -> None:
    """Refuses a value outside ``low .. high``."""
    v = _number(value)
    if not (low <= v < high if open_end else low <= v <= high):
        raise ConfigError(f"{name}: {of} = {value!r} is not within {low} .. {high}")


def _number(value: Any) -> float:
    """It as a float, NaN where it is none."""
    try:
        return math.nan if isinstance(value, (str, bytes)) else float(value)
    except (TypeError, ValueError):
        return math.nan


def whole_within(name: str, of: str, value: Any, low: int, high: int) -> None:
    """Refuses what is no whole number of ``low .. high``."""
    within(name, of, value, low, high)
    if value != int(value):
        raise ConfigError(f"{name}: {of} = {value} is not a whole number")


def check_axis(name: str, batch_axis: Any) -> None:
    """Refuses a place of samples that is no axis."""
    if isinstance(batch_axis, bool) or not isinstance(batch_axis, int):
        raise ConfigError(f"{name}: batch_axis = {batch_axis!r} is not a whole number")


def one_of(name: str, of: str, value: Any, choices: Sequence[str]) -> None:
    """Refuses a value that is none of ``choices``."""
    if value not in choices:
        raise ConfigError(f"{name}: {of} = {value!r} is not one of {', '.join(choices)}")


class Base(Optimizer):
    """State keeps its types whatever the parameters are, also where it is loaded: float32 beside half precision."""

    # What gradients() found, while a step is made.
    _given: list[list[tuple[int, Tensor, Tensor]]]
    # The options by which AdamW steps, of its lr, betas and eps.
    _adamw = "adamw_lr", "adamw_betas", "adamw_eps"
    # Whether state is float64 beside float64.
    _double = False
    # While a step of a scaled loss is made: whether all is to stay as it is, on the device, which nobody waits for.
    _skip: Optional[Tensor] = None

    def __init__(self, params: Any, defaults: dict[str, Any]) -> None:
        super().__init__(params, {**defaults, "adamw": False})

    def _check(self, group: dict[str, Any]) -> None:
        """Refuses the options of a group."""

    def _update(self, group: dict[str, Any], given: list[tuple[int, Tensor, Tensor]]) -> None:
        """One step of a group: position in it, parameter and gradient of every parameter that has one."""
        raise NotImplementedError

    def _accepts(self, group: dict[str, Any], given: list[tuple[int, Tensor, Tensor]]) -> None:
        """Refuses a step of a group, before any group's is taken."""

    def _places(self) -> dict[Tensor, Tensor]:
        """Tensors that gradients are to lie in where they are changed, by parameter."""
        return {}

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group, whose options are checked."""
        super().add_param_group(param_group)
        group, name = self.param_groups[-1], type(self).__name__
        _know_first(self._adamw[0], group)
        try:
            for of in ("adamw", "maximize", "capturable", "fused"):
                if not isinstance(group.get(of, False), bool):
                    raise ConfigError(f"{name}: {of} = {group[of]!r} is not True or False")
            self._check(group)
            _check_rounding(name, group)
            if group["adamw"]:
                check_pair(name, self._adamw[1], group[self._adamw[1]])
            one_device(name, self.param_groups)
        except Exception:
            self.param_groups.pop()
            raise

    @torch.no_grad()
    def step(self, closure: Optional[Callable[[], Any]] = None) -> Any:  # type: ignore[override]
        """One step; with a closure, that computes the loss anew, whose value it returns.

        Every gradient is looked at before anything is changed. On the CPU one with a NaN or an infinity, or so large that
        its sum of squares is infinite, is refused. On a GPU nothing waits for an answer: there such a gradient counts as
        zeros, for the whole of its parameter, which the device decides by itself.

        Of a ``torch.amp.GradScaler`` whose ``step`` calls it, where every group has ``capturable=True``, it takes the scale and whether
        a gradient has overflowed as they are on the device: nothing waits, and after an overflow the device leaves parameters and
        state as they are (at a parameter's first step the answer is awaited). Otherwise the scaler waits and leaves the step out.

        Raises:
            ConfigError: a closure beside such a scaler.
            DataError: a gradient that is not finite, on the CPU; no state has changed.
            DtypeError: sparse and complex gradients.
            DeviceError: parameters on several devices.
        """
        loss = None
        self._check_capture()
        scale, skip = self._scaled(closure)
        if skip is not None and not self._may_skip() and bool(skip):
            return None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._skip = skip if skip is not None and self._may_skip() else None
        try:
            self._given = gradients(type(self).__name__, self.param_groups, self._places(), scale, self._skip)
            for group, given in zip(self.param_groups, self._given):
                (self._accepts_plain if group["adamw"] else self._accepts)(group, given)
            # AdamW's last: a step by samples may run layers again with the parameters that they had.
            for group, given in sorted(zip(self.param_groups, self._given), key=lambda pair: pair[0]["adamw"]):
                (self._plain if group["adamw"] else self._update)(group, given)
        finally:
            self._given, self._skip = [], None
        return loss

    def _places_of_all(self) -> dict[Tensor, int]:
        """The place of each parameter among those of all groups."""
        known = self.__dict__.get("_numbered", {})
        if len(known) != sum(len(group["params"]) for group in self.param_groups):
            parameters = [p for group in self.param_groups for p in group["params"]]
            known = self.__dict__["_numbered"] = {p: at for at, p in enumerate(parameters)}
        return known

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """Whether torch.amp.GradScaler leaves ``grad_scale`` and ``found_inf`` here and lets the step do what they ask for; steps that are
        counted in Python it leaves out by itself, for which it waits for the device."""
        return all(group.get("capturable") for group in self.param_groups)

    def _scaled(self, closure: Any) -> tuple[Any, Any]:
        """What GradScaler left for this step: what gradients are multiplied by, and whether they overflowed; each may be None."""
        scale, found = getattr(self, "grad_scale", None), getattr(self, "found_inf", None)
        if closure is not None and (scale is not None or found is not None):
            raise ConfigError(
                f"{type(self).__name__}: a closure's gradients are not those that the GradScaler looked at; call it before the step"
            )
        device = next((p.device for group in self.param_groups for p in group["params"]), None)
        if isinstance(scale, Tensor):
            # As GradScaler.unscale_ has it.
            scale = scale.to(device).double().reciprocal().float()
        # Without gradients it has nothing to tell.
        return scale, found.to(device) != 0 if isinstance(found, Tensor) else None

    def _may_skip(self) -> bool:
        """Whether the device can leave a step out: it counts steps, and parameters have the state that it leaves as it is."""
        every = ((group, p) for group in self.param_groups for p in group["params"] if p.grad is not None and p.numel())
        return self._step_supports_amp_scaling and all(self._begun(group, p) for group, p in every)

    def _begun(self, group: dict[str, Any], p: Tensor) -> bool:
        """Whether a parameter has all the state that steps change."""
        state = self.state.get(p)
        return bool(state) and ("rounded" in state or not self._draws(group, p))  # type: ignore[operator]

    def _draws(self, group: dict[str, Any], p: Tensor) -> bool:
        """Whether a parameter is rounded at random."""
        return bool(group["stochastic_rounding"]) and p.dtype is torch.bfloat16

    @contextmanager
    def _kept(self, *tensors: Tensor) -> Iterator[None]:
        """Tensors that are changed inside, and stay as they were where the step is left out."""
        skip = self._skip
        before = [] if skip is None else [t.clone() for t in tensors]
        yield
        if skip is not None:
            for t, old in zip(tensors, before):
                torch.where(skip, old, t, out=t)

    def _counted(self, state: dict[str, Any], of: str = "step") -> Any:
        """Counts a step that is not left out, and gives how many there were."""
        state[of] += 1 if self._skip is None else self._skip.logical_not()
        return state[of]

    def _shrink(self, group: dict[str, Any]) -> Any:
        """What :func:`shrink` gives."""
        most = group.get("most_lr")
        with self._kept(*[most] if isinstance(most, Tensor) else []):
            return shrink(group)

    def _accepts_plain(self, group: dict[str, Any], given: list[tuple[int, Tensor, Tensor]]) -> None:
        """Refuses AdamW's step of parameters that have taken others."""
        for _, p, _ in given:
            state = self.state.get(p)
            if state and ("exp_avg_sq" not in state or state.get("factors") or "triangles" in state):
                raise ConfigError(
                    f"{type(self).__name__}: a parameter of shape {tuple(p.shape)} has state of other steps than AdamW's; adamw = True is "
                    "for parameters from their first step on"
                )

    def _adamw_rate(self, group: dict[str, Any]) -> Any:
        """The learning rate of AdamW's step: ``adamw_lr`` belongs to the lr that the group began with, and follows where that goes."""
        if self._adamw[0] == "lr":
            return group["lr"]
        rate, lr, first = group["adamw_lr"], group["lr"], group.get("first_lr", group["lr"])
        if isinstance(lr, Tensor) or isinstance(first, Tensor):
            # Nothing waits for a device, and a rate that began with 0 says nothing.
            lr, first = torch.as_tensor(lr), torch.as_tensor(first)
            return rate * torch.where(first == 0, torch.ones_like(lr), lr / first.to(lr))
        return rate if first == 0 or lr == first else rate * (lr / first)

    def _plain(self, group: dict[str, Any], given: Sequence[tuple[int, Tensor, Tensor]], decay: Any = None) -> None:
        """AdamW's step (Loshchilov and Hutter, "Decoupled weight decay regularization", ICLR 2019), of parameters that have no matrix, or
        of a whole group. ``decay`` is what of them shrinks, where that is known."""
        (b1, b2), eps, rate = group[self._adamw[1]], group[self._adamw[2]], self._adamw_rate(group)
        # Without a learning rate of its own the step has the group's weight decay, too.
        l2 = group["weight_decay"] if self._adamw[0] == "lr" and group["weight_decay_mode"] == "l2" else 0.0
        if decay is None:
            decay = self._shrink(group) if self._adamw[0] == "lr" else rate * group["weight_decay"]
        for _, p, g in given:
            g = g if self._double else g.to(torch.float32)
            g = g + l2 * p.to(g.dtype) if l2 else g
            state = self.state[p]
            if "exp_avg_sq" not in state:
                state["step"] = counter(group, p)
                state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(g), torch.zeros_like(g)
            step = self._counted(state)
            with self._kept(state["exp_avg"], state["exp_avg_sq"]):
                m = state["exp_avg"].lerp_(g, 1 - b1) / (1 - b1**step)
                v = state["exp_avg_sq"].mul_(b2).addcmul_(g, g, value=1 - b2) / (1 - b2**step)
            self._move(group, p, m / (v.sqrt() + eps), rate, decay)

    def _move(self, group: dict[str, Any], p: Tensor, update: Tensor, lr: Any, decay: Any) -> None:
        """``p <- p (1 - decay) - lr update`` in the update's type, rounded once, to the nearest or as draws have it."""
        w = p.to(update.dtype)
        made = w - (update.reshape(p.shape) * lr + w * decay)
        if self._draws(group, p):
            state = self.state[p]
            if "rounded" not in state:
                state["rounded"] = counter(group, p)
            made = rounded(made, group["seed"], self._places_of_all()[p], self._counted(state, "rounded"))
        p.copy_(made if self._skip is None else torch.where(self._skip, w, made))

    def _check_capture(self) -> None:
        """Refuses to be captured in a CUDA graph where that cannot be right."""
        if not (torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()):
            return
        name = type(self).__name__
        for group in self.param_groups:
            if not group.get("capturable"):
                raise ConfigError(f"{name}: a step in a CUDA graph needs capturable=True")
            for p in group["params"]:
                if p.grad is not None and p.numel() and not self._begun(group, p):
                    raise ConfigError(f"{name}: a parameter of shape {tuple(p.shape)} has no state; take a step before the graph")

    def load_state_dict(self, state_dict: Any) -> None:
        """Loads what :meth:`state_dict` gave; tensors of state keep their own types."""
        first = [group.get("first_lr") for group in self.param_groups]
        super().load_state_dict(state_dict)
        for group, rate in zip(self.param_groups, first):
            # Options that an earlier version did not know.
            for key, value in self.defaults.items():
                group.setdefault(key, value)
            if rate is not None:
                group.setdefault("first_lr", rate)
        # Optimizer casts floating-point state to the type of the parameter: taken again from what was given.
        groups = state_dict["param_groups"]
        ids = [i for g in groups for i in g["params"]]
        parameters = [p for g in self.param_groups for p in g["params"]]
        counted = {p: counter(g, p) for g in self.param_groups for p in g["params"]}
        self.__dict__.pop("_numbered", None)

        def placed(value: Any, device: Any) -> Any:
            if isinstance(value, Tensor):
                return value.detach().clone().to(device)
            if isinstance(value, (list, tuple)):
                return type(value)(placed(v, device) for v in value)
            return value

        for i, p in zip(ids, parameters):
            for key, value in state_dict["state"].get(i, {}).items():
                self.state[p][key] = counted[p] + int(value) if key in ("step", "rounded") else placed(value, p.device)


def _know_first(of: str, group: dict[str, Any]) -> None:
    """Keeps the learning rate that a group begins with, where another one follows it."""
    if of != "lr":
        lr = group["lr"]
        group.setdefault("first_lr", lr.detach().clone() if isinstance(lr, Tensor) else lr)


def counter(group: dict[str, Any], p: Tensor) -> Any:
    """No steps yet: a number, or with ``capturable`` one that the parameter's device counts."""
    return torch.zeros((), dtype=torch.float64, device=p.device) if group.get("capturable") else 0


def over_scale(scaler: Any) -> Any:
    """What a ``torch.amp.GradScaler``'s gradients are multiplied by to be those of the loss; from its device, where it lies there."""
    scale = getattr(scaler, "_scale", None)
    # Asked for by its name, it would be waited for.
    return scale.double().reciprocal().float() if isinstance(scale, Tensor) else 1.0 / scaler.get_scale()


_WIDE = (torch.float32, torch.float64)


def wide(t: Tensor) -> Tensor:
    """float64 as it is, and everything else in float32."""
    return t if t.dtype in _WIDE else t.to(torch.float32)


def one_device(name: str, groups: Sequence[dict[str, Any]]) -> None:
    """Refuses parameters on several devices."""
    devices = sorted({str(p.device) for group in groups for p in group["params"]})
    if len(devices) > 1:
        raise DeviceError(f"{name}: parameters are on {' and '.join(devices)}; make an optimizer for each device")


def gradients(
    name: str, groups: Sequence[dict[str, Any]], places: dict[Tensor, Tensor] | None = None, scale: Any = None, skip: Any = None
) -> list[list[tuple[int, Tensor, Tensor]]]:
    """For each group the position, parameter and gradient (float32, or float64 as it is) of every parameter that has one;
    checked before any of them is used. What the device may have to make zeros of lies in ``places``, where there is one. Before that they
    are multiplied by ``scale``, and zeros where the device has ``skip``."""
    one_device(name, groups)
    found: list[list[tuple[int, Tensor, Tensor]]] = []
    for group in groups:
        found.append([])
        for at, p in enumerate(group["params"]):
            g = p.grad
            if g is None:
                continue
            if g.layout is not torch.strided:
                raise DtypeError(f"{name}: a parameter of shape {tuple(p.shape)} has a sparse gradient; make it dense")
            if g.is_complex():
                raise DtypeError(f"{name}: a parameter of shape {tuple(p.shape)} is complex; its real view is not")
            g = wide(g)
            g = g if scale is None else g * scale
            found[-1].append((at, p, g if skip is None else torch.where(skip, g.new_zeros(()), g)))
    flags = iter(_finite(name, [(p, g) for given in found for _, p, g in given]))

    def used(p: Tensor, g: Tensor, climbs: bool) -> Tensor:
        flag, place = next(flags), places.get(p) if places else None
        if flag is not None and place is not None:
            torch.where(flag, g, g.new_zeros(()), out=place)
            return place.neg_() if climbs else place
        g = g if flag is None else torch.where(flag, g, 0.0)
        return -g if climbs else g

    return [[(at, p, used(p, g, bool(o.get("maximize")))) for at, p, g in given] for o, given in zip(groups, found)]


def _finite(name: str, given: Sequence[tuple[Tensor, Tensor]]) -> list[Any]:
    """For each gradient on a GPU whether it is finite, a flag that stays there; on the CPU None, or a sentence is raised."""
    flags: list[Any] = [None] * len(given)
    for dtype in sorted({g.dtype for _, g in given}, key=str):
        at = [k for k, (_, g) in enumerate(given) if g.dtype is dtype]
        # Sums of squares, because that is what factors and second moments hold; one pass over all gradients.
        norms = torch._foreach_norm([given[k][1] for k in at])
        finite = torch.stack(list(norms)).square().isfinite()
        if not finite.is_cpu:
            for k, flag in zip(at, finite.unbind()):
                flags[k] = flag
        elif not bool(finite.all()):
            p, g = given[at[int(finite.logical_not().nonzero()[0])]]
            bad = int((~g.isfinite()).sum())
            what = f"{bad} of {g.numel()} elements are NaN or infinite" if bad else "its sum of squares is infinite"
            raise DataError(f"{name}: the gradient of a parameter of shape {tuple(p.shape)} is not finite: {what}")
    return flags


def shrink(group: dict[str, Any]) -> Any:
    """By what share of itself a parameter shrinks in this step, for the modes that are no part of the gradient.

    ``decoupled``: lr d; ``corrected``: lr d lr / most; ``independent``: d lr / most, where most is the largest lr there was.
    """
    mode, lr, decay = group["weight_decay_mode"], group["lr"], group["weight_decay"]
    if not decay or mode == "l2":
        return 0.0
    if mode == "decoupled":
        return lr * decay
    most = group.get("most_lr", lr)
    if isinstance(lr, Tensor):
        # In place, so that a graph's next run finds what its last one left.
        most = most if isinstance(most, Tensor) and most is not lr else torch.as_tensor(most).to(lr, copy=True)
        most.copy_(torch.maximum(most, lr))
    else:
        most = max(float(most), lr)
    group["most_lr"] = most
    if not isinstance(most, Tensor) and most == 0:
        return 0.0
    if isinstance(most, Tensor):
        most = most.clamp_min(torch.finfo(most.dtype).tiny)
    return lr / most * decay * (lr if mode == "corrected" else 1.0)


def _check_rounding(name: str, group: dict[str, Any]) -> None:
    """Refuses draws for parameters that are not bfloat16's, nor rounded to float32 or more."""
    if not isinstance(group["stochastic_rounding"], bool):
        raise ConfigError(f"{name}: stochastic_rounding = {group['stochastic_rounding']!r} is not True or False")
    if type(group["seed"]) is not int or not 0 <= group["seed"] < 1 << 63:
        raise ConfigError(f"{name}: seed = {group['seed']!r} is not a whole number of 0 .. 2^63 - 1")
    for p in group["params"]:
        if group["stochastic_rounding"] and p.dtype is torch.float16:
            raise DtypeError(
                f"{name}: stochastic_rounding = True is for parameters of bfloat16, and one of shape {tuple(p.shape)} holds float16"
            )


def _check_rate(name: str, of: str, rate: Any) -> None:
    """Refuses a learning rate out of range; one in a tensor may lie on a GPU, which is not asked."""
    if isinstance(rate, Tensor):
        if rate.numel() != 1:
            raise ConfigError(f"{name}: {of}.shape = {tuple(rate.shape)} is not one number")
        if not rate.is_cpu:
            return
    within(name, of, rate.item() if isinstance(rate, Tensor) else rate, 0.0, float("inf"), True)


def check_pair(name: str, of: str, pair: Any, second_open: bool = True) -> None:
    """Refuses decays that are not two numbers of 0 .. 1; the first below 1, and the second unless it may sum."""
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        raise ConfigError(f"{name}: {of} = {pair!r} is not a pair of numbers")
    within(name, f"{of}[0]", pair[0], 0.0, 1.0, True)
    within(name, f"{of}[1]", pair[1], 0.0, 1.0, second_open)


def check_common(name: str, group: dict[str, Any]) -> None:
    """Refuses a learning rate or a weight decay out of range, and a mode of it that there is not."""
    _check_rate(name, "lr", group["lr"])
    within(name, "weight_decay", group["weight_decay"], 0.0, float("inf"), True)
    one_of(name, "weight_decay_mode", group["weight_decay_mode"], WEIGHT_DECAY)


def check_adamw(name: str, group: dict[str, Any]) -> None:
    """Refuses the options of the parameters that take AdamW's step."""
    _check_rate(name, "adamw_lr", group["adamw_lr"])
    check_pair(name, "adamw_betas", group["adamw_betas"])
    within(name, "adamw_eps", group["adamw_eps"], 0.0, float("inf"), True)


def check_model(name: str, model: Any) -> None:
    """Refuses parameters where an optimizer wants the model, whose calls it sees."""
    if not isinstance(model, nn.Module):
        raise ConfigError(f"{name}: model is of type {type(model).__name__}; give it the module itself, and parameters as params=")


def no_copy(name: str) -> ConfigError:
    """What a copy of an optimizer that listens to its model is told."""
    return ConfigError(f"{name}: it cannot be copied or pickled, as it has hooks on its model; make one of the other model and load state_dict()")


def check_curved(name: str, group: dict[str, Any]) -> None:
    """Refuses options that the steps along a Fisher matrix's inverse share, lr to kl_clip and those of AdamW."""
    check_common(name, group)
    check_adamw(name, group)
    within(name, "momentum", group["momentum"], 0.0, 1.0, True)
    if not 0.0 < _number(group["damping"]) < float("inf"):
        raise ConfigError(f"{name}: damping = {group['damping']!r} is not positive")
    if group["kl_clip"] is not None:
        within(name, "kl_clip", group["kl_clip"], 0.0, float("inf"))
