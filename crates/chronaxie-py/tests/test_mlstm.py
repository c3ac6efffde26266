"""mlstm, mlstm_step and MLSTM against the recurrence in float64 by autograd, token by token."""

import pytest
import torch
from conftest import distance

import chronaxie
import chronaxie.torch as ct

# As layers/mlstm/spec.rs declares them, relative to the norm of the float64 result: outputs, states, gradients.
BOUNDS = {torch.float32: (4e-6, 3e-6, 1e-5), torch.float16: (8e-4, 1.5e-3, 1.5e-3), torch.bfloat16: (6e-3, 1e-2, 1e-2)}
KINDS = [("exp", True), ("sig", False), ("sig", True)]


def law(q, k, v, i, f, c=None, n=None, m=None, gate="exp", normalize=True, eps=0.0):
    """h and the last (c, n, m), one token after the other."""
    batch, heads, steps, dqk = q.shape
    c = q.new_zeros(batch, heads, dqk, v.shape[3]) if c is None else c
    n = q.new_zeros(batch, heads, dqk) if n is None else n
    m = q.new_zeros(batch, heads) if m is None else m
    h = []
    for t in range(steps):
        log_f = torch.nn.functional.logsigmoid(f[:, :, t])
        log_i = i[:, :, t] if gate == "exp" else torch.nn.functional.logsigmoid(i[:, :, t])
        before, m = m, torch.maximum(log_f + m, log_i).clamp(min=-80.0) if gate == "exp" else m
        keep, into = torch.exp(log_f + before - m), torch.exp(log_i - m)
        c = keep[..., None, None] * c + into[..., None, None] * k[:, :, t, :, None] * v[:, :, t, None, :]
        n = keep[..., None] * n + into[..., None] * k[:, :, t]
        num = dqk**-0.5 * (q[:, :, t, None] @ c)[..., 0, :]
        if normalize:
            total = dqk**-0.5 * (q[:, :, t] * n).sum(-1)
            num = num / (torch.maximum(total.abs(), torch.exp(-m)) + eps)[..., None]
        h.append(num)
    return torch.stack(h, 2), (c, n, m)


def sample(device, dtype, gate, normalize, sizes=(2, 3, 37, 32, 48), state=True):
    """Leaves q, k, v, i, f and the initial state, the same numbers in float64 and as they are given."""
    batch, heads, steps, dqk, dv = sizes
    shapes = {"q": (steps, dqk), "k": (steps, dqk), "v": (steps, dv), "i": (steps,), "f": (steps,)}
    if state:
        shapes["c_initial"] = (dqk, dv)
        if normalize:
            shapes["n_initial"] = (dqk,)
        if gate == "exp":
            shapes["m_initial"] = ()
    ours, exact = {}, {}
    for name, shape in shapes.items():
        x = torch.randn(batch, heads, *shape) + (3.0 if name == "f" else 0.0)
        x = x.to(device, dtype if name in "qkv" else torch.float32)
        ours[name], exact[name] = x.clone().requires_grad_(), x.double().requires_grad_()
    return ours, exact


def exactly(x, **options):
    return law(*(x[n] for n in "qkvif"), *(x.get(f"{n}_initial") for n in "cnm"), **options)


@pytest.mark.parametrize("gate, normalize", KINDS)
@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
def test_outputs_states_and_gradients_are_those_of_the_recurrence(device, dtype, gate, normalize):
    ours, exact = sample(device, dtype, gate, normalize)
    h, last = ct.mlstm(**ours, return_last_states=True, gate=gate, normalize=normalize)
    h_law, last_law = exactly(exact, gate=gate, normalize=normalize)
    assert h.dtype is dtype
    bound, bound_state, bound_gradient = BOUNDS[dtype]
    assert distance(h, h_law) <= bound
    assert [s is not None for s in last] == [True, normalize, gate == "exp"]
    pairs = [(s if s.dim() > 3 or nth == 1 else s[..., 0], s_law) for nth, (s, s_law) in enumerate(zip(last, last_law)) if s is not None]
    for s, s_law in pairs:
        assert s.dtype is torch.float32 and distance(s, s_law) <= bound_state
    outputs, laws = [h, *(s for s, _ in pairs)], [h_law, *(s for _, s in pairs)]
    seeds = [torch.randn_like(t) for t in outputs]
    got = torch.autograd.grad(outputs, list(ours.values()), seeds)
    want = torch.autograd.grad(laws, list(exact.values()), [s.double() for s in seeds])
    for name, a, b in zip(ours, got, want):
        assert distance(a, b) <= bound_gradient, name


