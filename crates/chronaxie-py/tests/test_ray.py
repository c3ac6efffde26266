"""Sweeps and parts on a local Ray cluster; what needs no cluster is tested without Ray."""

import hashlib
import json
import os
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest

import chronaxie
from chronaxie import ray as on_ray
from chronaxie import spiking
from chronaxie.ray import _parquet, _simulate, _sweep

try:
    import ray
except ImportError:
    ray = None
needs_ray = pytest.mark.skipif(ray is None, reason="Ray is not installed; its wheel is of 70 MB and not of every Python")

ROW = {"a.b": 3, "big": -(2**40), "x": -0.25, "on": True, "name": "\u00e9, \"two\"", "empty": ""}


def test_a_row_is_a_parquet_file(tmp_path):
    path = str(tmp_path / "row.parquet")
    _parquet.write(path, ROW)
    assert _parquet.load(path) == ROW and os.listdir(tmp_path) == ["row.parquet"]
    wide = {f"column {n}": n for n in range(300)}
    assert _parquet.decode(_parquet.encode(wide)) == wide and _parquet.decode(_parquet.encode({})) == {}
    pq = pytest.importorskip("pyarrow.parquet")
    assert pq.read_table(path).to_pylist() == [ROW]
    _parquet.write(str(tmp_path / "other.parquet"), {**ROW, "a.b": 4})
    assert sorted(pq.read_table(tmp_path)["a.b"].to_pylist()) == [3, 4]
    types = [str(f.type) for f in pq.read_schema(path)]
    assert types == ["int64", "int64", "double", "bool", "string", "string"]


def test_half_a_file_is_none():
    whole = _parquet.encode(ROW)
    for cut in range(len(whole)):
        assert _parquet.decode(whole[:cut]) is None and _parquet.decode(whole[cut:] if cut else b"") is None
    for at in range(len(whole)):
        assert _parquet.decode(bytes([*whole[:at], whole[at] ^ 0x41, *whole[at + 1 :]])) in (None, ROW)


def test_grids():
    points = _sweep._points({"a": [1, 2.5], "b": np.array([7, 8])})
    assert points == [{"a": 1.0, "b": 7}, {"a": 1.0, "b": 8}, {"a": 2.5, "b": 7}, {"a": 2.5, "b": 8}]
    assert _sweep._points([{"a": 1}]) == [{"a": 1}] and _sweep._points({}) == [{}]
    for grid, message in [
        ({"a": 3}, "grid['a'] = 3 is not a list of values"),
        ({"a": "xy"}, "grid['a'] = 'xy' is not a list of values"),
        ([{"a": 1}, {"b": 1}], "one run sets b and another a"),
        ({"a": [1, "x"]}, "a has values of types int, str"),
        ({"a": [None]}, "a has values of types NoneType"),
    ]:
        with pytest.raises(chronaxie.ConfigError) as e:
            _sweep._points(grid)
        assert message in str(e.value)


def network(seed=1):
    net = spiking.Network(dt=0.1, seed=seed)
    net.population("E", "lif_exp", 60, parameters={"I_e": np.linspace(380.0, 450.0, 60)})
    net.projection("E", "E", "fixed_indegree", indegree=10, weight=20.0, delay=1.5)
    return net


def test_a_run_of_a_sweep_is_that_of_one_process(tmp_path):
    made = _sweep._run(network(), {"simulation.seed": 5}, 50.0, 10.0, "cpu", 1)
    sim = network(5).build(backend="cpu")
    sim.run(10.0)
    spikes = sim.run(40.0)
    assert made["spikes_sha256"] == sim.spikes_sha256 and made["spikes"] == sim.spike_count > 0
    assert made["rate_hz.E"] == spikes.rates()["E"] and made["model_ms"] == 50.0 and made["backend"] == "cpu"
    with pytest.raises(chronaxie.ConfigError, match="discard = 60.0 ms is not between 0 and the duration of 50.0 ms"):
        _sweep._run(network(), {}, 50.0, 60.0, "cpu", 1)


