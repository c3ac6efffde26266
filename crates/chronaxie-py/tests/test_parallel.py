"""Sequences over ranks: outputs, states and gradients are the law's of the whole sequence, by both designs; by threads for
any number of ranks, and by processes over Gloo, where data-parallel and sharded layers are tried too."""

import os
import socket
import subprocess
import sys
import threading

import pytest
import torch
from conftest import assert_near
from test_mlstm import law as law_mlstm
from test_scan import WIDE, law_linear, law_selective

import chronaxie
from chronaxie.torch import parallel
from chronaxie.torch.parallel import _pieces, _ranks, choose

DESIGNS = [("summary", None), ("wavefront", 1), ("wavefront", 3)]


class Room:
    """What threads that stand for ranks share."""

    def __init__(self, count):
        self.count, self.slots = count, [None] * count
        self.barrier = threading.Barrier(count, timeout=180)
        self.ways = {(a, b): [] for a in range(count) for b in (a - 1, a + 1)}
        self.news = threading.Condition()

    def everyone(self, own, thing):
        self.slots[own] = thing
        self.barrier.wait()
        found = list(self.slots)
        self.barrier.wait()
        return found


class Threads(_ranks.Ranks):
    """The ranks of a room, in the place of those of torch.distributed; ``group`` is the room and the rank."""

    def __init__(self, name, group, reverse=False):
        self.name, self.reverse, (self.room, own) = name, reverse, group
        self.count = self.room.count
        self.place = self.count - 1 - own if reverse else own

    def agree(self, prepare):
        return prepare()[0]

    def gather(self, tensors):
        return [torch.stack(some) for some in zip(*self.room.everyone(self.place, [t.clone() for t in tensors]))]

    def from_last(self, tensors):
        return [t.clone() for t in self.room.everyone(self.place, list(tensors))[-1]]

    def send(self, ahead, tensors):
        to = self.place + (1 if ahead else -1)
        if 0 <= to < self.count:
            with self.room.news:
                self.room.ways[self.place, to].append([t.clone() for t in tensors])
                self.room.news.notify_all()

    def receive(self, ahead, like):
        of = self.place - (1 if ahead else -1)
        if not 0 <= of < self.count:
            return None

        def wait():
            with self.room.news:
                way = self.room.ways[of, self.place]
                assert self.room.news.wait_for(lambda: way, timeout=180)
                found = way.pop(0)
            assert [t.shape for t in found] == [t.shape for t in like]
            return found

        return wait

    def finish(self, sent):
        pass


def randn(*shape, dtype=torch.float32):
    return torch.randn(*shape, dtype=dtype)