@pytest.mark.parametrize("gate, normalize", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_shut_gates_reset_and_write_nothing(device, dtype, gate, normalize):
    ours, exact = sample(device, dtype, gate, normalize, sizes=(2, 2, 40, 16, 32))
    for x in (ours, exact):
        for name, times in (("f", [9, 20, 39]), ("i", [4, 20, 21, 39])):
            shut = x[name].detach().clone()
            shut[:, :, times] = -torch.inf
            x[name] = shut.to(torch.float64 if dtype is torch.float64 else x[name].dtype).requires_grad_()
    h, (c, *_) = ct.mlstm(**ours, return_last_states=True, gate=gate, normalize=normalize)
    h_law, (c_law, *_) = exactly(exact, gate=gate, normalize=normalize)
    bound, _, bound_gradient = BOUNDS.get(dtype, (1e-12, 1e-12, 1e-11))
    assert distance(h, h_law) <= bound
    assert all(t.abs().max() < 1e-40 for t in (c, c_law, h[:, :, 39]))
    seed = torch.randn_like(h)
    got = torch.autograd.grad(h, list(ours.values()), seed)
    want = torch.autograd.grad(h_law, list(exact.values()), seed.double())
    for name, a, b in zip(ours, got, want):
        # States are f32, and so are their gradients.
        bound = max(bound_gradient, 1e-7) if a.dtype is torch.float32 else bound_gradient
        assert a.isfinite().all() and b.isfinite().all() and distance(a, b) <= bound, name
        assert name not in "if" or not a[ours[name].isinf()].any(), name


def test_only_the_gradients_that_are_asked_for(device):
    ours, exact = sample(device, torch.float32, "exp", True)
    for name in ("q", "i", "c_initial"):
        h, (c, _, _) = ct.mlstm(**{n: t.detach().requires_grad_(n == name) for n, t in ours.items()}, return_last_states=True)
        assert h.requires_grad and c.requires_grad
    x = {n: t.detach() for n, t in ours.items()}
    x["k"].requires_grad_()
    # Of the last state alone; h's gradient is none.
    (got,) = torch.autograd.grad(ct.mlstm(**x, return_last_states=True)[1][1].sum(), [x["k"]])
    (want,) = torch.autograd.grad(exactly(exact)[1][1].sum(), [exact["k"]])
    assert distance(got, want) <= 1e-5


def test_without_the_normaliser_gradient_they_are_those_of_a_constant(device):
    ours, exact = sample(device, torch.float32, "exp", True, state=False)
    h = ct.mlstm(**ours, normalizer_grad=False)
    (got,) = torch.autograd.grad(h.sum(), [ours["q"]])
    q, total = exact["q"].detach(), exactly({**exact, "q": exact["q"].detach()})[0]
    numerator = exactly(exact, normalize=False)[0]
    over = exactly({n: t.detach() for n, t in exact.items()}, normalize=False)[0] / total.detach()
    (want,) = torch.autograd.grad((numerator / over).sum(), [exact["q"]])
    assert q.shape == got.shape and distance(got, want) <= 1e-5
    assert distance(torch.autograd.grad(ct.mlstm(**ours).sum(), [ours["q"]])[0], want) > 0.1


def test_strided_tokens_are_read_where_they_lie(device):
    ours, exact = sample(device, torch.bfloat16, "exp", True, state=False)
    moved = {n: t.detach().transpose(1, 2).contiguous().transpose(1, 2) for n, t in ours.items()}
    assert not moved["q"].is_contiguous()
    assert torch.equal(ct.mlstm(**moved), ct.mlstm(**{n: t.detach() for n, t in ours.items()}))
    assert distance(ct.mlstm(**moved), exactly(exact)[0]) <= 6e-3


@pytest.mark.parametrize("gate, normalize", KINDS)
def test_cut_sequences_are_sequences_of_their_own(device, gate, normalize):
    ours, _ = sample(device, torch.float32, gate, normalize, sizes=(1, 2, 70, 16, 32), state=False)
    cuts = torch.tensor([0, 20, 20, 51, 70], device=device)
    h, last = ct.mlstm(**ours, gate=gate, normalize=normalize, cu_seqlens=cuts, return_last_states=True)
    for nth, (start, end) in enumerate(zip(cuts[:-1].tolist(), cuts[1:].tolist())):
        part = {n: t[:, :, start:end].double() for n, t in ours.items()}
        h_law, c_law = exactly(part, gate=gate, normalize=normalize) if end > start else (part["v"], None)
        assert distance(h[:, :, start:end], h_law) <= 1e-5
        assert distance(last[0][nth : nth + 1], c_law[0] if c_law else torch.zeros_like(last[0][:1])) <= 1e-5


@pytest.mark.parametrize("gate, normalize", KINDS)
@pytest.mark.parametrize("state", [torch.float32, torch.bfloat16], ids=str)
def test_prefill_and_steps_are_the_whole_sequence(device, gate, normalize, state):
    ours, _ = sample(device, torch.float32, gate, normalize, sizes=(2, 3, 20, 32, 16), state=False)
    x = {n: t.detach() for n, t in ours.items()}
    options = {"gate": gate, "normalize": normalize}
    whole = ct.mlstm(**x, **options)
    _, (c, n, m) = ct.mlstm(**{name: t[:, :, :15] for name, t in x.items()}, return_last_states=True, **options)
    c = c.to(state)
    for t in range(15, 20):
        h = ct.mlstm_step(*(x[name][:, :, t] for name in "qkvif"), c, n, m, **options)
        assert distance(h, whole[:, :, t]) <= (1e-4 if state is torch.float32 else 3e-2)


def test_a_table_of_states(device):
    ours, _ = sample(device, torch.float32, "exp", True, sizes=(3, 2, 2, 16, 16), state=False)
    x = {n: t.detach() for n, t in ours.items()}
    _, (c, n, m) = ct.mlstm(**{name: t[:, :, :1] for name, t in x.items()}, return_last_states=True)
    table = [torch.full((5, *s.shape[1:]), 7.0, device=device) for s in (c, n, m)]
    slot = torch.tensor([4, -1, 1], device=device)
    for s, t in zip((c, n, m), table):
        t[[4, 1]] = s[[0, 2]]
    h = ct.mlstm_step(*(x[name][:, :, 1] for name in "qkvif"), *table, slot=slot)
    whole = ct.mlstm(**x)[:, :, 1]
    assert distance(h[[0, 2]], whole[[0, 2]]) <= 1e-4 and not h[1].any()
    assert all((t[[0, 2, 3]] == 7.0).all() for t in table)


def test_the_modules_modes_agree(device):
    ours, _ = sample(device, torch.float32, "exp", True, sizes=(2, 3, 21, 32, 16), state=False)
    x = [ours[n].detach() for n in "qkvif"]
    train, infer = ct.MLSTM(eps=0.0), ct.MLSTM(mode="inference", return_last_states=True, eps=0.0)
    whole = train(*x)
    assert torch.equal(whole, train(*x, mode="train_with_padding"))
    h, states = infer(*(t[:, :, :20] for t in x))
    kept = [s.clone() for s in states]
    one, after = infer(*(t[:, :, 20:] for t in x), *states)
    assert distance(torch.cat([h, one], 2), whole) <= 1e-5
    assert all(torch.equal(a, b) for a, b in zip(states, kept)), "the caller's states stay as they were"
    assert [s.shape for s in after] == [s.shape for s in states]
    assert ct.MLSTM("chunkwise--triton_xl_chunk_siging").gate == "sig"
    rounded = ct.MLSTM(autocast_kernel_dtype="bfloat16")(*x)
    same = train(*(t.bfloat16().float() for t in x[:3]), *x[3:])
    assert rounded.dtype is torch.float32 and 1e-6 < distance(rounded, same) <= 6e-3


def test_float64_takes_pytorchs_operations(device):
    for gate, normalize in KINDS:
        _, exact = sample(device, torch.float32, gate, normalize)
        for t in exact.values():
            assert t.dtype is torch.float64
        h, last = ct.mlstm(**exact, gate=gate, normalize=normalize, return_last_states=True)
        h_law, last_law = exactly(exact, gate=gate, normalize=normalize)
        assert distance(h, h_law) <= 1e-12
        laws = [s for s, ours in zip(last_law, last) if ours is not None]
        got = torch.autograd.grad([h, *(s for s in last if s is not None)], list(exact.values()), [torch.ones_like(s) for s in (h, *(s for s in last if s is not None))])
        want = torch.autograd.grad([h_law, *laws], list(exact.values()), [torch.ones_like(s) for s in (h_law, *laws)])
        for name, a, b in zip(exact, got, want):
            assert distance(a, b) <= 1e-11, name


def test_bad_input_is_told_in_sentences():
    ours, _ = sample("cpu", torch.float32, "exp", True, sizes=(2, 3, 5, 16, 32))
    x = {n: t.detach() for n, t in ours.items()}

    def message(**changes):
        with pytest.raises(chronaxie.ChronaxieError) as e:
            ct.mlstm(**{**x, **changes})
        return str(e.value)

    assert "k.shape = (2, 2, 5, 16) does not match q's" in message(k=x["k"][:, :2])
    assert "i.shape = (2, 3, 4)" in message(i=x["i"][:, :, :4])
    assert "v holds bfloat16 and q float32" in message(v=x["v"].bfloat16())
    assert "K = 15 is not a multiple of 16 from 16 to 512" in message(q=x["q"][..., :15], k=x["k"][..., :15], c_initial=None, n_initial=None, m_initial=None)
    assert "m_initial is not given" in message(m_initial=None)
    assert "there is no n_initial with gate = sig and normalize = False" in message(gate="sig")
    assert "c_initial.shape = (1, 3, 16, 32)" in message(c_initial=x["c_initial"][:1])
    assert "gate `tanh` is not one of exp, sig" in message(gate="tanh")
    assert "normalize = False is not offered" in message(normalize=False)
    assert "chunk = 20 is not a multiple of 16" in message(chunk_size=20)
    assert "cu_seqlens goes from 0 to 4, not from 0 to T = 5" in message(
        **{n: x[n][:1] for n in "qkvif"}, cu_seqlens=torch.tensor([0, 4]), c_initial=None, n_initial=None, m_initial=None
    )
    with pytest.raises(chronaxie.ConfigError, match="mode `serve` is not one of train"):
        ct.MLSTM(mode="serve")
    with pytest.raises(chronaxie.ChronaxieError, match="no double backward"):
        h = ct.mlstm(**ours)
        torch.autograd.grad(h.sum(), [ours["q"]], create_graph=True)


def test_gates_that_are_none_are_refused_when_asked(device):
    q, k, v, i, f = (torch.randn(2, 2, 5, *tail, device=device) for tail in ((16,), (16,), (16,), (), ()))
    whole = ct.mlstm(q, k, v, i, f)
    i[0, 1, 2] = -torch.inf  # A gate may be shut.
    assert ct.mlstm(q, k, v, i, f, check_gates=True).isfinite().all()
    bad = f.clone()
    bad[1, 0, 3] = torch.nan
    with pytest.raises(chronaxie.DataError, match=r"mlstm_exp: f\[1, 0, 3\] = nan is not a gate; 1 of 20 are not"):
        ct.mlstm(q, k, v, i, bad, check_gates=True)
    i[1, 1, 4] = torch.inf
    with pytest.raises(chronaxie.DataError, match=r"mlstm_sig: i\[1, 1, 4\] = inf is not a gate"):
        ct.mlstm(q, k, v, i, f, gate="sig", check_gates=True)
    c, n, m = (torch.zeros(2, 2, *tail, device=device) for tail in ((16, 16), (16,), ()))
    with pytest.raises(chronaxie.DataError, match=r"mlstm_step: f\[1, 0\] = nan is not a gate"):
        ct.mlstm_step(q[:, :, 3], k[:, :, 3], v[:, :, 3], i[:, :, 3], bad[:, :, 3], c, n, m, check_gates=True)
    assert not c.any() and whole.isfinite().all()
