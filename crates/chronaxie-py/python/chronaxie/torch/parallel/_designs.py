"""The two ways of a recurrence over ranks, and the rule that chooses between them."""

from __future__ import annotations

from typing import Any, Callable, NamedTuple

import torch
from torch import Tensor

from ..._errors import ChronaxieError, ConfigError
from .._framework import _TYPES
from ._pieces import Named, Piece
from ._ranks import Ranks

DESIGNS = ("summary", "wavefront")
# Sequences times channels (heads) that keep a device busy: a part of the wavefront has at least as many.
ROWS = {
    "cuda": {"linear_scan": 512, "linear_scan_complex": 512, "selective_scan": 512, "mlstm_exp": 32, "mlstm_sig": 32},
    "cpu": {"linear_scan": 64, "linear_scan_complex": 64, "selective_scan": 32, "mlstm_exp": 4, "mlstm_sig": 4},
}
# Parts a rank; more of them shorten the wait for the first one, and each costs its launches.
PARTS_A_RANK = 4


class Choice(NamedTuple):
    """A design, into how many parts the wavefront cuts the channels, and why; its text is a sentence."""

    design: str
    parts: int
    why: str

    def __str__(self) -> str:
        return f"{self.design}{f' of {self.parts} parts' if self.design == 'wavefront' else ''}: {self.why}"


