"""K-FAC whose steps the device counts, so that they can be captured in a CUDA graph and leave out what overflowed."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import chronaxie
from chronaxie import optim
from chronaxie.optim import _base

from conftest import goes_on_with_the_same_bits
from test_optim import same
from test_per_sample import normal

COUNTED = dict(damping_mode="factored", factor_frequency=1, inverse_frequency=1)


class Net(nn.Module):
    """Maps, groups of channels, gates, and a norm and a scale that take AdamW's step."""

    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.conv, self.norm = nn.Conv1d(4, 6, 3, padding=1, groups=2), nn.LayerNorm(6)
        self.rnn, self.out = nn.GRU(6, 5, batch_first=True), nn.Linear(5, 3)
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x):
        return self.out(self.rnn(self.norm(self.conv(x.mT).mT))[0]) * self.scale


def backward(net, scaler, k, over=False):
    device = net.scale.device
    x, y = normal(6, 7, 4, seed=k).to(device), normal(6, 7, 3, seed=k + 50).to(device)
    loss = F.mse_loss(net(x), y)
    scaler.scale(loss * float("inf") if over and k % 2 == 0 else loss).backward()
    if over:
        # Also where factors are finite, and one gradient alone is not.
        net.conv.bias.grad[0] = float("inf")


def run(net, kfac, scaler, steps, first=0, overflows=()):
    for k in range(first, first + steps):
        for over in (True, False) if k in overflows else (False,):
            kfac.zero_grad()
            backward(net, scaler, k, over)
            scaler.step(kfac)
            scaler.update()


def scaler_of(device, enabled=True):
    return torch.amp.GradScaler(torch.device(device).type, init_scale=2.0**10, growth_interval=2, enabled=enabled)


@pytest.mark.parametrize("options", [{}, dict(momentum=0.0, weight_decay=0.1), dict(sharing="reduce", per_gate=False)], ids=["plain", "decay", "reduce"])
def test_the_device_may_count_and_leave_steps_out(device, options):
    """The same steps as those that Python counts, and the same bits where losses are scaled and overflow."""
    nets, optimizers = [], []
    for capturable, scaled in ((False, False), (True, False), (True, True)):
        net, scaler = Net().to(device), scaler_of(device, scaled)
        kfac = optim.KFAC(net, lr=0.05, capturable=capturable, grad_scaler=scaler, **COUNTED, **options)
        run(net, kfac, scaler, 6, overflows=(0, 2, 3) if scaled else ())
        assert kfac._step_supports_amp_scaling == capturable
        nets.append(net)
        optimizers.append(kfac)
    for (name, p), q, r in zip(nets[0].named_parameters(), nets[1].parameters(), nets[2].parameters()):
        torch.testing.assert_close(q, p, rtol=1e-4, atol=2e-5, msg=name)
        assert torch.equal(q, r), name
        assert same(optimizers[1].state[q], optimizers[2].state[r]), name
    step = optimizers[2].state[nets[2].scale]["step"]
    assert isinstance(step, torch.Tensor) and float(step) == 6 and float(optimizers[2].state[nets[2].out.weight]["averaged"]) == 6


def tensors(state):
    return [t for s in state.values() for t in s.values() if isinstance(t, torch.Tensor)]


def test_state_stays_where_it_is_and_nothing_waits(monkeypatch):
    """What a graph needs: behind the first step every tensor of state is changed in place, and no answer is asked for."""
    net, scaler = Net(), scaler_of("cpu")
    kfac = optim.KFAC(net, lr=0.05, capturable=True, grad_scaler=scaler, **COUNTED)
    run(net, kfac, scaler, 2)
    places = [t.data_ptr() for t in tensors(kfac.state)]
    before = [t.clone() for t in tensors(kfac.state)]
    monkeypatch.setattr(_base, "_finite", lambda name, given: [g.isfinite().all() for _, g in given])

    def waits(*args, **kwargs):
        raise AssertionError("an answer was asked for")

    for k, over in ((2, True), (3, False)):
        kfac.zero_grad()
        with monkeypatch.context() as patch:
            for asked in ("item", "tolist", "nonzero", "__bool__", "__float__", "__int__", "__index__"):
                patch.setattr(torch.Tensor, asked, waits)
            backward(net, scaler, k, over)
            scaler.step(kfac)
        scaler.update()
        assert places == [t.data_ptr() for t in tensors(kfac.state)]
        changed = [not torch.equal(t, old) for t, old in zip(tensors(kfac.state), before)]
        assert not any(changed) if over else all(changed)


def test_a_saved_run_goes_on_with_the_same_bits():
    def optimize(net, first):
        return optim.KFAC(net, lr=0.05, capturable=first, **(COUNTED if first else {}))

    off = scaler_of("cpu", False)
    goes_on_with_the_same_bits(Net, optimize, lambda net, kfac, part: run(net, kfac, off, (4, 3)[part], 100 * part))


def test_what_is_refused():
    net = Net()
    for options, want in [
        (dict(), "capturable = True needs damping_mode = 'factored', not 'exact', whose eigenvectors are waited for"),
        (dict(damping_mode="factored"), "all steps of a graph do the same, not factor_frequency = 1 and inverse_frequency = 10"),
        (dict(COUNTED, factor_frequency=2), "not factor_frequency = 2 and inverse_frequency = 1"),
    ]:
        with pytest.raises(chronaxie.ConfigError, match=want):
            optim.KFAC(net, capturable=True, **options)
        assert not any(m._forward_hooks for m in net.modules())
    # What was observed is of no step that is left out: Python has to know.
    assert not optim.KFAC(net, capturable=True, fisher="exact", **COUNTED)._step_supports_amp_scaling


@pytest.mark.gpu
def test_a_whole_training_step_in_a_graph(cuda):
    """Forward, backward and the step, captured once: those of steps that are not."""

    def once(net, kfac, x, y):
        kfac.zero_grad()
        F.mse_loss(net(x), y).backward()
        kfac.step()

    def start():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 3)).to(cuda)
        kfac = optim.KFAC(net, lr=0.05, capturable=True, **COUNTED)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            once(net, kfac, normal(8, 4).to(cuda), normal(8, 3, seed=1).to(cuda))
        torch.cuda.current_stream().wait_stream(stream)
        return net, kfac

    (eager, one), (captured, two) = start(), start()
    x, y = torch.zeros(8, 4, device=cuda), torch.zeros(8, 3, device=cuda)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        once(captured, two, x, y)
    for k in range(1, 6):
        x.copy_(normal(8, 4, seed=k))
        y.copy_(normal(8, 3, seed=k + 50))
        graph.replay()
        once(eager, one, x, y)
    for p, q in zip(eager.parameters(), captured.parameters()):
        torch.testing.assert_close(q, p, rtol=1e-5, atol=1e-6)
