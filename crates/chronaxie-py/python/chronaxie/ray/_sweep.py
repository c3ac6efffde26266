"""Many runs of one network, each with its own parameters."""

from __future__ import annotations

import copy
import hashlib
import itertools
import json
import os
import time
from typing import TYPE_CHECKING, Any, Callable, Mapping, Sequence, Union

from .._errors import ChronaxieError, ConfigError
from . import _parquet
from ._cluster import cluster, use_threads

if TYPE_CHECKING:
    from ..spiking import Network

    Grid = Union[Mapping[str, Sequence[Any]], Sequence[Mapping[str, Any]]]


def _points(grid: Grid) -> list[dict[str, Any]]:
    """The parameters of each run, with values of one type in a column."""
    if isinstance(grid, Mapping):
        for name, values in grid.items():
            if isinstance(values, (str, bytes)) or not isinstance(values, Sequence) and not hasattr(values, "tolist"):
                raise ConfigError(f"sweep: grid[{name!r}] = {values!r} is not a list of values")
        lists = [list(getattr(v, "tolist", lambda v=v: v)()) for v in grid.values()]
        points = [dict(zip(grid, values)) for values in itertools.product(*lists)]
    else:
        points = [dict(p) for p in grid]
        for p in points:
            if list(p) != list(points[0]):
                raise ConfigError(f"sweep: one run sets {', '.join(p)} and another {', '.join(points[0])}; all set the same")
    for name in points[0] if points else []:
        kinds = {type(p[name]) for p in points}
        if kinds == {int, float}:
            for p in points:
                p[name] = float(p[name])
        elif len(kinds) > 1 or not kinds <= {bool, int, float, str, list, dict}:
            raise ConfigError(f"sweep: {name} has values of types {', '.join(sorted(k.__name__ for k in kinds))}; one is needed")
    return points


def _described(config: str | os.PathLike[str] | Network) -> tuple[Network, str]:
    """The network, and a hash of what describes it: of a file its bytes, but not those of files that it names."""
    from ..spiking import Network

    network = copy.copy(config) if isinstance(config, Network) else Network.read(config)
    found = hashlib.sha256(json.dumps([network._set, network._described], sort_keys=True).encode())
    if network._path is not None:
        try:
            with open(network._path, "rb") as file:
                found.update(file.read())
        except OSError as e:
            raise ConfigError(f"sweep: cannot read {network._path}: {e}") from e
        network._path = os.path.abspath(network._path)
    for name, columns in sorted(network._tables.items()):
        for key, values in sorted(columns.items()):
            found.update(f"{name}.{key}".encode() + values.tobytes())
    return network, found.hexdigest()


def _run(network: Network, point: Mapping[str, Any], duration: float | None, discard: float, backend: str, cpus: float) -> Any:
    """One run: what a row has beside its parameters."""
    use_threads(cpus)
    own = copy.copy(network)
    own._set = [*network._set, *(f"{k}={json.dumps(v)}" for k, v in point.items())]
    began = time.perf_counter()
    simulation = own.build(backend=backend)
    built = time.perf_counter()
    duration = simulation.duration if duration is None else duration
    if not 0.0 <= discard <= duration:
        raise ConfigError(f"sweep: discard = {discard} ms is not between 0 and the duration of {duration} ms")
    if discard:
        simulation.run(discard, record=False)
    spikes = simulation.run(duration - discard)
    wall = time.perf_counter() - built
    return {
        **{f"rate_hz.{name}": rate for name, rate in spikes.rates().items()},
        "model_ms": float(duration),
        "wall_ms": wall * 1e3,
        "build_ms": (built - began) * 1e3,
        "real_time_factor": wall * 1e3 / duration if duration else 0.0,
        "spikes": int(simulation.spike_count),
        "spikes_sha256": simulation.spikes_sha256,
        "backend": simulation.backend,
    }


def _runs(
    network: Network, points: Sequence[Mapping[str, Any]], duration: float | None, discard: float, backend: str, cpus: float
) -> list[Any]:
    """Runs of some points, side by side where they are several."""
    if len(points) == 1:
        return [_run(network, points[0], duration, discard, backend, cpus)]
    import numpy as np

    use_threads(cpus)
    began = time.perf_counter()
    simulation = network.build(backend=backend, grid=points)
    built = time.perf_counter()
    duration = simulation.duration if duration is None else duration
    if not 0.0 <= discard <= duration:
        raise ConfigError(f"sweep: discard = {discard} ms is not between 0 and the duration of {duration} ms")
    pieces = [simulation.run(discard), simulation.run(duration - discard)]
    wall = time.perf_counter() - built
    rows = []
    for k in range(len(points)):
        own, found = [spikes.replica(k) for spikes in pieces], hashlib.sha256()
        for spikes in own:
            found.update(np.stack([spikes.step, spikes.neuron], axis=1).astype("<u8").tobytes())
        rows.append({
            **{f"rate_hz.{name}": rate for name, rate in own[1].rates().items()},
            "model_ms": float(duration),
            "wall_ms": wall * 1e3,
            "build_ms": (built - began) * 1e3,
            "real_time_factor": wall * 1e3 / duration if duration else 0.0,
            "spikes": sum(len(spikes) for spikes in own),
            "spikes_sha256": found.hexdigest(),
            "backend": simulation.backend,
        })
    return rows


