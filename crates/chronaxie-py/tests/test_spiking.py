"""Networks from code: the bits of the command line, chunks, changes, checkpoints, errors."""

import json
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import chronaxie
from chronaxie import spiking


def balanced(seed=5, arrays=False):
    net = spiking.Network(dt=0.1, seed=seed)
    extra = {"initial": {"V": np.linspace(-65.0, -50.5, 800)}} if arrays else {}
    net.population("E", "lif_exp", 800, parameters={"I_e": spiking.normal(150.0, 10.0)}, **extra)
    net.population("I", "lif_exp", 200, initial={"V": spiking.uniform(-65.0, -50.0)})
    net.projection("E", ["E", "I"], "fixed_indegree", indegree=80, weight=spiking.normal(60.0, 6.0, low=0.0), delay=1.5)
    net.projection("I", ["E", "I"], "fixed_indegree", indegree=20, weight=-300.0, delay=spiking.uniform(0.5, 1.0))
    net.drive(["E", "I"], "poisson", rate=8.0, sources=[900, 800], weight=60.0)
    return net


def same(a, b):
    return np.array_equal(a.step, b.step) and np.array_equal(a.neuron, b.neuron)


def test_the_command_line_has_the_same_spikes(tmp_path, backend):
    net = balanced()
    (tmp_path / "net.json").write_text(net.to_json())
    argv = [sys.executable, "-m", "chronaxie", "simulate", "net.json", "--duration", "300", "--out", "run", "--quiet"]
    ran = subprocess.run([*argv, "--backend", backend], capture_output=True, text=True, cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    report = json.loads(ran.stdout)
    sim = net.build(backend)
    spikes = sim.run(300.0)
    assert len(spikes) == report["spikes"] == sim.spike_count > 5000
    assert sim.spikes_sha256 == report["spikes_sha256"] and sim.backend == report["backend"]
    assert sim.synapse_count == report["synapses"]
    assert spikes.rates() == pytest.approx(report["rates_hz"])
    with np.load(tmp_path / "run" / "spikes.npz") as file:
        assert np.array_equal(file["step"], spikes.step) and np.array_equal(file["neuron"], spikes.neuron)
        assert np.array_equal(file["time"], spikes.time) and np.array_equal(file["population"], spikes.population)
        assert list(file["population_names"]) == list(spikes.names)
    # A file's network is the same network, and its run's checkpoint one of this network.
    assert same(spiking.simulate(str(tmp_path / "net.json"), 300.0, backend=backend), spikes)
    other = net.build(backend, resume=tmp_path / "run" / "checkpoint" / "state.bin")
    assert other.time == pytest.approx(300.0) and other.spikes_sha256 == sim.spikes_sha256
    assert same(other.run(50.0), sim.run(50.0)) and other.spikes_sha256 == sim.spikes_sha256


def test_chunks_resumed_and_threads_are_the_whole(tmp_path, backend):
    net = balanced(arrays=True)
    whole = net.build(backend).run(200.0)
    assert len(whole) > 2000
    sim = net.build(backend)
    parts = [sim.run(37.3)]
    checkpoint = sim.save(tmp_path / "half")
    assert checkpoint.step == 373 and checkpoint.spikes == len(parts[0])
    parts += [sim.run(steps=1), sim.run(0), sim.run(200.0 - 37.4)]
    assert np.array_equal(np.concatenate([p.step for p in parts]), whole.step)
    assert np.array_equal(np.concatenate([p.neuron for p in parts]), whole.neuron)
    resumed = net.build(backend, resume=checkpoint)
    rest = resumed.run(200.0 - 37.3)
    at = len(parts[0])
    assert np.array_equal(rest.step, whole.step[at:]) and np.array_equal(rest.neuron, whole.neuron[at:])
    assert resumed.spikes_sha256 == sim.spikes_sha256
    threads = chronaxie.get_num_threads()
    try:
        chronaxie.set_num_threads(1 if threads > 1 else 3)
        assert same(net.build(backend).run(200.0), whole)
    finally:
        chronaxie.set_num_threads(threads)


def test_a_run_that_is_not_recorded_is_the_same_run():
    a, b = balanced().build("cpu"), balanced().build("cpu")
    assert len(a.run(100.0, record=False)) == 0
    assert len(b.run(100.0)) == a.spike_count == b.spike_count > 0
    assert a.spikes_sha256 == b.spikes_sha256


def test_inputs_change_between_chunks_and_are_resumed(tmp_path, backend):
    net = balanced()
    sim = net.build(backend)
    quiet = sim.run(100.0)
    before = sim.drives
    assert [d.target for d in before] == ["E", "I"] and before[0].rate == 7200.0 and before[0].kind == "poisson"
    sim.set_rate("E", 12000.0)
    sim.set_current("I", np.linspace(0.0, 100.0, 200))
    checkpoint = sim.save(tmp_path / "changed")
    loud = sim.run(100.0)
    assert loud.rates()["E"] > 1.3 * quiet.rates()["E"]
    resumed = net.build(backend, resume=checkpoint)
    assert resumed.drives[0].rate == 12000.0
    assert same(resumed.run(100.0), loud)
    # Without drives and currents there is nothing.
    for i in range(2):
        sim.set_drive(i, 0.0)
    sim.set_current("E", 0.0)
    sim.set_current("I", 0.0)
    sim.run(30.0)
    assert len(sim.run(100.0)) == 0


def test_poisson_sources_change_their_rates():
    net = spiking.Network(dt=1.0)
    net.population("P", "poisson", 1000, parameters={"rate": 10.0})
    sim = net.build("cpu")
    assert sim.run(1000.0).rates()["P"] == pytest.approx(10.0, rel=0.05)
    sim.set_rate("P", np.where(np.arange(1000) < 500, 0.0, 40.0))
    spikes = sim.run(1000.0)
    assert spikes.neuron.min() >= 500 and spikes.rates()["P"] == pytest.approx(20.0, rel=0.05)


def test_state_and_weights_are_arrays_in_the_units_of_the_description():
    net = balanced(arrays=True)
    sim = net.build("cpu")
    state = sim.state("E")
    assert np.allclose(state["V"], np.linspace(-65.0, -50.5, 800), atol=1e-5)
    assert sim.populations[0].variables["V"] == "mV" and sim.populations[0].weight_unit == "pA"
    synapses = sim.synapses("E", "I")
    assert len(synapses.source) == 200 * 80 and np.array_equal(np.bincount(synapses.target), np.full(200, 80))
    assert synapses.source.max() < 800 and np.allclose(synapses.delay, 1.5)
    weights = sim.weights("E", "I")
    assert abs(weights.mean() - 60.0) < 0.2 and abs(weights.std() - 6.0) < 0.2
    sim.set_state("I", V=np.full(200, -51.0))
    sim.set_state("E", V=-49.0)
    spikes = sim.run(0.1)
    assert np.array_equal(np.unique(spikes.of("E")[1]), np.arange(800))
    assert (sim.state("E")["V"] == -65.0).all()


def test_edges_replayed_spikes_places_and_traces():
    net = spiking.Network(dt=0.5)
    net.population("in", "spikes", 2, spikes=([1.0, 2.5], [1, 0]))
    net.population("out", "lif_delta", positions=np.zeros((3, 4)), parameters={"tau_m": [10.0, 20.0, 30.0]})
    net.projection("in", "out", edges={"source": [0, 1], "target": [2, 0], "weight": [3.0, 30.0], "delay": 0.5})
    net.record("out", cells=[0, 1, 2], every=0.5)
    sim = net.build("cpu")
    spikes = sim.run(10.0)
    times, cells = spikes.of("out")
    assert times.tolist() == [1.5] and cells.tolist() == [0]
    (trace,) = sim.traces()
    v = trace.values["V"]
    assert v.shape == (20, 3) and trace.time[0] == 0.5 and (v[:, 1] == -65.0).all()
    # A jump of 3 mV at the step after 2.5 ms, which decays with the cell's own 30 ms.
    at = int(np.argmax(v[:, 2] > -65.0))
    assert trace.time[at] == 3.5 and v[at, 2] == pytest.approx(-62.0, abs=1e-4)
    assert v[at + 4, 2] == pytest.approx(-65.0 + 3.0 * np.exp(-2.0 / 30.0), abs=1e-4)
    assert sim.populations[1].positions.shape == (3, 4)
    assert sim.traces()[0].time.size == 0


def test_distances_decide_who_is_joined():
    net = spiking.Network(dt=0.1)
    places = np.stack([np.arange(100.0), *np.zeros((3, 100))], axis=1)
    net.population("A", "lif_exp", positions=places)
    net.projection("A", "A", "distance", peak=1.0, length=5.0, radius=20.0, weight=1.0, delay=spiking.velocity(2.0, 0.1))
    s = net.build("cpu").synapses("A", "A")
    apart = np.abs(places[s.source, 0] - places[s.target, 0])
    assert apart.max() <= 20 and np.allclose(s.delay, np.round((0.1 + apart / 2.0) * 10) / 10, atol=1e-3)
    near, far = (apart == 1).sum() / 198, (apart == 10).sum() / 180
    assert near == pytest.approx(np.exp(-0.2), abs=0.1) and far == pytest.approx(np.exp(-2.0), abs=0.09)


def test_synapses_that_are_drawn_again_have_the_same_spikes(tmp_path, backend):
    def net(synapses):
        net = spiking.Network(dt=0.1, seed=4)
        net.population("E", "lif_exp", 400, parameters={"I_e": spiking.normal(380.0, 20.0)})
        weight, delay = spiking.normal(60.0, 6.0, low=0.0), spiking.uniform(0.1, 5.0)
        net.projection("E", "E", "fixed_outdegree", outdegree=50, weight=weight, delay=delay, synapses=synapses)
        return net

    want = net("stored").build(backend)
    stored, between = want.run(200.0), want.save(tmp_path / "between")
    assert len(stored) > 1000
    for synapses in ("procedural", "auto", None):
        sim = net(synapses).build(backend)
        assert same(sim.run(200.0), stored) and sim.synapse_count == want.synapse_count == 20_000
        assert np.array_equal(sim.synapses("E", "E").target, want.synapses("E", "E").target)
    # A checkpoint of the one is one of the other.
    rest = want.run(50.0)
    assert same(net("procedural").build("cpu", resume=between).run(50.0), rest)


def test_arrow_and_saved_spikes(tmp_path):
    spikes = balanced().build("cpu").run(50.0)
    spikes.save(tmp_path / "s.npz")
    with np.load(tmp_path / "s.npz") as file:
        assert np.array_equal(file["neuron"], spikes.neuron) and file["stop"] == 50.0
    pytest.importorskip("pyarrow")
    table = spikes.to_arrow()
    assert table.column_names == ["time", "step", "neuron", "population"] and table.num_rows == len(spikes)
    assert set(table["population"].to_pylist()) <= {"E", "I"}


@pytest.mark.parametrize(
    "build, says",
    [
        (lambda n: n.population("A", "lif_expp", 5), r'population\[0\]\.model is "lif_expp".*did you mean "lif_exp"'),
        (lambda n: n.population("A", "lif_exp", 0), "size is 0 cells"),
        (lambda n: n.population("A", "lif_exp", -3), "size must be a whole number from 0"),
        (lambda n: n.population("A", "lif_exp", 5, parameters={"tau": 1.0}), "unknown key .*tau.*"),
        (lambda n: n.population("A", "lif_exp", 5, parameters={"tau_m": np.ones(4)}), "tau_m has 4 values for 5 cells"),
        (lambda n: n.population("A", "lif_exp", 5, parameters={"tau_m": -1.0}), "tau_m = -1 ms.*must be above 0"),
        (lambda n: n.population("A", "lif_exp", 5, parameters={"tau_m": [1.0, 1.0, -2.0, 1.0, 1.0]}), "cell 2 has tau_m = -2"),
        (
            lambda n: (
                n.population("A", "lif_exp", 5),
                n.projection("A", "A", "fixed_indegree", indegree=2, weight=1.0, delay=1.0, synapses="procedural"),
            ),
            "projection A -> A: synapses = .procedural. needs the targets of a source.*fixed_outdegree with outdegree = 2",
        ),
        (lambda n: None, "at least one"),
    ],
)
def test_errors_are_the_librarys_sentences(build, says):
    net = spiking.Network()
    build(net)
    with pytest.raises(chronaxie.ConfigError, match=says):
        net.build("cpu")


def test_bad_input_is_refused_in_python_too(tmp_path):
    net = spiking.Network()
    with pytest.raises(chronaxie.ConfigError, match="A.tau_m is nan"):
        net.population("A", "lif_exp", 5, parameters={"tau_m": float("nan")})
    with pytest.raises(chronaxie.ShapeError, match=r"positions has shape \(5, 3\)"):
        net.population("A", "lif_exp", positions=np.zeros((5, 3)))
    with pytest.raises(chronaxie.ConfigError, match="edges lack weight and delay"):
        net.projection("A", "A", edges={"source": [0], "target": [0]})
    net.population("A", "lif_exp", 5, parameters={"tau_m": np.full(5, np.nan)})
    with pytest.raises(chronaxie.DataError, match=r"tau_m\[0\] is NaN"):
        net.build("cpu")
    with pytest.raises(chronaxie.ConfigError, match="holds the arrays <A.tau_m>"):
        net.to_json()
    net = balanced()
    sim = net.build("cpu")
    for bad in (0.05, -1.0, float("nan"), float("inf")):
        with pytest.raises(chronaxie.ConfigError, match="not a whole number of steps"):
            sim.run(bad)
    with pytest.raises(chronaxie.ConfigError, match="either in ms or in steps"):
        sim.run()
    with pytest.raises(chronaxie.ConfigError, match="'X' is no population; there are E, I"):
        sim.state("X")
    with pytest.raises(chronaxie.ShapeError, match=r"V has the shape \(3,\)"):
        sim.set_state("E", V=np.zeros(3))
    with pytest.raises(chronaxie.ConfigError, match="U is no variable that is stepped; there are V"):
        sim.set_state("E", U=0.0)
    with pytest.raises(chronaxie.CheckpointError, match="cannot read"):
        sim.restore(tmp_path / "nothing")
    with pytest.raises(chronaxie.ConfigError, match="^restore: checkpoint = None is of type NoneType; a Checkpoint or a path is needed"):
        sim.restore(None)
    for bad in (3, None, b"file"):
        with pytest.raises(chronaxie.ConfigError, match=f"^save: path = {bad!r} is of type .*; a path is needed"):
            sim.save(bad)
        with pytest.raises(chronaxie.ConfigError, match=f"^Checkpoint: path = {bad!r} is of type .*; a path is needed"):
            spiking.Checkpoint(bad)
    sim.run(5.0)
    sim.save(tmp_path / "whole")
    content = (tmp_path / "whole").read_bytes()
    for cut in (0, 4, 50, len(content) - 1):
        (tmp_path / "cut").write_bytes(content[:cut])
        with pytest.raises(chronaxie.CheckpointError):
            spiking.Checkpoint(tmp_path / "cut")
    with pytest.raises(chronaxie.CheckpointError, match="another network"):
        balanced(seed=6).build("cpu", resume=tmp_path / "whole")
    with pytest.raises(chronaxie.ConfigError, match="backend `gpu` is not one of"):
        net.build("gpu")
    with pytest.raises(chronaxie.ChronaxieError, match="nothing.toml"):
        spiking.Network.read(tmp_path / "nothing.toml").build("cpu")


def test_metrics_are_those_of_the_trains():
    spikes = balanced().build("cpu").run(400.0)
    found = spiking.metrics.analyze(spikes, bin=5.0)
    for i, name in enumerate(spikes.names):
        own, (times, cells) = found["populations"][name], spikes.of(name)
        assert own["rate_hz"]["mean"] == pytest.approx(spikes.rates()[name])
        assert own["rate_hz"]["sd"] == pytest.approx(spiking.metrics.rates(spikes, name).std())
        gaps = np.concatenate([np.diff(times[cells == c]) for c in range(spikes.sizes[i])])
        assert np.allclose(np.sort(gaps), np.sort(spiking.metrics.intervals(spikes, name)))
        assert own["interval_ms"]["mean"] == pytest.approx(gaps.mean())
        # Each cell's bins with a spike, in a matrix.
        fired = np.zeros((spikes.sizes[i], 80), bool)
        fired[cells, (times / 5.0 + 1e-9).astype(int)] = True
        share = fired.mean(axis=0)
        assert own["synchrony"]["variance"] == pytest.approx(share.var())
        assert own["synchrony"]["chi"] == pytest.approx(np.sqrt(share.var() / fired.var(axis=1).mean()))
    assert found["mutual_information_bits"].shape == (2, 2) and found["bins"] == 80
    with pytest.raises(chronaxie.ConfigError, match="bin = 0.0 ms"):
        spiking.metrics.analyze(spikes, bin=0.0)


def test_sizes_beyond_the_machine_are_refused():
    def analyze(sizes, stop, bin=0.1, cells=(3,)):
        steps, cells = np.zeros(len(cells), np.uint64), np.array(cells, np.uint32)
        return spiking.metrics.analyze(spiking.Spikes(steps, cells, "abcd", sizes, 0.1, 0.0, stop), bin=bin)

    # 2^42 cells; counts of 100,000 populations in 2^28 bins; more bins than that; a cell that there is not.
    with pytest.raises(chronaxie.OutOfMemoryError, match="of 4398046510080 cells in 1024 populations, in 10 bins, needs 281"):
        analyze([2**32 - 1] * 1024, 1.0)
    with pytest.raises(chronaxie.OutOfMemoryError, match="in 100000 populations, in 268435456 bins, needs 107"):
        analyze([4] + [0] * 99_999, 0.1 * 2**28)
    with pytest.raises(chronaxie.ConfigError, match=r"10000000000 steps in bins of 1 make 10000000000 bins, more than 2\^28"):
        analyze([4], 1e9)
    with pytest.raises(chronaxie.ChronaxieError, match="a spike of cell 4 in step 0 is not one of 4 cells"):
        analyze([2, 2], 1.0, cells=(4,))
    assert analyze([4], 1.0)["bins"] == 10


def test_models_say_their_units():
    models = spiking.models()
    assert models["lif_exp"]["parameters"]["tau_m"] == ("ms", 10.0) and models["lif_exp"]["weight_unit"] == "pA"
    assert models["izhikevich"]["variables"]["V"] == "mV" and "fast_spiking" in models["izhikevich"]["presets"]


def test_the_gil_is_free_while_it_runs():
    sim = balanced().build("cpu")
    counted, done = [0], threading.Event()

    def count():
        while not done.is_set():
            counted[0] += 1
            time.sleep(0.001)

    thread = threading.Thread(target=count)
    thread.start()
    began = time.monotonic()
    while time.monotonic() - began < 0.5:
        sim.run(100.0, record=False)
    done.set()
    thread.join()
    # A held GIL would let the other thread in between runs alone.
    assert counted[0] > 50


INTERRUPTED = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from chronaxie import spiking
net = spiking.Network(dt=0.1, seed=2)
net.population("A", "lif_exp", 2000)
net.drive("A", "poisson", rate=16000.0, weight=60.0)
sim = net.build("cpu")
sim.run(100.0, record=False)
print("ready", flush=True)
try:
    sim.run(1e9)
except KeyboardInterrupt:
    print("interrupted", flush=True)
spikes = sim.run(0)
print(len(spikes) > 0, spikes.step[0] >= 1000, len(sim.run(10.0)) > 0, sim.step > 1100, flush=True)
"""


def test_ctrl_c_stops_at_the_chunk_and_loses_nothing():
    child = subprocess.Popen([sys.executable, "-c", INTERRUPTED], stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "ready\n"
    time.sleep(0.5)
    began = time.monotonic()
    child.send_signal(signal.SIGINT)
    out, _ = child.communicate(timeout=60)
    said, rest = out.strip().split("\n")
    assert said == "interrupted" and rest == "True True True True" and time.monotonic() - began < 30


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_simulation_does_not_cross_a_fork():
    code = """
import os
from chronaxie import spiking
net = spiking.Network()
net.population("A", "lif_exp", 5)
sim = net.build("cpu")
sim.run(1.0)
child = os.fork()
if child == 0:
    try:
        sim.run(1.0)
    except Exception as e:
        print(type(e).__name__, e, flush=True)
    sim2 = net.build("cpu")
    sim2.run(1.0)
    print(sim2.step, flush=True)
    os._exit(0)
os.waitpid(child, 0)
sim.run(1.0)
print(sim.step)
"""
    ran = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=60)
    lines = ran.stdout.split("\n")
    assert lines[0].startswith("BackendUnavailableError") and "forked process" in lines[0], ran
    assert lines[1:3] == ["10", "20"]


RULES = {
    "stdp": {"A_plus": 0.02, "A_minus": 0.021},
    "hebb": {"A": 0.01, "A_pre": 0.002},
    "bcm": {"A": 0.01, "target_rate": 10.0, "tau_threshold": 100.0},
    "coincidence": {"A": 0.05, "A_pre": 0.01, "weight_decay": 0.001},
    "homeostatic": {"window": 20.0, "scaling_rate": 0.002},
    "modulated_stdp": {"modulator": "DA", "tau_eligibility": 50.0, "tau_modulator": 20.0, "A_plus": 0.02},
}


def learning(rule, **more):
    net = spiking.Network(dt=0.1, seed=3)
    net.population("E", "lif_exp", 100, parameters={"I_e": spiking.normal(390.0, 20.0)})
    net.population("DA", "poisson", 4, parameters={"rate": 50.0})
    plasticity = {"rule": rule, "w_max": 60.0, **RULES[rule], **more}
    for indegree in (10, 5):
        net.projection(
            "E",
            "E",
            "fixed_indegree",
            indegree=indegree,
            weight=spiking.uniform(10.0, 50.0),
            delay=spiking.uniform(0.1, 3.0),
            plasticity=plasticity,
        )
    return net


@pytest.mark.parametrize("rule", RULES)
def test_weights_of_plastic_synapses_are_read_as_they_change(rule, tmp_path):
    net = learning(rule)
    sim = net.build("cpu")
    before = sim.synapses("E", "E")
    sim.run(150.0)
    middle = sim.synapses("E", "E")
    checkpoint = sim.save(tmp_path / "half")
    sim.run(150.0)
    after = sim.synapses("E", "E")
    for later in (middle, after):
        assert np.array_equal(before.source, later.source) and np.array_equal(before.target, later.target)
        assert np.array_equal(before.delay, later.delay) and len(later.weight) == 1500
        assert later.weight.min() >= 0.0 and later.weight.max() <= 60.0
    moved = [np.abs(b.weight - a.weight).mean() for a, b in ((before, middle), (middle, after))]
    assert min(moved) > 0.01, moved
    # A weight is that of its synapse: most of what it was is left.
    assert np.corrcoef(before.weight, middle.weight)[0, 1] > 0.5
    assert np.array_equal(sim.weights("E", "E"), after.weight)
    resumed = net.build("cpu", resume=checkpoint)
    assert np.array_equal(resumed.weights("E", "E"), middle.weight)
    resumed.run(150.0)
    assert np.array_equal(resumed.weights("E", "E"), after.weight)


@pytest.mark.gpu
@pytest.mark.parametrize("delay", ["dendritic", "axonal"])
@pytest.mark.parametrize("rule", RULES)
def test_weights_of_plastic_synapses_on_a_gpu(rule, delay, backend):
    if backend == "cpu":
        pytest.skip("of the CPU they are tested elsewhere")
    # Scaling has no spike that could be early or late, and spikes of the same step are neither.
    placed = {} if rule in ("homeostatic", "coincidence") else {"delay": delay}
    tables = []
    for place in ("cpu", backend):
        sim = learning(rule, **placed).build(place)
        spikes = sim.run(200.0)
        assert len(spikes) > 500
        tables.append((sim.spikes_sha256, *sim.synapses("E", "E")))
    assert tables[0][0] == tables[1][0]
    assert all(np.array_equal(a, b) for a, b in zip(tables[0][1:], tables[1][1:]))


def test_a_rule_of_plasticity_is_refused_by_its_field():
    with pytest.raises(chronaxie.ConfigError, match='modulator names "DB", which is no population; did you mean "DA"'):
        learning("modulated_stdp", modulator="DB").build("cpu")
    with pytest.raises(chronaxie.ConfigError, match="unknown key .*tau_minos"):
        learning("stdp", tau_minos=3.0).build("cpu")


def test_gpus_share_a_network(backend):
    net = balanced()
    for given, says in [
        ({"backend": "cpu", "gpus": 2}, "2 GPUs are cuda:0 and those after it, and the backend is cpu"),
        ({"backend": "cpu", "method": "kmeans"}, "kmeans says how GPUs share a network, and this runs on cpu"),
        ({"gpus": 0}, "gpus = 0 is not at least 1"),
    ]:
        with pytest.raises(chronaxie.ConfigError, match=says):
            net.build(**given)
    if backend == "cpu":
        return
    want = net.build("cpu").run(100.0)
    for gpus in range(1, min(len(chronaxie.devices()["cuda"]), 2) + 1):
        assert same(spiking.simulate(net, 100.0, gpus=gpus, method="index"), want)


def test_networks_side_by_side_are_each_its_own(tmp_path, backend):
    net = balanced(arrays=True)
    with pytest.raises(chronaxie.ConfigError, match="0 networks cannot run side by side"):
        net.build(backend, seeds=[])
    with pytest.raises(chronaxie.ConfigError, match="replicas 0 and 1 are both seed-5"):
        net.build(backend, seeds=[5, 5])
    with pytest.raises(chronaxie.ConfigError, match="is not a list of values"):
        net.build(backend, grid={"drive.0.rate": 8.0})
    sim = net.build(backend, seeds=[5, 6], grid={"drive.0.rate": np.array([8.0, 8.5])})
    assert [r.set["simulation.seed"] for r in sim.replicas] == [5, 5, 6, 6]
    assert [p.name for p in sim.populations][:4] == ["E#0", "I#0", "E#1", "I#1"]
    first = sim.run(120.0)
    saved = sim.save(tmp_path / "state")
    spikes = sim.run(80.0)
    for k, replica in enumerate(sim.replicas):
        lone = balanced(replica.set["simulation.seed"], arrays=True)
        lone._set = [f"drive.0.rate={replica.set['drive.0.rate']}"]
        own = lone.build(backend)
        assert same(own.run(120.0), first.replica(k))
        want = own.run(80.0)
        assert same(want, spikes.replica(k)) and len(want) > 1000
        assert want.names == spikes.replica(k).names and want.rates() == spikes.replica(k).rates()
        for name, column in own.state("E").items():
            assert np.array_equal(column, sim.state(f"E#{k}")[name], equal_nan=True)
    with pytest.raises(chronaxie.ConfigError, match="replica 4: there are 4"):
        spikes.replica(4)
    again = net.build(backend, seeds=[5, 6], grid={"drive.0.rate": [8.0, 8.5]}, resume=saved)
    assert same(again.run(80.0), spikes)
    with pytest.raises(chronaxie.CheckpointError, match="another network"):
        net.build(backend, seeds=[5, 7], grid={"drive.0.rate": [8.0, 8.5]}, resume=saved)
    grid = [{"simulation.seed": 5}, {"simulation.seed": 6}]
    both = spiking.simulate(net, 50.0, backend=backend, grid=grid)
    assert same(both.replica(0), spiking.simulate(net, 50.0, backend=backend))


def test_columns_of_edges_that_nothing_reads_are_refused_and_a_variable_needs_no_list():
    net = spiking.Network()
    net.population("E", "adex", 3)
    with pytest.raises(chronaxie.ConfigError, match="edges have delays, but only source, target, weight and delay are known"):
        net.projection("E", "E", edges={"source": [0], "target": [1], "weight": 1.0, "delay": 1.0, "delays": [2.0]})
    net.record("E", "I_ex", cells=[0])
    assert net._described["record"][0]["variables"] == ["I_ex"]


def test_what_is_no_number_is_a_sentence():
    net = spiking.Network(dt=0.1)
    net.population("E", "lif_exp", 8)
    net.population("P", "poisson", 3)
    net.drive("E", "poisson", rate=8.0, weight=60.0)
    sim = net.build("cpu")
    for says, call in {
        "run: duration = '10ms' is of type str; a number of milliseconds is needed": lambda: sim.run("10ms"),
        r"run: duration is of type list with the shape \(1,\); a number of milliseconds": lambda: sim.run([10.0]),
        "run: steps = 2.5 is of type float; a whole number is needed": lambda: sim.run(steps=2.5),
        r"the rate of the drive of E is of type ndarray with the shape \(8,\); one number": lambda: sim.set_rate("E", np.ones(8)),
        "the rate of the drive of E = '8Hz' is of type str; one number of arrivals": lambda: sim.set_rate("E", "8Hz"),
        "P: rate = 'a' is of type str; one number or an array of 3 is needed": lambda: sim.set_rate("P", "a"),
        "P: rate is of type list and holds no numbers": lambda: sim.set_rate("P", ["a"] * 3),
        "population = None is of type NoneType": lambda: sim.set_rate(None, 3.0),
        "set_drive: drive = -1: there are 1": lambda: sim.set_drive(-1, 3.0),
        "E.V is of type NoneType and holds no numbers": lambda: sim.set_state("E", V=None),
        r"E.V of cell 0 is 1e\+300, which is beyond the range of single precision": lambda: sim.set_state("E", V=1e300),
        "network: seeds = 5 is not a list of whole numbers": lambda: net.build(seeds=5),
        "gpus = 'a' is of type str": lambda: net.build(gpus="a"),
        "backend = 3 is not one of auto, cpu, cuda": lambda: net.build(3),
        "network: Q.initial is of type int; values by their names": lambda: net.population("Q", "lif_exp", 2, initial=3),
        "network: E -> E.plasticity is of type str": lambda: net.projection("E", "E", weight=1.0, plasticity="stdp"),
    }.items():
        with pytest.raises(chronaxie.ConfigError, match=says):
            call()
    sim.set_rate("P", np.ones(3))
    assert sim.run(np.float32(10)).stop == 10.0


@pytest.mark.parametrize("value", [1e300, np.array([0.0, -1e39]), spiking.uniform(0.0, 1e300)], ids=["number", "array", "drawn"])
def test_what_single_precision_cannot_hold_is_refused(value):
    net = spiking.Network()
    net.population("E", "lif_exp", 2, initial={"V": value})
    with pytest.raises(chronaxie.ConfigError, match="which is beyond the range of single precision, -3.4.*e38 to 3.4.*e38"):
        net.build("cpu")


def test_without_intervals_there_is_no_mean_of_them():
    net = spiking.Network()
    net.population("E", "lif_exp", 2)
    measures = spiking.metrics.analyze(net.build("cpu").run(10.0), backend="cpu")["populations"]["E"]
    assert measures["interval_ms"] is None and measures["interval_median_ms"] is None
