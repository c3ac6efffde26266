"""What compare.py times of operations over sequences: ours, the same mathematics in plain PyTorch, and the kernels of others where
they can be imported. Each is a function of tensors by name.

| family | plain PyTorch | others, on a GPU |
|---|---|---|
| `mlstm_exp`, `mlstm_sig` | chunk by chunk | `mlstm_kernels`; flash-linear-attention's simple GLA (`fla`), for `mlstm_sig` |
| `linear_scan` | step by step | `accelerated_scan` (T a power of two, D of 32) |
| `selective_scan` | step by step | `mamba_ssm` |

The law is the plain form in float64 by autograd. Ours must agree with it within the bounds that the family declares. What others are off
by is recorded (`peer_error`, the worst of outputs and gradients, and `peer_worst`, of which), and they are timed all the same: the
normaliser's gradient, say, is missing from some of them.
"""

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version

import torch
from torch.nn.functional import logsigmoid, silu, softplus

import chronaxie
import chronaxie.torch as ct
from chronaxie import _native

CASES = {
    "cpu": {
        "mlstm_exp": ["B1_NH4_T2048_K64_V64"],
        "mlstm_sig": ["B1_NH4_T2048_K64_V64"],
        "linear_scan": ["B2_D1536_T1024"],
        "selective_scan": ["B2_D512_T512_N16"],
    },
    "cuda": {
        "mlstm_exp": ["B8_NH8_T8192_K256_V512", "B16_NH16_T4096_K128_V256", "B8_NH4_T2048_K64_V64"],
        "mlstm_sig": ["B8_NH8_T8192_K256_V512", "B16_NH16_T4096_K128_V256", "B8_NH4_T2048_K64_V64"],
        "linear_scan": ["B8_D1536_T8192", "B1_D1024_T65536"],
        "selective_scan": ["B8_D2048_T2048_N16", "B1_D1024_T65536_N16"],
    },
}
# Tokens of the longest sequence of which parity is taken: PyTorch keeps every step for the backward pass.
LONG = {"mlstm_exp": 2048, "mlstm_sig": 2048, "linear_scan": 1024, "selective_scan": 512}
CHUNK = 64


def sizes(case):
    """`B1_NH4_T2048_K64_V64` by letters."""
    return {part.rstrip("0123456789"): int(part[len(part.rstrip("0123456789")) :]) for part in case.split("_")}


def installed(package):
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def plain_mlstm(q, k, v, i, f, exp):
    """The chunkwise form: states from chunk to chunk, and attention with weights that decay inside of each. T is whole chunks."""
    b, nh, t, dk = q.shape
    dv, n = v.shape[-1], t // CHUNK
    q, k, v = (x.reshape(b, nh, n, CHUNK, -1) for x in (q * dk**-0.5, k, v))
    i, f = (x.to(q.dtype).reshape(b, nh, n, CHUNK) for x in (i, f))
    forget = torch.cumsum(logsigmoid(f), -1)
    write = i if exp else logsigmoid(i)
    whole = forget[..., -1]
    log_in = whole[..., None] - forget + write
    # States ahead of every chunk, in units of e^m.
    c, nn = q.new_zeros(b, nh, dk, dv), q.new_zeros(b, nh, dk)
    m = q.new_zeros(b, nh)
    most = log_in.amax(-1)
    before = []
    for j in range(n):
        before.append((c, nn, m))
        new = torch.maximum(whole[:, :, j] + m, most[:, :, j]) if exp else m
        decay = torch.exp(whole[:, :, j] + m - new)
        kw = k[:, :, j] * torch.exp(log_in[:, :, j] - new[..., None])[..., None]
        c = decay[..., None, None] * c + kw.transpose(-1, -2) @ v[:, :, j]
        nn = decay[..., None] * nn + kw.sum(-2)
        m = new
    c, nn, m = (torch.stack(x, 2) for x in zip(*before))
    causal = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=q.device).tril()
    log = forget[..., :, None] - forget[..., None, :] + write[..., None, :]
    log = log.masked_fill(~causal, float("-inf"))
    carried = forget + m[..., None]
    top = torch.maximum(carried, log.amax(-1)) if exp else torch.zeros_like(carried)
    weights = (q @ k.transpose(-1, -2)) * torch.exp(log - top[..., None])
    old = torch.exp(carried - top)[..., None]
    out = old * (q @ c) + weights @ v
    if exp:
        norm = (old * (q @ nn[..., None])).squeeze(-1) + weights.sum(-1)
        out = out / torch.maximum(norm.abs(), torch.exp(-top))[..., None]
    return out.reshape(b, nh, t, dv)