def test_runs_side_by_side_are_those_of_one_process():
    points = [{"simulation.seed": 5}, {"simulation.seed": 6}, {"simulation.seed": 9}]
    made = _sweep._runs(network(), points, 50.0, 10.0, "cpu", 1)
    for row, point in zip(made, points):
        want = _sweep._run(network(), point, 50.0, 10.0, "cpu", 1)
        times = {"wall_ms", "build_ms", "real_time_factor"}
        assert {k: v for k, v in row.items() if k not in times} == {k: v for k, v in want.items() if k not in times}
        assert list(row) == list(want) and row["spikes"] > 0
    assert _sweep._runs(network(), points[:1], 50.0, 10.0, "cpu", 1)[0]["spikes_sha256"] == made[0]["spikes_sha256"]
    with pytest.raises(chronaxie.ConfigError, match="discard = 60.0 ms is not between 0 and the duration of 50.0 ms"):
        _sweep._runs(network(), points, 50.0, 60.0, "cpu", 1)
    with pytest.raises(chronaxie.ConfigError, match="together = 0 is not at least 1"):
        on_ray.sweep(network(), points, out="nowhere", together=0)


def test_without_ray_there_is_a_sentence(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(chronaxie.BackendUnavailableError, match="sweep needs Ray, which is not installed: pip install 'ray"):
        on_ray.sweep(network(), {"simulation.seed": [1]}, out=tmp_path)
    with pytest.raises(chronaxie.BackendUnavailableError, match="simulate needs Ray"):
        on_ray.simulate(network(), 10.0, num_workers=2)
    with pytest.raises(chronaxie.ConfigError, match="num_workers = 0"):
        on_ray.simulate(network(), 10.0, num_workers=0)
    with pytest.raises(chronaxie.ConfigError, match="transport = 'mpi' is not one of auto, nccl, object_store"):
        on_ray.simulate(network(), 10.0, num_workers=2, transport="mpi")


class Ring:
    """A part of a network of cells that add up whole numbers: with the interface of ``chronaxie.spiking.Part``."""

    dt, min_delay, count = 0.1, 5, 90
    populations = [SimpleNamespace(name="left", size=30), SimpleNamespace(name="right", size=60)]

    def __init__(self, network, index, count):
        rng = np.random.default_rng(network["seed"])
        self.weights = rng.integers(-40, 60, (self.count, self.count))
        self.delays = rng.integers(self.min_delay, 12, (self.count, self.count))
        self.cells = np.arange(self.count * index // count, self.count * (index + 1) // count)
        self.level, self.step = np.zeros(len(self.cells), np.int64), 0
        self.coming = np.zeros((32, len(self.cells)), np.int64)
        self.drive = self.cells % 7 + 3
        self.told = True

    def advance(self, steps):
        assert 0 < steps <= self.min_delay and self.told
        found = []
        for _ in range(steps):
            self.level += self.drive + self.coming[self.step % 32]
            self.coming[self.step % 32] = 0
            fired = np.flatnonzero(self.level > 500)
            self.level[fired] = 0
            found += [(self.step, self.cells[cell]) for cell in fired]
            self.step += 1
        step, cell = np.array(found, np.uint64).reshape(-1, 2).T
        self._deliver(step, cell)
        self.told = False
        return step, cell.astype(np.uint32)

    def _deliver(self, step, cell):
        own = np.arange(len(self.cells))
        for s, c in zip(step, cell):
            np.add.at(self.coming, ((int(s) + self.delays[self.cells, c]) % 32, own), self.weights[self.cells, c])

    def hear(self, step, cell):
        assert not self.told and (step >= self.step - self.min_delay).all() and not np.isin(cell, self.cells).any()
        self._deliver(step, cell)
        self.told = True

    def state(self):
        assert self.told
        return self.level.copy(), self.coming.copy(), self.step

    def restore(self, state):
        self.level, self.coming, self.step = state[0].copy(), state[1].copy(), state[2]
        self.told = True


class Joined(Ring):
    """Likewise, whose parts tell each other by a hub of this process, as GPUs would."""

    hubs, refuses = {}, False

    def offer(self):
        return str(self.cells[0])

    def connect(self, offers, steps):
        if self.refuses:
            raise chronaxie.BackendUnavailableError("parts 0 and 1 have one GPU")
        self.every, key = steps, (tuple(offers), Joined.turn)
        self.hub = self.hubs.setdefault(key, (threading.Barrier(len(offers)), {}))

    def advance_together(self, steps):
        barrier, said = self.hub
        found, until = [], self.step + steps
        while self.step < until:
            found.append(self.advance(min(self.every, until - self.step)))
            said[self.cells[0]] = found[-1]
            try:
                barrier.wait(5)
                others = [s for cell, s in said.items() if cell != self.cells[0]]
                self.hear(*(np.concatenate([s[c] for s in others]) for c in range(2)))
                barrier.wait(5)
            except threading.BrokenBarrierError:
                raise chronaxie.ChronaxieError("part 1 has gone") from None
        return tuple(np.concatenate([s[c] for s in found]) for c in range(2))


class Actors:
    """What ``_simulate._Run`` asks of Ray, by threads; at call number ``dies`` of ``together`` an actor goes and others wait in vain."""

    class Gone(Exception):
        pass

    exceptions = SimpleNamespace(RayActorError=Gone, ObjectLostError=Gone, WorkerCrashedError=Gone)

    def __init__(self, dies):
        self.pool, self.dies, self.calls = ThreadPoolExecutor(16), dies, 0

    def make(self, part, index, count):
        worker, gone = _simulate.Worker(part, {"seed": 3}, index, count, 1), []

        def call(name):
            def run(*arguments):
                if gone:
                    raise self.Gone
                if name == "together" and index == 1:
                    self.calls += 1
                    if self.calls == self.dies:
                        gone.append(True)
                        worker.part.hub[0].abort()
                        raise self.Gone
                return getattr(worker, name)(*(a.result() if hasattr(a, "result") else a for a in arguments))

            return SimpleNamespace(remote=lambda *a: self.pool.submit(run, *a))

        names = ["facts", "offer", "connect", "together", "advance", "state", "restore"]
        return SimpleNamespace(**{name: call(name) for name in names})

    def get(self, refs):
        return [r.result() for r in refs] if isinstance(refs, list) else refs.result()

    def put(self, value):
        return value

    def kill(self, worker):
        Joined.turn += 1


@pytest.mark.parametrize("dies", [0, 40])
def test_parts_whose_gpus_are_joined_have_the_same_spikes_and_survive_a_loss(dies):
    Joined.turn, actors = 0, Actors(dies)
    run = _simulate._Run(actors, lambda i: actors.make(Joined, i, 3), 3, 2, "nccl")
    every, dt = run.meet()
    run.join(every)
    assert run.joined and (every, dt) == (5, 0.1)
    at, back = 0, []
    while at < 500:
        try:
            if at % 100 == 0:
                run.save(at)
            run.advance(every)
            at += every
        except run.lost as e:
            at = run.recover(e)
            back.append(at)
    assert back == ([100] if dies else []) and run.joined
    assert sha256(run.fired.spikes(run.populations, dt, 50.0)) == sha256(of_one(50.0))


def test_parts_whose_gpus_cannot_be_joined_go_by_the_object_store_or_say_why(monkeypatch):
    Joined.turn, actors = 0, Actors(0)
    monkeypatch.setattr(Joined, "refuses", True)
    run = _simulate._Run(actors, lambda i: actors.make(Joined, i, 2), 2, 0, "auto")
    every, _ = run.meet()
    run.join(every)
    run.advance(every)
    run.advance(every)
    assert not run.joined and run.heard is not None
    run.transport = "nccl"
    with pytest.raises(chronaxie.BackendUnavailableError, match="parts 0 and 1 have one GPU"):
        run.join(every)
    run.workers = [actors.make(Ring, i, 2) for i in range(2)]
    run.meet()
    with pytest.raises(chronaxie.BackendUnavailableError, match="no GPUs that can be joined"):
        run.join(every)


def sha256(spikes):
    rows = np.column_stack([spikes.step, spikes.neuron.astype(np.uint64)]).astype("<u8")
    return hashlib.sha256(rows.tobytes()).hexdigest()


def of_one(duration):
    """The ring's spikes in one process."""
    worker, fired = _simulate.Worker(Ring, {"seed": 3}, 0, 1, 1), _simulate._Fired()
    _, every, dt, cells, populations = worker.facts()
    assert (every, dt, cells) == (5, 0.1, 90)
    for _ in range(round(duration / dt) // every):
        fired.add([worker.advance(every)])
    return fired.spikes(populations, dt, duration)


CLUSTER = """
import json, os, signal, sys, time
sys.path.insert(0, sys.argv[1])
import ray
import test_ray as t
from chronaxie import ray as on_ray
began = time.perf_counter()
ray.cloudpickle.register_pickle_by_value(t)
ray.init(num_cpus=3, include_dashboard=False, object_store_memory=100 << 20, log_to_driver=False)
out, seen, killed = sys.argv[2], [], []

def kill(progress):
    seen.append(progress.step)
    if progress.step == 700 and not killed:
        killed.append(progress.processes[1])
        os.kill(killed[0], signal.SIGKILL)

spikes = on_ray.simulate({"seed": 3}, 100.0, num_workers=3, checkpoint_every=60, progress=kill, part=t.Ring)
got = {"names": spikes.names, "sizes": spikes.sizes}
got["real"] = t.sha256(on_ray.simulate(t.network(), 80.0, num_workers=3, method="index"))
back = [b for a, b in zip(seen, seen[1:]) if b <= a]
grid = {"simulation.seed": [1, 2], "population.0.parameters.refused": [0]}
try:
    on_ray.sweep(t.network(), grid, out=out + "/wrong", duration=20.0)
    refused = ""
except Exception as e:
    refused = f"{type(e).__name__}: {e}"
grid, fresh = {"simulation.seed": [1, 2, 3, 4]}, []
first = on_ray.sweep(t.network(), grid, out=out + "/rows", duration=50.0)
files = sorted(os.listdir(out + "/rows"))
os.remove(out + "/rows/" + files[0])
with open(out + "/rows/" + files[1], "r+b") as file:
    file.truncate(200)
second = on_ray.sweep(t.network(), grid, out=out + "/rows", duration=50.0, progress=lambda row: fresh.append(row["key"]))
ray.shutdown()
keys = [f.split(".")[0] for f in files]
print(json.dumps({
    **got,
    "sha256": t.sha256(spikes), "count": len(spikes), "back": back, "refused": refused, "fresh": sorted(fresh) == sorted(keys[:2]),
    "files": sorted(os.listdir(out + "/rows")) == files, "rows": [[r["simulation.seed"], r["spikes_sha256"]] for r in second],
    "same": [r["spikes_sha256"] for r in first] == [r["spikes_sha256"] for r in second], "seconds": time.perf_counter() - began,
}))
"""


@needs_ray
def test_a_cluster_survives_a_killed_actor_and_a_stopped_sweep(tmp_path):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    argv = [sys.executable, "-c", textwrap.dedent(CLUSTER), os.path.dirname(__file__), str(tmp_path)]
    ran = subprocess.run(argv, capture_output=True, text=True, env=environment, timeout=300)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    said = json.loads(ran.stdout.splitlines()[-1])
    want = of_one(100.0)
    assert said["sha256"] == sha256(want) and said["count"] == len(want) > 500
    assert said["names"] == ["left", "right"] and said["sizes"] == [30, 60]
    # Checkpoints are at every 300 steps; it went back once, to the first exchange behind one.
    assert said["back"] == [605]
    assert said["refused"].startswith("ChronaxieError: sweep: 2 of 2 runs failed; the first") and "refused" in said["refused"]
    assert said["fresh"] and said["files"] and said["same"]
    assert [seed for seed, _ in said["rows"]] == [1, 2, 3, 4]
    sim = network(3).build(backend="cpu")
    sim.run(50.0)
    assert said["rows"][2][1] == sim.spikes_sha256
    whole = network().build(backend="cpu")
    whole.run(80.0)
    assert said["real"] == whole.spikes_sha256 and whole.spike_count > 100
    assert len(on_ray.read(tmp_path / "rows")) == 4
