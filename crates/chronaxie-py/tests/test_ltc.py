"""The functional form and its gradients, against the same equations in float64 by PyTorch's autograd."""

import gc
import threading
import weakref

import pytest
import torch
from conftest import OUTPUT, assert_near, distance
from torch.utils.checkpoint import checkpoint

import chronaxie
import chronaxie.torch as ct
from chronaxie.torch import _eager, _options

B, T, D, H, M = 5, 7, 6, 11, 4

CASES = {
    "plain": {},
    "mapped": {"input": 2, "output": 2, "outputs": M},
    "linear": {"input": 1, "output": 1, "outputs": M, "unfolds": 3},
    "normalised": {"input": 2, "norm": True, "h0": True},
    "elapsed": {"elapsed": True, "h0": True, "input": 2, "output": 2, "outputs": M},
    "identity": {"implicit_param_constraints": False, "outputs": 1},
    "stored": {"save": "store", "h0": True, "input": 2, "norm": True, "output": 2, "outputs": M},
    "long_steps": {"dt": 1.0, "unfolds": 2, "output": 1},
}


def inputs(device, *, input=0, output=0, norm=False, h0=False, elapsed=False, outputs=H, **options):
    def draw(low, high, *shape):
        return (torch.rand(*shape) * (high - low) + low).to(device).requires_grad_()

    t = {}
    for prefix, rows in (("", H), ("sensory_", D)):
        t[prefix + "w"], t[prefix + "mu"] = draw(0.1, 1.5, rows, H), draw(-0.2, 0.8, rows, H)
        t[prefix + "sigma"], t[prefix + "erev"] = draw(1, 8, rows, H), draw(-1.3, 1.3, rows, H)
    t["gleak"], t["vleak"], t["cm"] = draw(0.1, 1, H), draw(-0.5, 0.5, H), draw(0.3, 1.2, H)
    for name, count, size in (("input", input, D), ("norm", 2 * norm, D), ("output", output, outputs)):
        letters = ("_weight", "_bias") if name == "norm" else ("_w", "_b")
        for letter in letters[:count]:
            t[name + letter] = draw(0.5, 1.5, size)
    data = {"x": torch.randn(B, T, D, device=device).requires_grad_()}
    if h0:
        data["h0"] = torch.randn(B, H, device=device).requires_grad_()
    if elapsed:
        data["elapsed"] = draw(0.01, 0.1, B, T)
    masks = [(torch.rand(n, H) < 0.5).float() for n in (H, D)]
    masks[0][0] = 1
    synapses = ct.prepare(*masks)
    return {**data, **t}, {"synapses": synapses, "outputs": outputs, **options}


def law(tensors, options):
    """The eager float64 result, with leaves of its own."""
    wide = {n: t.detach().cpu().double().requires_grad_() for n, t in tensors.items()}
    names = [n for n in wide if n not in ("x", "h0", "elapsed")]
    mapping = {p: ["none", "linear", "affine"][sum(n in names for n in (f"{p}_w", f"{p}_b"))] for p in ("input", "output")}
    opts = _options.options(
        options["outputs"],
        unfolds=options.get("unfolds", 6),
        dt=options.get("dt", 1 / 30),
        input_mapping=mapping["input"],
        output_mapping=mapping["output"],
        norm="norm_weight" in names,
        implicit_param_constraints=options.get("implicit_param_constraints", True),
    )
    masks = options["synapses"].masks(torch.device("cpu"), torch.float64)
    given = (wide["x"], wide.get("h0"), None, wide.get("elapsed"), *(wide[n] for n in opts.names))
    out, state = _eager.ltc(given, masks, opts)
    return wide, out, state


