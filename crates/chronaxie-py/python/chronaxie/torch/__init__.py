"""chronaxie for PyTorch: modules and functions on tensors, their gradients, and operators for compiled graphs.

Memory comes from PyTorch's allocator, work goes to its current stream, and CPU work uses as many threads as
``torch.get_num_threads()`` said at import, unless ``CHRONAXIE_NUM_THREADS`` says otherwise. A CUDA tensor on a machine
where kernels cannot be compiled is computed by eager PyTorch operations on the same device, after one warning.
"""

from __future__ import annotations

import os as _os

import torch as _torch

from .. import _native
from . import compat, parallel, wirings
from ._cfc import CfC, CfCCell, WiredCfCCell, cfc
from ._functional import ltc
from ._ltc import LTC, LTCCell
from ._mlstm import MLSTM, mlstm, mlstm_step
from ._scan import adaptive_scan, linear_scan, selective_scan, selective_state_update
from ._ssm import AUSSM, LRU, RGLRU, S4D, S5, Mamba, MinGRU, PolarSSM
from ._synapses import Synapses, prepare
from ._true import TrueLiquidTimeConstant

__all__ = [
    "AUSSM",
    "CfC",
    "CfCCell",
    "LRU",
    "LTC",
    "LTCCell",
    "MLSTM",
    "Mamba",
    "MinGRU",
    "PolarSSM",
    "RGLRU",
    "S4D",
    "S5",
    "Synapses",
    "TrueLiquidTimeConstant",
    "WiredCfCCell",
    "adaptive_scan",
    "cfc",
    "compat",
    "linear_scan",
    "ltc",
    "mlstm",
    "mlstm_step",
    "parallel",
    "prepare",
    "selective_scan",
    "selective_state_update",
    "wirings",
]

if "CHRONAXIE_NUM_THREADS" not in _os.environ:
    _native.set_num_threads(_torch.get_num_threads())
