"""A block of an xLSTM with chronaxie's mLSTM, as the published 7B model has them; train.py trains it.

    python examples/xlstm.py          one training step of a block in the published shape, at a short length

Beck et al., xLSTM 7B: a recurrent LLM for fast and efficient inference, arXiv:2503.13427: width 4096, 8 heads, queries and
keys of half the values' size, gates capped at 15, a norm of each head, an output gate; then a gated feed-forward layer
8/3 as wide, rounded up to 64. Each part begins with an RMSNorm and is added to what it read; no map has a bias but the gates.
"""

import argparse

import torch
from torch import nn
from torch.nn import functional as F

from chronaxie.torch import mlstm

CAP = 15.0


def capped(x):
    """x for small x, and never beyond the cap."""
    return CAP * torch.tanh(x / CAP)


class RMSNorm(nn.Module):
    """x over its root mean square, in float32, times a weight: over the last axis."""

    def __init__(self, *shape):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(shape))

    def forward(self, x):
        wide = x.float()
        return (wide * (wide.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * self.weight).to(x.dtype)


class XLSTMBlock(nn.Module):
    """``[B, T, D]`` to the same, and the mLSTM's last state."""

    def __init__(self, width=4096, heads=8):
        super().__init__()
        self.heads = heads
        self.norm, self.norm_ffn = RMSNorm(width), RMSNorm(width)
        self.norm_head = RMSNorm(heads, width // heads)
        self.q, self.k = (nn.Linear(width, width // 2, bias=False) for _ in range(2))
        self.v, self.o, self.out = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.i, self.f = nn.Linear(width, heads), nn.Linear(width, heads)
        hidden = (8 * width // 3 + 63) // 64 * 64
        self.gate, self.up = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(hidden, width, bias=False)
        with torch.no_grad():
            # Little is let in at the start, and much is kept.
            for gate in (self.i, self.f):
                gate.weight.zero_()
            self.i.bias.fill_(-10.0)
            self.f.bias.copy_(torch.linspace(3.0, 6.0, heads))

    def forward(self, x, state=None):
        a = self.norm(x)
        # [B, T, NH, K] seen as [B, NH, T, K]: the kernels take strides.
        q, k, v = (m(a).unflatten(-1, (self.heads, -1)).transpose(1, 2) for m in (self.q, self.k, self.v))
        i, f = (capped(m(a).float()).transpose(1, 2) for m in (self.i, self.f))
        h, state = mlstm(q, k, v, i, f, *(state or (None, None, None)), return_last_states=True, eps=1e-6)
        h = self.norm_head(h.transpose(1, 2)).flatten(-2)
        x = x + self.out(torch.sigmoid(self.o(a)) * h)
        b = self.norm_ffn(x)
        return x + self.down(F.silu(self.gate(b)) * self.up(b)), state


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    torch.manual_seed(1)
    block = XLSTMBlock(args.width, args.heads).to(args.device)
    optimizer = torch.optim.SGD(block.parameters(), 1e-3)
    x, wanted = (torch.randn(1, args.tokens, args.width, device=args.device) for _ in range(2))
    losses = []
    for _ in range(3):
        y, _ = block(x)
        loss = F.mse_loss(y, wanted)
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    count = sum(p.numel() for p in block.parameters())
    print(f"{count / 1e6:.1f} M parameters, losses {', '.join(f'{loss:.5f}' for loss in losses)}")
    if not losses[-1] < losses[0]:
        raise SystemExit("the block does not learn")


if __name__ == "__main__":
    main()
