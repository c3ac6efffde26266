"""One network over many processes, each of which has a part of it."""

from __future__ import annotations

import math
import os
from functools import partial
from typing import TYPE_CHECKING, Any, Callable, Mapping, NamedTuple

from .._errors import BackendUnavailableError, ChronaxieError, ConfigError
from ._cluster import cluster, use_threads

if TYPE_CHECKING:
    from ..spiking import Network, Spikes


class Progress(NamedTuple):
    """Where a simulation is: the next step, spikes so far, and the process of each part."""

    step: int
    spikes: int
    processes: list[int]


class Worker:
    """The actor of a part. What the others fired reaches it as arguments of its next call, from their nodes to its own."""

    def __init__(self, make: Any, network: Any, index: int, count: int, cpus: float) -> None:
        self.make, self.of, self.cpus = make, (network, index, count), cpus
        self.part: Any = None
        # Whether it has yet to hear of the others.
        self.due = False

    def facts(self) -> tuple[int, int, float, int, Any]:
        """The process, the most steps between exchanges, the step in ms, cells here, and names and sizes of all populations,
        where the part knows them. The first call makes the part: what is wrong with the network is said by it, and not by the
        actor's end."""
        if self.part is None:
            use_threads(self.cpus)
            self.part = self.make(*self.of)
        part = self.part
        populations = [(p.name, p.size) for p in getattr(part, "populations", ())]
        return os.getpid(), int(part.min_delay), float(part.dt), len(part.cells), populations

    def _hear(self, heard: tuple[Any, ...]) -> None:
        import numpy as np

        if self.due:
            columns = zip(*heard) if heard else [[np.empty(0, np.uint64)], [np.empty(0, np.uint32)]]
            self.part.hear(*(np.concatenate(column) for column in columns))
        self.due = False

    def advance(self, steps: int, *heard: Any) -> Any:
        """Takes in what the others fired, then goes on, and gives what its own cells fire, steps and cells."""
        self._hear(heard)
        fired, self.due = self.part.advance(steps), True
        return fired

    def offer(self) -> Any:
        """What the part says of its GPU, if it is one that can be joined to others."""
        return self.part.offer() if hasattr(self.part, "offer") else None

    def connect(self, offers: list[Any], steps: int) -> None:
        self.part.connect(offers, steps)

    def together(self, steps: int) -> Any:
        """Goes on while the others do, from GPU to GPU."""
        return self.part.advance_together(steps)

    def state(self, *heard: Any) -> Any:
        """Takes in what the others fired, and gives all that the rest follows from."""
        self._hear(heard)
        return self.part.state()

    def restore(self, state: Any) -> None:
        self.part.restore(state)
        self.due = False


