"""The operator that serves the scans and the mLSTM in compiled graphs."""

import pytest
import torch
from chronaxie.torch import adaptive_scan, linear_scan, mlstm, selective_scan


def scans(device):
    """Each call with tensors that need gradients."""
    def leaf(*shape, dtype=torch.float32, positive=False):
        t = torch.randn(*shape, dtype=dtype)
        t = t.abs() if positive else t
        return t.to(device).requires_grad_()

    a, x, h0 = leaf(2, 3, 7), leaf(2, 3, 7), leaf(2, 3)
    z, w = leaf(2, 3, 7, dtype=torch.complex64), leaf(2, 3, 7, dtype=torch.complex64)
    u, delta, A = leaf(2, 4, 7), leaf(2, 4, 7, positive=True), leaf(4, 5)
    B, C = leaf(2, 5, 7), leaf(2, 5, 7)
    theta, beta = leaf(2, 4, 5, 7), leaf(4, 5, dtype=torch.complex64)
    q, k, v = leaf(2, 3, 9, 16), leaf(2, 3, 9, 16), leaf(2, 3, 9, 32)
    i, f = leaf(2, 3, 9), leaf(2, 3, 9)
    return {
        "linear": (linear_scan, (a, x, h0)),
        "complex": (linear_scan, (z, w)),
        "selective": (lambda *t: selective_scan(*t, return_last_state=True), (u, delta, A, B, C)),
        "adaptive": (lambda u, d, b, t: adaptive_scan(u, d, b, b, theta=t), (u, delta, beta, theta)),
        "mlstm exp": (lambda *t: mlstm(*t, return_last_states=True), (q, k, v, i, f)),
        "mlstm sig": (lambda *t: mlstm(*t, gate="sig", chunk_size=16), (q, k, v, i, f)),
    }


KINDS = ["linear", "complex", "selective", "adaptive", "mlstm exp", "mlstm sig"]


def flat(made):
    """The tensors of nested results."""
    if isinstance(made, torch.Tensor):
        return [made]
    return [t for part in made if part is not None for t in flat(part)]


def loss(made):
    return sum(t.abs().square().sum() for t in flat(made))


@pytest.mark.parametrize("kind", KINDS)
def test_compiled_whole_it_gives_the_same_bits(device, kind):
    call, tensors = scans(device)[kind]
    whole = torch.compile(call, fullgraph=True, backend="aot_eager")
    eager, made = flat(call(*tensors)), flat(whole(*tensors))
    assert len(eager) == len(made) and all(torch.equal(a, b) for a, b in zip(eager, made))
    want, got = torch.autograd.grad(loss(eager), tensors), torch.autograd.grad(loss(made), tensors)
    assert all(torch.equal(a, b) for a, b in zip(want, got))


CASES = {
    "linear": ("linear_scan", "B2_D3_T7,dtype=f32,h0=true"),
    "complex": ("linear_scan_complex", "B2_D3_T7"),
    "selective": ("selective_scan", "B2_D4_T7_N5,dtype=f32,rule=exp,G=1,b=varying,c=varying"),
    "mlstm exp": ("mlstm_exp", "B2_NH3_T9_K16_V32,dtype=f32,normalize=true,last=true,wants=inputs+gates"),
    "mlstm sig": ("mlstm_sig", "B2_NH3_T9_K16_V32,dtype=f32,normalize=false,wants=inputs+gates"),
}


@pytest.mark.parametrize("kind", CASES)
def test_opcheck(device, kind):
    entry, case = CASES[kind]
    tensors = list(scans(device)[kind][1])
    if kind == "selective":
        # As the operator takes them: weights have groups.
        tensors = [*tensors[:3], *(t.detach().unsqueeze(1).requires_grad_() for t in tensors[3:])]
    torch.library.opcheck(torch.ops.chronaxie.entry, (tensors, entry, case))


def test_a_training_step_of_an_mlstm_compiles(device):
    call, (q, k, v, i, f) = scans(device)["mlstm exp"]
    w = torch.randn(32, 1, device=device, requires_grad=True)

    def step(q, w):
        h, _ = call(q, k, v, i, f)
        return (h @ w).square().mean()

    (want,) = torch.autograd.grad(step(q, w), w)
    (got,) = torch.autograd.grad(torch.compile(step, fullgraph=True)(q, w), w)
    torch.testing.assert_close(got, want)
