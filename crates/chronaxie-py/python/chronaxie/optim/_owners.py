"""Work spread over processes: who does which part, and how all come to have what each made."""

from __future__ import annotations

from typing import Any, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from .._errors import ConfigError


class Ranks:
    """The processes of a group, and which of them this one is; one alone where there is no group."""

    def __init__(self, name: str, group: Any) -> None:
        self.group, self.count, self.own = None, 1, 0
        if group is None or group is False:
            return
        if not (dist.is_available() and dist.is_initialized()):
            raise ConfigError(f"{name}: process_group = {group!r} needs torch.distributed.init_process_group() first")
        self.group = None if group is True else group
        self.count, self.own = dist.get_world_size(self.group), dist.get_rank(self.group)
        if self.own < 0:
            raise ConfigError(f"{name}: this process is not one of process_group's {self.count}")

    def __deepcopy__(self, memo: Any) -> Ranks:
        # Processes have no copy.
        return self

    def shares(self, costs: Sequence[float]) -> list[int]:
        """Whose each part is: the costliest first, each to whom has least so far (Graham's longest processing time)."""
        loads, owners = [0.0] * self.count, [0] * len(costs)
        for at in sorted(range(len(costs)), key=lambda i: (-costs[i], i)):
            owners[at] = loads.index(min(loads))
            loads[owners[at]] += costs[at]
        return owners

    def spans(self, regions: Sequence[tuple[int, float]]) -> list[list[tuple[int, int, int]]]:
        """Who owns which blocks, of regions of so many blocks that cost so much each: for each region some ``(process, from, to)``.

        A region is cut into pieces of an eighth of a process's share at most, if its blocks allow it, and whoever has several pieces of one
        has them side by side: few parts are exchanged, and nobody has much more than others.
        """
        if self.count == 1:
            return [[(0, 0, blocks)] for blocks, _ in regions]
        most = sum(blocks * each for blocks, each in regions) / (8 * self.count)
        cut = []
        for blocks, each in regions:
            parts = -(-blocks // max(1, int(most / each)))
            cut.append([(k + 1) * blocks // parts - k * blocks // parts for k in range(parts)])
        owners = iter(self.shares([n * each for pieces, (_, each) in zip(cut, regions) for n in pieces]))
        found = []
        for pieces in cut:
            counts = [0] * self.count
            for n in pieces:
                counts[next(owners)] += n
            ends = [sum(counts[: rank + 1]) for rank in range(self.count)]
            found.append([(rank, end - n, end) for rank, (n, end) in enumerate(zip(counts, ends)) if n])
        return found

    def exchange(self, parts: Sequence[Any], shapes: Sequence[Sequence[int]], owners: Sequence[int], like: Tensor) -> list[Tensor]:
        """All parts, of which this process has its own and None for the others: one all-gather, padded to the longest share. The
        bits are the owner's everywhere."""
        if self.count == 1:
            return list(parts)
        sizes = [torch.Size(s).numel() for s in shapes]
        shares = [[i for i, owner in enumerate(owners) if owner == rank] for rank in range(self.count)]
        most = max(sum(sizes[i] for i in share) for share in shares)
        whole = like.new_zeros(self.count, most)
        mine = like.new_zeros(most)
        end = 0
        for i in shares[self.own]:
            mine[end : end + sizes[i]] = parts[i].reshape(-1)
            end += sizes[i]
        dist.all_gather(list(whole.unbind()), mine, group=self.group)
        found: list[Any] = [None] * len(sizes)
        for rank, share in enumerate(shares):
            end = 0
            for i in share:
                found[i] = whole[rank, end : end + sizes[i]].reshape(tuple(shapes[i]))
                end += sizes[i]
        return found
