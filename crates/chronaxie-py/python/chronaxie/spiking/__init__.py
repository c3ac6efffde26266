"""Spiking networks from code: build with NumPy arrays, run in chunks, look, change inputs, save and go on.

The same description gives the same spikes, bit for bit, here and on the command line, on the CPU and on CUDA, in one run, in
chunks, or resumed. Times are ms, potentials mV; units of parameters and weights are those of :func:`models`. Needs NumPy.
"""

from __future__ import annotations

from typing import Any, Mapping, Sequence

from .. import _native
from . import metrics
from ._network import Network, lognormal, normal, uniform, velocity
from ._part import Part
from ._simulation import Checkpoint, Drive, Population, Replica, Simulation, Synapses, Trace
from ._spikes import Spikes

__all__ = [
    "Checkpoint",
    "Drive",
    "Network",
    "Part",
    "Population",
    "Replica",
    "Simulation",
    "Spikes",
    "Synapses",
    "Trace",
    "lognormal",
    "metrics",
    "models",
    "normal",
    "simulate",
    "uniform",
    "velocity",
]


def models() -> dict[str, dict[str, Any]]:
    """Every model of cells by its name: ``parameters`` as ``{name: (unit, default)}``, ``variables`` as ``{name: unit}``,
    ``weight_unit`` and ``presets``."""
    return {
        name: {
            "parameters": {p: (unit, default) for p, unit, default in parameters},
            "variables": dict(variables),
            "weight_unit": weight_unit,
            "presets": list(presets),
        }
        for name, parameters, variables, weight_unit, presets in _native.models()
    }


def simulate(
    network: Network | str,
    duration: float | None = None,
    *,
    backend: str = "auto",
    gpus: int | None = None,
    method: str = "auto",
    seeds: Sequence[int] | None = None,
    grid: Mapping[str, Sequence[Any]] | Sequence[Mapping[str, Any]] | None = None,
) -> Spikes:
    """Builds and runs a network, in one call.

    Args:
        network: a :class:`Network`, or the path of a TOML or JSON description.
        duration: model time in ms, a number; that of the description by default.
        backend: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.
        gpus, method: how many GPUs share it, and how, as in :meth:`Network.build`.
        seeds, grid: several networks side by side, likewise; :meth:`Spikes.replica` has the spikes of each.

    Returns:
        All spikes.

    Raises:
        ConfigError, DataError, OutOfMemoryError, BackendUnavailableError: a sentence with the values.
    """
    described = network if isinstance(network, Network) else Network.read(network)
    simulation = described.build(backend=backend, gpus=gpus, method=method, seeds=seeds, grid=grid)
    return simulation.run(simulation.duration if duration is None else duration)