@pytest.mark.parametrize("case", CASES)
def test_outputs_and_every_gradient_follow_the_law(device, case):
    tensors, options = inputs(device, **CASES[case])
    out, state = ct.ltc(**tensors, **options)
    wide, out64, state64 = law(tensors, options)
    assert out.shape == (B, T, options["outputs"]) and state.shape == (B, H)
    assert_near("out", out, out64, OUTPUT)
    assert_near("state", state, state64, OUTPUT)
    seeds = torch.randn(out.shape), torch.randn(state.shape)
    got = torch.autograd.grad((out, state), list(tensors.values()), [s.to(device) for s in seeds])
    want = torch.autograd.grad((out64, state64), list(wide.values()), [s.double() for s in seeds])
    for name, g, w in zip(tensors, got, want):
        assert_near(name, g, w)
    for i, mask in ((0, "w"), (1, "sensory_w")):
        absent = options["synapses"].masks(torch.device("cpu"), torch.float32)[i] == 0
        grads = dict(zip(tensors, got))
        assert all((grads[mask.replace("w", n)].cpu()[absent] == 0).all() for n in ("w", "mu", "sigma", "erev"))


def test_gradients_agree_with_central_differences(device):
    tensors, options = inputs(device, h0=True, elapsed=True, input=2, output=2, outputs=M)
    options["synapses"].masks(device, torch.float64)
    wide = {n: t.detach().double().requires_grad_() for n, t in tensors.items()}
    names = list(wide)
    # float64 takes the eager path, so this holds the law itself against differences, through the public call.
    assert torch.autograd.gradcheck(
        lambda *v: ct.ltc(**dict(zip(names, v)), **options), tuple(wide.values()), atol=1e-7, fast_mode=True
    )
    # And the native one in float32: along a random direction, against a difference of the law.
    out, state = ct.ltc(**tensors, **options)
    seed = torch.randn_like(out)
    grads = torch.autograd.grad(out, list(tensors.values()), seed, allow_unused=True)
    direction = {n: torch.randn_like(t) for n, t in wide.items()}
    along = sum(float((g.double() * direction[n]).sum()) for n, g in zip(names, grads) if g is not None)

    def moved(step):
        shifted = {n: t.detach() + step * 1e-6 * direction[n] for n, t in wide.items()}
        return float((ct.ltc(**shifted, **options)[0] * seed.double()).sum())

    difference = (moved(1) - moved(-1)) / 2e-6
    assert abs(along - difference) < 1e-4 * abs(difference)


def test_strides_change_no_bit(device):
    tensors, options = inputs(device, h0=True, elapsed=True)
    plain = ct.ltc(**tensors, **options)
    seeds = [torch.randn_like(t) for t in plain]
    want = torch.autograd.grad(plain, list(tensors.values()), seeds)
    strided = dict(tensors)
    strided["x"] = tensors["x"].detach().permute(1, 2, 0).contiguous().permute(2, 0, 1).requires_grad_()
    strided["h0"] = tensors["h0"].detach().t().contiguous().t().requires_grad_()
    strided["elapsed"] = torch.stack([tensors["elapsed"].detach()] * 2, -1)[..., 0].requires_grad_()
    strided["w"] = tensors["w"].detach().t().contiguous().t().requires_grad_()
    assert not any(strided[n].is_contiguous() for n in ("x", "h0", "elapsed", "w"))
    got = ct.ltc(**strided, **options)
    assert all(torch.equal(a, b) for a, b in zip(got, plain))
    seeds = [seeds[0].transpose(0, 1).contiguous().transpose(0, 1), seeds[1].t().contiguous().t()]
    grads = torch.autograd.grad(got, list(strided.values()), seeds)
    assert all(torch.equal(a, b) for a, b in zip(grads, want))


def test_an_expanded_or_missing_gradient_is_taken(device):
    tensors, options = inputs(device)
    leaves = list(tensors.values())
    out, state = ct.ltc(**tensors, **options)
    both = torch.autograd.grad(out.sum() + 0 * state.sum(), leaves, retain_graph=True)
    one = torch.autograd.grad(out.sum(), leaves, retain_graph=True)
    assert all(torch.equal(a, b) for a, b in zip(both, one))
    last = torch.autograd.grad(state.sum(), leaves, retain_graph=True)
    step = torch.autograd.grad(out[:, -1].sum(), leaves)
    assert all(distance(a, b) < 1e-6 for a, b in zip(last, step))


