"""Gradients of single samples against PyTorch's own, one sample or one vmap at a time."""

import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

import chronaxie
from chronaxie import optim
from chronaxie.torch import LRU, LTC, MLSTM, AUSSM, CfC, CfCCell, LTCCell, Mamba, MinGRU, TrueLiquidTimeConstant, wirings

from conftest import distance

# Two ways to one number in float32 (the bound); between two runs of one layer, whose own bound is 1e-5, twice that.
NEAR = 1e-5


def normal(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def loop(model, loss_fn, inputs, targets, axis=0):
    """One sample after the other, by autograd."""
    count = inputs.shape[axis]
    rows = []
    params = [p for p in model.parameters() if p.requires_grad]
    for n in range(count):
        one = inputs.narrow(axis, n, 1)
        loss = loss_fn(model(one), None if targets is None else targets[n : n + 1])
        rows.append([torch.zeros_like(p) if g is None else g for p, g in
                     zip(params, torch.autograd.grad(loss, params, allow_unused=True))])  # fmt: skip
    names = [n for n, p in model.named_parameters() if p.requires_grad]
    return {n: torch.stack([row[k] for row in rows]) for k, n in enumerate(names)}


def vmapped(model, loss_fn, inputs, targets):
    """torch.func.vmap(grad)."""
    params = {n: p.detach() for n, p in model.named_parameters() if p.requires_grad}

    def one(params, x, y):
        return loss_fn(torch.func.functional_call(model, params, (x[None],)), None if y is None else y[None])

    return torch.func.vmap(torch.func.grad(one), in_dims=(None, 0, None if targets is None else 0))(params, inputs, targets)


def check(model, loss_fn, inputs, targets=None, law=None, bound=NEAR, **options):
    """All three functions against a law of gradients by name."""
    inputs_axis = options.get("batch_axis", 0)
    law = loop(model, loss_fn, inputs, targets, inputs_axis) if law is None else law
    call = lambda out, y=None: loss_fn(out, y)  # noqa: E731
    given = optim.per_sample_gradients(model, call, inputs, targets, **options)
    assert given.keys() == law.keys()
    for name in law:
        assert distance(given[name], law[name]) <= bound, name
    norms = optim.per_sample_norms(model, call, inputs, targets, **options)
    want = sum(g.double().flatten(1).square().sum(1) for g in law.values()).sqrt()
    assert distance(norms, want) <= bound and norms.shape == (inputs.shape[inputs_axis],)
    each = optim.per_sample_norms(model, call, inputs, targets, by_parameter=True, **options)
    for name in law:
        assert distance(each[name], law[name].double().flatten(1).norm(dim=1)) <= 2 * bound, name
    most = float(want.median())
    for p in model.parameters():
        p.grad = None
    clipped = optim.clip_per_sample(model, call, inputs, targets, max_norm=most, **options)
    assert distance(clipped.norms, want) <= bound
    c = (most / want).clamp_max(1.0) / len(want)
    assert float(c.min()) < float(c.max()), "some are clipped and some are not"
    for name, p in model.named_parameters():
        if p.requires_grad and float(law[name].norm()) > 0:
            assert distance(p.grad, torch.tensordot(c, law[name].double(), 1)) <= bound, name
            p.grad = None


def mse(out, y=None):
    out = out[0] if isinstance(out, tuple) else out
    return out.square().mean() if y is None else F.mse_loss(out, y)


class Net(nn.Module):
    """What users write: an own scale, two calls of a layer, two norms."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.norm = nn.Linear(6, 9), nn.Linear(9, 9), nn.LayerNorm(9)
        self.c, self.never = nn.Linear(9, 4, bias=False), nn.Linear(2, 2)
        self.b.bias.requires_grad_(False)

    def forward(self, x):
        x = torch.relu_(self.a(x))
        return self.c(self.norm(self.b(torch.tanh(self.b(x)))))


@pytest.mark.parametrize("shape", [(5, 6), (5, 1, 6), (5, 7, 6), (5, 2, 3, 6), (1, 40, 6)])
def test_linear_maps_and_norms(device, shape):
    model = Net().to(device)
    x, y = normal(*shape).to(device), normal(*shape[:-1], 4, seed=1).to(device)
    if shape[0] > 1:
        check(model, mse, x, y)
    law = vmapped(model, mse, x, y)
    given = optim.per_sample_gradients(model, mse, x, y)
    for name, g in law.items():
        assert distance(given[name], g) <= NEAR, name
    assert given["never.bias"].shape == (shape[0], 2) and not given["b.weight"].isnan().any()


@pytest.mark.parametrize("layer, shape", [
    (nn.Conv1d(4, 6, 3, stride=2, padding=2, dilation=2, groups=2), (4, 4, 11)),
    (nn.Conv1d(4, 6, 3, padding="same", bias=False), (4, 4, 5)),
    (nn.Conv2d(3, 8, (3, 2), stride=(2, 1), padding=(1, 0)), (4, 3, 7, 6)),
    (nn.Conv2d(4, 4, 3, groups=4, padding=1, padding_mode="circular"), (4, 4, 5, 5)),
    (nn.Conv3d(2, 3, 2), (3, 2, 3, 4, 3)),
    (nn.GroupNorm(2, 6), (4, 6, 5)), (nn.LayerNorm((3, 4)), (4, 2, 3, 4)), (nn.RMSNorm(5), (4, 3, 5)),
])  # fmt: skip
def test_single_layers(device, layer, shape):
    layer = layer.to(device)
    with torch.no_grad():
        for k, p in enumerate(layer.parameters()):
            p.copy_(normal(*p.shape, seed=k))
    x = normal(*shape).to(device)
    target = normal(*layer(x).shape, seed=3).to(device)
    check(layer, mse, x, target)
    check(layer, mse, x, target, law=vmapped(layer, mse, x, target))


class Words(nn.Module):
    def __init__(self, tied):
        super().__init__()
        self.table, self.head = nn.Embedding(11, 5, padding_idx=0), nn.Linear(5, 11, bias=False)
        if tied:
            self.head.weight = self.table.weight

    def forward(self, ids):
        return self.head(torch.tanh(self.table(ids))).transpose(1, 2)


@pytest.mark.parametrize("tied", [False, True])
def test_words_whose_table_is_the_head(device, tied):
    model = Words(tied).to(device)
    ids = torch.randint(0, 11, (6, 8), generator=torch.Generator().manual_seed(0)).to(device)
    ids[:, 3] = ids[:, 5] = 4
    check(model, lambda out, y: F.cross_entropy(out, y), ids, ids.roll(1, 1))


@pytest.mark.parametrize("make", [
    lambda: nn.LSTM(4, 5, batch_first=True), lambda: nn.LSTM(4, 5, num_layers=2, bidirectional=True, proj_size=3, batch_first=True),
    lambda: nn.GRU(4, 5, batch_first=True, num_layers=2), lambda: nn.RNN(4, 5, batch_first=True, bias=False),
    lambda: nn.RNN(4, 5, nonlinearity="relu", batch_first=True),
], ids=["lstm", "lstm_deep", "gru", "rnn", "relu"])  # fmt: skip
@pytest.mark.filterwarnings("ignore:LSTM with projections")
def test_pytorchs_recurrent_layers(device, make):
    layer = make().to(device)
    x = normal(4, 6, 4).to(device)

    def loss(out, y=None):
        # The last states take part.
        out, state = out
        last = state[0] + state[1] if isinstance(state, tuple) and state[0].shape == state[1].shape else tree_flatten(state)[0][-1]
        return out.square().mean() + last.sum((0, 2)).square().mean()

    check(layer, loss, x, bound=2 * NEAR)


OURS = {
    "cfc": lambda: CfC(4, 5, backbone_units=6, proj_size=3),
    "cfc_pure": lambda: CfC(4, 5, mode="pure", backbone_layers=0),
    "cfc_mixed": lambda: CfC(4, 5, mixed_memory=True, mode="no_gate", backbone_layers=2, backbone_units=4),
    "cfc_wired": lambda: CfC(4, wirings.AutoNCP(9, 2, seed=3)),
    "ltc": lambda: LTC(4, wirings.AutoNCP(9, 2, seed=3)),
    "ltc_mixed": lambda: LTC(4, 5, mixed_memory=True, return_sequences=False),
    "true_ltc": lambda: TrueLiquidTimeConstant(4, 5),
    "mingru": lambda: MinGRU(4, 5),
    "lru": lambda: LRU(4, 3),
    "mamba": lambda: Mamba(4, 3),
    "aussm": lambda: AUSSM(4, 3, double_bias=True),
}


class Complex(nn.Module):
    """A module whose complex parameters stand still."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner
        for p in inner.parameters():
            if p.is_complex():
                p.requires_grad_(False)

    def forward(self, x):
        return self.inner(x)


@pytest.mark.parametrize("name", OURS)
def test_our_recurrent_layers(name):
    model, x = Complex(OURS[name]()), normal(4, 6, 4)
    check(model, mse, x, bound=2 * NEAR)
    if name in ("cfc", "cfc_wired", "ltc", "true_ltc"):
        check(model, mse, x, law=vmapped(model, mse, x, None), bound=2 * NEAR)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["cfc", "cfc_wired", "ltc", "true_ltc", "mamba"])
