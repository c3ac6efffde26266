"""TrueLiquidTimeConstant: what users of ltc-cuda have."""

import copy
import pickle
import warnings

import pytest
import torch
from conftest import OUTPUT, assert_near, gradients

import chronaxie
import chronaxie.torch as ct

KEYS = [
    "w", "mu", "sigma", "erev", "sensory_w", "sensory_mu", "sensory_sigma", "sensory_erev", "gleak", "vleak", "cm",
    "input_w", "input_b", "sparsity_mask", "sensory_sparsity_mask", "input_norm.weight", "input_norm.bias",
]  # fmt: skip


@pytest.mark.parametrize("mapping", ["affine", "linear", "none"])
def test_keys_parameters_and_buffers(mapping):
    net = ct.TrueLiquidTimeConstant(10, 8, input_mapping=mapping)
    assert sorted(net.state_dict()) == sorted(KEYS)
    trained = {n for n, _ in net.named_parameters()}
    assert ("input_w" in trained, "input_b" in trained) == (mapping != "none", mapping == "affine")
    assert not {"sparsity_mask", "sensory_sparsity_mask"} & trained
    assert net.W_rec is net.w
    mask = net.sparsity_mask
    assert ((mask == 0) | (mask == 1)).all() and (mask.sum(0) >= 1).all() and 0.2 < mask.mean() < 0.8
    assert torch.equal(net.erev.detach().abs(), mask) and set(net.erev.unique().tolist()) == {-1.0, 0.0, 1.0}


@pytest.mark.parametrize("mapping", ["affine", "linear", "none"])
@pytest.mark.parametrize("dt", [1 / 30, 1.0])
def test_results_and_gradients(device, mapping, dt):
    net = ct.TrueLiquidTimeConstant(10, 16, dt=dt, input_mapping=mapping, ode_unfolds=4)
    with torch.no_grad():
        net.input_b += 0.3
        net.input_norm.bias += 0.2 * torch.randn(10)
    law = copy.deepcopy(net).double()
    net.to(device)
    x, h = torch.randn(6, 9, 10), torch.randn(6, 16)
    x64, h64 = x.double().requires_grad_(), h.double().requires_grad_()
    x32, h32 = x.to(device).requires_grad_(), h.to(device).requires_grad_()
    out64, (s64, _) = law(x64, (h64, h64))
    out, (s, c) = net(x32, (h32, h32))
    assert s is c
    assert_near("out", out, out64, OUTPUT)
    assert_near("state", s, s64, OUTPUT)
    seeds = torch.randn(out.shape), torch.randn(s.shape)
    want = gradients(law, {"x": x64, "h": h64}, (out64, s64), [t.double() for t in seeds])
    got = gradients(net, {"x": x32, "h": h32}, (out, s), [t.to(device) for t in seeds])
    for name, g in want.items():
        assert_near(name, got[name], g)
    assert torch.equal(net(x32, h32)[0], out)
    net._force_torchscript = True
    assert_near("out", net(x32, (h32, h32))[0], out64, OUTPUT)


def test_odd_sizes_and_long_sequences(device):
    for inputs, hidden, steps in ((1, 1, 1), (3, 33, 2), (224, 64, 8), (5, 130, 3), (4, 17, 100)):
        net = ct.TrueLiquidTimeConstant(inputs, hidden).to(device)
        x = torch.randn(2, steps, inputs, device=device)
        law = copy.deepcopy(net).double()
        assert_near("out", net(x)[0], law(x.double())[0], OUTPUT)


def test_bits_repeat(device):
    net = ct.TrueLiquidTimeConstant(32, 64).to(device)
    x = torch.randn(24, 8, 32, device=device)
    results = []
    for threads in (1, 2, 3):
        chronaxie.set_num_threads(threads)
        net.zero_grad()
        out, _ = net(x)
        out.square().sum().backward()
        results.append([out, *(p.grad.clone() for p in net.parameters())])
    chronaxie.set_num_threads(torch.get_num_threads())
    assert all(torch.equal(a, b) for r in results[1:] for a, b in zip(results[0], r))


def test_eval_mode_follows_the_weights(device):
    net, other = (ct.TrueLiquidTimeConstant(6, 12).to(device).eval() for _ in range(2))
    x = torch.randn(3, 4, 6, device=device)
    net(x)
    net.load_state_dict(other.state_dict())
    assert torch.equal(net(x)[0], other(x)[0])
    for _ in range(2):
        net(x)[0].sum().backward()


