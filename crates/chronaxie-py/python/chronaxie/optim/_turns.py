"""Turns that the device counts, as in a captured graph: every step does as much, and a table there says for which matrices."""

from __future__ import annotations

from typing import Any, NamedTuple, Sequence

import torch
from torch import Tensor


class Place(NamedTuple):
    """The factors of an axis of some blocks: where they stand in a parameter's state, and the turn of the first of them."""

    state: dict[str, Any]
    region: int
    axis: int
    first: int


class Pool:
    """All matrices of one size (and exponent), in one tensor of ``factors`` and one of what is ``made`` of them, of which the
    parameters' states get views."""

    def __init__(self, places: Sequence[Place], made: str, every: int) -> None:
        self.places = places
        whole = {}
        for name in ("factors", made):
            parts = [p.state[name][p.region][p.axis] for p in places]
            whole[name] = torch.cat(parts)
            for place, view in zip(places, whole[name].split([len(t) for t in parts])):
                place.state[name][place.region][place.axis] = view
        self.factors, self.made = whole["factors"], whole[made]
        counts = [len(p.state[made][p.region][p.axis]) for p in places]
        turns = [p.first + k for p, n in zip(places, counts) for k in range(n)]
        rows = [[i for i, turn in enumerate(turns) if (step + turn) % every == 0] for step in range(every)]
        most, device = max(map(len, rows)), self.factors.device
        # A row that is shorter does its own once more; an empty one another's, for nothing.
        self.table = torch.tensor([((row or [0]) * most)[:most] for row in rows], device=device)
        self.any = torch.tensor([bool(row) for row in rows], device=device)
        self.owners = torch.tensor([at for at, n in enumerate(counts) for _ in range(n)], device=device)

    def due(self, every: bool = False) -> tuple[Tensor, Tensor, Any]:
        """Whose turn it is, or ``every`` one, how many steps each of them has seen, and whether what is made of them counts."""
        steps = torch.stack([p.state["step"] for p in self.places])
        if every:
            at, counts = torch.arange(len(self.made), device=self.table.device), self.any[:1] | True
        else:
            row = (steps[:1] % len(self.table)).long()
            at, counts = self.table.index_select(0, row)[0], self.any.index_select(0, row)
        return at, steps.index_select(0, self.owners.index_select(0, at)), counts[:, None, None]

    def take(self, at: Tensor, made: Tensor, good: Tensor) -> None:
        """Keeps what was made, where it is ``good``."""
        self.made.index_copy_(0, at, torch.where(good, made, self.made.index_select(0, at)))
