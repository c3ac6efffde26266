"""Second-order optimizers for PyTorch, and the matrix functions that they are made of.

>>> import torch
>>> from chronaxie.optim import Shampoo
>>> w = torch.nn.Parameter(torch.ones(3, 2))
>>> optimizer = Shampoo([w], lr=0.1)
>>> (w * torch.arange(6.0).view(3, 2)).sum().backward()
>>> optimizer.step()
"""

from __future__ import annotations

from . import compat
from ._kfac import KFAC
from ._matmul import MatmulPlan, matmul, matmul_plan
from ._matrix import Eigen, Record, batched_matmul, eigh, inverse_root, kron, kron_apply, orthogonalize
from ._muon import Muon
from ._natural import NaturalGradient
from ._per_sample import Clipped, clip_per_sample, per_sample_gradients, per_sample_norms
from ._qr import batched_qr
from ._shampoo import Shampoo
from ._soap import SOAP

__all__ = [
    "Clipped",
    "Eigen",
    "KFAC",
    "MatmulPlan",
    "Muon",
    "NaturalGradient",
    "Record",
    "SOAP",
    "Shampoo",
    "batched_matmul",
    "batched_qr",
    "clip_per_sample",
    "compat",
    "eigh",
    "inverse_root",
    "kron",
    "kron_apply",
    "matmul",
    "matmul_plan",
    "orthogonalize",
    "per_sample_gradients",
    "per_sample_norms",
]
