"""The peers that compare.py and ltc_cpu.py time: the same equations as plain PyTorch modules, which eager mode, torch.compile
and TorchScript run, and an nn.LSTM of the same size."""

from typing import List

import torch
from torch import Tensor
from torch.nn.functional import softplus


class PlainLtc(torch.nn.Module):
    """The layer of layers/ltc in as few tensor operations as PyTorch allows: matrices are [source, target], masks are 0 or
    1, positive parameters go through softplus. A step takes ``dt``, K = ``unfolds`` semi-implicit Euler steps."""

    def __init__(self, mask, sensory_mask, dt=1.0, unfolds=6, epsilon=1e-8):
        super().__init__()
        uniform = lambda low, high, *shape: torch.nn.Parameter(torch.empty(*shape).uniform_(low, high))
        sign = lambda m: torch.nn.Parameter(m * torch.where(torch.rand_like(m) < 0.8, 1.0, -1.0))
        self.rate, self.unfolds, self.epsilon = unfolds / dt, unfolds, epsilon
        for prefix, m in (("", mask), ("sensory_", sensory_mask)):
            self.register_buffer(f"{prefix}mask", m)
            for name, low, high in (("w", 0.001, 1.0), ("mu", 0.3, 0.8), ("sigma", 3.0, 8.0)):
                setattr(self, prefix + name, uniform(low, high, *m.shape))
            setattr(self, f"{prefix}erev", sign(m))
        units, inputs = mask.shape[0], sensory_mask.shape[0]
        self.gleak, self.vleak, self.cm = uniform(0.001, 1.0, units), uniform(-0.2, 0.2, units), uniform(0.4, 0.6, units)
        self.input_w, self.input_b = torch.nn.Parameter(torch.ones(inputs)), torch.nn.Parameter(torch.zeros(inputs))

    def sense(self, x: Tensor) -> List[Tensor]:
        """Sums over inputs of all steps at once, and what a step needs of the parameters."""
        p, ps = softplus(self.w) * self.mask, softplus(self.sensory_w) * self.sensory_mask
        g, c = softplus(self.gleak), softplus(self.cm) * self.rate
        u = (x * self.input_w + self.input_b).unsqueeze(-1)
        gate = torch.sigmoid(self.sensory_sigma * (u - self.sensory_mu))  # [B, T, D, H]
        over = (gate * (ps * self.sensory_erev)).sum(2) + g * self.vleak
        under = (gate * ps).sum(2) + c + g + self.epsilon
        return [p, p * self.erev, c, over, under]

    def step(self, v: Tensor, p: Tensor, q: Tensor, c: Tensor, over: Tensor, under: Tensor) -> Tensor:
        """One time step."""
        for _ in range(self.unfolds):
            r = torch.sigmoid(self.sigma * (v.unsqueeze(-1) - self.mu))  # [B, H, H]
            v = (c * v + (r * q).sum(1) + over) / ((r * p).sum(1) + under)
        return v

    def forward(self, x: Tensor) -> Tensor:
        """The states [B, T, H] of x [B, T, D] from a state of zeros."""
        p, q, c, over, under = self.sense(x)
        v = torch.zeros(x.shape[0], self.w.shape[0], dtype=x.dtype, device=x.device)
        states: List[Tensor] = []
        for t in range(x.shape[1]):
            v = self.step(v, p, q, c, over[:, t], under[:, t])
            states.append(v)
        return torch.stack(states, 1)


class PlainCfc(torch.nn.Module):
    """A CfC cell of mode default with a backbone of one layer: h' = (1 - s) tanh(ff1) + s tanh(ff2)."""

    def __init__(self, inputs, hidden, units=128):
        super().__init__()
        self.hidden = hidden
        self.backbone = torch.nn.Linear(inputs + hidden, units)
        self.heads = torch.nn.Linear(units, 4 * hidden)

    def step(self, x: Tensor, h: Tensor) -> Tensor:
        """One time step of length 1."""
        z = 1.7159 * torch.tanh(0.666 * self.backbone(torch.cat([x, h], 1)))
        ff1, ff2, a, b = self.heads(z).chunk(4, 1)
        s = torch.sigmoid(a + b)
        return torch.tanh(ff1) * (1.0 - s) + torch.tanh(ff2) * s

    def forward(self, x: Tensor) -> Tensor:
        """The states [B, T, H] of x [B, T, D] from a state of zeros."""
        h = torch.zeros(x.shape[0], self.hidden, dtype=x.dtype, device=x.device)
        states: List[Tensor] = []
        for t in range(x.shape[1]):
            h = self.step(x[:, t], h)
            states.append(h)
        return torch.stack(states, 1)


def plain_ltc(layer):
    """The plain module with the weights of ncps's LTC, whose steps are one unit of time long."""
    cell = layer.rnn_cell
    named = dict(cell.named_parameters())
    plain = PlainLtc(named["sparsity_mask"].detach(), named["sensory_sparsity_mask"].detach(), unfolds=cell._ode_unfolds)
    with torch.no_grad():
        for name, parameter in plain.named_parameters():
            parameter.copy_(named[name])
    return plain


def plain_cfc(layer):
    """The plain module with the weights of ncps's CfC."""
    cell = layer.rnn_cell
    linear = cell.backbone[0]
    plain = PlainCfc(cell.input_size, cell.hidden_size, linear.out_features)
    heads = [cell.ff1, cell.ff2, cell.time_a, cell.time_b]
    with torch.no_grad():
        plain.backbone.weight.copy_(linear.weight)
        plain.backbone.bias.copy_(linear.bias)
        plain.heads.weight.copy_(torch.cat([m.weight for m in heads]))
        plain.heads.bias.copy_(torch.cat([m.bias for m in heads]))
    return plain


def compiled(plain):
    """The plain module by torch.compile: the step, and what comes before the steps. A graph of all steps together would be
    as long as the sequence, and as slow to make."""
    plain.step = torch.compile(plain.step)
    if hasattr(plain, "sense"):
        plain.sense = torch.compile(plain.sense)
    return plain