def plain_linear(a, x):
    h, states = torch.zeros_like(x[..., 0]), []
    for t in range(x.shape[-1]):
        h = a[..., t] * h + x[..., t]
        states.append(h)
    return torch.stack(states, -1)


def plain_selective(u, delta, A, B, C, D, z, delta_bias):
    wide = lambda x: x.to(A.dtype)
    u, delta, z = wide(u), softplus(wide(delta) + delta_bias[:, None]), wide(z)
    B, C = wide(B), wide(C)
    h, out = A.new_zeros(u.shape[0], *A.shape), []
    for t in range(u.shape[-1]):
        step = delta[..., t, None]
        h = torch.exp(step * A) * h + (step * u[..., t, None]) * B[:, None, :, t]
        out.append((h * C[:, None, :, t]).sum(-1))
    return (torch.stack(out, -1) + D[:, None] * u) * silu(z)


def inputs(family, case, dtype, device):
    """Tensors by name, of unit scale."""
    n = sizes(case)
    random = lambda *shape: torch.randn(*shape, device=device)
    if family.startswith("mlstm"):
        b, nh, t = n["B"], n["NH"], n["T"]
        data = {name: random(b, nh, t, size).to(dtype) for name, size in (("q", n["K"]), ("k", n["K"]), ("v", n["V"]))}
        return {**data, "i": random(b, nh, t), "f": random(b, nh, t) + 3.0}
    b, d, t = n["B"], n["D"], n["T"]
    if family == "linear_scan":
        return {"a": torch.sigmoid(random(b, d, t) + 2.0).to(dtype), "x": random(b, d, t).to(dtype)}
    states = n["N"]
    data = {name: random(b, d, t).to(dtype) for name in ("u", "delta")}
    rates = -torch.exp(0.5 * random(d, states))
    data |= {"A": rates, "B": random(b, states, t).to(dtype), "C": random(b, states, t).to(dtype), "D": random(d)}
    return {**data, "z": random(b, d, t).to(dtype), "delta_bias": random(d) - 2.0}


def law(family):
    if family.startswith("mlstm"):
        return lambda q, k, v, i, f: plain_mlstm(q, k, v, i, f, family == "mlstm_exp")
    return plain_linear if family == "linear_scan" else plain_selective


def ours(family):
    if family.startswith("mlstm"):
        return lambda q, k, v, i, f: ct.mlstm(q, k, v, i, f, gate=family.removeprefix("mlstm_"))
    if family == "linear_scan":
        return lambda a, x: ct.linear_scan(a, x)[0]
    return lambda u, delta, A, B, C, D, z, delta_bias: ct.selective_scan(u, delta, A, B, C, D, z, delta_bias, True)


def mlstm_kernels(family):
    folder = "mlstm_kernels.torch.chunkwise.triton_xl_chunk"
    if family == "mlstm_exp":
        call, more = import_module(folder).mlstm_chunkwise__xl_chunk, {}
    else:
        call, more = import_module(f"{folder}_siging").mlstm_siging_chunkwise__xl_chunk, {"normalize": False}
    return lambda q, k, v, i, f: call(
        q, k, v, i.to(q.dtype), f.to(q.dtype), eps=1e-6, chunk_size=128, autocast_kernel_dtype=q.dtype, **more
    )


def simple_gla(family):
    if family != "mlstm_sig":
        raise ImportError("it has no exponential gate")
    chunk = import_module("fla.ops.simple_gla").chunk_simple_gla
    turned = lambda x: x.transpose(1, 2)

    def call(q, k, v, i, f):
        written = turned(k) * torch.sigmoid(turned(i))[..., None].to(k.dtype)
        return turned(chunk(turned(q), written, turned(v), g=logsigmoid(turned(f)), scale=q.shape[-1] ** -0.5)[0])

    return call


