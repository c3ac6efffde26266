"""What optimizers share that keep a matrix for every axis of every block: whose blocks are whose, and at which step their turn
is."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from .._errors import CheckpointError, ConfigError
from ._base import Base
from ._blocks import count, from_blocks, grid_of, to_blocks
from ._owners import Ranks
from ._packed import pack, packed_size
from ._turns import Place, Pool


class Spread(NamedTuple):
    """Of the parameters of a group, by their places: shapes with their grids of blocks, and of each region the turn of its first
    block and the process that owns it."""

    key: Any
    grids: list[tuple[list[int], list[Any]]]
    turns: list[list[int]]
    owners: list[list[int]]


class Blocked(Base):
    """State of a parameter with blocks: ``step``, ``factors`` (packed) and what is made of them, lists by regions of lists by axes,
    empty where another process owns the region."""

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
            turns: list[list[int]] = []
            costs, turn = [], 0
            for _, grid in grids:
                turns.append([])
                for _, counts, sizes in grid:
                    turns[-1].append(turn)
                    turn += count(counts)
                    # Products with factors and with what is made of them, every step, and making it at some.
                    each = sum(4 * n * count(sizes) + self._work * n**3 / int(group["precondition_frequency"]) for n in sizes)
                    costs.append(count(counts) * each)
            owners = iter(self._ranks.shares(costs))
            known = Spread(key, grids, turns, [[next(owners) for _ in grid] for _, grid in grids])
            self._spreads[id(group)] = known
        return known

    def _accepts(self, group: dict[str, Any], given: list[tuple[int, Tensor, Tensor]]) -> None:
        for at, p, _ in given:
            state = self.state.get(p)
            if state and self._spread(group).grids[at][1] and "factors" not in state and "triangles" not in state:
                raise ConfigError(
                    f"{type(self).__name__}: a parameter of shape {tuple(p.shape)} has state of AdamW's steps; adamw is for parameters "
                    "from their first step on"
                )

    def _own(self, sizes: list[int], owner: int) -> list[int]:
        return sizes if owner == self._ranks.own else []

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
        flat, shapes, owners = [], [], []
        for (at, _, _), own in zip(work, parts):
            for (_, counts, sizes), owner, x in zip(spread.grids[at][1], spread.owners[at], own):
                flat.append(x)
                shapes.append([count(counts), *sizes])
                owners.append(owner)
        found = iter(self._ranks.exchange(flat, shapes, owners, like) if flat else [])
        return [[next(found) for _ in own] for own in parts]

    def load_state_dict(self, state_dict: Any) -> None:
        super().load_state_dict(state_dict)
        for cached in ("_pools", "_spreads", "_flats"):
            self.__dict__.pop(cached, None)
        name = type(self).__name__
        for group in self.param_groups:
            spread = self._spread(group)
            for (_, grid), owners, p in zip(spread.grids, spread.owners, group["params"]):
                state = self.state.get(p)
                if not state or "factors" not in state:
                    continue
                if len(state["factors"]) != len(grid):
                    raise CheckpointError(
                        f"{name}: of a parameter of shape {tuple(p.shape)} {len(state['factors'])} regions of blocks were saved, where "
                        f"max_preconditioner_dim = {group['max_preconditioner_dim']} makes {len(grid)}"
                    )
                for k, ((_, _, sizes), owner) in enumerate(zip(grid, owners)):
                    own = self._own(sizes, owner)
                    found = state["factors"][k], state[self._made][k]
                    if len(found[0]) < len(own):
                        raise CheckpointError(
                            f"{name}: of a parameter of shape {tuple(p.shape)} blocks {sizes} were saved without their factors, which "
                            "were another process's; save what consolidated_state_dict() gives"
                        )
                    # Earlier versions kept whole matrices.
                    state["factors"][k] = [pack(f) if f.dim() == 3 else f for f in found[0][: len(own)]]
                    state[self._made][k] = list(found[1][: len(own)])

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
        for name in ("factors", self._made):
            regions = []
            for (_, counts, sizes), owner, own in zip(grid, spread.owners[at], state[name]):
                tails = [[packed_size(n)] if name == "factors" else [n, n] for n in sizes]
                shapes = [[count(counts), *tail] for tail in tails]
                regions.append(self._ranks.exchange(own or [None] * len(sizes), shapes, [owner] * len(sizes), like))
            state[name] = regions
        if self._made == "bases":
            # Second moments in a basis are its owner's.
            second = state["exp_avg_sq"].clone()
            for (where, counts, sizes), owner in zip(grid, spread.owners[at]):
                part = to_blocks(second[where], counts, sizes) if owner == self._ranks.own else None
                (found,) = self._ranks.exchange([part], [[count(counts), *sizes]], [owner], like)
                second[where] = from_blocks(found, counts, sizes)
            state["exp_avg_sq"] = second
        return state