def sweep(
    config: str | os.PathLike[str] | Network,
    grid: Grid,
    *,
    out: str | os.PathLike[str],
    duration: float | None = None,
    discard: float = 0.0,
    backend: str = "auto",
    num_cpus: float = 1,
    num_gpus: float = 0,
    resources: Mapping[str, float] | None = None,
    retries: int = 3,
    pending: int = 1000,
    together: int = 1,
    progress: Callable[[dict[str, Any]], None] | None = None,
) -> list[dict[str, Any]]:
    """Runs a network once for each point of a grid, as Ray tasks, and writes a row of each as soon as it is there.

    A row is one Parquet file in ``out``, written aside and renamed; any reader of Parquet takes the folder as one table. What
    is there already is not run again, so a sweep that was stopped goes on where it was. Tasks need no state of a worker:
    they go to whatever nodes there are, and one whose node is lost runs again.

    Args:
        config: a :class:`chronaxie.spiking.Network`, which travels to the nodes, or the path of a description, which every
            node must be able to read (as must be what it refers to).
        grid: values by field, of which every combination is run, or a list of runs. A field is what the command line's
            ``--set`` takes, as ``"simulation.seed"`` or ``"population.0.parameters.I_e"``.
        out: the folder of rows, on this machine.
        duration: model time, ms; that of the description by default.
        discard: rates are of the time after so many ms.
        backend: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``; ``auto`` is the CPU where ``num_gpus`` is 0.
        num_cpus, num_gpus, resources: what Ray sets aside for a run; it has so many threads.
        retries: how often a run is started again whose worker or node was lost. One that is refused is not.
        pending: so many runs are handed to Ray at a time, which an autoscaler sees.
        together: so many runs are one task, side by side as by :meth:`chronaxie.spiking.Network.build`, which fills a GPU with small
            networks. Rows are the same, but for ``wall_ms``, ``build_ms`` and ``real_time_factor``, which are then of all of them.
        progress: called with each new row.

    Returns:
        All rows in the order of the grid: the parameters, ``rate_hz.POPULATION``, ``model_ms``, ``wall_ms``, ``build_ms``,
        ``real_time_factor``, ``spikes``, ``spikes_sha256`` (as of ``chronaxie simulate``), ``backend`` and ``key``, the name
        of its file.

    Raises:
        BackendUnavailableError: Ray is not installed.
        ConfigError: the grid or the description is wrong.
        ChronaxieError: runs have failed; the others' rows are written.
    """
    if together < 1:
        raise ConfigError(f"sweep: together = {together} is not at least 1")
    from ..spiking._spikes import number

    for what, value in (("duration", duration), ("discard", discard)):
        if value is not None:
            number(f"sweep: {what}", value, "a number of milliseconds")
    points = _points(grid)
    network, described = _described(config)
    if backend == "auto" and not num_gpus:
        backend = "cpu"
    folder = os.fspath(out)
    os.makedirs(folder, exist_ok=True)
    files: list[str] = []
    for point in points:
        text = json.dumps([described, point, duration, discard, backend])
        files.append(os.path.join(folder, f"{hashlib.sha256(text.encode()).hexdigest()[:24]}.parquet"))
    rows = [_parquet.load(path) for path in files]
    left = [n for n, row in enumerate(rows) if row is None]
    failed: list[str] = []
    if left:
        ray = cluster("chronaxie.ray.sweep")
        options = {"num_cpus": num_cpus, "num_gpus": num_gpus, "resources": dict(resources or {}), "max_retries": retries}
        task, shared = ray.remote(_runs).options(**options), ray.put(network)
        waiting: dict[Any, list[int]] = {}
        try:
            while left or waiting:
                while left and len(waiting) * together < pending:
                    some, left = left[:together], left[together:]
                    ref = task.remote(shared, [points[n] for n in some], duration, discard, backend, num_cpus)
                    waiting[ref] = some
                done, _ = ray.wait(list(waiting))
                for ref in done:
                    some = waiting.pop(ref)
                    try:
                        found = ray.get(ref)
                    except (ChronaxieError, ray.exceptions.RayError) as e:
                        failed.extend(f"{points[n]}: {getattr(e, 'cause', None) or e}" for n in some)
                        continue
                    for n, made in zip(some, found):
                        rows[n] = _row(points[n], made, files[n])
                        _parquet.write(files[n], rows[n])  # type: ignore[arg-type]
                        if progress is not None:
                            progress(rows[n])  # type: ignore[arg-type]
        finally:
            for ref in waiting:
                ray.cancel(ref, force=True)
    if failed:
        raise ChronaxieError(f"sweep: {len(failed)} of {len(points)} runs failed; the first, {failed[0]}")
    return rows  # type: ignore[return-value]


def _row(point: Mapping[str, Any], made: Mapping[str, Any], path: str) -> dict[str, Any]:
    plain = {k: v if isinstance(v, (bool, int, float, str)) else json.dumps(v) for k, v in point.items()}
    return {**plain, **made, "key": os.path.splitext(os.path.basename(path))[0]}


def read(out: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The rows of a folder that :func:`sweep` filled, without Ray or a reader of Parquet; broken files do not count."""
    folder = os.fspath(out)
    rows = (_parquet.load(os.path.join(folder, name)) for name in sorted(os.listdir(folder)) if name.endswith(".parquet"))
    return [row for row in rows if row is not None]
