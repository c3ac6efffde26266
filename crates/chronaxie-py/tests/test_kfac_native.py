"""K-FAC of native recurrences: factors are those of their samples' gradients, which one backward pass leaves."""

import weakref

import pytest
import torch
from torch import nn

from chronaxie import optim
from chronaxie.optim import _calls
from chronaxie.torch import LTC, TrueLiquidTimeConstant

from conftest import distance
from test_per_sample import mse, normal

NEAR = 2e-5


class Two(nn.Module):
    """Layers behind each other, time first and batch first, of which one gives a state to the other."""

    def __init__(self):
        super().__init__()
        self.first = LTC(5, 6, batch_first=False, return_sequences=True)
        self.second = TrueLiquidTimeConstant(6, 4)

    def forward(self, x):
        y, _ = self.first(x.transpose(0, 1))
        out = self.second(y.transpose(0, 1))
        return out[0] if isinstance(out, tuple) else out


def law(grads):
    """A and G of gradients ``[n, ..., d]``: second moments by the last axis and by the others, G over its trace."""
    m = grads.double()
    m = m.reshape(len(m), -1, m.shape[-1]) if m.dim() > 2 else m[:, None]
    g = torch.einsum("nij,nkj->ik", m, m)
    return torch.einsum("nij,nik->jk", m, m) / len(m), g / g.diagonal().sum()


def check(model, x, scaler=None, **options):
    """The factors of a step beside those of gradients that the law makes a sample at a time."""
    named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    rows = [torch.autograd.grad(mse(model(x[i : i + 1])), [p for _, p in named]) for i in range(len(x))]
    k = optim.KFAC(model, lr=1e-3, kl_clip=1e-2, damping=1e-2, grad_scaler=scaler, **options)
    loss = mse(model(x))
    (loss if scaler is None else scaler.scale(loss)).backward()
    k.step() if scaler is None else scaler.step(k)
    for at, (name, p) in enumerate(named):
        if name == "lstm.input_map.bias":
            # It takes AdamW's step.
            continue
        a, g = k.factors(p)
        want = law(torch.stack([row[at] for row in rows]))
        assert distance(a[0].cpu(), want[0].cpu()) <= NEAR, name
        assert distance(g[0].cpu(), want[1].cpu()) <= NEAR, name
    k.close()


@pytest.fixture
def not_again(monkeypatch):
    def replayed(call, *rest):
        raise AssertionError(f"{call.unit.name} was run again as a module")

    monkeypatch.setattr(_calls, "replayed", replayed)


def test_factors_are_those_of_samples(not_again):
    for model, x in (
        (Two(), normal(7, 3, 5)),
        (TrueLiquidTimeConstant(3, 4), normal(5, 4, 3)),
        (LTC(3, 4, mixed_memory=True), normal(5, 4, 3)),
    ):
        check(model, x)
    frozen = LTC(3, 4)
    frozen.rnn_cell.gleak.requires_grad_(False)
    check(frozen, normal(5, 4, 3))


def test_a_scaler_is_taken_out(not_again):
    check(LTC(3, 4), normal(5, 4, 3), torch.amp.GradScaler("cpu", init_scale=1024.0))


def test_calls_whose_parameters_are_read_beside_are_run_again():
    class Apart(LTC):
        def forward(self, x):
            out, h = super().forward(x)
            return out * self.rnn_cell.gleak.mean(), h

    check(Apart(3, 4), normal(5, 4, 3))


def test_a_loss_that_is_dropped_leaves_nothing(not_again):
    model, x = LTC(3, 4), normal(5, 4, 3)
    k = optim.KFAC(model, lr=1e-3, kl_clip=1e-2)
    out, _ = model(x)
    node = out.grad_fn
    while not _calls.is_native(node):
        node = node.next_functions[0][0]
    seen = weakref.ref(node)
    del out, _, node
    assert seen() is None
    k.close()


@pytest.mark.gpu
def test_factors_on_a_gpu(cuda, not_again):
    check(Two().to(cuda), normal(7, 3, 5).to(cuda))
    check(TrueLiquidTimeConstant(20, 64).to(cuda), normal(24, 8, 20).to(cuda))


def test_natural_gradients_are_of_samples(not_again):
    for model, x in ((Two(), normal(7, 3, 5)), (LTC(3, 4), normal(5, 4, 3))):
        params = [p for p in model.parameters() if p.requires_grad]
        rows = [torch.autograd.grad(mse(model(x[i : i + 1])), params) for i in range(len(x))]
        flat = torch.stack([torch.cat([g.flatten() for g in row]) for row in rows]).double()
        before = torch.cat([p.detach().flatten() for p in params]).double()
        n = optim.NaturalGradient(model, lr=0.1, damping=1e-2)
        mse(model(x)).backward()
        n.step()
        moved = before - torch.cat([p.detach().flatten() for p in params]).double()
        fisher = flat.T @ flat / len(x) + 1e-2 * torch.eye(flat.shape[1], dtype=torch.float64)
        assert distance(moved, 0.1 * torch.linalg.solve(fisher, flat.mean(0))) <= 1e-4
        n.close()
