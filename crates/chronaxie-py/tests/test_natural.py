"""Natural gradients by the samples of a batch, against the whole matrix in float64."""

import copy
import io

import pytest
import torch
from torch import nn

from chronaxie import optim
from chronaxie.torch import LTC

from conftest import distance
from test_kfac import mlp, run
from test_per_sample import loop, mse

D = torch.float64


def test_a_natural_gradient_that_was_saved_goes_on_with_the_same_bits():
    net = mlp()
    natural = optim.NaturalGradient(net, lr=0.05, momentum=0.9, kl_clip=1e-2)
    run(net, natural, 4)
    file = io.BytesIO()
    torch.save({"model": net.state_dict(), "natural": natural.state_dict()}, file)
    run(net, natural, 3, seed=100)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    other = mlp(seed=7)
    other.load_state_dict(saved["model"])
    again = optim.NaturalGradient(other, lr=0.5)
    again.load_state_dict(saved["natural"])
    run(other, again, 3, seed=100)
    for a, b in zip(net.parameters(), other.parameters()):
        assert torch.equal(a, b)


class Mixed(nn.Module):
    """Maps called twice, a table, a norm, a convolution over time, an LSTM and an LTC."""

    def __init__(self):
        super().__init__()
        self.table, self.lin, self.norm = nn.Embedding(7, 4), nn.Linear(4, 4), nn.LayerNorm(4)
        self.conv, self.rnn = nn.Conv1d(4, 4, 3, padding=1, groups=2), nn.LSTM(4, 3, batch_first=True)
        self.ltc = LTC(3, 3, ode_unfolds=2)

    def forward(self, ids):
        x = self.norm(self.lin(torch.tanh(self.lin(self.table(ids)))))
        x = self.conv(x.mT).mT
        return self.ltc(self.rnn(x)[0])[0]


@pytest.mark.parametrize("parts", [1, 2])
def test_natural_gradients_are_those_of_the_whole_matrix(parts):
    torch.manual_seed(0)
    model = Mixed().double()
    ids = torch.randint(0, 7, (6, 5), generator=torch.Generator().manual_seed(1))
    law = loop(model, mse, ids, None)
    j = torch.cat([g.flatten(1) for g in law.values()], 1)
    grad = j.mean(0)
    want = torch.linalg.solve(j.mT @ j / 6 + 1e-2 * torch.eye(j.shape[1], dtype=D), grad)
    natural = optim.NaturalGradient(model, lr=1.0, damping=1e-2, accumulation=parts)
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    for k in range(parts):
        (mse(model(ids[k::parts])) / parts).backward()
    natural.step()
    ours = torch.cat([(before[n] - p.detach()).flatten() for n, p in model.named_parameters() if n in law])
    assert distance(ours, want) < 1e-8
    natural.close()
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


@pytest.mark.gpu
def test_natural_gradients_on_a_gpu(cuda):
    torch.manual_seed(0)
    models = [Mixed()]
    models.append(copy.deepcopy(models[0]).to(cuda))
    ids = torch.randint(0, 7, (6, 5), generator=torch.Generator().manual_seed(1))
    for model, device in zip(models, ("cpu", cuda)):
        natural = optim.NaturalGradient(model, lr=0.1, damping=1e-1)
        for _ in range(2):
            natural.zero_grad()
            mse(model(ids.to(device))).backward()
            natural.step()
    for (n, a), b in zip(models[0].named_parameters(), models[1].parameters()):
        assert distance(b, a) < 1e-4, n