class _Run:
    """The parts, what they fired, and their common checkpoint, on the driver."""

    def __init__(self, ray: Any, make: Callable[[int], Any], count: int, failures: int, transport: str) -> None:
        self.ray, self.make, self.failures = ray, make, failures
        # Whether the parts' GPUs are to tell each other what fired, and whether they do.
        self.transport, self.joined = transport, False
        self.lost = tuple(getattr(ray.exceptions, n) for n in ("RayActorError", "ObjectLostError", "WorkerCrashedError"))
        self.workers = [make(i) for i in range(count)]
        self.processes: list[int] = []
        self.populations: list[tuple[str, int]] = []
        self.fired = _Fired()
        # The step, how much had been fired until then, and each part's state, in this process's own store.
        self.saved: tuple[int, tuple[int, int], list[Any]] | None = None
        self.heard: list[Any] | None = None

    def _others(self, i: int) -> list[Any]:
        return [] if self.heard is None else [ref for j, ref in enumerate(self.heard) if j != i]

    def meet(self) -> tuple[int, float]:
        """The time between exchanges, the shortest that a part asks for, and the step."""
        found = self.ray.get([w.facts.remote() for w in self.workers])
        self.processes = [f[0] for f in found]
        steps = {f[2] for f in found}
        if len(steps) != 1:
            raise ChronaxieError(f"ray.simulate: parts have steps of {sorted(steps)} ms; all must have one")
        self.populations = found[0][4] or [("network", sum(f[3] for f in found))]
        return min(f[1] for f in found), steps.pop()

    def join(self, every: int) -> None:
        """From GPU to GPU, where all parts can."""
        self.joined = False
        if self.transport == "object_store" or len(self.workers) < 2:
            return
        offers = self.ray.get([w.offer.remote() for w in self.workers])
        try:
            if None in offers:
                raise BackendUnavailableError("ray.simulate: these parts have no GPUs that can be joined")
            self.ray.get([w.connect.remote(offers, every) for w in self.workers])
        except BackendUnavailableError:
            if self.transport == "nccl":
                raise
            return
        self.joined = True

    def advance(self, steps: int) -> None:
        """One exchange."""
        if self.joined:
            try:
                self.fired.add(self.ray.get([w.together.remote(steps) for w in self.workers]))
            except ChronaxieError:
                # Whoever is left ends with a sentence where another has gone, which is asked for here.
                self.ray.get([w.facts.remote() for w in self.workers])
                raise
            return
        refs = [w.advance.remote(steps, *self._others(i)) for i, w in enumerate(self.workers)]
        self.fired.add(self.ray.get(refs))
        self.heard = refs

    def save(self, step: int) -> None:
        """A checkpoint of all parts at one step."""
        states = self.ray.get([w.state.remote(*self._others(i)) for i, w in enumerate(self.workers)])
        # Copies that outlive the nodes of the parts.
        self.saved, self.heard = (step, self.fired.mark(), [self.ray.put(s) for s in states]), None

    def recover(self, error: BaseException) -> int:
        """Makes those anew that are gone, and takes all back to the checkpoint; the step there."""
        while self.failures > 0:
            self.failures -= 1
            try:
                for i, w in enumerate(self.workers):
                    try:
                        self.ray.get(w.facts.remote())
                    except self.lost:
                        self.ray.kill(w)
                        self.workers[i] = self.make(i)
                every, _ = self.meet()
                if self.saved is None:
                    self.save(0)
                step, mark, states = self.saved  # type: ignore[misc]
                self.ray.get([w.restore.remote(s) for w, s in zip(self.workers, states)])
                self.join(every)
            except self.lost as e:
                error = e
                continue
            self.fired.back_to(mark)
            self.heard = None
            return step
        raise ChronaxieError(f"ray.simulate: a part was lost once more than max_failures allows: {error}") from error


class _Fired:
    """Spikes in the order of exchanges and parts, in memory of this process's own."""

    def __init__(self) -> None:
        self.columns: list[tuple[Any, Any]] = []
        self.count = 0

    def add(self, turn: list[Any]) -> None:
        import numpy as np

        for step, cell in turn:
            self.columns.append((np.array(step, np.uint64), np.array(cell, np.uint32)))
            self.count += len(step)

    def mark(self) -> tuple[int, int]:
        return len(self.columns), self.count

    def back_to(self, mark: tuple[int, int]) -> None:
        length, self.count = mark
        del self.columns[length:]

    def spikes(self, populations: list[tuple[str, int]], dt: float, stop: float) -> Spikes:
        import numpy as np

        from ..spiking import Spikes

        step, cell = (np.concatenate(column) for column in zip(*self.columns))
        order = np.lexsort((cell, step))
        names, sizes = zip(*populations)
        return Spikes(step[order], cell[order], names, sizes, dt, 0.0, stop)


def _part(network: Any, index: int, count: int, method: str, gpus: float) -> Any:
    from ..spiking import Part  # type: ignore[attr-defined]

    # Ray shows a process its own GPUs alone.
    on: dict[str, Any] = {"backend": "cuda", "gpus": max(1, int(gpus))} if gpus > 0 else {"backend": "cpu"}
    return Part(network, index, count, method=method, **on)