def choose(
    entry: str,
    *,
    batch: int,
    channels: int,
    ranks: int,
    device: str = "cuda",
    design: str = "auto",
    parts: int | None = None,
) -> Choice:
    """How the functions of this module go about a call, as a function of its sizes alone.

    A wavefront of Q parts takes (Q + ranks - 1) / Q times as long as one rank needs for its piece, since the last rank waits
    for the others' first part. Summaries cost about a second pass, so the wavefront is taken where there are channels for
    as many parts as ranks, each of which keeps the device busy.

    Args:
        entry: ``linear_scan``, ``linear_scan_complex``, ``selective_scan``, ``mlstm_exp`` or ``mlstm_sig``.
        batch, channels: B, and D or NH.
        ranks: that hold the sequence.
        device: ``cuda`` or ``cpu``.
        design: ``summary``, ``wavefront`` or ``auto``.
        parts: Q, where it is not left to the rule.

    Raises:
        ConfigError: a sentence with what is unknown.
    """
    if design not in ("auto", *DESIGNS):
        raise ConfigError(f"{entry}: design `{design}` is not one of auto, {', '.join(DESIGNS)}")
    if parts is not None and parts < 1:
        raise ConfigError(f"{entry}: parts = {parts} is not at least 1")
    if entry not in ROWS["cpu"]:
        raise ConfigError(f"{entry}: it is not one of {', '.join(ROWS['cpu'])}")
    rows, least = batch * channels, ROWS["cpu" if device == "cpu" else "cuda"][entry]
    found = max(1, min(rows // least, PARTS_A_RANK * ranks)) if parts is None else max(1, min(parts, rows))
    has = f"{rows} rows (B = {batch} times {channels}) over {ranks} ranks"
    if design != "auto":
        return Choice(design, found if design == "wavefront" else 1, f"asked for; {has}")
    enough = found >= ranks
    why = f"{has} are {rows // least} parts of {least}, {'at least' if enough else 'fewer than'} the ranks"
    if parts is not None:
        why = f"{has} in {found} parts as asked, {'at least' if enough else 'fewer than'} the ranks"
    return Choice("wavefront", found, why) if enough else Choice("summary", 1, why)


def run(piece: Piece, ranks: Ranks, choice: Choice, wants_last: bool, tensors: list[Tensor]) -> tuple[Any, ...]:
    """The output, and the last states of the whole sequence where they are wanted."""
    by = _Summary if choice.design == "summary" else _Wavefront
    cuts = _cuts(piece, choice.parts) if by is _Wavefront else None
    return by.apply(piece, ranks, cuts, wants_last, *tensors)  # type: ignore[no-any-return, no-untyped-call]


def _known(ctx: Any, grads: Any) -> tuple[Named, list[Tensor]]:
    """The tensors that were saved by name with the gradient of the output, and the others that were."""
    saved = list(ctx.saved_tensors)
    known = dict(zip(ctx.names, saved))
    if grads[0] is not None:
        known[f"grad_{ctx.piece.out}"] = grads[0]
    return known, saved[len(ctx.names) :]


def _save(ctx: Any, known: Named, rest: list[Tensor]) -> None:
    ctx.names = [n for n in known if n in ctx.piece.reads or n in ctx.piece.lasts]
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*(known[n] for n in ctx.names), *rest)


def _of_last(ctx: Any, grads: Any) -> list[Tensor]:
    """This rank's gradients of the last states."""
    zeros = ctx.piece.zero_lasts()
    return [zero if g is None else g.contiguous() for g, zero in zip(grads[1:], zeros)] if ctx.wants_last else zeros


def _total(gathered: list[Tensor]) -> list[Tensor]:
    """Sums over ranks, in their order."""
    found = []
    for t in gathered:
        total = t[0]
        for other in t[1:]:
            total = total + other
        found.append(total)
    return found


def _returned(ctx: Any, made: Named) -> tuple[Any, ...]:
    """For each argument its gradient; states come into the first place alone."""
    found: list[Any] = []
    for name, needed in zip(ctx.piece.takes, ctx.needs_input_grad[4:]):
        t = made.get(name) if needed else None
        if t is not None and name in ctx.piece.starts and ctx.ranks.place > 0:
            t = torch.zeros_like(t)
        found.append(t)
    return (None, None, None, None, *found)


def _once(piece: Piece) -> None:
    if torch.is_grad_enabled():
        raise ChronaxieError(f"{piece.entry}: there is no double backward; call backward without create_graph=True")


class _Summary(torch.autograd.Function):
    """Every rank sums its piece up, all fold the summaries of those ahead, and each passes over its piece from the true
    state; so also back in time. One all-gather each way."""

    @staticmethod
    def forward(ctx: Any, piece: Piece, ranks: Ranks, _: None, wants_last: bool, *tensors: Tensor) -> Any:
        x = dict(zip(piece.takes, tensors))
        # The first place has its true state from the start.
        made, own = piece.first(x) if ranks.place == 0 else (None, piece.summary(x))
        ahead, last, kept = piece.fold(ranks.gather(own), ranks.place)
        if ranks.place > 0:
            x |= dict(zip(piece.starts, ahead))
        made = piece.forward(x) if made is None else made
        ctx.piece, ctx.ranks, ctx.wants_last, ctx.count = piece, ranks, wants_last, len(kept)
        _save(ctx, {**x, **made}, [*kept, *(last if wants_last else [])])
        return (made[piece.out], *last) if wants_last else (made[piece.out],)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        piece, ranks = ctx.piece, ctx.ranks
        _once(piece)
        known, rest = _known(ctx, grads)
        kept, last = rest[: ctx.count], rest[ctx.count :]
        of_last = _of_last(ctx, grads)
        # Nobody asks for the first place's, which has them from the true gradients below.
        states = [known[n] for n in piece.starts if n != "m_initial"]
        local = piece.local_gradients(known) if ranks.place > 0 or piece.all_local else [torch.zeros_like(t) for t in states]
        gathered = ranks.gather([*local, *(of_last if ctx.wants_last else [])])
        if ctx.wants_last:
            of_last = _total(gathered[len(local) :])
        behind = piece.fold_back(kept, gathered[: len(local)], last or piece.zero_lasts(), of_last, ranks.place, known)
        known |= {f"grad_{n}": g for n, g in zip(piece.lasts, behind)}
        return _returned(ctx, piece.backward(known))


class _Wavefront(torch.autograd.Function):
    """Parts of the channels go through the ranks one after the other: a rank starts one when the state ahead of it comes."""

    @staticmethod
    def forward(ctx: Any, piece: Piece, ranks: Ranks, cuts: Any, wants_last: bool, *tensors: Tensor) -> Any:
        x = dict(zip(piece.takes, tensors))
        whole = {n: piece.empty(n) for n in (piece.out, *piece.lasts)}
        kept: list[Tensor] = []
        line = _Line(piece, ranks, True, cuts, lambda cut: _part_of(piece, {n: x[n] for n in piece.starts}, cut))
        for cut in cuts:
            own = _part_of(piece, x, cut)
            own |= dict(zip(piece.starts, line.next() or []))
            part = line.part(cut)
            made = part.write("forward", own, {n: t[piece.cut(piece.axes(n), *cut)[0]] for n, t in whole.items()})
            line.send([made[n] for n in piece.lasts])
            kept += [*(own[n] for n in piece.starts), *(made[n] for n in piece.saved)]
        line.finish()
        ends = ranks.from_last([whole[n] for n in piece.lasts]) if wants_last else []
        ctx.piece, ctx.ranks, ctx.wants_last, ctx.cuts = piece, ranks, wants_last, cuts
        _save(ctx, {**x, piece.out: whole[piece.out]}, kept)
        return (whole[piece.out], *ends)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        piece, ranks = ctx.piece, ctx.ranks
        _once(piece)
        known, kept = _known(ctx, grads)
        of_last = _of_last(ctx, grads)
        if ctx.wants_last:
            of_last = _total(ranks.gather(of_last))
        known |= {f"grad_{n}": g for n, g in zip(piece.lasts, of_last)}
        names = [*piece.starts, *piece.saved]
        found: Named = {}
        lasts = [f"grad_{n}" for n in piece.lasts]
        line = _Line(piece, ranks, False, ctx.cuts, lambda cut: _part_of(piece, {n: known[n] for n in lasts}, cut))
        for at, cut in enumerate(ctx.cuts):
            own = _part_of(piece, known, cut) | dict(zip(names, kept[at * len(names) : (at + 1) * len(names)]))
            own |= dict(zip(lasts, line.next() or []))
            part, into = line.part(cut), {}
            for spec in part.plan.signatures["backward"][1]:
                name = spec[0].removeprefix("grad_")
                where, alone = piece.cut(piece.axes(name), *cut)
                if name not in found:
                    found[name] = (torch.empty if alone else torch.zeros)(
                        list(piece.takes[name][2]), dtype=_TYPES[spec[3]], device=piece.device
                    )
                if alone:
                    into[spec[0]] = found[name][where]
            made = part.write("backward", own, into)
            line.send([made[f"grad_{n}"] for n in piece.starts])
            # What parts share is added up in their order.
            for name, t in made.items():
                if name not in into:
                    found[name.removeprefix("grad_")][piece.cut(piece.axes(name), *cut)[0]] += t
        line.finish()
        return _returned(ctx, found)


class _Line:
    """A rank's place in the wavefront. The state of the next part is asked for before this one's work is queued, and this one's goes
    out on its own, so that neither waits for the other."""

    def __init__(self, piece: Piece, ranks: Ranks, ahead: bool, cuts: Any, like: Callable[[Any], Named]) -> None:
        self.piece, self.ranks, self.ahead, self.cuts, self.like = piece, ranks, ahead, iter(cuts), like
        self.parts: dict[Any, Piece] = {}
        self.sent: list[Any] = []
        self.coming = self._ask()

    def _ask(self) -> Any:
        cut = next(self.cuts, None)
        return None if cut is None else self.ranks.receive(self.ahead, list(self.like(cut).values()))

    def next(self) -> list[Tensor] | None:
        """The state of the next part; None where nobody sends it."""
        coming, self.coming = self.coming, self._ask()
        return None if coming is None else coming()

    def part(self, cut: tuple[slice, slice]) -> Piece:
        """The piece of a part; parts of one size are one."""
        rows, channels = cut
        size = rows.stop - rows.start, channels.stop - channels.start
        if size not in self.parts:
            self.parts[size] = self.piece.part(*cut)
        return self.parts[size]

    def send(self, state: list[Tensor]) -> None:
        self.sent.append(self.ranks.send(self.ahead, state))

    def finish(self) -> None:
        self.ranks.finish(self.sent)


def _part_of(piece: Piece, tensors: Named, cut: tuple[slice, slice]) -> Named:
    """The part of each, without gaps where the entry takes none."""
    own = {n: t[piece.cut(piece.axes(n), *cut)[0]] for n, t in tensors.items()}
    return {n: t if piece.strided(n) else t.contiguous() for n, t in own.items()}


def _cuts(piece: Piece, parts: int) -> list[tuple[slice, slice]]:
    """Rows of the batch first, whose parts have no gaps; then channels, between groups of those that share weights."""
    batch, channels = piece.sizes["B"], piece.sizes[piece.channels]
    rows = max(1, min(batch, parts))
    units = piece.groups if piece.groups > 1 else channels
    columns, each = max(1, min(units, parts // rows)), channels // max(1, units)
    return [
        (slice(batch * r // rows, batch * (r + 1) // rows), slice(each * (units * c // columns), each * (units * (c + 1) // columns)))
        for r in range(rows)
        for c in range(columns)
    ]
