"""Spiking networks on a Ray cluster: sweeps of many runs, and one network over many machines. Needs Ray and NumPy.

Ray is imported by the first call. Where it is not initialised that call joins the cluster of ``RAY_ADDRESS``, or starts one on
this machine. Every node needs this package; docs/scaling.md has a cluster file and a container.
"""

from __future__ import annotations

from ._simulate import Progress, simulate
from ._sweep import read, sweep

__all__ = ["Progress", "read", "simulate", "sweep"]
