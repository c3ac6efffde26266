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
    """Part ``index`` of ``count`` of a network, on the CPU or a GPU: some of its cells and the synapses onto them.

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
        backend: ``cpu`` or ``cuda:N``.

    Args:
        network: a :class:`Network`, or the path of a TOML or JSON description.
        method: ``auto``, or a method of ``chronaxie partition``; the same for all parts. ``auto`` also tries METIS where it is
            installed, so machines that differ in that should name one.
        backend: ``cpu``, ``cuda`` or ``cuda:N``; parts may differ in it.
        gpus: on so many GPUs from that one on, which tell each other in each step what fired.

    Raises:
        ConfigError, DataError, OutOfMemoryError, BackendUnavailableError: a sentence with the values.
    """

    def __init__(self, network: Network | str, index: int, count: int, *, method: str = "auto", backend: str = "cpu", gpus: int | None = None) -> None:
        from ._network import Network

        described = network if isinstance(network, Network) else Network.read(network)
        self.index, self.count = index, count
        self._part = _native.Part(*described._parts(), index, count, method, backend, gpus)
        self.dt, cells, self.synapse_count, self.min_delay, self.method = self._part.facts
        self.backend = self._part.backend
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

    def offer(self) -> bytes:
        """What this part says of itself to all before :meth:`connect`: whether its GPU can be joined to those of others."""
        return self._part.offer()

    def connect(self, offers: list[bytes], steps: int) -> None:
        """Joins the GPUs of all parts by NCCL, where every part has GPUs of its own; all parts call at the same time. From then on
        :meth:`advance_together` takes the place of :meth:`advance` and :meth:`hear`. Parts can be joined anew.

        Args:
            offers: what each part says (:meth:`offer`), in the order of parts.
            steps: between exchanges: the least ``min_delay`` of all.

        Raises:
            BackendUnavailableError: what stands against it, the same for all; the part goes on as before.
            ChronaxieError: others do not come.
        """
        self._part.connect(offers, steps)

    def advance_together(self, steps: int) -> tuple[np.ndarray, np.ndarray]:
        """Runs any number of steps together with all other parts, which call it at the same time, and hear of each other from GPU to
        GPU; what fired here, as :meth:`advance`."""
        step, cell = self._part.advance_together(steps)
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
