"""What optimizers share that keep a matrix for every axis of every block: whose blocks are whose, and at which step their turn
is."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._errors import CheckpointError, ConfigError
from ._base import Base
from ._blocks import count, from_blocks, grid_of, to_blocks
from ._owners import Ranks
from ._packed import by_regions, from_triangle, pack, packed_size
from ._turns import Place, Pool


class Spread(NamedTuple):
    """Of the parameters of a group, by their places: shapes with their grids of blocks, and of each region the blocks that are this
    process's own, the turn of the first of those, and the blocks of every process that has some."""

    key: Any
    grids: list[tuple[list[int], list[Any]]]
    own: list[list[slice]]
    turns: list[list[int]]
    owners: list[list[list[tuple[int, int, int]]]]


class Blocked(Base):
    """State of a parameter with blocks: ``step``, ``factors`` (packed) and what is made of them, lists by regions of lists by axes, of
    this process's blocks alone (``blocks`` says which, where there are several processes), and empty where it has none of a region."""

    # The name in the state of what is made of factors.
    _made: str
    # Operations in n^3 of making one.
    _work: int
    _ranks = Ranks("", None)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_ranks": self._ranks}

    def _how(self, group: dict[str, Any]) -> tuple[Any, ...]:
        """What of the options says where blocks lie, as :func:`grid_of` takes it."""
        return int(group["max_preconditioner_dim"]), bool(group["precondition_vectors"])

    def _spread(self, group: dict[str, Any]) -> Spread:
        how, plain = self._how(group), group["adamw"]
        key = (len(group["params"]), plain, *how)
        known = self.__dict__.setdefault("_spreads", {}).get(id(group))
        if known is None or known.key != key:
            grids: list[Any] = [(list(p.shape), []) if plain else grid_of(p, *how) for p in group["params"]]
            regions = []
            for _, grid in grids:
                for _, counts, sizes in grid:
                    # Products with factors and with what is made of them, every step, and making it at some.
                    each = sum(4 * n * count(sizes) + self._work * n**3 / int(group["precondition_frequency"]) for n in sizes)
                    regions.append((count(counts), each))
            found, turn = iter(self._ranks.spans(regions)), 0
            known = Spread(key, grids, [], [], [])
            for _, grid in grids:
                known.owners.append([next(found) for _ in grid])
                known.own.append([self._mine(spans) for spans in known.owners[-1]])
                known.turns.append([])
                for (_, counts, _), mine in zip(grid, known.own[-1]):
                    known.turns[-1].append(turn + mine.start)
                    turn += count(counts)
            self._spreads[id(group)] = known
        return known

    def _mine(self, spans: list[tuple[int, int, int]]) -> slice:
        return next((slice(lo, hi) for rank, lo, hi in spans if rank == self._ranks.own), slice(0, 0))

    def _blocks_of(self, spread: Spread, at: int) -> list[tuple[list[int], int]]:
        """Of each region the sizes of a block (none where this process has none) and how many it has."""
        return [(sizes if mine.stop else [], mine.stop - mine.start) for (_, _, sizes), mine in zip(spread.grids[at][1], spread.own[at])]

    def _note_blocks(self, state: dict[str, Any], spread: Spread, at: int) -> None:
        if self._ranks.count > 1:
            state["blocks"] = [[mine.start, mine.stop] for mine in spread.own[at]]

    def _packed_again(self, state: dict[str, Any], grid: list[Any]) -> None:
        """Makes the factors of a state that fused steps left what other steps take."""
        if "triangles" in state:
            state["factors"] = by_regions(from_triangle, state.pop("triangles"), grid)

    def _accepts(self, group: dict[str, Any], given: list[tuple[int, Tensor, Tensor]]) -> None:
        for at, p, _ in given:
            state = self.state.get(p)
            if state and self._spread(group).grids[at][1] and "factors" not in state and "triangles" not in state:
                raise ConfigError(
                    f"{type(self).__name__}: a parameter of shape {tuple(p.shape)} has state of AdamW's steps; adamw is for parameters "
                    "from their first step on"
                )

    def _pooled(self, group: dict[str, Any], work: list[Any], fresh: bool, kind: Any) -> list[tuple[Any, Pool]]:
        """The pools of all parameters of ``work`` (their places, themselves and their states), by kind (a function of the order of a
        block and its size) and size."""
        pools = self.__dict__.setdefault("_pools", {})
        every = int(group["precondition_frequency"])
        key = (every, *(id(state) for _, _, state in work))
        if fresh or id(group) not in pools or pools[id(group)][0] != key:
            places: dict[Any, list[Place]] = {}
            spread = self._spread(group)
            for at, _, state in work:
                for k, ((_, _, sizes), factors) in enumerate(zip(spread.grids[at][1], state["factors"])):
                    for axis in range(len(factors)):
                        of = kind(len(sizes)), sizes[axis]
                        places.setdefault(of, []).append(Place(state, k, axis, spread.turns[at][k]))
            pools[id(group)] = key, [(of, Pool(some, self._made, every)) for of, some in places.items()]
        return pools[id(group)][1]  # type: ignore[no-any-return]

    def _exchanged(self, group: dict[str, Any], work: list[Any], parts: list[list[Any]], like: Tensor) -> list[list[Any]]:
        """The steps of the blocks of all parameters of ``work``, region by region, from those that this process made."""
        if self._ranks.count == 1:
            return parts
        spread = self._spread(group)
        regions = [
            (x, spans, sizes)
            for (at, _, _), own in zip(work, parts)
            for (_, _, sizes), spans, x in zip(spread.grids[at][1], spread.owners[at], own)
        ]
        found = iter(self._gathered(regions, like))
        return [[next(found) for _ in own] for own in parts]

    def _gathered(self, regions: list[tuple[Any, list[tuple[int, int, int]], list[int]]], like: Tensor) -> list[Tensor]:
        """All blocks of some regions, given as what this process has of them, who has which, and the shape of one."""
        pieces = [(x, rank, [hi - lo, *shape]) for x, spans, shape in regions for rank, lo, hi in spans]
        if not pieces:
            return []
        mine = [x if rank == self._ranks.own else None for x, rank, _ in pieces]
        found = iter(self._ranks.exchange(mine, [shape for _, _, shape in pieces], [rank for _, rank, _ in pieces], like))
        parts = [[next(found) for _ in spans] for _, spans, _ in regions]
        return [some[0] if len(some) == 1 else torch.cat(some) for some in parts]

    def load_state_dict(self, state_dict: Any) -> None:
        super().load_state_dict(state_dict)
        for cached in ("_pools", "_spreads"):
            self.__dict__.pop(cached, None)
        name = type(self).__name__
        for group in self.param_groups:
            spread = self._spread(group)
            for at, ((_, grid), p) in enumerate(zip(spread.grids, group["params"])):
                state = self.state.get(p)
                if not state or "factors" not in state:
                    continue
                if len(state["factors"]) != len(grid):
                    raise CheckpointError(
                        f"{name}: of a parameter of shape {tuple(p.shape)} {len(state['factors'])} regions of blocks were saved, where "
                        f"max_preconditioner_dim = {group['max_preconditioner_dim']} makes {len(grid)}"
                    )
                saved = state.pop("blocks", None)
                for k, ((_, counts, sizes), mine) in enumerate(zip(grid, spread.own[at])):
                    # What was not consolidated is a part, and this process's own or of no use to it.
                    had = slice(0, count(counts)) if saved is None else slice(*saved[k])
                    found = state["factors"][k], state[self._made][k]
                    if mine.stop and (not found[0] or mine.start < had.start or mine.stop > had.stop):
                        raise CheckpointError(
                            f"{name}: of a parameter of shape {tuple(p.shape)} blocks {sizes} were saved without their factors, which "
                            "were another process's; save what consolidated_state_dict() gives"
                        )
                    lo, blocks = mine.start - had.start, mine.stop - mine.start
                    # In memory of their own, which a part of all would keep. Earlier versions kept whole matrices.
                    own = [[t if len(t) == blocks else t[lo : lo + blocks].clone() for t in of] if blocks else [] for of in found]
                    state["factors"][k] = [pack(f) if f.dim() == 3 else f for f in own[0]]
                    state[self._made][k] = own[1]
                self._note_blocks(state, spread, at)

    load_state_dict.__doc__ = Base.load_state_dict.__doc__

    def consolidated_state_dict(self) -> dict[str, Any]:
        """The state with what all processes own, in each of them; all of them call it. It loads with any number of processes."""
        whole = self.state_dict()
        if self._ranks.count == 1:
            return whole
        states = dict(whole["state"])
        for group, saved in zip(self.param_groups, whole["param_groups"]):
            spread = self._spread(group)
            for at, i in enumerate(saved["params"]):
                if "factors" in states.get(i, {}):
                    states[i] = self._consolidated(dict(states[i]), spread, at)
        return {**whole, "state": states}

    def _consolidated(self, state: dict[str, Any], spread: Spread, at: int) -> dict[str, Any]:
        shape, grid = spread.grids[at]
        like = state["exp_avg"]
        state.pop("blocks", None)
        for name in ("factors", self._made):
            regions = []
            for (_, _, sizes), spans, own in zip(grid, spread.owners[at], state[name]):
                tails = [[packed_size(n)] if name == "factors" else [n, n] for n in sizes]
                regions.append(self._gathered([(x, spans, tail) for x, tail in zip(own or [None] * len(sizes), tails)], like))
            state[name] = regions
        if self._made == "bases":
            # Second moments in a basis are its owner's.
            second = state["exp_avg_sq"].clone()
            for (where, counts, sizes), spans, mine in zip(grid, spread.owners[at], spread.own[at]):
                (found,) = self._gathered([(to_blocks(second[where], counts, sizes)[mine], spans, sizes)], like)
                second[where] = from_blocks(found, counts, sizes)
            state["exp_avg_sq"] = second
        return state