def test_masks_that_change_are_followed(device):
    net = ct.TrueLiquidTimeConstant(6, 12).to(device)
    x = torch.randn(3, 4, 6, device=device)
    before = net(x)[0]
    with torch.no_grad():
        net.sparsity_mask.fill_(1)
        changed = net(x)[0]
        net.erev.fill_(1)
        full = net(x)[0]
    assert net._synapses.recurrent == 144 and not torch.equal(changed, full)
    law = copy.deepcopy(net).double()
    assert_near("out", full, law(x.double())[0], OUTPUT)
    net.sparsity_mask = torch.eye(12, device=device)
    assert net(x)[0].shape == before.shape and net._synapses.recurrent == 12
    with torch.no_grad():
        net.sparsity_mask.data[0, 1] = 1
    net.prepare()
    assert net._synapses.recurrent == 13


def test_copies_pickles_and_configs(device, tmp_path):
    net = ct.TrueLiquidTimeConstant(6, 12, dt=0.1, sparsity=0.3, input_mapping="linear", precision="fast").to(device)
    x = torch.randn(3, 4, 6, device=device)
    want = net(x)[0]
    torch.save(net, tmp_path / "net.pt")
    loaded = torch.load(tmp_path / "net.pt", weights_only=False)
    for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net)), loaded):
        assert torch.equal(other(x)[0], want)
        with torch.no_grad():
            other.w.add_(1)
            other.sparsity_mask.fill_(1)
        assert not torch.equal(other(x)[0], want)
    assert torch.equal(net(x)[0], want)
    again = ct.TrueLiquidTimeConstant.from_config(net.get_config()).to(device)
    again.load_state_dict(net.state_dict())
    assert torch.equal(again(x)[0], want)


def test_a_meta_module_can_be_filled():
    with torch.device("meta"):
        empty = ct.LTC(6, 9)
    net = ct.LTC(6, 9)
    empty.to_empty(device="cpu")
    empty.load_state_dict(net.state_dict())
    x = torch.randn(2, 3, 6)
    assert torch.equal(empty(x)[0], net(x)[0])


def test_functional_call_and_parametrizations():
    net = ct.TrueLiquidTimeConstant(6, 9)
    x = torch.randn(2, 3, 6)
    other = {n: p.detach() + 0.1 for n, p in net.named_parameters()}
    got = torch.func.functional_call(net, other, (x,))[0]
    changed = copy.deepcopy(net)
    changed.load_state_dict({**net.state_dict(), **other})
    assert torch.equal(got, changed(x)[0])

    class Double(torch.nn.Module):
        def forward(self, w):
            return 2 * w

    torch.nn.utils.parametrize.register_parametrization(net, "w", Double())
    out = net(x)[0]
    out.sum().backward()
    assert net.parametrizations.w.original.grad is not None
    plain = copy.deepcopy(net)
    torch.nn.utils.parametrize.remove_parametrizations(plain, "w")
    assert torch.equal(plain(x)[0], out)


def test_the_seed_of_pytorch_decides():
    nets = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        nets.append(ct.TrueLiquidTimeConstant(6, 12).state_dict())
    assert all(torch.equal(nets[0][k], nets[1][k]) for k in KEYS)
    assert not torch.equal(nets[0]["sparsity_mask"], nets[2]["sparsity_mask"])


def test_a_gpu_without_a_compiler_is_warned_of_once(monkeypatch):
    from chronaxie.torch import _plan

    def missing(device):
        raise chronaxie.BackendUnavailableError(f"no NVRTC for {device}")

    monkeypatch.setattr(_plan, "_UNAVAILABLE", {})
    monkeypatch.setattr(_plan._native, "require_device", missing)
    with pytest.warns(RuntimeWarning, match="eager PyTorch operations on cuda:0, .*: no NVRTC for cuda:0"):
        assert _plan.unavailable(0) == "no NVRTC for cuda:0"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert _plan.unavailable(0) == "no NVRTC for cuda:0"


def test_sentences():
    for options, message in [
        ({"input_mapping": "relu"}, "input_mapping `relu` is not one of affine, linear, none"),
        ({"hidden_dim": 0}, "hidden_dim = 0 is not a whole number from 1 on"),
        ({"sparsity": -0.5}, "density = -0.5"),
    ]:
        with pytest.raises(chronaxie.ConfigError, match=message):
            ct.TrueLiquidTimeConstant(4, **options)
    with pytest.raises(chronaxie.ConfigError, match="dt = 0"):
        ct.TrueLiquidTimeConstant(4, 8, dt=0.0)(torch.randn(1, 2, 4))
