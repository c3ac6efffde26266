"""The ranks that hold a sequence: what they must agree on, and how states travel between them."""

from __future__ import annotations

from typing import Any, Callable, Sequence, TypeVar
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor

from ..._errors import ChronaxieError, ConfigError, ShapeError

_Made = TypeVar("_Made")
# What the ranks of a group were found to agree on.
_AGREED: WeakKeyDictionary[Any, set[Any]] = WeakKeyDictionary()


class Ranks:
    """The ranks of a group in the order of time: a rank's ``place`` counts from where the recurrence starts."""

    def __init__(self, name: str, group: Any, reverse: bool = False) -> None:
        if not (dist.is_available() and dist.is_initialized()):
            raise ConfigError(f"{name}: group = {group!r} needs torch.distributed.init_process_group() first")
        self.name, self.reverse = name, reverse
        self.group: Any = dist.group.WORLD if group is None else group
        self.count, own = dist.get_world_size(self.group), dist.get_rank(self.group)
        if own < 0:
            raise ConfigError(f"{name}: this process is not one of the group's {self.count}")
        self.place = self.count - 1 - own if reverse else own

    def _rank(self, place: int) -> int:
        return dist.get_global_rank(self.group, self.count - 1 - place if self.reverse else place)

    def agree(self, prepare: Callable[[], tuple[_Made, dict[str, Any]]]) -> _Made:
        """What ``prepare`` makes, behind a look whether all ranks call with the same facts, which it gives besides. Facts that a
        rank has not called with before are compared, and so is an error of the first call: then every rank raises.

        Raises:
            ChronaxieError: of ``prepare``; or what the ranks disagree on.
        """
        agreed = _AGREED.setdefault(self.group, set())
        made, error = None, None
        facts: dict[str, Any] = {}
        try:
            made, facts = prepare()
        except ChronaxieError as e:
            if agreed:
                raise
            error = e
        key = tuple(facts.items())
        if error is None and key in agreed:
            return made  # type: ignore[return-value]
        all_: list[Any] = [None] * self.count
        dist.all_gather_object(all_, (facts, None if error is None else str(error)), group=self.group)
        if error is not None:
            raise error
        for rank, (_, said) in enumerate(all_):
            if said is not None:
                raise ConfigError(f"{self.name}: rank {rank} refuses its piece: {said}")
        for fact in all_[0][0]:
            found = [theirs.get(fact) for theirs, _ in all_]
            other = next((rank for rank, value in enumerate(found) if value != found[0]), None)
            if other is not None:
                kind = ShapeError if fact.isupper() else ConfigError
                raise kind(f"{self.name}: ranks disagree on {fact}: {found[0]} on rank 0, {found[other]} on rank {other}")
        agreed.add(key)
        return made  # type: ignore[return-value]

    def gather(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Each of them from all ranks, ``[ranks, ...]`` in the order of time: one all-gather."""
        flat = _flat(tensors)
        whole = flat.new_empty(self.count * flat.numel())
        if flat.numel():
            dist.all_gather_into_tensor(whole, flat, group=self.group)
        whole = whole.view(self.count, flat.numel())
        return _split(whole.flip(0) if self.reverse else whole, tensors)

    def from_last(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Those of the last place."""
        flat = _flat(tensors)
        if flat.numel():
            dist.broadcast(flat, self._rank(self.count - 1), group=self.group)
        return _split(flat, tensors)

    def send(self, ahead: bool, tensors: Sequence[Tensor]) -> Any:
        """Sends to the neighbour ahead in time (or behind), if there is one; what is given is to be waited for in the end. Nothing
        else waits for it: with NCCL each pair of neighbours has a communicator and a stream of its own."""
        to = self.place + (1 if ahead else -1)
        flat = _flat(tensors)
        if not (0 <= to < self.count and flat.numel()):
            return None
        return dist.isend(flat, self._rank(to), group=self.group), flat

    def receive(self, ahead: bool, like: Sequence[Tensor]) -> Callable[[], list[Tensor]] | None:
        """Asks for what is ``like`` these from the neighbour behind (or ahead), if there is one. What is given waits for it: on a
        GPU the current stream does, and not the host."""
        of = self.place - (1 if ahead else -1)
        if not 0 <= of < self.count:
            return None
        into = _flat(like)
        work = dist.irecv(into, self._rank(of), group=self.group) if into.numel() else None

        def wait() -> list[Tensor]:
            if work is not None:
                work.wait()
            return _split(into, like)

        return wait

    def finish(self, sent: Sequence[Any]) -> None:
        """Waits for what was sent, so that its memory may be used again."""
        for work, _ in filter(None, sent):
            work.wait()


def _flat(tensors: Sequence[Tensor]) -> Tensor:
    parts = [torch.view_as_real(t.resolve_conj()) if t.is_complex() else t for t in tensors]
    # A copy in any case: it is received into, or must outlast what it was made of.
    return torch.cat([t.reshape(-1) for t in parts])


def _split(flat: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """The tensors that a flat one ``[..., elements]`` was made of."""
    lead, found, at = flat.shape[:-1], [], 0
    for t in like:
        size = t.numel() * (2 if t.is_complex() else 1)
        part = flat[..., at : at + size]
        if t.is_complex():
            part = torch.view_as_complex(part.reshape(*lead, *t.shape, 2))
        found.append(part.reshape(*lead, *t.shape).contiguous())
        at += size
    return found
