"""What spike trains are like: the measures of ``chronaxie analyze``, on :class:`chronaxie.spiking.Spikes`."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from .. import _native
from .._errors import ConfigError
from ._spikes import Spikes, number, whole


def _steps(name: str, ms: float, dt: float) -> int:
    ms = number(name, ms, "a number of milliseconds")
    if not (np.isfinite(ms) and ms / dt < 1e15 and round(ms / dt) >= 1):
        raise ConfigError(f"{name} = {ms} ms is not at least the step of {dt} ms")
    return round(ms / dt)


def analyze(
    spikes: Spikes, *, bin: float = 2.0, burst_interval: float = 10.0, burst_spikes: int = 3, backend: str = "auto"
) -> dict[str, Any]:
    """Rates, intervals, synchrony, bursts, entropy and mutual information of each population.

    Args:
        spikes: from ``spikes.start`` to ``spikes.stop``.
        bin: the width of bins, ms.
        burst_interval: spikes of a burst follow each other within so many ms.
        burst_spikes: a burst has at least so many.
        backend: what counts, with the same numbers: ``"auto"``, ``"cpu"``, ``"cuda"`` or ``"cuda:N"``.

    Returns:
        ``populations``, by name: ``rate_hz``, ``silent``, ``interval_ms``, ``interval_median_ms``, ``cv``, ``synchrony``,
        ``bursts``, ``entropy_bits``, ``population_entropy_bits``, ``mutual_information_bits``, as ``chronaxie analyze --json``
        has them, None where there is nothing to measure; ``mutual_information_bits``, ``[populations, populations]`` of their
        counts; ``bins``; and what unrelated trains have of mutual information by counting, ``mutual_information_bias_bits``.
    """
    if whole("burst_spikes", burst_spikes) < 2:
        raise ConfigError(f"burst_spikes = {burst_spikes}; a burst has at least 2")
    text = _native.analyze_spikes(
        np.ascontiguousarray(spikes.step, np.uint64).tobytes(),
        np.ascontiguousarray(spikes.neuron, np.uint32).tobytes(),
        list(spikes.sizes),
        spikes.dt,
        round(spikes.start / spikes.dt),
        round(spikes.stop / spikes.dt),
        _steps("bin", bin, spikes.dt),
        _steps("burst_interval", burst_interval, spikes.dt),
        burst_spikes,
        backend,
    )
    found = json.loads(text)
    found["populations"] = dict(zip(spikes.names, found["populations"]))
    found["mutual_information_bits"] = np.array(found["mutual_information_bits"])
    return found


def rates(spikes: Spikes, population: str | int) -> np.ndarray:
    """The rate of each cell of a population, Hz, f64 ``[size]``."""
    i = spikes.index(population)
    seconds = (spikes.stop - spikes.start) * 1e-3
    counts = np.bincount(spikes.of(i)[1], minlength=spikes.sizes[i]).astype(np.float64)
    return counts / seconds if seconds > 0 else counts * 0.0


def intervals(spikes: Spikes, population: str | int) -> np.ndarray:
    """All intervals between two spikes of a cell, of all cells of a population, ms, f64."""
    times, cells = spikes.of(population)
    order = np.lexsort((times, cells))
    gaps = np.diff(times[order])
    return gaps[np.diff(cells[order].astype(np.int64)) == 0]