def test_only_what_needs_a_gradient_gets_one(device):
    tensors, options = inputs(device, h0=True, elapsed=True)
    full = torch.autograd.grad(ct.ltc(**tensors, **options)[0].sum(), list(tensors.values()))
    full = dict(zip(tensors, full))
    for wanted in (["x"], ["h0"], ["elapsed"], ["mu"], ["x", "elapsed", "sensory_w", "cm"]):
        some = {n: t.detach().requires_grad_(n in wanted) for n, t in tensors.items()}
        ct.ltc(**some, **options)[0].sum().backward()
        for name, t in some.items():
            assert (t.grad is not None) == (name in wanted)
            assert t.grad is None or distance(t.grad, full[name]) < 1e-6
    some = {n: t.detach() for n, t in tensors.items()}
    out, state = ct.ltc(**some, **options)
    assert not out.requires_grad and not state.requires_grad
    with torch.no_grad():
        assert torch.equal(ct.ltc(**tensors, **options)[0], out)
    with torch.inference_mode():
        assert torch.equal(ct.ltc(**tensors, **options)[0], out)


def test_gradients_accumulate_and_are_kept_apart(device):
    tensors, options = inputs(device)
    ct.ltc(**tensors, **options)[0].sum().backward()
    first = {n: t.grad.clone() for n, t in tensors.items()}
    ct.ltc(**tensors, **options)[0].sum().backward()
    assert all(torch.equal(t.grad, 2 * first[n]) for n, t in tensors.items())
    tensors["w"].grad.zero_()
    assert torch.equal(tensors["mu"].grad, 2 * first["mu"])


def test_twice_through_one_graph_and_under_checkpoint(device):
    tensors, options = inputs(device, h0=True)
    leaves = list(tensors.values())
    out, _ = ct.ltc(**tensors, **options)
    once = torch.autograd.grad(out.sum(), leaves, retain_graph=True)
    twice = torch.autograd.grad(out.sum(), leaves)
    assert all(torch.equal(a, b) for a, b in zip(once, twice))
    names = list(tensors)
    again = checkpoint(lambda *v: ct.ltc(**dict(zip(names, v)), **options)[0], *leaves, use_reentrant=False)
    assert torch.equal(again, out)
    got = torch.autograd.grad(again.sum(), leaves)
    assert all(torch.equal(a, b) for a, b in zip(got, once))


def test_a_changed_saved_tensor_is_noticed(device):
    tensors, options = inputs(device)
    out, _ = ct.ltc(**tensors, **options)
    with torch.no_grad():
        tensors["w"].add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_double_backward_is_refused_in_a_sentence(device):
    tensors, options = inputs(device)
    out, _ = ct.ltc(**tensors, **options)
    with pytest.raises(chronaxie.ChronaxieError, match="no double backward"):
        torch.autograd.grad(out.sum(), [tensors["x"]], create_graph=True)


def test_a_changed_parameter_is_read_anew(device):
    tensors, options = inputs(device)
    with torch.no_grad():
        before = ct.ltc(**tensors, **options)[0]
        tensors["w"].mul_(2)
        changed = ct.ltc(**tensors, **options)[0]
        # The same sizes behind the same address, transposed: what was checked before is checked again.
        turned = dict(tensors, w=tensors["w"].t())
        want = ct.ltc(**dict(tensors, w=tensors["w"].t().contiguous()), **options)[0]
        assert torch.equal(ct.ltc(**turned, **options)[0], want)
    assert not torch.equal(before, changed) and not torch.equal(want, changed)


