"""A part of a network, for programs that hold parts in several processes or machines and carry spikes between them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .. import _native
from .._errors import ShapeError
from ._simulation import populations_of

if TYPE_CHECKING:
    from ._network import Network


class Part:
    """Part ``index`` of ``count`` of a network, on the CPU: some of its cells and the synapses onto them.

    Every part advances by the same number of steps, at most the least ``min_delay`` of all, and hears what fired in all others
    before it goes on::

        parts = [Part(network, i, 2) for i in range(2)]  # wherever they live
        steps = min(part.min_delay for part in parts)
        fired = [part.advance(steps) for part in parts]
        parts[0].hear(*fired[1])
        parts[1].hear(*fired[0])

    The spikes of all parts together are those of the whole, bit for bit, for any count and method.

    Attributes:
        dt: the step, ms.
        populations: those of the whole network, in the order of their cells, as :attr:`Simulation.populations`.
        cells: the network's numbers of its cells (u32, rising).
        synapse_count: how many synapses lie on them.
        min_delay: the most steps at a time, for this part: the shortest delay from a cell elsewhere to one here, in steps, 64 at most.
        method: how the network was shared out.

    Args:
        network: a :class:`Network`, or the path of a TOML or JSON description.
        method: ``auto``, or a method of ``chronaxie partition``; the same for all parts. ``auto`` also tries METIS where it is
            installed, so machines that differ in that should name one.

    Raises:
        ConfigError, DataError, OutOfMemoryError, BackendUnavailableError: a sentence with the values.
    """

    def __init__(self, network: Network | str, index: int, count: int, *, method: str = "auto") -> None:
        from ._network import Network

        described = network if isinstance(network, Network) else Network.read(network)
        self.index, self.count = index, count
        self._part = _native.Part(*described._parts(), index, count, method)
        self.dt, cells, self.synapse_count, self.min_delay, self.method = self._part.facts
        self.populations = populations_of(self._part)
        self.cells = np.frombuffer(cells, dtype=np.uint32)

    def __repr__(self) -> str:
        return f"Part({self.index} of {self.count} by {self.method}, {len(self.cells)} cells, step {self.step})"

    @property
    def step(self) -> int:
        """The next step."""
        return self._part.step()

    def advance(self, steps: int) -> tuple[np.ndarray, np.ndarray]:
        """Runs at most ``min_delay`` steps; what fired here, as steps (u64) and cells (u32), in order. The next call is
        :meth:`hear`."""
        step, cell = self._part.advance(steps)
        return np.frombuffer(step, dtype=np.uint64), np.frombuffer(cell, dtype=np.uint32)

    def hear(self, step: np.ndarray, cell: np.ndarray) -> None:
        """What fired in all other parts in those steps, in any order."""
        if np.shape(step) != np.shape(cell) or np.ndim(step) != 1:
            raise ShapeError(f"hear: steps of shape {np.shape(step)} do not match cells of shape {np.shape(cell)}")
        self._part.hear(np.asarray(step, dtype=np.uint64).tobytes(), np.asarray(cell, dtype=np.uint32).tobytes())

    def state(self) -> bytes:
        """The state of its cells and of the synapses onto them."""
        return self._part.state()

    def restore(self, state: bytes) -> None:
        """Goes to the state of the same part.

        Raises:
            CheckpointError: it is of another part or network, or damaged.
        """
        self._part.restore(state)
