"""One network over many processes, each of which has a part of it."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Any, Callable, Mapping, NamedTuple

from .._errors import ChronaxieError, ConfigError
from ._cluster import cluster, use_threads

if TYPE_CHECKING:
    from ..spiking import Network, Spikes


class Progress(NamedTuple):
    """Where a simulation is: the next step, spikes so far, and the process of each part."""

    step: int
    spikes: int
    processes: list[int]


class Worker:
    """The actor of a part. What others fired reaches it as an argument of its next call, from their nodes to its own."""

    def __init__(self, make: Any, network: Any, index: int, count: int, cpus: float) -> None:
        self.make, self.of, self.cpus = make, (network, index, count), cpus
        self.part: Any = None

    def facts(self) -> tuple[int, int, float]:
        """The process, the longest time between exchanges in steps, and the step, ms. The first call makes the part: what is
        wrong with the network is said by it, and not by the actor's end."""
        if self.part is None:
            make = self.make
            if make is None:
                from ..spiking import Part as make  # type: ignore[attr-defined, no-redef]
            use_threads(self.cpus)
            self.part = make(*self.of)
        return os.getpid(), int(self.part.min_delay), float(self.part.dt)

    def advance(self, steps: int, *heard: Any) -> Any:
        """Takes in what the others fired, then goes on, and gives what its own cells fire."""
        for spikes in heard:
            self.part.hear(spikes)
        return self.part.advance(steps)

    def state(self, *heard: Any) -> Any:
        """Takes in what the others fired, and gives all that the rest follows from."""
        for spikes in heard:
            self.part.hear(spikes)
        return self.part.state()

    def restore(self, state: Any) -> None:
        self.part.restore(state)


class _Run:
    """The parts, what they fired, and their common checkpoint, on the driver."""

    def __init__(self, ray: Any, make: Callable[[int], Any], count: int, failures: int) -> None:
        self.ray, self.make, self.failures = ray, make, failures
        self.lost = tuple(getattr(ray.exceptions, n) for n in ("RayActorError", "ObjectLostError", "WorkerCrashedError"))
        self.workers = [make(i) for i in range(count)]
        self.processes: list[int] = []
        self.fired = _Fired()
        # The step, how much had been fired until then, and each part's state, in this process's own store.
        self.saved: tuple[int, tuple[int, int], list[Any]] | None = None
        self.heard: list[Any] | None = None

    def _others(self, i: int) -> list[Any]:
        return [] if self.heard is None else [ref for j, ref in enumerate(self.heard) if j != i]

    def meet(self) -> tuple[int, float]:
        """The time between exchanges, on which all agree, and the step."""
        found = self.ray.get([w.facts.remote() for w in self.workers])
        self.processes = [f[0] for f in found]
        if len({f[1:] for f in found}) != 1:
            raise ChronaxieError(f"ray.simulate: parts disagree on the shortest delay and the step: {[f[1:] for f in found]}")
        return found[0][1:]  # type: ignore[no-any-return]

    def advance(self, steps: int) -> None:
        """One exchange."""
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
                self.meet()
                if self.saved is None:
                    self.save(0)
                step, mark, states = self.saved  # type: ignore[misc]
                self.ray.get([w.restore.remote(s) for w, s in zip(self.workers, states)])
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
        self.like: Any = None

    def add(self, turn: list[Any]) -> None:
        import numpy as np

        for spikes in turn:
            self.columns.append((np.array(spikes.step, np.uint64), np.array(spikes.neuron, np.uint32)))
            self.count += len(spikes.step)
        self.like = (turn[0].names, turn[0].sizes, turn[0].dt)

    def mark(self) -> tuple[int, int]:
        return len(self.columns), self.count

    def back_to(self, mark: tuple[int, int]) -> None:
        length, self.count = mark
        del self.columns[length:]

    def spikes(self, stop: float) -> Spikes:
        import numpy as np

        from ..spiking import Spikes

        step, neuron = (np.concatenate(column) for column in zip(*self.columns))
        order = np.lexsort((neuron, step))
        names, sizes, dt = self.like
        return Spikes(step[order], neuron[order], names, sizes, dt, 0.0, stop)


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
    progress: Callable[[Progress], None] | None = None,
    part: Callable[[Any, int, int], Any] | None = None,
) -> Spikes:
    """Runs a network as parts, one a Ray actor, with the spikes of one process, bit for bit.

    Parts exchange spikes once every shortest delay between them. An actor that is lost is made anew, elsewhere if its node is
    gone, and all parts go back to their last common checkpoint, which this process keeps.

    Args:
        network: a :class:`chronaxie.spiking.Network`, which travels, or a path that every node can read.
        duration: model time, ms.
        num_workers: parts.
        num_cpus, num_gpus, resources: what Ray sets aside for a part; it has so many threads.
        checkpoint_every: exchanges between checkpoints.
        max_failures: how many losses are made good.
        progress: called after each exchange, once its spikes are here.
        part: makes a part of (network, index, count); :class:`chronaxie.spiking.Part` by default.

    Returns:
        All spikes, in order of time, then cell.

    Raises:
        BackendUnavailableError: Ray is not installed.
        ConfigError, DataError, OutOfMemoryError: as of the network.
        ChronaxieError: parts were lost more often than ``max_failures``.
    """
    if num_workers < 1 or checkpoint_every < 1 or max_failures < 0:
        raise ConfigError(
            f"ray.simulate: num_workers = {num_workers} and checkpoint_every = {checkpoint_every} must be at least 1, "
            f"max_failures = {max_failures} at least 0"
        )
    if not isinstance(network, (str, os.PathLike)):
        described: Any = network
    else:
        from ..spiking import Network

        described = Network.read(os.path.abspath(network))
    ray = cluster("chronaxie.ray.simulate")
    shared = ray.put(described)
    options = {"num_cpus": num_cpus, "num_gpus": num_gpus, "resources": dict(resources or {}), "scheduling_strategy": "SPREAD"}
    actor = ray.remote(Worker).options(**options)
    run = _Run(ray, lambda i: actor.remote(part, shared, i, num_workers, num_cpus), num_workers, max_failures)
    try:
        try:
            every, dt = run.meet()
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
        return run.fired.spikes(steps * dt)
    finally:
        for worker in run.workers:
            ray.kill(worker)
