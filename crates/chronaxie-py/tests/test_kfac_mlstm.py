"""K-FAC of blocks of an mLSTM: it has no parameters, and the maps around it have factors; against float64, token by token."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from chronaxie import optim
from chronaxie.torch import MLSTM

from conftest import distance, goes_on_with_the_same_bits
from test_mlstm import law
from test_per_sample import normal

D = torch.float64
MAPS = ("q", "k", "v", "gates", "o", "out")


class Gain(nn.Module):
    """A norm of each head, whose weight no layer of PyTorch's owns."""

    def __init__(self, *shape):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(shape))

    def forward(self, x):
        return x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * self.weight


class Block(nn.Module):
    """``[B, T, 6]`` to the same, as an xLSTM has it: maps, the mLSTM of two heads, a norm of each head, an output gate."""

    def __init__(self, core=None, **options):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(6, 32, bias=False) for _ in range(3))
        self.gates, self.o, self.out = nn.Linear(6, 4), nn.Linear(6, 32), nn.Linear(32, 6)
        self.norm = Gain(2, 16)
        self.core = MLSTM(mode="train", eps=0.0, **options) if core is None else core

    def forward(self, x, added=None):
        def of(name, a):
            y = getattr(self, name)(a)
            if added is not None:
                added[name] = a.detach(), torch.zeros_like(y).requires_grad_()
                y = y + added[name][1]
            return y

        q, k, v = (of(name, x).unflatten(-1, (2, -1)).transpose(1, 2) for name in "qkv")
        i, f = (15 * torch.tanh(of("gates", x) / 15)).transpose(1, 2).chunk(2, 1)
        h = self.norm(self.core(q, k, v, i, f).transpose(1, 2)).flatten(-2)
        return x + of("out", torch.sigmoid(of("o", x)) * h)


KINDS = {"exp": {}, "sig": {"gate": "sig"}, "sig_normalized": {"gate": "sig", "normalize_siging": True}}


class Law:
    """K-FAC in float64: the recurrence one token after the other, factors from what every map read and the gradients of what it gave."""

    def __init__(self, block, sharing="expand", mode="exact", terms="batch", gate="exp", normalize=True, **o):
        core = lambda q, k, v, i, f: law(q, k, v, i, f, gate=gate, normalize=normalize)[0]  # noqa: E731
        self.model = Block(core).double()
        self.model.load_state_dict({n: p.double() for n, p in block.state_dict().items()})
        self.sharing, self.mode, self.terms, self.o, self.t = sharing, mode, terms, o, 0
        self.f, self.m, self.adam = {}, {}, [0.0, 0.0]

    def see(self, read, g, weight):
        """A and G of a map of one step; ``weight`` is how many terms the mean has."""
        read = torch.cat([read, torch.ones_like(read[..., :1])], -1) if self.biased else read
        if self.sharing == "reduce":
            read, g = read.mean(1, keepdim=True), g.sum(1, keepdim=True)
        a, g = read.flatten(0, 1), g.flatten(0, 1)
        return a.T @ a / len(a), weight * g.T @ g

    def step(self, x, y):
        o, keep = self.o, min(self.o["decay"], self.t / (self.t + 1))
        self.t += 1
        added = {}
        F.mse_loss(self.model(x, added), y).backward()
        updates, agreement = {}, 0.0
        for name, (read, e) in added.items():
            layer = getattr(self.model, name)
            self.biased = layer.bias is not None
            seen = self.see(read, e.grad, len(x) if self.terms == "batch" else len(x) * x.shape[1])
            old = self.f.get(name, (0.0, 0.0))
            a, g = self.f[name] = tuple(keep * was + (1 - keep) * now for was, now in zip(old, seen))
            grad = torch.cat([layer.weight.grad, layer.bias.grad[:, None]], 1) if self.biased else layer.weight.grad
            if self.mode == "exact":
                whole = torch.kron(g, a) + o["damping"] * torch.eye(grad.numel(), dtype=D)
                u = torch.linalg.solve(whole, grad.flatten()).view(grad.shape)
            else:
                pi, root = ((a.trace() / len(a)) / (g.trace() / len(g))).sqrt(), o["damping"] ** 0.5
                u = torch.linalg.inv(g + root / pi * torch.eye(len(g), dtype=D)) @ grad
                u = u @ torch.linalg.inv(a + pi * root * torch.eye(len(a), dtype=D))
            updates[name], agreement = u, agreement + (u * grad).sum()
        shorter = min(1.0, float((o["kl_clip"] / (o["lr"] ** 2 * agreement)) ** 0.5))
        assert shorter < 1, "the bound is in use"
        with torch.no_grad():
            for name, u in updates.items():
                self.m[name] = o["momentum"] * self.m.get(name, 0.0) + shorter * u
                layer, step = getattr(self.model, name), o["lr"] * self.m[name]
                layer.weight -= step[:, : layer.weight.shape[1]]
                if layer.bias is not None:
                    layer.bias -= step[:, -1]
            # AdamW of the norm's weight.
            p = self.model.norm.weight
            self.adam = [0.9 * self.adam[0] + 0.1 * p.grad, 0.999 * self.adam[1] + 0.001 * p.grad**2]
            p -= 1e-3 * (self.adam[0] / (1 - 0.9**self.t)) / ((self.adam[1] / (1 - 0.999**self.t)).sqrt() + 1e-8)
        self.model.zero_grad()