def simulate(
    network: Network | str | os.PathLike[str],
    duration: float,
    *,
    num_workers: int,
    num_cpus: float = 1,
    num_gpus: float = 0,
    resources: Mapping[str, float] | None = None,
    checkpoint_every: int = 200,
    max_failures: int = 3,
    method: str = "auto",
    progress: Callable[[Progress], None] | None = None,
    transport: str = "auto",
    part: Callable[[Any, int, int], Any] | None = None,
) -> Spikes:
    """Runs a network as parts, one a Ray actor, with the spikes of one process, bit for bit.

    Parts exchange spikes once every shortest delay from one to another. An actor that is lost is made anew, elsewhere if its node is
    gone, and all parts go back to their last common checkpoint, which this process keeps.

    Args:
        network: a :class:`chronaxie.spiking.Network`, which travels, or a path that every node can read.
        duration: model time, ms.
        num_workers: parts.
        num_cpus, num_gpus, resources: what Ray sets aside for a part; it has so many threads, and with ``num_gpus`` it runs on the
            GPUs that Ray shows it (a share of one is one), which tell each other in each step what fired.
        checkpoint_every: exchanges between checkpoints.
        max_failures: how many losses are made good.
        method: how the network is shared out, as of :class:`chronaxie.spiking.Part`; where some machines have METIS and others
            have not, one to name.
        transport: how spikes go from one part to another: ``nccl`` from GPU to GPU, ``object_store``, or ``auto``: the former where every
            actor has GPUs of its own (``num_gpus`` of 1 or more) and finds NCCL.
        progress: called after each exchange, once its spikes are here.
        part: makes a part of (network, index, count); :class:`chronaxie.spiking.Part` by default.

    Returns:
        All spikes, in order of time, then cell.

    Raises:
        BackendUnavailableError: Ray is not installed; with ``transport="nccl"``, what stands against it.
        ConfigError, DataError, OutOfMemoryError: as of the network.
        ChronaxieError: parts were lost more often than ``max_failures``.
    """
    if num_workers < 1 or checkpoint_every < 1 or max_failures < 0:
        raise ConfigError(
            f"ray.simulate: num_workers = {num_workers} and checkpoint_every = {checkpoint_every} must be at least 1, "
            f"max_failures = {max_failures} at least 0"
        )
    from ..spiking._spikes import number

    duration = number("ray.simulate: duration", duration, "a number of milliseconds")
    if transport not in ("auto", "nccl", "object_store"):
        raise ConfigError(f"ray.simulate: transport = {transport!r} is not one of auto, nccl, object_store")
    if transport == "auto" and num_gpus < 1:
        transport = "object_store"
    if not isinstance(network, (str, os.PathLike)):
        described: Any = network
    else:
        from ..spiking import Network

        described = Network.read(os.path.abspath(network))
    ray = cluster("chronaxie.ray.simulate")
    shared = ray.put(described)
    options = {"num_cpus": num_cpus, "num_gpus": num_gpus, "resources": dict(resources or {}), "scheduling_strategy": "SPREAD"}
    actor = ray.remote(Worker).options(**options)
    make = partial(_part, method=method, gpus=num_gpus) if part is None else part
    run = _Run(ray, lambda i: actor.remote(make, shared, i, num_workers, num_cpus), num_workers, max_failures, transport)
    try:
        try:
            every, dt = run.meet()
            run.join(every)
        except run.lost as e:
            run.recover(e)
            every, dt = run.meet()
        count = duration / dt
        steps = round(count) if math.isfinite(count) else 0
        if steps < 1 or abs(count - steps) > 1e-6 * count:
            raise ConfigError(f"ray.simulate: {duration} ms are not a whole number of steps of {dt} ms, at least one")
        at, since = 0, checkpoint_every
        while at < steps:
            try:
                if since == checkpoint_every:
                    run.save(at)
                    since = 0
                run.advance(min(every, steps - at))
                at, since = min(at + every, steps), since + 1
            except run.lost as e:
                at, since = run.recover(e), 0
                continue
            if progress is not None:
                progress(Progress(at, run.fired.count, list(run.processes)))
        return run.fired.spikes(run.populations, dt, steps * dt)
    finally:
        for worker in run.workers:
            ray.kill(worker)
