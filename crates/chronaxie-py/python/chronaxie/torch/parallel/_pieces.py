"""A rank's piece of a sequence as the native passes see it, and what others must know of it: its summary.

The state behind a piece is an affine function of the state ahead of it, decay times state plus end, and so, the other way
round in time, is the gradient of the state ahead of it of that behind it. A summary holds the two, and summaries fold.
"""

from __future__ import annotations

from typing import Any, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ..._errors import DeviceError, DtypeError, ShapeError
from .._framework import _NAMES, _TYPES, short
from .._passes import device_of, planned, spell
from .._scan import linear_scan

Named = dict[str, Tensor]
# The gauge of a state that is nothing.
_NOTHING = -1e30
# Where a linear scan has fewer rows than the first, its piece is cut into segments until these are as many rows as the second;
# none is shorter than SHORTEST.
SEGMENTS = {"cuda": (1024, 4096), "cpu": (0, 0)}
SHORTEST = 4096


def _axes(text: str) -> list[str]:
    return text.strip("[]").split(", ")


class Piece:
    """A call of an entry; tensors go by their names in its signature."""

    # The axis of independent channels, and what a group may not be cut within.
    channels = "D"
    groups = 1

    def __init__(self, entry: str, sizes: dict[str, int], options: dict[str, Any], device: str) -> None:
        self.entry, self.sizes, self.options, self.device = entry, sizes, options, device
        self.plan = planned(entry, spell(sizes, options), device)
        takes, gives = self.plan.signatures["forward"]
        self.takes = {t[0]: t for t in takes}
        self.gives = {t[0]: t for t in gives}
        self._specs = {**self.takes, **self.gives}
        self.starts = [t[0] for t in takes if t[4] == "state"]
        self.lasts = [t[0] for t in gives if t[4] == "state"]
        # What the caller gets beside the last states, and what is for the backward pass alone.
        self.out = gives[0][0]
        self.saved = [t[0] for t in gives if t[4] == "saved"]
        # What the backward pass reads.
        self.reads = {t[0] for t in self.plan.signatures.get("backward", ([], []))[0]}

    def check(self, tensors: Sequence[Tensor]) -> None:
        """Whether they are what the entry takes.

        Raises:
            ShapeError, DtypeError, DeviceError: a sentence with the values.
        """
        for (name, axes, shape, dtype, *_), t in zip(self.takes.values(), tensors):
            if list(t.shape) != list(shape):
                raise ShapeError(f"{self.entry}: {name}.shape = {tuple(t.shape)} does not match {axes} = {tuple(shape)}")
            if _NAMES.get(t.dtype) != dtype:
                raise DtypeError(f"{self.entry}: {name} holds {short(t.dtype)}, not {dtype}")
            if device_of(self.entry, t) != self.device:
                raise DeviceError(f"{self.entry}: {name} is on {t.device}, the first tensor on {self.device}")

    def forward(self, x: Named) -> Named:
        return dict(zip(self.gives, self.plan.run("forward", [x[n] for n in self.takes])))

    def backward(self, known: Named, plan: Any = None) -> Named:
        """Gradients by the names of the inputs; those of outputs that are not known are zeros."""
        plan = self.plan if plan is None else plan
        takes, gives = plan.signatures["backward"]
        given = [known[t[0]] if t[0] in known else self._zeros(t) for t in takes]
        return dict(zip((t[0].removeprefix("grad_") for t in gives), plan.run("backward", given)))

    def write(self, pass_name: str, known: Named, into: Named) -> Named:
        """A pass whose outputs are written where ``into`` has them, by their names in the signature; those that it does not
        have are new. Inputs that are not known are zeros."""
        takes, gives = self.plan.signatures[pass_name]
        made = {t[0]: into.get(t[0]) for t in gives}
        # What has gaps, or nothing in it, goes the long way.
        if any(t is not None and (not t.is_contiguous() or t.numel() == 0) for t in made.values()):
            found = (self.forward if pass_name == "forward" else self.backward)(known)
            for (name, t), new in zip(made.items(), found.values()):
                made[name] = new if t is None else t.copy_(new)
            return made  # type: ignore[return-value]
        made = {t[0]: self._empty(t) if made[t[0]] is None else made[t[0]] for t in gives}
        given = {t[0]: known[t[0]] if t[0] in known else self._zeros(t) for t in takes}
        self.plan.write(pass_name, {**given, **made})
        return made  # type: ignore[return-value]

    def _empty(self, spec: Any) -> Tensor:
        return torch.empty(list(spec[2]), dtype=_TYPES[spec[3]], device=self.device)

    def _zeros(self, spec: Any) -> Tensor:
        return torch.zeros(list(spec[2]), dtype=_TYPES[spec[3]], device=self.device)

    def empty(self, name: str) -> Tensor:
        """An output to be written."""
        return self._empty(self.gives[name])

    def zero_lasts(self) -> list[Tensor]:
        return [self._zeros(self.gives[n]) for n in self.lasts]

    def no_states(self, x: Named) -> list[Tensor]:
        """Initial states that are nothing."""
        return [torch.zeros_like(x[n]) for n in self.starts]

    # What designs ask of a piece.

    def summary(self, x: Named) -> list[Tensor]:
        """Decays, and the states behind the piece if there is none ahead of it."""
        raise NotImplementedError

    def of_first(self, made: Named) -> list[Tensor]:
        """The summary of the first piece, whose states are what they are; its decays are asked for by nobody."""
        raise NotImplementedError

    def fold(self, gathered: list[Tensor], place: int) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        """From all summaries: the states ahead of a place, those behind the last one, and what the way back needs."""
        raise NotImplementedError

    def first(self, x: Named) -> tuple[Named | None, list[Tensor]]:
        """Of the first piece the outputs, or None where these, too, are better had behind the summaries; and its summary."""
        made = self.forward(x)
        return made, self.of_first(made)

    # Whether the way back needs local gradients of the first piece, too.
    all_local = False

    def local_gradients(self, known: Named) -> list[Tensor]:
        """Gradients of the states ahead of the piece, if those of the states behind it are 0."""
        raise NotImplementedError

    def fold_back(
        self, kept: list[Tensor], gathered: list[Tensor], last: list[Tensor], of_last: list[Tensor], place: int, known: Named
    ) -> list[Tensor]:
        """Gradients of the states behind a place: from all local gradients, and from those of the last states."""
        raise NotImplementedError

    # Parts of the channels, and of the batch.

    def part(self, rows: slice, channels: slice) -> Piece:
        """The piece of some channels of some sequences."""
        sizes = {**self.sizes, "B": rows.stop - rows.start, self.channels: channels.stop - channels.start}
        return type(self)(self.entry, sizes, self._part_options(channels), self.device)

    def _part_options(self, channels: slice) -> dict[str, Any]:
        return self.options

    def axes(self, name: str) -> str:
        """Those of an input, an output, or its gradient."""
        return self._specs[name.removeprefix("grad_")][1]  # type: ignore[no-any-return]

    def strided(self, name: str) -> bool:
        """Whether it may have gaps."""
        return self._specs[name.removeprefix("grad_")][5]  # type: ignore[no-any-return]

    def cut(self, axes: str, rows: slice, channels: slice) -> tuple[tuple[slice, ...], bool]:
        """Where a tensor of these axes has a part, and whether that part is its own."""
        of = {"B": rows, "S": rows, self.channels: channels, "G": self._groups(channels)}
        letters = _axes(axes)
        where = tuple(of.get(letter, slice(None)) for letter in letters)
        own = letters[0] in ("B", "S") or rows == slice(0, self.sizes["B"])
        whole = channels == slice(0, self.sizes[self.channels])
        own = own and (whole or self.channels in letters or ("G" in letters and self.groups > 1))
        return where, own

    def _groups(self, channels: slice) -> slice:
        if self.groups == 1:
            return slice(None)
        each = self.sizes[self.channels] // self.groups
        return slice(channels.start // each, channels.stop // each)


class Scan(Piece):
    """Diagonal states: decays are as many as states."""

    def decay(self, x: Named) -> Tensor:
        raise NotImplementedError

    def end(self, x: Named) -> Tensor:
        raise NotImplementedError

    def _forgets(self, x: Named, decay: Tensor) -> Tensor:
        if "reset" not in x:
            return decay
        forgotten = (x["reset"] != 0).any(1)
        return decay.masked_fill(forgotten.view(-1, *[1] * (decay.dim() - 1)), 0.0)

    def summary(self, x: Named) -> list[Tensor]:
        return [self._forgets(x, self.decay(x)), self.end(x)]

    def of_first(self, made: Named) -> list[Tensor]:
        end = made[self.lasts[0]]
        return [torch.zeros_like(end), end]

    def fold(self, gathered: list[Tensor], place: int) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        # A fold of summaries is the scan itself, over ranks.
        decays, ends = gathered
        states, last = linear_scan(_over_ranks(decays), _over_ranks(ends))
        shape = decays.shape[1:]
        ahead = states[..., max(place - 1, 0)].reshape(shape).contiguous()
        return [ahead], [last.reshape(shape)], [decays]

    def fold_back(
        self, kept: list[Tensor], gathered: list[Tensor], last: list[Tensor], of_last: list[Tensor], place: int, known: Named
    ) -> list[Tensor]:
        if place + 1 == gathered[0].shape[0]:
            return of_last
        decays = kept[0].conj() if kept[0].is_complex() else kept[0]
        gates, own = (_over_ranks(t[place + 1 :]) for t in (decays, gathered[0]))
        shape = gathered[0].shape[1:]
        _, behind = linear_scan(gates, own, of_last[0].reshape(gates.shape[:2]), reverse=True)
        return [behind.reshape(shape)]


def _over_ranks(t: Tensor) -> Tensor:
    """``[ranks, B, ...]`` as ``[B, D, T]``."""
    return t.flatten(2).permute(1, 2, 0).contiguous()


class Linear(Scan):
    """``linear_scan``, real or complex. A row is one block's on a GPU, so few rows are cut into segments in time: these have
    summaries, states and gradients among themselves as pieces have among ranks."""

    # Segments of a row, their decays and the states behind them if there is none ahead, both [rows, segments].
    segments = 1
    decays: Tensor
    ends: Tensor
    # The states ahead of each, and their local gradients.
    heads: Tensor
    local: Tensor

    def _cut(self, x: Named) -> int:
        few, many = SEGMENTS["cpu" if self.device == "cpu" else "cuda"]
        batch, channels, steps = x["a"].shape
        # A row may lie anywhere, but rows of a batch must follow each other.
        whole = batch == 1 or all(x[n].stride(0) == channels * x[n].stride(1) for n in ("a", "x"))
        if self.entry != "linear_scan" or "reset" in x or not whole or not 0 < batch * channels < few:
            return 1
        vector, segments = 16 // x["a"].element_size(), 1
        while batch * channels * segments < many and steps % (2 * segments * vector) == 0 and steps // (2 * segments) >= SHORTEST:
            segments *= 2
        return segments

    def _in_segments(self, t: Tensor) -> Tensor:
        batch, channels, steps = t.shape
        return t.reshape(batch * channels, self.segments, steps // self.segments)

    def _planned(self) -> Any:
        rows, steps = self.sizes["B"] * self.sizes["D"], self.sizes["T"] // self.segments
        return planned(self.entry, spell({"B": rows, "D": self.segments, "T": steps}, self.options), self.device)

    def _fold(self, inputs: Tensor, edge: Tensor | None, forward: bool) -> tuple[Tensor, Tensor]:
        """The states beside each segment on the side that they come from, by the decays, and those behind all."""
        reverse = bool(self.options["reverse"]) is forward
        edge = torch.zeros_like(inputs[:, 0]) if edge is None else edge.reshape(-1)
        states, last = linear_scan(self.decays[None], inputs[None], edge[None], reverse)
        parts = (states[0, :, 1:], edge[:, None]) if reverse else (edge[:, None], states[0, :, :-1])
        return torch.cat(parts, 1), last[0]

    def first(self, x: Named) -> tuple[Named | None, list[Tensor]]:
        if self._cut(x) == 1:
            return super().first(x)
        decay, end = self.summary(x)
        return None, [torch.zeros_like(decay), torch.addcmul(end, decay, x["h0"])]

    def summary(self, x: Named) -> list[Tensor]:
        self.segments = self._cut(x)
        if self.segments == 1:
            return super().summary(x)
        self.all_local = True
        a, given = self._in_segments(x["a"]), self._in_segments(x["x"])
        self.decays = torch.prod(a, -1, dtype=torch.float32)
        self.ends = self._planned().run("forward", [a, given, torch.zeros_like(self.decays)])[1]
        last = self._fold(self.ends, None, True)[1]
        return [t.reshape(x["h0"].shape) for t in (torch.prod(self.decays, -1), last)]

    def forward(self, x: Named) -> Named:
        if self.segments == 1:
            return super().forward(x)
        self.heads, last = self._fold(self.ends, x["h0"], True)
        h = self._planned().run("forward", [self._in_segments(x["a"]), self._in_segments(x["x"]), self.heads])[0]
        return {"h": h.view(x["a"].shape), "h_last": last.reshape(x["h0"].shape)}

    def backward(self, known: Named, plan: Any = None) -> Named:
        if self.segments == 1:
            return super().backward(known, plan)
        behind = self._fold(self.local, known["grad_h_last"], False)[0]
        found = self._back(known, known["h"], self.heads, behind)
        lead = -1 if self.options["reverse"] else 0
        whole, state = known["a"].shape, known["h0"].shape
        return {"a": found[0].view(whole), "x": found[1].view(whole), "h0": found[2][:, lead].reshape(state)}

    def _back(self, known: Named, h: Tensor, heads: Tensor, behind: Tensor) -> list[Tensor]:
        grad = known["grad_h"] if "grad_h" in known else torch.zeros_like(known["h"])
        a, h, grad = (self._in_segments(t) for t in (known["a"], h, grad))
        return self._planned().run("backward", [a, heads, h, grad, behind])  # type: ignore[no-any-return]

    def decay(self, x: Named) -> Tensor:
        a = x["a"].resolve_conj()
        return torch.prod(a, -1) if a.is_complex() else torch.prod(a, -1, dtype=torch.float32)

    def end(self, x: Named) -> Tensor:
        return self.forward({**x, "h0": self.no_states(x)[0]})["h_last"]

    def local_gradients(self, known: Named) -> list[Tensor]:
        grad, a = known.get("grad_h"), known["a"]
        if self.segments > 1:
            # Of the pass back in time only the gradients of the states count, which need no h: a lies in the cache already.
            self.local = self._back(known, a, self.heads, torch.zeros_like(self.heads))[2]
            return [self._fold(self.local, None, False)[1].reshape(known["h0"].shape)]
        if grad is None or a.shape[2] == 0:
            return self.no_states(known)
        # The scan back in time over the gradients: each step has the gate of the next one, the first has its own left.
        reverse, steps = bool(self.options["reverse"]), a.shape[2]
        ahead, behind = (slice(0, -1), 0) if reverse else (slice(1, None), -1)
        near, rest = (-1, slice(1, None)) if reverse else (0, slice(0, -1))
        grad = grad.resolve_conj().conj() if grad.is_complex() else grad
        total = grad[..., behind].to(known["h0"].dtype)
        reset = known.get("reset")
        if steps > 1:
            options = {**self.options, "reverse": not reverse}
            plan = planned(self.entry, spell({**self.sizes, "T": steps - 1}, options), self.device)
            given = [a[..., ahead], grad[..., rest], total]
            given += [] if reset is None else [reset[:, ahead].contiguous()]
            total = plan.run("forward", given)[1]
        found = a[..., near].to(total.dtype) * total
        if reset is not None:
            found = found.masked_fill(reset[:, near, None] != 0, 0.0)
        return [found.conj().resolve_conj() if found.is_complex() else found]


class Selective(Scan):
    """``selective_scan``; with ``exp`` and ``zoh`` the decay is that of the sum of time steps."""

    def __init__(self, entry: str, sizes: dict[str, int], options: dict[str, Any], device: str) -> None:
        super().__init__(entry, sizes, options, device)
        self.groups = int(options["G"])

    def _part_options(self, channels: slice) -> dict[str, Any]:
        some = self._groups(channels)
        return self.options if self.groups == 1 else {**self.options, "G": some.stop - some.start}

    def _without(self, x: Named, zeros: str, h0: Tensor | None) -> Tensor:
        """The last state of what is left without the weight ``zeros`` and without all that comes behind the states."""
        options = {**self.options, "skip": False, "gate": False, zeros.lower(): "constant", "h0": h0 is not None}
        if zeros == "B":
            options["c"] = "constant"
        if "constant" == options["b"] == options["c"]:
            options["G"] = 1
        plan = planned(self.entry, spell(self.sizes, options), self.device)
        nothing = torch.zeros_like(x["A"])
        given = {**x, "C": nothing, **({"B": nothing} if zeros == "B" else {}), **({} if h0 is None else {"h0": h0})}
        return plan.run("forward", [given[t[0]] for t in plan.signatures["forward"][0]])[1]

    def decay(self, x: Named) -> Tensor:
        if self.options["rule"] == "bilinear":
            return self._without(x, "B", torch.ones_like(x["h0"]))
        # The sum of a half and a float is one, in one pass.
        delta = x["delta"] + x["delta_bias"][:, None] if "delta_bias" in x else x["delta"].float()
        if self.options["softplus"]:
            delta = F.softplus(delta)
        # In float64: an angle of many turns is told from the next.
        A = x["A"].to(torch.complex128 if x["A"].is_complex() else torch.float64)
        return torch.exp(A * delta.sum(-1, dtype=torch.float64)[..., None]).to(x["A"].dtype)

    def end(self, x: Named) -> Tensor:
        if self.device != "cpu" and self.options["b"] == self.options["c"] == "varying":
            # What goes out is not asked for, but a GPU's fast kernels are those of weights that vary.
            options = {**self.options, "skip": False, "gate": False, "h0": False}
            plan = planned(self.entry, spell(self.sizes, options), self.device)
            return plan.run("forward", [x[t[0]] for t in plan.signatures["forward"][0]])[1]
        return self._without(x, "C", None)

    def local_gradients(self, known: Named) -> list[Tensor]:
        return [self.backward({n: t for n, t in known.items() if n != "grad_last_state"})["h0"]]


class Mlstm(Piece):
    """``mlstm_exp`` and ``mlstm_sig``: the decay of a head is the sum of its forget gates' logarithms, in a gauge."""

    channels = "NH"

    def decay(self, x: Named) -> Tensor:
        return F.logsigmoid(x["f"]).sum(-1, dtype=torch.float64).float()

    def no_states(self, x: Named) -> list[Tensor]:
        return [torch.full_like(x[n], _NOTHING if n == "m_initial" else 0.0) for n in self.starts]

    def summary(self, x: Named) -> list[Tensor]:
        made = self.forward({**x, **dict(zip(self.starts, self.no_states(x)))})
        return [self.decay(x), *(made[n] for n in self.lasts)]

    def of_first(self, made: Named) -> list[Tensor]:
        ends = [made[n] for n in self.lasts]
        return [ends[0].new_zeros(ends[0].shape[:2]), *ends]

    def fold(self, gathered: list[Tensor], place: int) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        decays, *ends = gathered
        exp = self.entry == "mlstm_exp"
        states = [t[0] for t in ends]
        ahead, gauges = states, [states[-1]]
        keeps, carried = [torch.zeros_like(decays[0])], [torch.zeros_like(decays[0])]
        for at in range(1, decays.shape[0]):
            if at == place:
                ahead = states
            here = [t[at] for t in ends]
            if exp:
                past, new = decays[at] + states[-1], here[-1]
                m = torch.maximum(past, new)
                keep, into = torch.exp(past - m), torch.exp(new - m)
                carried.append((past >= new).to(m.dtype))
                states = [_times(keep, c) + _times(into, e) for c, e in zip(states[:-1], here[:-1])] + [m]
            else:
                keep = torch.exp(decays[at])
                states = [_times(keep, c) + e for c, e in zip(states, here)]
            keeps.append(keep)
            gauges.append(states[-1])
        kept = [torch.stack(keeps)]
        if exp:
            # The gauge that the others have of the states behind this place.
            kept += [torch.stack(carried), gauges[place]]
        return ahead, states, kept

    def local_gradients(self, known: Named) -> list[Tensor]:
        # The gradients of the initial state alone: less than half of the backward pass.
        plan = planned(self.entry, spell(self.sizes, {**self.options, "wants": "initial"}), self.device)
        made = self.backward({n: t for n, t in known.items() if n not in {f"grad_{s}" for s in self.lasts}}, plan)
        return [made[n] for n in self.starts if n != "m_initial"]

    def fold_back(
        self, kept: list[Tensor], gathered: list[Tensor], last: list[Tensor], of_last: list[Tensor], place: int, known: Named
    ) -> list[Tensor]:
        exp = self.entry == "mlstm_exp"
        keeps = kept[0]
        grads = of_last[: len(gathered)]
        # What is left of a gradient of m that does not come of e^m c alone goes to m itself, on the rank of its token.
        excess = of_last[-1] - _dots(last, grads) if exp else None
        for at in range(keeps.shape[0] - 1, place, -1):
            grads = [_times(keeps[at], g) + t[at] for g, t in zip(grads, gathered)]
            if excess is not None:
                excess = excess * kept[1][at]
        if excess is None:
            return grads
        ends = [known[n] for n in self.lasts]
        ratio = torch.exp(ends[-1] - kept[2])
        grads = [_times(ratio, g) for g in grads]
        return [*grads, _dots(ends, grads) + excess]


def _times(factor: Tensor, t: Tensor) -> Tensor:
    """A factor ``[B, NH]`` times a state."""
    return factor.view(*factor.shape, *[1] * (t.dim() - 2)) * t


def _dots(states: Sequence[Tensor], grads: Sequence[Tensor]) -> Tensor:
    """``<c, grad_c> + <n, grad_n>``, ``[B, NH]``."""
    return sum((s * g).flatten(2).sum(-1) for s, g in zip(states, grads))  # type: ignore[return-value]
