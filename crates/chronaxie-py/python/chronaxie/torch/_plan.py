"""Plans of the native library on tensors of PyTorch, for any entry that is a recurrence.

Its tensors come in one order: x, h0, c0, elapsed, each but the first None where it is not given, then parameters as the
signature has them.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch

from .. import _native
from .._errors import BackendUnavailableError
from ._framework import FRAMEWORK

# x, h0, c0, elapsed.
LEAD = 4
# What x and the outputs of an entry may be stored in beside float32, as the registry spells it.
STORED = {"ltc": {torch.float16: "f16", torch.bfloat16: "bf16"}}
_MAX_PLANS = 256
LEAD_NAMES = ("x", "h0", "c0", "elapsed")


class Plan:
    """A native plan and its caller, which looks at every tensor of every call: nothing of them is remembered."""

    __slots__ = ("forward", "backward", "run", "states", "saves_out", "whole", "native", "problem")

    def __init__(self, layer: Layer, key: Any) -> None:
        batch, steps, index, no_h0, no_c0, no_elapsed, dtype, wants = key
        problem = layer.problem(batch, steps, not no_h0, not no_elapsed, dtype, wants)
        layout: list[int | None] = []
        if wants is not None:
            # What autograd.Function's backward returns: one for each argument, the first of which are no tensors.
            written = {t[0]: at for at, t in enumerate(problem.signature("backward")[1])}
            given = [n for n, no in zip(LEAD_NAMES[1:], (no_h0, no_c0, no_elapsed)) if no]
            inputs = iter(t[0] for t in problem.signature("forward")[0])
            names = [None if n in given else next(inputs) for n in LEAD_NAMES] + list(inputs)
            layout = [None] * NOT_TENSORS
            layout += [written.get(f"grad_{n}") if wanted else None for n, wanted in zip(names, wants)]
        device = "cpu" if index < 0 else f"cuda:{index}"
        self.problem, self.native = problem, problem.plan(device)
        caller = _native.Caller(self.native, FRAMEWORK, torch.zeros((), device=device), layout)
        self.forward, self.backward, self.run = caller.forward, caller.backward, caller.run
        outputs = problem.signature("forward")[1]
        # How many of the outputs are the caller's: the last of them are what the backward pass needs.
        self.states = sum(t[4] != "saved" for t in outputs)
        self.whole = self.states == len(outputs)
        self.saves_out = wants is not None and any(t[0] == "out" for t in problem.signature("backward")[0])


# Arguments of the autograd.Function before its tensors.
NOT_TENSORS = 1


class Layer:
    """An entry with the options of a layer, spelt as the registry does behind ``B.._T..``, and what is prepared of it."""

    __slots__ = ("entry", "text", "native", "plans")

    def __init__(self, entry: str, text: str, native: Any = None) -> None:
        self.entry, self.text, self.native = entry, text, native
        self.plans: dict[Any, Plan] = {}

    def __deepcopy__(self, memo: Any) -> Layer:
        # It does not change, and what it keeps are plans.
        return self

    def problem(
        self, batch: int, steps: int, h0: bool, elapsed: bool, dtype: torch.dtype, wants: Any, more: str = ""
    ) -> _native.Problem:
        """The problem of these sizes, with x of ``dtype``; ``wants`` says of each tensor whether it needs a gradient, None that none does.
        ``more`` are further options."""
        case = f"B{batch}_T{steps}{self.text},h0={str(h0).lower()},elapsed={str(elapsed).lower()}"
        if dtype in STORED.get(self.entry, ()):
            case += f",dtype={STORED[self.entry][dtype]}"
        if wants is None:
            case += ",backward=false"
        else:
            groups = {"x": wants[0], "h0": wants[1] or wants[2], "elapsed": wants[3], "parameters": True in wants[LEAD:]}
            case += f",wants={'+'.join(n for n, wanted in groups.items() if wanted) or 'none'}"
        case += more
        return _native.problem(self.entry, case, self.native)

    def plan(self, key: Any) -> Plan:
        """The plan for ``(B, T, device index or -1, no h0?, no c0?, no elapsed?, x's dtype, wants or None)``."""
        found = self.plans.get(key)
        if found is None:
            # Of too many, the oldest go.
            while len(self.plans) >= _MAX_PLANS:
                self.plans.pop(next(iter(self.plans)), None)
            found = self.plans[key] = Plan(self, key)
        return found


_UNAVAILABLE: dict[int, str | None] = {}
# CUDA devices on which native work runs, as far as it was asked: one look, for every call.
AVAILABLE: set[int] = set()


def unavailable(index: int) -> str | None:
    """Why nothing native can run on that CUDA device, or None; asked once, and warned of once."""
    if index not in _UNAVAILABLE:
        try:
            _native.require_device(f"cuda:{index}")
            _UNAVAILABLE[index] = None
            AVAILABLE.add(index)
        except BackendUnavailableError as error:
            _UNAVAILABLE[index] = str(error)
            warnings.warn(
                f"chronaxie runs eager PyTorch operations on cuda:{index}, which are much slower: {error}",
                RuntimeWarning,
                stacklevel=4,
            )
    return _UNAVAILABLE[index]