def test_fast_is_near(device):
    tensors, options = inputs(device)
    _, out64, _ = law(tensors, options)
    out = ct.ltc(**tensors, **options, precision="fast")[0]
    assert float((out.cpu() - out64).detach().abs().max()) < 3e-4


def test_kept_unfolds_give_the_gradients_of_fast(device):
    # And in a graph, where what is kept must not depend on sizes.
    tensors, options = inputs(device, h0=True, output=1, precision="fast")

    def both(save, call=ct.ltc):
        out, state = call(**tensors, **options, save=save)
        return [out, state, *torch.autograd.grad(out.square().sum() + state.sum(), list(tensors.values()))]

    kept, again, rebuilt = both("auto"), both("auto"), both("recompute")
    assert all(torch.equal(a, b) for a, b in zip(kept, again))
    assert all(torch.equal(a, b) for a, b in zip(kept[:2], rebuilt[:2]))
    wide, out, state = law(tensors, options)
    want = torch.autograd.grad(out.square().sum() + state.sum(), list(wide.values()))
    for name, g, w in zip(tensors, kept[2:], want):
        assert_near(name, g, w, 3e-3)
    for name, g, w in zip(tensors, both("words")[2:], want):
        assert_near(name, g, w, 3e-3)
    graphed = both("auto", torch.compile(ct.ltc, backend="aot_eager"))
    assert all(torch.equal(a, b) for a, b in zip(graphed, rebuilt))


@pytest.mark.parametrize("sizes", [(0, 3), (2, 0), (0, 0), (1, 1)])
def test_empty_batches_and_sequences(device, sizes):
    tensors, options = inputs(device)
    tensors["x"] = torch.randn(*sizes, D, device=device, requires_grad=True)
    out, state = ct.ltc(**tensors, **options)
    assert out.shape == (*sizes, H) and state.shape == (sizes[0], H)
    (out.sum() + state.sum()).backward()
    assert all(t.grad is not None and t.grad.isfinite().all() for t in tensors.values())
    if 0 in sizes:
        assert (tensors["w"].grad == 0).all()


def test_sentences(device):
    tensors, options = inputs(device, h0=True)

    def refuse(kind, message, changes=(), **more):
        with pytest.raises(kind, match=message):
            ct.ltc(**{**tensors, **dict(changes)}, **{**options, **more})

    zeros = lambda *s: torch.zeros(*s, device=device)  # noqa: E731
    refuse(chronaxie.ShapeError, r"x.shape = \(5, 7\) does not match \[B, T, D\]", {"x": zeros(B, T)})
    refuse(chronaxie.ShapeError, r"x.shape = \(5, 7, 9\) does not match \[B, T, D\] = \(5, 7, 6\)", {"x": zeros(B, T, 9)})
    refuse(chronaxie.ShapeError, r"h0.shape = \(5, 10\) does not match \[B, H\] = \(5, 11\)", {"h0": zeros(B, 10)})
    refuse(chronaxie.ShapeError, r"mu.shape = \(11, 10\) does not match \[H, H\] = \(11, 11\)", {"mu": zeros(H, 10)})
    refuse(chronaxie.ShapeError, r"cm.shape = \(6,\) does not match \[H\] = \(11,\)", {"cm": zeros(D)})
    refuse(chronaxie.ShapeError, r"mu.shape = \(121,\) does not match \[H, H\] = \(11, 11\)", {"mu": zeros(H * H)})
    refuse(chronaxie.DtypeError, "mu holds f16, f32 is needed", {"mu": zeros(H, H).half()})
    refuse(chronaxie.DtypeError, "x holds float64 and the parameters float32", {"x": zeros(B, T, D).double()})
    refuse(chronaxie.DtypeError, "h0 holds f64, f32 is needed", {"h0": zeros(B, H).double()})
    refuse(chronaxie.ConfigError, "dt = -1 is not a positive number", dt=-1.0)
    refuse(chronaxie.ConfigError, "unfolds = 0 is not in", unfolds=0)
    refuse(chronaxie.ShapeError, "outputs = 12 is more than hidden = 11", outputs=12)
    refuse(chronaxie.ConfigError, "input_b is given without input_w", {"input_b": zeros(D)})
    refuse(chronaxie.ConfigError, "save `all` is not one of", save="all")
    refuse(chronaxie.ConfigError, "precision", precision="exactly")
    with pytest.raises(chronaxie.ConfigError, match="the mask holds values other than 0 and 1"):
        ct.prepare(torch.full((2, 2), 0.5), torch.ones(3, 2))
    with pytest.raises(chronaxie.ConfigError, match="neuron 1 of 2 has no synapse"):
        ct.prepare(torch.tensor([[1.0, 0], [1, 0]]), torch.tensor([[1.0, 0]]))
    with pytest.raises(chronaxie.ShapeError, match=r"are not \[H, H\] and \[D, H\]"):
        ct.prepare(torch.ones(2, 3), torch.ones(3, 3))