def test_our_recurrent_layers_on_a_gpu(cuda, name):
    check(Complex(OURS[name]()).to(cuda), mse, normal(4, 6, 4).to(cuda), bound=2 * NEAR)


@pytest.mark.parametrize("name", ["cfc", "cfc_pure", "ltc"])
def test_in_float64_it_is_exact(name):
    check(OURS[name]().double(), mse, normal(4, 6, 4, dtype=torch.float64), bound=1e-11)


def test_cells_that_are_stepped_and_layers_in_time_first():
    class Stepped(nn.Module):
        def __init__(self, cell, hidden):
            super().__init__()
            self.cell, self.hidden = cell, hidden

        def forward(self, x):
            h, outputs = x.new_zeros(x.shape[0], self.hidden), []
            for t in range(x.shape[1]):
                out, h = self.cell(x[:, t], h)
                outputs.append(out)
            return torch.stack(outputs, 1)

    for cell, hidden in ((CfCCell(4, 5, backbone_units=6), 5), (LTCCell(wirings.FullyConnected(5), 4), 5)):
        check(Stepped(cell, hidden), mse, normal(3, 4, 4), bound=2 * NEAR)

    class First(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn, self.ltc, self.head = nn.LSTM(4, 5), LTC(5, 3, batch_first=False), nn.Linear(3, 2)

        def forward(self, x):
            return self.head(self.ltc(self.rnn(x)[0])[0])

    check(First(), mse, normal(6, 3, 4), batch_axis=1, bound=2 * NEAR)


class Two(nn.Module):
    """LTCs behind each other, the second of them twice, with a state and times that are given."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = LTC(4, 5, batch_first=False), TrueLiquidTimeConstant(5, 5), nn.Linear(5, 2)
        # What stands still has no part in a norm.
        self.first.rnn_cell.sigma.requires_grad_(False)
        self.second.input_b.requires_grad_(False)

    def forward(self, x):
        # [B, T, D] whose samples do not lie one behind the other.
        h0 = x[:, 0, :1].expand(-1, 5) * 0.1
        times = 0.5 + x[..., 0].transpose(0, 1).square()
        y, last = self.first(x.transpose(0, 1), h0, times)
        y, (state, _) = self.second(y.transpose(0, 1), last)
        y, _ = self.second(y, (state,))
        return self.head(y[:, 1:])


def test_native_recurrences_are_run_again_without_autograd(monkeypatch):
    from chronaxie.optim import _calls

    def replayed(call, *rest):
        raise AssertionError(f"{call.unit.name} was run again as a module")

    monkeypatch.setattr(_calls, "replayed", replayed)
    x = normal(4, 3, 5).transpose(0, 2)
    check(Two(), mse, x, bound=2 * NEAR)
    for samples in (2, 5):
        model = Complex(OURS["true_ltc"]())
        check(model, mse, normal(samples, 3, 4), bound=2 * NEAR)
    # A loss of one number for each sample, and sums.
    check(LTC(3, 4), lambda out, _: out[0].square().sum((1, 2)), normal(5, 4, 3), bound=2 * NEAR)

    class Apart(LTC):
        """Its loss reads a parameter beside."""

        def forward(self, x):
            out, h = super().forward(x)
            return out * self.rnn_cell.gleak.mean(), h

    with pytest.raises(AssertionError, match="Apart was run again"):
        optim.per_sample_norms(Apart(3, 4), mse, normal(5, 4, 3))
    with pytest.raises(AssertionError, match="LTC was run again"):
        optim.per_sample_norms(LTC(3, 4).double(), mse, normal(5, 4, 3, dtype=torch.float64))


@pytest.mark.gpu
def test_native_recurrences_on_a_gpu(cuda):
    check(Two().to(cuda), mse, normal(4, 3, 5).transpose(0, 2).to(cuda), bound=2 * NEAR)
    stream = torch.cuda.Stream()
    model, x = LTC(4, 5).to(cuda), normal(6, 3, 4).to(cuda)
    want = optim.per_sample_norms(model, mse, x)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        got = optim.per_sample_norms(model, mse, x)
    stream.synchronize()
    assert torch.equal(got, want)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_losses_that_cannot_hold_the_number_of_samples(dtype):
    """A mean's factor, here 2051, is no number of these types."""
    model, x = nn.Linear(3, 2), normal(2051, 3)
    norms = optim.per_sample_norms(model, lambda out: out.square().sum(1).mean().to(dtype), x)
    want = optim.per_sample_norms(model, lambda out: out.square().sum(1).mean(), x)
    assert distance(norms, want) <= NEAR


def test_layers_by_their_lengths():
    """Maps of one position a sample, with and without a bias, and what stands still; the last is shared."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c, self.d = nn.Linear(4, 6), nn.Linear(6, 5, bias=False), nn.Linear(5, 5), nn.Linear(5, 5)
            self.a.weight.requires_grad_(False)
            self.c.bias.requires_grad_(False)

        def forward(self, x):
            return self.d(torch.tanh(self.d(torch.relu(self.c(self.b(torch.tanh(self.a(x))))))))

    check(Net(), mse, normal(7, 4), normal(7, 5, seed=2))
    check(nn.Linear(70000, 2), mse, normal(3, 70000))


def test_few_operations_beside_the_passes():
    """On a GPU each is a launch, which takes longer than what it does."""

    class Count(TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.ops = []

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.ops.append(func._schema.name)
            return func(*args, **(kwargs or {}))

    free = ("detach", "view", "reshape", "transpose", "::t", "unbind", "alias", "_unsafe_view", "expand", "select", "slice")
    model, x, y = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)), normal(4, 6), torch.tensor([0, 2, 1, 1])

    def ops(call):
        with Count() as count:
            call()
        return [n for n in count.ops if not n.endswith(free)]

    def bare():
        hidden = model[0](x)
        out = model[2](torch.relu(hidden))
        torch.autograd.grad(F.cross_entropy(out, y), [hidden, out])

    # Norms of x and g of two maps, their products, all of them beside each other, and their norm.
    ours, passes = ops(lambda: optim.per_sample_norms(model, F.cross_entropy, x, y)), ops(bare)
    assert len(ours) <= len(passes) + 7, (ours, passes)


def test_an_mlstm_block():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.maps, self.gates, self.out = nn.LayerNorm(32), nn.Linear(32, 96), nn.Linear(32, 4), nn.Linear(32, 32)
            self.core = MLSTM(mode="train")

        def forward(self, x):
            b, t, _ = x.shape
            y = self.norm(x)
            q, k, v = (s.view(b, t, 2, 16).transpose(1, 2) for s in self.maps(y).chunk(3, -1))
            i, f = self.gates(y).transpose(1, 2).chunk(2, 1)
            h = self.core(q=q, k=k, v=v, i=i, f=f)
            return x + self.out(h.transpose(1, 2).reshape(b, t, 32))

    check(Block(), mse, normal(3, 5, 32), bound=2 * NEAR)


def test_attention_with_a_mask_as_long_as_the_batch():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True)

        def forward(self, x):
            return self.layer(x, src_mask=torch.ones(4, 4, dtype=torch.bool).triu(1))

    # Without a target the loss of what a LayerNorm gives is one number, and gradients are what rounding leaves.
    check(Block(), mse, normal(4, 4, 8), normal(4, 4, 8, seed=1), bound=2 * NEAR)
    with pytest.raises(chronaxie.ConfigError, match="layer.self_attn: MultiheadAttention drops at random with probability 0.1"):
        optim.per_sample_norms(nn.ModuleDict({"layer": nn.TransformerEncoderLayer(8, 2)}), mse, normal(4, 4, 8))


def test_a_loss_of_each_sample_and_sums():
    model, x, y = nn.Linear(4, 3), normal(5, 4), normal(5, 3, seed=1)
    law = loop(model, lambda o, t: (o - t).square().sum(), x, y)
    for loss, reduction in ((lambda o, t: (o - t).square().sum(), "sum"), (lambda o, t: (o - t).square().sum(1), "mean")):
        for name, g in optim.per_sample_gradients(model, loss, x, y, reduction=reduction).items():
            assert distance(g, law[name]) <= NEAR
    optim.clip_per_sample(model, lambda o, t: (o - t).square().sum(), x, y, max_norm=1e9, reduction="sum")
    assert distance(model.weight.grad, law["weight"].sum(0)) <= NEAR
    before = model.weight.grad.clone()
    optim.clip_per_sample(model, lambda o, t: (o - t).square().sum(), x, y, max_norm=1e9, reduction="sum")
    assert distance(model.weight.grad, 2 * before) <= NEAR, "it accumulates"


class Peak(TorchDispatchMode):
    """The most bytes of tensors alive that were made inside, or seen there but for those that are known."""

    def __init__(self, *known):
        super().__init__()
        self.now = self.peak = 0
        self.alive = {t.untyped_storage()._cdata: 0 for t in known}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for t in tree_flatten(out)[0]:
            if isinstance(t, torch.Tensor):
                storage = t.untyped_storage()
                key = storage._cdata
                if key not in self.alive:
                    self.alive[key] = storage.nbytes()
                    self.now += storage.nbytes()
                    weakref.finalize(storage, self._gone, key)
        self.peak = max(self.peak, self.now)
        return out

    def _gone(self, key):
        self.now -= self.alive.pop(key, 0)


@pytest.mark.parametrize("make", [lambda: nn.Linear(512, 768), lambda: LTC(16, 64)], ids=["linear", "ltc"])
def test_norms_take_memory_that_does_not_grow_with_the_batch(make, monkeypatch):
    """Beside activations: less than two gradients, where gradients of single samples would take 24."""
    from chronaxie.optim import _uses

    monkeypatch.setattr(_uses, "BUDGET", 1 << 10)
    model = make()
    size = 4 * sum(p.numel() for p in model.parameters() if p.requires_grad)
    x = normal(24, 2, 16 if isinstance(model, LTC) else 512)
    with Peak() as peak:
        optim.per_sample_norms(model, mse, x)
    assert peak.peak < 5 * size, (peak.peak, size)
    with Peak() as whole:
        optim.per_sample_gradients(model, mse, x)
    assert whole.peak > 20 * size, "the measure sees what is materialised"


def test_what_cannot_be_is_told():
    x = normal(4, 3)
    with pytest.raises(chronaxie.ConfigError, match="1: BatchNorm1d mixes samples"):
        optim.per_sample_norms(nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)), mse, x)
    check(nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)).eval(), mse, x)
    with pytest.raises(chronaxie.ConfigError, match="LSTM drops at random with probability 0.5"):
        optim.per_sample_norms(nn.LSTM(3, 3, 2, dropout=0.5), mse, x)
    with pytest.raises(chronaxie.ShapeError, match=r"lin: a call of shape \(2, 6\) has 2 samples where the batch has 4"):
        optim.per_sample_norms(Folded(), mse, x)
    with pytest.raises(chronaxie.ShapeError, match=r"the loss is \(4, 3\); it must be one number, or one for each of the 4"):
        optim.per_sample_norms(nn.Linear(3, 3), lambda o: o, x)
    with pytest.raises(chronaxie.ConfigError, match=r"lin: the loss uses its parameter of shape \(3, 3\) 2 times, and 1 of"):
        optim.per_sample_norms(Hidden(), mse, x)
    with pytest.raises(chronaxie.ConfigError, match="reduction = 'none' is not one of mean, sum"):
        optim.per_sample_norms(nn.Linear(3, 3), mse, x, reduction="none")
    with pytest.raises(chronaxie.ConfigError, match="max_norm = -1"):
        optim.clip_per_sample(nn.Linear(3, 3), mse, x, max_norm=-1)
    with pytest.raises(chronaxie.ConfigError, match=r"shape \(4, 3\) was changed in place"):
        optim.per_sample_norms(Changing(), mse, x)
    with pytest.raises(chronaxie.ConfigError, match="sparse or scale_grad_by_freq"):
        optim.per_sample_norms(nn.Embedding(3, 3, sparse=True), mse, torch.zeros(3, 2, dtype=torch.long))


class Folded(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(6, 1)

    def forward(self, x):
        return self.lin(x.reshape(2, 6))


class Hidden(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, 3, bias=False)

    def forward(self, x):
        return self.lin(x) @ self.lin.weight


class Changing(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, 3, bias=False)

    def forward(self, x):
        x = x * 1.0
        y = self.lin(x.detach())
        x.add_(1.0)
        return y


def test_a_class_that_computes_something_else_is_run_again_and_hooked_weights_are_refused():
    class Standardised(torch.nn.Linear):
        def forward(self, x):
            return torch.nn.functional.linear(x, self.weight - self.weight.mean(), self.bias)

    torch.manual_seed(4)
    net, x = Standardised(5, 3).double(), torch.randn(6, 5, dtype=torch.float64)
    got = optim.per_sample_gradients(net, lambda y: y.square().sum(1), x)
    for i in range(6):
        (want,) = torch.autograd.grad(net(x[i : i + 1]).square().sum(), [net.weight])
        assert float((got["weight"][i] - want).abs().max()) < 1e-6
    hooked = torch.nn.utils.weight_norm(torch.nn.Linear(5, 3))
    with pytest.raises(chronaxie.ConfigError, match="its weight is made by a hook"):
        optim.per_sample_norms(hooked, lambda y: y.square().sum(1), x.float())
    with pytest.raises(chronaxie.ConfigError, match="depends on no parameter"):
        optim.per_sample_norms(net, lambda y: x.sum(1), x)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_of_no_samples_there_are_no_gradients(reduction):
    """As sampling with a probability gives such batches: nothing is run, and .grad is there for what is added to it."""
    model = nn.Sequential(nn.Conv1d(2, 3, 2), nn.Flatten(), nn.Linear(12, 4), nn.LayerNorm(4))
    for model, x in ((model, normal(0, 2, 5)), (nn.Embedding(5, 2), torch.zeros(0, 3, dtype=torch.long)), (LTC(3, 2), normal(0, 4, 3))):
        got = optim.per_sample_gradients(model, mse, x, reduction=reduction)
        for name, p in model.named_parameters():
            assert not p.requires_grad or got[name].shape == (0, *p.shape), name
        assert optim.per_sample_norms(model, mse, x, reduction=reduction).shape == (0,)
        norms = optim.per_sample_norms(model, mse, x, reduction=reduction, by_parameter=True)
        assert norms.keys() == got.keys() and all(n.shape == (0,) for n in norms.values())
        first = next(p for p in model.parameters() if p.requires_grad)
        first.grad = torch.ones_like(first)
        norms, loss = optim.clip_per_sample(model, mse, x, max_norm=1.0, reduction=reduction)
        assert norms.shape == (0,) and float(loss) == 0.0 and torch.equal(first.grad, torch.ones_like(first))
        assert not any(p.grad.any() for p in model.parameters() if p.requires_grad and p is not first)
    with pytest.raises(chronaxie.ConfigError, match="no layer with parameters"):
        optim.per_sample_norms(nn.Tanh(), mse, normal(0, 2))


def test_layers_without_positions_or_inputs():
    """T = 0, and a map that reads nothing: what autograd says of them."""

    def total(y, _=None):
        return y.square().sum()

    with pytest.warns(UserWarning, match="zero-element"):
        empty = nn.Linear(0, 2)
    empty.bias.data.fill_(0.5)
    for model, x in ((nn.Linear(3, 2), normal(4, 0, 3)), (nn.Embedding(5, 2), torch.zeros(4, 0, dtype=torch.long)), (empty, normal(4, 3, 0))):
        law = loop(model, total, x, None)
        got = optim.per_sample_gradients(model, total, x, reduction="sum")
        for name, want in law.items():
            assert got[name].shape == want.shape and distance(got[name], want) <= NEAR, name
        squares = sum(g.flatten(1).square().sum(1) for g in law.values())
        norms, _ = optim.clip_per_sample(model, total, x, max_norm=1e6, reduction="sum")
        assert distance(norms, squares.sqrt()) <= NEAR
        for name, p in model.named_parameters():
            assert distance(p.grad, law[name].sum(0)) <= NEAR, name
