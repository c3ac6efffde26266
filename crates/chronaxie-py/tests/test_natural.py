"""Natural gradients by the samples of a batch, against the whole matrix in float64."""

import copy
import pickle

import pytest
import torch
from torch import nn

import chronaxie
from chronaxie import optim
from chronaxie.torch import LTC

from conftest import distance, goes_on_with_the_same_bits
from test_kfac import mlp, run
from test_per_sample import loop, mse, normal

D = torch.float64


def test_a_natural_gradient_that_was_saved_goes_on_with_the_same_bits():
    def optimize(net, first):
        return optim.NaturalGradient(net, **(dict(lr=0.05, momentum=0.9, kl_clip=1e-2) if first else dict(lr=0.5)))

    goes_on_with_the_same_bits(mlp, optimize, lambda net, natural, part: run(net, natural, (4, 3)[part], seed=100 * part))


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


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_a_batch_of_no_samples_is_no_step(reduction):
    """Alone it changes nothing (a mean's gradient is 0 too), and beside another it is not there."""

    def loss(model, ids):
        y = model(ids).square()
        return y.mean() if reduction == "mean" else y.sum()

    torch.manual_seed(0)
    models = [Mixed() for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    ids = torch.randint(0, 7, (6, 5), generator=torch.Generator().manual_seed(1))
    naturals = [optim.NaturalGradient(m, damping=1e-1, reduction=reduction) for m in models]
    before = copy.deepcopy(models[0].state_dict())
    loss(models[0], ids[:0]).backward()
    naturals[0].step()
    for name, p in models[0].state_dict().items():
        assert torch.equal(p, before[name]), name
    assert naturals[0]._solved is None and not naturals[0]._batches
    for k, (model, natural) in enumerate(zip(models, naturals)):
        natural.zero_grad()
        loss(model, ids).backward()
        if k == 0:
            model(ids[:0]).sum().backward()
        natural.step()
    for (name, a), b in zip(models[0].named_parameters(), models[1].parameters()):
        assert torch.equal(a, b), name


def test_a_scaled_loss_takes_the_same_steps():
    finals = []
    for scaled in (False, True):
        net = mlp()
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=scaled)
        natural = optim.NaturalGradient(net, damping=1e-1, grad_scaler=scaler if scaled else None)
        for k in range(3):
            x = normal(8, 4, seed=k)
            natural.zero_grad()
            if scaled and k == 1:
                scaler.scale(mse(net(x)) * float("inf")).backward()
                scaler.step(natural)
                scaler.update(new_scale=512.0)
                natural.zero_grad()
            scaler.scale(mse(net(x))).backward()
            scaler.step(natural)
            scaler.update()
        finals.append([p.detach().clone() for p in net.parameters()])
    for a, b in zip(*finals):
        assert torch.equal(a, b), "powers of two scale without rounding"


def net_with_a_batch_norm(seed=0):
    """A batch norm has AdamW's step; its samples mix, but in those of others it is a function like any."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 3))


@pytest.mark.parametrize("options", [{}, dict(momentum=0.9, kl_clip=1e-2, weight_decay=0.1, weight_decay_mode="corrected")], ids=["plain", "all"])
def test_the_device_may_count_and_leave_steps_out(options):
    """The same steps where the device counts AdamW's, and the same bits under a scaler that it does not wait for."""
    finals, naturals = [], []
    for kind in ("python", "device", "scaled"):
        net = net_with_a_batch_norm()
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2, enabled=kind == "scaled")
        natural = optim.NaturalGradient(net, lr=torch.tensor(0.05), damping=1e-1, capturable=kind != "python", grad_scaler=scaler, **options)
        for k in range(5):
            for over in (True, False) if kind == "scaled" and k in (0, 2, 3) else (False,):
                statistics = copy.deepcopy([b for b in net.buffers()])
                natural.zero_grad()
                scaler.scale(mse(net(normal(8, 4, seed=k))) * (float("inf") if over else 1.0)).backward()
                scaler.step(natural)
                scaler.update()
                if over:
                    # What the forward pass moved is not the step's.
                    for b, old in zip(net.buffers(), statistics):
                        b.copy_(old)
        finals.append([p.detach() for p in net.parameters()])
        naturals.append(natural)
    assert not naturals[0]._step_supports_amp_scaling and naturals[1]._step_supports_amp_scaling
    for a, b, c in zip(*finals):
        torch.testing.assert_close(b, a, rtol=1e-5, atol=1e-6)
        assert torch.equal(b, c)
    for natural, net_state in zip(naturals[1:], (5.0, 5.0)):
        counts = [s["step"] for s in natural.state.values() if "step" in s]
        assert len(counts) == 2 and all(isinstance(c, torch.Tensor) and float(c) == net_state for c in counts)