def test_equal_masks_share_their_lists_until_nobody_needs_them():
    masks = torch.ones(3, 3), torch.ones(2, 3)
    first = ct.prepare(*masks)
    assert ct.prepare(*masks) is first and first.recurrent == 9
    assert ct.prepare(masks[0], 1 - torch.eye(2, 3)) is not first
    watched = weakref.ref(first)
    del first
    gc.collect()
    assert watched() is None


def test_threads_of_python_do_not_mix(device):
    tensors, options = inputs(device)
    x = [torch.randn(3, 40, D, device=device) for _ in range(4)]
    with torch.no_grad():
        want = [ct.ltc(**dict(tensors, x=v), **options)[0] for v in x]
    wrong = []

    def work(v, w):
        for _ in range(20):
            with torch.no_grad():
                if not torch.equal(ct.ltc(**dict(tensors, x=v), **options)[0], w):
                    wrong.append(v)

    threads = [threading.Thread(target=work, args=pair) for pair in zip(x, want)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


@pytest.mark.gpu
def test_the_current_stream_is_taken(cuda):
    tensors, options = inputs(cuda)
    # With an x of the same kind, so that what a first call prepares is there.
    want = ct.ltc(**dict(tensors, x=tensors["x"].detach() * 1), **options)[0]
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        x = tensors["x"].detach() * 1
        out = ct.ltc(**dict(tensors, x=x), **options)[0]
    assert not stream.query()
    stream.synchronize()
    assert torch.equal(out, want)
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        captured = ct.ltc(**dict(tensors, x=x), **options)[0]
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(captured, want)


@pytest.mark.gpu
def test_another_device_than_the_current_one(cuda):
    if torch.cuda.device_count() < 2:
        pytest.skip("one CUDA device")
    tensors, options = inputs(torch.device("cuda", 1))
    out, _ = ct.ltc(**tensors, **options)
    out.sum().backward()
    assert_near("out", out, law(tensors, options)[1], OUTPUT)
    assert torch.cuda.current_device() == 0 and tensors["w"].grad.device.index == 1


def test_functorch_differentiates_and_batches(device):
    tensors, options = inputs(device, h0=True)
    fixed = {n: t.detach() for n, t in tensors.items() if n != "x"}
    x = tensors["x"].detach()

    def loss(x):
        return ct.ltc(x, **fixed, **options)[0].square().sum()

    got = torch.func.grad(loss)(x)
    (want,) = torch.autograd.grad(ct.ltc(**tensors, **options)[0].square().sum(), [tensors["x"]])
    assert distance(got, want) < 1e-5
    per_row = torch.func.vmap(torch.func.grad(lambda row, h: ct.ltc(
        row[None], **{**fixed, "h0": h[None]}, **options)[0].square().sum()))(x, fixed["h0"])  # fmt: skip
    assert distance(per_row, want) < 1e-5