def near(block, kfac, law, bound, step):
    for name in MAPS:
        for ours, right in zip(kfac.factors(getattr(block, name).weight), law.f[name]):
            assert distance(ours[0], right) < bound, (name, step)
    for (name, p), q in zip(block.named_parameters(), law.model.parameters()):
        assert distance(p, q) < bound, (name, step)


OPTIONS = {
    "exact": {},
    "positions": {"terms": "positions"},
    "reduce": {"sharing": "reduce"},
    "factored": {"mode": "factored"},
}


@pytest.mark.parametrize("dtype, bound", [(D, 1e-9), (torch.float32, 2e-4)], ids=["float64", "float32"])
@pytest.mark.parametrize("how", OPTIONS)
def test_factors_and_steps_of_a_block_are_those_of_the_recurrence(device, how, dtype, bound):
    """Four steps: every map around the mLSTM is solved, and of the rest the norm of heads alone takes AdamW's step."""
    block = Block().to(device, dtype)
    steps = dict(lr=0.05, damping=1e-2, momentum=0.9, decay=0.8, kl_clip=1e-4)
    right = Law(block, **OPTIONS[how], **steps)
    options = {"damping_mode" if n == "mode" else n: v for n, v in OPTIONS[how].items()}
    kfac = optim.KFAC(block, inverse_frequency=1, **options, **steps)
    for k in range(4):
        x, y = normal(5, 7, 6, seed=k), normal(5, 7, 6, seed=k + 50)
        kfac.zero_grad()
        F.mse_loss(block(x.to(device, dtype)), y.to(device, dtype)).backward()
        kfac.step()
        right.step(x.double(), y.double())
        near(block, kfac, right, bound, k)
    others = {n for n, p in block.named_parameters() if "exp_avg" in kfac.state[p]}
    assert others == {"norm.weight"}


@pytest.mark.parametrize("kind", KINDS)
def test_both_gates_and_what_is_not_normalised(device, kind):
    block = Block(**KINDS[kind]).to(device)
    steps = dict(lr=0.05, damping=1e-2, momentum=0.9, decay=0.8, kl_clip=1e-4)
    right = Law(block, gate=kind[:3], normalize=kind != "sig", **steps)
    kfac = optim.KFAC(block, inverse_frequency=1, **steps)
    for k in range(2):
        x, y = normal(5, 7, 6, seed=k), normal(5, 7, 6, seed=k + 50)
        kfac.zero_grad()
        F.mse_loss(block(x.to(device)), y.to(device)).backward()
        kfac.step()
        right.step(x.double(), y.double())
        near(block, kfac, right, 2e-4, k)


@pytest.mark.parametrize("dtype, bound", [(D, 1e-12), (torch.float32, 2e-4)], ids=["float64", "float32"])
def test_an_exact_fisher_matrix_goes_back_through_the_mlstm_many_times(device, dtype, bound):
    """G of each map is the sum over all elements of the output of the products of their gradients, times the squared loss's 2 / C."""
    block = Block().to(device, dtype)
    right = Law(block)
    kfac = optim.KFAC(block, lr=0.0, adamw_lr=0.0, fisher="exact")
    x = normal(3, 4, 6, seed=1)
    out = block(x.to(device, dtype))
    kfac.observe(out, "mse")
    out.square().mean().backward()
    kfac.step()
    added = {}
    out = right.model(x.double(), added)
    sums = {name: 0.0 for name in added}
    for element in out.flatten():
        for name, g in zip(added, torch.autograd.grad(element, [e for _, e in added.values()], retain_graph=True)):
            sums[name] = sums[name] + g.flatten(0, 1).T @ g.flatten(0, 1) * (2 / 6) / 12
    for name, want in sums.items():
        assert distance(kfac.factors(getattr(block, name).weight)[1][0], want) < bound, name


@pytest.mark.parametrize("options", [{}, dict(damping_mode="factored"), dict(ekfac=True)], ids=["exact", "factored", "ekfac"])
def test_a_stack_of_blocks_learns_and_goes_on_behind_a_checkpoint(options):
    """What came a token ago, from a table to a head of as many classes."""

    def make(seed):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Embedding(5, 6), Block(), Block(), nn.Linear(6, 5))

    losses = []

    def run(model, kfac, part):
        for k in range(8):
            ids = torch.randint(0, 5, (6, 12), generator=torch.Generator().manual_seed(k))
            kfac.zero_grad()
            loss = F.cross_entropy(model(ids)[:, 1:].flatten(0, 1), ids[:, :-1].flatten())
            losses.append(loss.item())
            loss.backward()
            kfac.step()

    def optimize(model, first):
        return optim.KFAC(model, kl_clip=1e-3 if first else 0.5, momentum=0.5, terms="positions", inverse_frequency=2, **options)

    goes_on_with_the_same_bits(make, optimize, run)
    assert losses[8:16] == losses[16:24] and sum(losses[12:16]) < sum(losses[:4])


def test_autocast_leaves_factors_in_float32():
    """Under bfloat16 the maps give it, and factors come near those of float32."""
    factors = []
    for enabled in (False, True):
        torch.manual_seed(0)
        block = Block()
        kfac = optim.KFAC(block, lr=0.0)
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            out = block(normal(5, 7, 6))
        F.mse_loss(out.float(), normal(5, 7, 6, seed=1)).backward()
        kfac.step()
        factors.append([copy.deepcopy(kfac.factors(getattr(block, name).weight)) for name in MAPS])
    for plain, rounded in zip(*factors):
        for a, b in zip(plain, rounded):
            assert b.dtype is torch.float32 and distance(b, a) < 0.05