@pytest.mark.gpu
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_whole_training_step_in_a_graph(cuda, momentum):
    """Forward, backward and the step, captured once: the bits of steps that are not."""

    def start():
        net = mlp().to(cuda)
        natural = optim.NaturalGradient(net, lr=0.05, damping=1e-1, momentum=momentum, capturable=True)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            once(net, natural, normal(8, 4).to(cuda))
        torch.cuda.current_stream().wait_stream(stream)
        return net, natural

    def once(net, natural, x):
        natural.zero_grad()
        mse(net(x)).backward()
        natural.step()

    (eager, one), (captured, two) = start(), start()
    x = torch.zeros(8, 4, device=cuda)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        once(captured, two, x)
    for k in range(1, 5):
        x.copy_(normal(8, 4, seed=k))
        graph.replay()
        once(eager, one, x)
    for p, q in zip(eager.parameters(), captured.parameters()):
        assert torch.equal(p, q)


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


@pytest.mark.parametrize("make", [optim.KFAC, optim.NaturalGradient])
def test_copies_of_a_model_teach_nothing_to_the_optimizer_of_the_first(make):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 3))
    alone, x = copy.deepcopy(model), torch.randn(16, 6)
    first, second = make(model), make(alone)
    other = copy.deepcopy(model)
    for m in (model, alone):
        m(x).square().mean().backward()
    other(torch.randn(4, 6) * 100).square().mean().backward()
    first.step(), second.step()
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), alone.parameters()))
    saved = pickle.loads(pickle.dumps(model))
    assert torch.equal(saved(x), model(x))
    for way in (copy.deepcopy, pickle.dumps):
        with pytest.raises(chronaxie.ConfigError, match=f"{make.__name__}: it cannot be copied or pickled"):
            way(first)


@pytest.mark.parametrize("make", [optim.KFAC, optim.NaturalGradient])
def test_parameters_in_place_of_the_model_are_a_sentence(make):
    for given, kind in [(nn.Linear(2, 2).parameters(), "generator"), ([], "list")]:
        with pytest.raises(chronaxie.ConfigError, match=f"{make.__name__}: model is of type {kind}; give it the module itself"):
            make(given, lr=0.1)


class Gain(torch.nn.Module):
    """A parameter without axes, and an output that may have none."""

    def __init__(self, how):
        super().__init__()
        self.gain, self.how = torch.nn.Parameter(torch.tensor(2.0)), how

    def forward(self, x):
        made = x * self.gain
        return {"kept": made, "summed": made.sum(), "squeezed": made.sum(-1, keepdim=True).squeeze()}[self.how]


def test_a_parameter_without_axes_is_one_number_of_the_fisher_matrix():
    x = torch.randn(5, 3)
    model = torch.nn.Sequential(Gain("kept"))
    optimizer = optim.NaturalGradient(model, lr=1.0, damping=0.1)
    model(x).square().sum(1).mean().backward()
    rows = 2.0 * 2.0 * x.square().sum(1)
    law = 2.0 - rows.mean() / (rows.square().mean() + 0.1)
    optimizer.step()
    torch.testing.assert_close(model[0].gain.detach(), law)
    norms = optim.per_sample_norms(Gain("kept"), lambda o, y: o.square().sum(1).mean(), x, x)
    torch.testing.assert_close(norms, rows)


@pytest.mark.parametrize("how, says", [
    ("summed", r"an output of shape \(\) does not have the batch's 4 samples on its axis 0"),
    ("squeezed", r"of 1 of the batch's 4 samples it gives an output of shape \(\), not \(1,\)"),
])  # fmt: skip
def test_an_output_without_samples_is_a_sentence(how, says):
    model = Gain(how)
    optimizer = optim.NaturalGradient(model)
    with pytest.raises(chronaxie.ShapeError, match=says):
        model(torch.randn(4, 3)).sum().backward()
        optimizer.step()