def scan_case(kind, steps):
    """Tensors, the axis of time of those that have one, states, the function over ranks, and the law."""
    dtype = torch.complex64 if "complex" in kind else torch.float32
    a = randn(2, 5, steps, dtype=dtype)
    x = {"a": a / (1.05 * a.abs().max()), "x": randn(2, 5, steps, dtype=dtype), "h0": randn(2, 5, dtype=dtype)}
    reverse, marks = kind == "reverse", None
    if "reset" in kind:
        marks = torch.zeros(2, steps, dtype=torch.uint8)
        marks[0, 3] = marks[1, steps // 2] = marks[1, -1] = 1

    def ours(group, at, a, x, h0, **o):
        reset = None if marks is None else marks[:, at]
        return parallel.linear_scan(a, x, h0, reverse, reset, group=group, **o)

    return x, {"a": 2, "x": 2}, ours, lambda **t: law_linear(**t, reverse=reverse, reset=marks), reverse, 1e-5


def selective_case(kind, steps, rule="exp"):
    b, d, n = 2, 6, 4
    wide = torch.complex64 if kind == "complex" else torch.float32
    A = -torch.rand(d, n) - 0.1
    shape = {"constant": (d, n), "groups": (b, 3, n, steps)}.get(kind, (b, n, steps))
    x = {
        "u": randn(b, d, steps),
        "delta": torch.rand(b, d, steps),
        "A": torch.complex(A, 3 * randn(d, n)) if kind == "complex" else A,
        "B": randn(*shape, dtype=wide),
        "C": randn(*shape, dtype=wide),
        "h0": randn(b, d, n, dtype=wide),
    }
    if kind != "bare":
        x |= {"D": randn(d), "z": randn(b, d, steps), "bias": randn(d)}
    soft = kind != "bare"

    def ours(group, at, u, delta, A, B, C, h0, D=None, z=None, bias=None, **o):
        return parallel.selective_scan(u, delta, A, B, C, D, z, bias, soft, True, h0=h0, discretisation=rule, group=group, **o)

    time = {"u": 2, "delta": 2, "z": 2, "B": x["B"].dim() - 1, "C": x["C"].dim() - 1}
    time = {k: v for k, v in time.items() if k in x and not (k in "BC" and kind == "constant")}
    return x, time, ours, lambda **t: law_selective(**t, softplus=soft, rule=rule), False, 3e-5


def mlstm_case(gate, normalize, steps, low=False):
    sizes = {"q": (steps, 16), "k": (steps, 16), "v": (steps, 32), "i": (steps,), "f": (steps,), "c": (16, 32)}
    sizes |= {"n": (16,)} if normalize else {}
    sizes |= {"m": ()} if gate == "exp" else {}
    x = {k: randn(2, 3, *s) + (3.0 if k == "f" else 0.0) for k, s in sizes.items()}
    shown = 0.0 if low else 1.0
    if low:
        # Tokens that a piece on its own would lose beside a gauge of 0, and the whole does not, whose gauge is -80, the least:
        # its states alone show them.
        x["i"], x["m"] = x["i"] - 110.0, x["m"] - 100.0

    def ours(group, at, q, k, v, i, f, c, n=None, m=None, **o):
        h, last = parallel.mlstm(q, k, v, i, f, c, n, m, True, gate=gate, normalize=normalize, group=group, **o)
        return (h * shown, *(s if nth < 2 else s[..., 0] for nth, s in enumerate(last) if s is not None))

    def law(**t):
        h, last = law_mlstm(**t, gate=gate, normalize=normalize)
        return (h * shown, *last[: 1 + normalize], *(last[2:] if gate == "exp" else []))

    return x, {k: 2 for k in "qkvif"}, ours, law, False, 1e-5


CASES = {
    **{f"linear {k}": lambda steps, k=k: scan_case(k, steps) for k in ("real", "complex", "reverse", "reset", "complex reset")},
    **{
        f"selective {k} {r}": lambda steps, k=k, r=r: selective_case(k, steps, r)
        for k, r in [("mamba", "exp"), ("complex", "zoh"), ("groups", "bilinear"), ("constant", "exp"), ("bare", "zoh"), ("complex", "bilinear")]
    },
    **{f"mlstm {g} {n}": lambda steps, g=g, n=n: mlstm_case(g, n, steps) for g, n in [("exp", True), ("sig", False), ("sig", True)]},
    "mlstm low": lambda steps: mlstm_case("exp", True, steps, low=True),
}
STATES = ("h0", "c", "n", "m")


def piece_of(x, time, cut, device="cpu"):
    """A rank's leaves: its own piece of what has time, and all of the rest."""
    own = {k: t.narrow(time[k], cut.start, cut.stop - cut.start) if k in time else t for k, t in x.items()}
    return {k: t.to(device, copy=True).requires_grad_() for k, t in own.items()}


def seeds_of(outputs, rank):
    """Gradients of the whole output and of the last states, which differ from rank to rank."""
    made = torch.Generator().manual_seed(7)
    whole = torch.randn(outputs[0].shape, generator=made, dtype=outputs[0].dtype)
    mine = torch.Generator().manual_seed(100 + rank)
    return whole, [torch.randn(o.shape, generator=mine, dtype=o.dtype) for o in outputs[1:]]


def law_of(case, ranks):
    """Outputs and gradients by the law in float64, with the seeds of all ranks."""
    x, _, _, law, _, _ = case
    exact = {k: t.to(WIDE[t.dtype]).requires_grad_() for k, t in x.items()}
    outputs = law(**exact)
    like = [o.detach().to(torch.complex64 if o.is_complex() else torch.float32) for o in outputs]
    seeds = [seeds_of(like, rank) for rank in range(ranks)]
    total = [seeds[0][0], *(sum(some) for some in zip(*(s[1] for s in seeds)))]
    grads = torch.autograd.grad(outputs, list(exact.values()), [s.to(o.dtype) for s, o in zip(total, outputs)])
    return like, seeds, dict(zip(exact, grads)), outputs


def real(t):
    return torch.view_as_real(t.detach().resolve_conj()) if t.is_complex() else t.detach()


def near(name, ours, law, bound):
    assert_near(name, real(ours), real(law), bound)


def run_rank(case, group, rank, cut, seeds, options, device="cpu"):
    """Outputs and gradients of one rank."""
    x, time, ours, _, _, _ = case
    own = piece_of(x, time, cut, device)
    outputs = ours(group, cut, **own, **options)
    whole, mine = seeds[rank]
    seed = [s.to(device) for s in (whole.narrow(2, cut.start, cut.stop - cut.start), *mine)]
    return outputs, dict(zip(own, torch.autograd.grad(outputs, list(own.values()), seed)))


def everywhere(work, cuts):
    """What ``work`` gives for the group and the piece of each rank, in threads."""
    room, found, errors = Room(len(cuts)), [None] * len(cuts), []

    def one(rank):
        try:
            found[rank] = work((room, rank), cuts[rank])
        except BaseException as e:  # noqa: BLE001
            errors.append(e)
            room.barrier.abort()

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(len(cuts))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if errors:
        raise errors[0]
    return found


def in_threads(case, cuts, options):
    """Every rank's outputs and gradients."""
    _, seeds, _, _ = law_of(case, len(cuts))
    return everywhere(lambda group, cut: run_rank(case, group, group[1], cut, seeds, options), cuts)


def cuts_of(*ends):
    return [slice(a, b) for a, b in zip((0, *ends), ends)]


@pytest.fixture
def threads(monkeypatch):
    monkeypatch.setattr(parallel, "Ranks", Threads)


@pytest.mark.parametrize("design, parts", DESIGNS)
@pytest.mark.parametrize("name", CASES)
def test_any_number_of_ranks_is_one(threads, name, design, parts):
    case = CASES[name](41)
    x, time, _, _, reverse, bound = case
    # Uneven pieces, of one step, and empty ones at the ends and between.
    for ends in [(17, 41), (0, 12, 13, 13, 41, 41)]:
        cuts = cuts_of(*ends)
        like, _, grads, outputs = law_of(case, len(cuts))
        found = in_threads(case, cuts, {"design": design, "parts": parts})
        near(f"{name} out", torch.cat([o[0] for o, _ in found], 2), outputs[0], bound)
        for rank, (made, _) in enumerate(found):
            for nth, (ours, law) in enumerate(zip(made[1:], outputs[1:])):
                near(f"{name} last {nth} on rank {rank}", ours, law, bound)
                assert torch.equal(ours, found[0][0][1 + nth]), "all ranks have the same bits"
        first = len(cuts) - 1 if reverse else 0
        for k, law in grads.items():
            every = [g[k] for _, g in found]
            if k in STATES:
                assert all(not real(g).any() for rank, g in enumerate(every) if rank != first), k
            whole = torch.cat(every, time[k]) if k in time else sum(every)
            near(f"{name} grad {k}", whole, law, bound)


@pytest.mark.parametrize("kind", ["real", "reverse"])
@pytest.mark.parametrize("batch", [1, 2])
def test_few_rows_are_cut_into_segments(threads, monkeypatch, kind, batch):
    """As a GPU has it that would rest otherwise: pieces of 4, 2, 1 and, too short, of 1 segment again."""
    monkeypatch.setattr(_pieces, "SEGMENTS", {"cpu": (100, 40)})
    monkeypatch.setattr(_pieces, "SHORTEST", 8)
    x, time, *rest = scan_case(kind, 32 + 24 + 9 + 8)
    # Gates near 1, so that states go through all pieces.
    x["a"] = 1 - 0.02 * x["a"].abs()
    case = ({k: t[:batch] for k, t in x.items()}, time, *rest)
    found_in = []
    cut = _pieces.Linear._cut
    monkeypatch.setattr(_pieces.Linear, "_cut", lambda self, x: found_in.append(cut(self, x)) or found_in[-1])
    cuts = cuts_of(32, 56, 65, 73)
    _, _, grads, outputs = law_of(case, 4)
    runs = [in_threads(case, cuts, {"design": "summary"}) for _ in range(2)]
    assert set(found_in) == {1, 2, 4}, found_in
    for found, other in zip(*runs):
        assert all(torch.equal(s, t) for s, t in zip(found[0], other[0])) and all(torch.equal(found[1][k], other[1][k]) for k in grads)
    found = runs[0]
    near("out", torch.cat([o[0] for o, _ in found], 2), outputs[0], 1e-5)
    for k, law in grads.items():
        every = [g[k] for _, g in found]
        near(f"grad {k}", torch.cat(every, time[k]) if k in time else sum(every), law, 1e-5)
    for made, _ in found:
        near("last", made[1], outputs[1], 1e-5)


def test_the_same_bits_every_run(threads):
    for name in ("linear real", "selective mamba exp", "mlstm exp True"):
        case = CASES[name](23)
        for design, parts in DESIGNS:
            runs = [in_threads(case, cuts_of(5, 9, 23), {"design": design, "parts": parts}) for _ in range(2)]
            for (a, ga), (b, gb) in zip(*runs):
                assert all(torch.equal(s, t) for s, t in zip(a, b)) and all(torch.equal(ga[k], gb[k]) for k in ga), name


@pytest.mark.parametrize("design", ["summary", "wavefront"])
@pytest.mark.parametrize("shape", [(0, 3, 4), (2, 0, 4), (2, 3, 0)])
def test_nothing_is_something(threads, shape, design):
    def work(group, at):
        a = torch.rand(*shape, requires_grad=True)
        h, last = parallel.linear_scan(a, a.detach(), group=group, design=design)
        (h.sum() + last.sum()).backward()
        assert h.shape == a.grad.shape == shape and last.shape == shape[:2] and not last.any()

    everywhere(work, cuts_of(1, 2, 3))


def test_half_precision_and_no_gradients(threads):
    for dtype, bound in ((torch.bfloat16, 1.5e-2), (torch.float16, 2e-3)):
        q, k, v, i, f = (randn(1, 2, 30, n).to(dtype) if n else randn(1, 2, 30) for n in (16, 16, 16, 0, 0))
        whole = chronaxie.torch.mlstm(q, k, v, i, f)
        for design, parts in DESIGNS:
            options = {"design": design, "parts": parts}
            work = lambda group, cut: parallel.mlstm(*(t[:, :, cut] for t in (q, k, v, i, f)), group=group, **options)  # noqa: E731, B023
            found = everywhere(work, cuts_of(11, 30))
            assert found[0].dtype is dtype and not found[0].requires_grad
            assert_near(f"{dtype} {design}", torch.cat(found, 2), whole, bound)


def test_the_rule_can_be_printed():
    few = choose("selective_scan", batch=1, channels=1024, ranks=8)
    assert str(few) == "summary: 1024 rows (B = 1 times 1024) over 8 ranks are 2 parts of 512, fewer than the ranks"
    many = choose("selective_scan", batch=8, channels=2048, ranks=8)
    assert str(many) == "wavefront of 32 parts: 16384 rows (B = 8 times 2048) over 8 ranks are 32 parts of 512, at least the ranks"
    assert choose("linear_scan", batch=1, channels=4096, ranks=4)[:2] == ("wavefront", 8)
    assert choose("mlstm_exp", batch=8, channels=8, ranks=2, device="cuda").design == "wavefront"
    assert choose("linear_scan", batch=1, channels=4, ranks=2, design="wavefront").parts == 1
    for wrong, message in [({"design": "ring"}, "design `ring` is not one of auto, summary, wavefront"), ({"parts": 0}, "parts = 0 is not")]:
        with pytest.raises(chronaxie.ConfigError, match=message):
            choose("linear_scan", batch=1, channels=4, ranks=2, **wrong)
    with pytest.raises(chronaxie.ConfigError, match="ltc: it is not one of linear_scan"):
        choose("ltc", batch=1, channels=4, ranks=2)


def test_without_a_group_there_is_a_sentence():
    x = torch.ones(1, 2, 3)
    with pytest.raises(chronaxie.ConfigError, match=r"parallel.linear_scan: group = None needs torch.distributed.init_process_group\(\) first"):
        parallel.linear_scan(x, x)


RANK = """
import sys, datetime
import torch
import torch.distributed as dist
sys.path.insert(0, sys.argv[3])
from test_parallel import processes
rank, port = int(sys.argv[1]), sys.argv[2]
at, backend = f"tcp://127.0.0.1:{port}", sys.argv[4]
device = torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
if device.type == "cuda":
    torch.cuda.set_device(device)
    torch.backends.cuda.matmul.allow_tf32 = False
dist.init_process_group(backend, init_method=at, rank=rank, world_size=2, timeout=datetime.timedelta(seconds=180))
processes(rank, device)
dist.destroy_process_group()
print("done")
"""


def processes(rank, device):
    """What each of two ranks does."""
    import torch.distributed as dist

    from chronaxie.torch import parallel

    def sentence(kind, message, call):
        with pytest.raises(kind) as e:
            call()
        assert message in str(e.value), str(e.value)

    # The first call of the group: one rank's piece is wrong in itself.
    x = torch.rand(1, 2, 3, device=device)
    wrong = x[:, :, :2] if rank else x
    message = "linear_scan: x.shape = (1, 2, 2) does not match [B, D, T] = (1, 2, 3)"
    sentence(chronaxie.ChronaxieError, message, lambda: parallel.linear_scan(x, wrong))
    y = torch.rand(1, 2 + rank, 3, device=device)
    said = "parallel.linear_scan: ranks disagree on D: 2 on rank 0, 3 on rank 1"
    sentence(chronaxie.ShapeError, said, lambda: parallel.linear_scan(y, y))
    said = "ranks disagree on whether gradients are needed: False on rank 0, True on rank 1"
    needs = torch.rand(1, 2, 3, device=device, requires_grad=rank == 1)
    sentence(chronaxie.ConfigError, said, lambda: parallel.linear_scan(needs, x))
    said = "ranks disagree on design: summary on rank 0, wavefront on rank 1"
    sentence(chronaxie.ConfigError, said, lambda: parallel.linear_scan(x, x, design=("summary", "wavefront")[rank]))

    for name in ("linear complex", "linear reverse", "selective mamba exp", "mlstm exp True"):
        for design, parts in (("summary", None), ("wavefront", 3), ("auto", None)):
            torch.manual_seed(1)
            case = CASES[name](29)
            x, time, _, _, reverse, bound = case
            cut = cuts_of(12, 29)[rank]
            _, seeds, grads, outputs = law_of(case, 2)
            made, got = run_rank(case, None, rank, cut, seeds, {"design": design, "parts": parts}, device)
            near(f"{name} out", made[0], outputs[0][:, :, cut], bound)
            for ours, law in zip(made[1:], outputs[1:]):
                near(f"{name} last", ours, law, bound)
            for k, law in grads.items():
                if k in time:
                    law = law.narrow(time[k], cut.start, cut.stop - cut.start)
                else:
                    whole = torch.view_as_real(got[k].resolve_conj().clone()) if got[k].is_complex() else got[k].clone()
                    dist.all_reduce(whole)
                    got[k] = torch.view_as_complex(whole) if got[k].is_complex() else whole
                near(f"{name} grad {k}", got[k], law, 2 * bound)
    spread(rank, device)


class Block(torch.nn.Module):
    """An mLSTM between maps."""

    def __init__(self, width, heads=2):
        super().__init__()
        self.heads, self.cell = heads, chronaxie.torch.MLSTM()
        self.maps = torch.nn.Linear(width, 3 * width)
        self.gates = torch.nn.Linear(width, 2 * heads)

    def forward(self, x):
        q, k, v = (t.unflatten(2, (self.heads, -1)).transpose(1, 2) for t in self.maps(x).chunk(3, 2))
        i, f = self.gates(x).transpose(1, 2).chunk(2, 1)
        return self.cell(q, k, v, i, f).transpose(1, 2).flatten(2), None


def nets():
    from chronaxie.torch import LTC, CfC, Mamba, wirings

    return {
        "LTC": lambda: LTC(32, wirings.AutoNCP(16, 4)),
        "CfC": lambda: CfC(32, 9),
        "MLSTM": lambda: Block(32),
        "Mamba": lambda: Mamba(32),
    }


def train(net, model, x, steps=3):
    """Losses of some steps of SGD, each of this process's own samples."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(x)[0].square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)


def spread(rank, device):
    """Layers as they are under DistributedDataParallel and fully_shard: the losses of one process with all samples."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(device.type, (2,))
    torch.manual_seed(0)
    x = torch.randn(4, 7, 32).to(device)
    for name, make in nets().items():
        alone = [make().to(device) for _ in range(3)]
        for net in alone[1:]:
            net.load_state_dict(alone[0].state_dict())
        want = train(alone[0], alone[0], x)
        own = x[2 * rank : 2 * rank + 2]
        ddp = train(alone[1], torch.nn.parallel.DistributedDataParallel(alone[1]), own)
        fsdp = train(alone[2], fully_shard(alone[2], mesh=mesh), own)
        for way, losses in (("DDP", ddp), ("FSDP2", fsdp)):
            dist.all_reduce(losses)
            torch.testing.assert_close(losses / 2, want, rtol=1e-4, atol=1e-6, msg=lambda m: f"{name} under {way}: {m}")
        assert want[-1] < want[0], name


def two_processes(backend):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = str(s.getsockname()[1])
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    here = os.path.dirname(__file__)
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(r), port, here, backend], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
        )
        for r in range(2)
    ]
    said = [r.communicate(timeout=240)[0] for r in ranks]
    # What PyTorch says while a process ends may follow.
    assert all("done" in s.splitlines() for s in said), said


def test_two_processes_over_gloo():
    two_processes("gloo")


@pytest.mark.gpu
def test_two_gpus_over_nccl(cuda):
    if torch.cuda.device_count() < 2:
        pytest.skip(f"PyTorch sees {torch.cuda.device_count()} CUDA device; two are needed")
    two_processes("nccl")