def accelerated_scan(family):
    scan = import_module("accelerated_scan.warp").scan
    return lambda a, x: scan(a, x)


def mamba(family):
    call = import_module("mamba_ssm.ops.selective_scan_interface").selective_scan_fn
    return lambda u, delta, A, B, C, D, z, delta_bias: call(u, delta, A, B, C, D, z, delta_bias, delta_softplus=True)


# By family: who, the package that says the version, and how it is had.
PEERS = {
    "mlstm_exp": [("mlstm_kernels", "mlstm-kernels", mlstm_kernels)],
    "mlstm_sig": [("mlstm_kernels", "mlstm-kernels", mlstm_kernels), ("simple_gla", "flash-linear-attention", simple_gla)],
    "linear_scan": [("accelerated_scan", "accelerated-scan", accelerated_scan)],
    "selective_scan": [("mamba", "mamba-ssm", mamba)],
}


def contenders(family, device, wanted):
    """Functions by name, and what each is made of; others on a GPU alone."""
    torch_version = f"torch {torch.__version__}"
    made = {"chronaxie": (ours(family), chronaxie.__version__), "eager": (law(family), torch_version)}
    for who, package, maker in PEERS[family] if device.type == "cuda" else []:
        if wanted is not None and who not in wanted:
            continue
        try:
            made[who] = (maker(family), f"{installed(package)}, {torch_version}")
        except (ImportError, OSError, RuntimeError) as error:
            print(f"  {who} is not timed: {type(error).__name__}: {error}")
    return {who: pair for who, pair in made.items() if wanted is None or who == "chronaxie" or who in wanted}


def results(call, tensors, seed):
    """The output and the gradients by name."""
    leaves = {name: t.detach().requires_grad_() for name, t in tensors.items()}
    out = call(**leaves)
    grads = torch.autograd.grad(out, list(leaves.values()), seed.to(out.dtype), allow_unused=True)
    return {"out": out.detach(), **{name: g for name, g in zip(leaves, grads) if g is not None}}


def distance(a, b):
    return float((a.double() - b.double()).norm() / b.double().norm().clamp_min(1e-30))


def spelt(family, case, dtype):
    """The case as the library's own commands have it."""
    # The mLSTM's cases are bf16 by themselves, those of scans f32.
    by_itself = torch.bfloat16 if family.startswith("mlstm") else torch.float32
    options = "" if dtype == by_itself else f",dtype={'f32' if dtype == torch.float32 else 'bf16'}"
    return case + options + (",mamba=true" if family == "selective_scan" else "")


def bound_of(family, case, dtype):
    """The relative error that the family declares for an output or the gradient of an input."""
    problem = _native.problem(family, spelt(family, case, dtype))
    outputs = {"linear_scan": "h", "selective_scan": "out"}

    def of(what):
        if what == "out":
            return problem.tolerance("forward", outputs.get(family, "h"))[1]
        return problem.tolerance("backward", f"grad_{what}")[1]

    return of


def parity(family, case, dtype, device, made):
    """The worst relative error of ours, and of others `(error, of what)`; raises where ours is not what the family declares."""
    n = sizes(case)
    short = case.replace(f"_T{n['T']}", f"_T{min(n['T'], LONG[family])}").replace(f"B{n['B']}_", "B1_", 1)
    tensors = inputs(family, short, dtype, device)
    wide = {name: t.double() for name, t in tensors.items()}
    seed = torch.randn_like(law(family)(**wide))
    want = results(law(family), wide, seed)
    bound, errors = bound_of(family, short, dtype), {}
    for who, (call, _) in made.items():
        got = results(call, tensors, seed)
        off = {what: distance(got[what], want[what]) if what in got else 1.0 for what in want}
        if who == "chronaxie":
            for what, error in off.items():
                if not error <= bound(what):
                    raise ArithmeticError(f"our {what} and the law differ by {error:.1e}, at most {bound(what):.0e}")
        worst = max(off, key=off.get)
        errors[who] = (off[worst], worst)
    return errors
