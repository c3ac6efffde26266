"""The original's configuration and its model's names, run by the engines."""

import json
import subprocess
import sys
import warnings

import numpy as np
import pytest

import chronaxie
from chronaxie.spiking import compat

CONFIG = {
    "model_version": 1,
    "dimensions": 4,
    "lattice_shape": [6, 5, 4, 3],
    "neuron_model": {
        "type": "LIF",
        "params_default": {
            "tau_m": 20.0,
            "v_rest": -65.0,
            "v_reset": -70.0,
            "v_threshold": -50.0,
            "refractory_period": 5.0,
        },
    },
    "cell_lifecycle": {
        "enable_death": True,
        "enable_reproduction": True,
        "max_age": 100000,
        "health_decay_per_step": 0.0001,
        "mutation_std_params": 0.05,
        "mutation_std_weights": 0.02,
    },
    "plasticity": {
        "rule": "hebb_like",
        "learning_rate": 0.001,
        "weight_min": -1.0,
        "weight_max": 1.0,
        "weight_decay": 0.00001,
        "homeostatic": {"enabled": True, "target_rate": 5.0, "time_window": 1000, "scaling_rate": 0.01},
        "metaplasticity": {"enabled": True, "bcm_tau": 1000.0, "bcm_target_rate": 5.0},
        "short_term": {"enabled": True, "default_type": "mixed", "facilitation_fraction": 0.3},
    },
    "neuromodulation": {
        "enabled": True,
        "dopamine": {"baseline": 0.5, "decay_rate": 0.1, "learning_rate_modulation": 2.0},
        "serotonin": {"baseline": 0.5, "decay_rate": 0.1, "inhibition_strength": 0.5},
        "norepinephrine": {"baseline": 0.5, "decay_rate": 0.1, "gain_modulation": 2.0},
    },
    "senses": {
        "vision": {"areal": "V1_like", "w_index": 0, "input_size": [6, 5]},
        "digital": {"areal": "Digital_sensor", "w_index": 2, "input_description": "bits", "input_size": [3, 2]},
    },
    "areas": [
        {"name": "V1_like", "sense": "vision", "coord_ranges": {"x": [0, 5], "y": [0, 4], "z": [0, 3], "w": [0, 0]}},
        {"name": "Digital_sensor", "sense": "digital", "coord_ranges": {"x": [0, 2], "y": [0, 1], "z": [1, 3], "w": [2, 2]}},
    ],
}


OFF = {"enabled": False}
STILL = {
    **CONFIG,
    "plasticity": {
        "learning_rate": 0.0,
        "weight_decay": 0.0,
        "homeostatic": OFF,
        "metaplasticity": OFF,
        "short_term": OFF,
    },
    "neuromodulation": OFF,
}


def model(config=STILL, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return compat.BrainModel(config, "cpu", **options)


def law(steps, current, tau=20.0, rest=-65.0, reset=-70.0, threshold=-50.0, refractory=5):
    """The steps in which a cell of the main loop fires, each step exact, under an input for each step."""
    v, last, fired = rest, -1000, []
    decay = np.exp(-1.0 / tau)
    for n in range(steps):
        if n - last < refractory:
            continue
        v = rest + (v - rest) * decay + current[n] * (1.0 - decay)
        if v >= threshold:
            v, last = reset, n
            fired.append(n)
    return fired


def shown(brain, pictures):
    """The spikes of a step for each picture."""
    found = []
    for picture in pictures:
        brain.feed_sense_input("vision", picture)
        found.append(brain.step()["spikes"])
    return found


def test_one_cell_is_the_main_loops():
    m = model()
    n = m.add_neuron(1, 2, 3, 0)
    fast = m.add_neuron(1, 2, 2, 0, params={"tau_m": 5.0, "v_threshold": -60.0})
    rng = np.random.default_rng(3)
    current = rng.uniform(0.0, 60.0, 300)
    fired = {n.id: [], fast.id: []}
    for x in current:
        m.add_input(n.id, float(x))
        m.add_input(fast.id, float(x))
        stats = m.step()
        for i in stats["spikes"]:
            fired[i].append(stats["step"])
    assert fired[n.id] == law(300, current) and len(fired[n.id]) > 5
    assert fired[fast.id] == law(300, current, tau=5.0, threshold=-60.0) and len(fired[fast.id]) > 15
    assert m.current_step == 300 and stats["deaths"] == stats["births"] == 0


def test_inputs_last_for_one_step():
    m = model()
    m.add_neuron(0, 0, 0, 0)
    m.add_input(0, 100.0)
    m.step()
    up = m.potentials()[0]
    assert up == pytest.approx(-65.0 + 100.0 * (1.0 - np.exp(-0.05)), abs=1e-4)
    m.step()
    assert m.potentials()[0] == pytest.approx(-65.0 + (up + 65.0) * np.exp(-0.05), abs=1e-4)


def test_synapses_have_delays_and_signs():
    m = model()
    for x in range(4):
        m.add_neuron(x, 0, 0, 0, neuron_type="inhibitory" if x == 1 else "excitatory")
    jump = 3.0 / (1.0 - np.exp(-0.05))
    m.add_synapse(0, 2, jump, delay=150)
    m.add_synapse(1, 3, jump)
    m.add_synapse(0, 3, jump, delay=2, synapse_type="inhibitory")
    for i in (0, 1):
        m.add_input(i, 1e4)
    assert m.step()["spikes"] == [0, 1]
    seen = []
    for _ in range(151):
        m.step()
        seen.append(m.potentials()[2:].astype(float))
    seen = np.array(seen)
    # The original forgot what took longer than 100 steps.
    assert (seen[:149, 0] == -65.0).all() and seen[149, 0] == pytest.approx(-62.0, abs=2e-3)
    assert seen[0, 1] == pytest.approx(-68.0, abs=2e-3)
    assert seen[1, 1] == pytest.approx(-65.0 - 3.0 * np.exp(-0.05) - 3.0, abs=4e-3)


def test_senses_feed_their_layer():
    m = model()
    m.initialize_neurons(["V1_like"])
    assert len(m.neurons) == 120 and [n.position() for n in list(m.neurons.values())[:2]] == [(0, 0, 0, 0), (1, 0, 0, 0)]
    picture = np.zeros((6, 5))
    picture[4, 2] = 1e4
    m.feed_sense_input("vision", picture)
    (fired,) = m.step()["spikes"]
    assert m.neurons[fired].position() == (4, 2, 0, 0)
    m.feed_sense_input("vision", picture, z_layer=3)
    (fired,) = m.step()["spikes"]
    assert m.neurons[fired].position() == (4, 2, 3, 0)
    with pytest.warns(UserWarning, match=r"has the shape \(7, 2\), the area \(6, 5\)"):
        m.feed_sense_input("vision", np.full((7, 2), 1e4))
    assert len(m.step()["spikes"]) == 12
    with pytest.raises(TypeError, match="numpy array"):
        m.feed_sense_input("vision", [[1.0]])
    with pytest.raises(ValueError, match="'sight' is no sense; there are vision, digital"):
        m.feed_sense_input("sight", picture)
    with pytest.raises(ValueError, match="z_layer = 4"):
        m.feed_sense_input("vision", picture, z_layer=4)


def test_random_synapses_are_bernoulli():
    m = model(seed=5)
    m.initialize_neurons(density=0.9)
    count = len(m.neurons)
    assert 105 < count < 138
    m.initialize_random_synapses(0.2, 0.1, 0.0)
    (pre, post, weight, delay) = (np.concatenate(c) for c in zip(*m._synapses))
    pairs = count * (count - 1)
    assert abs(len(pre) - 0.2 * pairs) < 5 * np.sqrt(0.16 * pairs) and (pre != post).all()
    assert len(np.unique(pre * count + post)) == len(pre) and (weight == 0.1).all() and (delay == 1.0).all()
    assert abs(np.bincount(post, minlength=count).mean() - 0.2 * (count - 1)) < 2.0
    inhibiting = np.mean([n.is_inhibitory() for n in m.neurons.values()])
    assert 0.05 < inhibiting < 0.4


def test_other_models_run_and_mix():
    m = model()
    kinds = [("lif", "excitatory"), ("izhikevich", "regular_spiking"), ("izhikevich", "fast_spiking"), ("hodgkin_huxley", "excitatory")]
    for x, (kind, of) in enumerate(kinds):
        m.add_neuron(x, 0, 0, 0, model_type=kind, neuron_type=of)
    counts = np.zeros(4, int)
    for _ in range(300):
        for i, current in enumerate([20.0, 10.0, 10.0, 10.0]):
            m.add_input(i, current)
        for i in m.step()["spikes"]:
            counts[i] += 1
    # Regular spiking adapts and fast spiking does not; the axon fires at some 68 Hz under 10 uA.
    assert counts[0] >= 7 and 3 <= counts[1] < counts[2] and 17 <= counts[3] <= 23, counts


def test_a_saved_model_goes_on_to_the_bit(tmp_path):
    m = model(seed=2)
    m.initialize_neurons()
    m.initialize_random_synapses(0.2, 150.0, 20.0)
    rng = np.random.default_rng(0)
    pictures = rng.uniform(0.0, 120.0, (60, 6, 5))

    shown(m, pictures[:25])
    m.add_input(3, 77.0)
    m.save(tmp_path / "brain")
    again = compat.BrainModel.load(tmp_path / "brain", "cpu")
    assert again.current_step == 25 and again.neurons == m.neurons
    rest = shown(m, pictures[25:])
    assert shown(again, pictures[25:]) == rest and sum(map(len, rest)) > 200
    assert np.array_equal(again.potentials(), m.potentials())
    content = (tmp_path / "brain").read_bytes()
    for cut in (0, 10, len(content) // 2, len(content) - 1):
        (tmp_path / "cut").write_bytes(content[:cut])
        with pytest.raises(chronaxie.CheckpointError):
            compat.BrainModel.load(tmp_path / "cut")
    with pytest.raises(chronaxie.CheckpointError, match="cannot read"):
        compat.BrainModel.load(tmp_path / "nothing")


def lively(config, **options):
    """A model whose cells fire often, and its pictures."""
    m = model(config, **options)
    m.initialize_neurons()
    m.initialize_random_synapses(0.2, 20.0, 10.0)
    return m, np.random.default_rng(7).uniform(0.0, 200.0, (400, 6, 5))


def test_weights_are_those_of_the_main_loop():
    bounds = {"weight_min": -60.0, "weight_max": 50.0}
    config = {**STILL, "plasticity": {**STILL["plasticity"], **bounds, "learning_rate": 2.0, "weight_decay": 0.01}}
    m, pictures = lively(config, seed=3)
    pre, post, begun, _ = m.weights()
    want, together = begun.copy(), 0
    sign = np.where(begun < 0.0, -1.0, 1.0)
    assert (sign < 0).sum() > 100 and (sign > 0).sum() > 1000 and begun.max() == pytest.approx(50.0, abs=0.01)
    for n, picture in enumerate(pictures):
        # What a step's end takes is taken at the beginning of the next.
        want = sign * np.maximum(np.abs(want) - (0.01 if n else 0.0), 0.0)
        m.feed_sense_input("vision", picture)
        fired = np.zeros(len(m.neurons), bool)
        fired[m.step()["spikes"]] = True
        together += (fired[pre] & fired[post]).sum()
        # Of a weight's size: an inhibitory synapse that grows inhibits more.
        size = np.abs(want) + np.where(fired[pre], np.where(fired[post], 2.0, -1.0), 0.0)
        want = sign * np.clip(size, 0.0, np.where(sign < 0.0, 60.0, 50.0))
    _, _, weight, delay = m.weights()
    assert together > 1000 and (delay == 1.0).all()
    assert np.abs(weight - want).max() < 1e-3 and np.abs(weight - begun).max() > 10.0


def test_what_changes_is_saved_too(tmp_path):
    bounds = {"weight_min": -60.0, "weight_max": 50.0, "learning_rate": 0.5, "weight_decay": 0.001}
    config = {**CONFIG, "plasticity": {**CONFIG["plasticity"], **bounds}}
    config["plasticity"]["homeostatic"] = {"enabled": True, "time_window": 50}
    m, pictures = lively(config, seed=4)
    begun = m.weights()

    shown(m, pictures[:120])
    m.save(tmp_path / "brain")
    again = compat.BrainModel.load(tmp_path / "brain", "cpu")
    for ours, theirs in zip(m.weights(), again.weights()):
        assert np.array_equal(ours, theirs)
    rest = shown(m, pictures[120:300])
    assert shown(again, pictures[120:300]) == rest and sum(map(len, rest)) > 300
    assert np.array_equal(m.weights()[2], again.weights()[2])
    assert np.abs(m.weights()[2] - begun[2]).mean() > 0.1


def test_neuromodulation_scales_what_arrives():
    def potential(config, **options):
        m = model(config)
        m.add_neuron(0, 0, 0, 0, **options)
        m.add_neuron(1, 0, 0, 0)
        m.add_synapse(0, 1, 1.0)
        m.add_input(0, 1e4)
        assert m.step()["spikes"] == [0]
        m.step()
        return float(m.potentials()[1]) + 65.0

    one = 1.0 - np.exp(-0.05)
    on = {**STILL, "neuromodulation": CONFIG["neuromodulation"]}
    assert potential(STILL) == pytest.approx(one, abs=1e-3)
    assert potential(on) == pytest.approx(2.0 * one, abs=1e-3)
    assert potential(on, neuron_type="inhibitory") == pytest.approx(-2.5 * one, abs=1e-3)


def test_the_command_line_reads_the_configuration(tmp_path):
    path = tmp_path / "brain_base_model.json"
    path.write_text(json.dumps({**CONFIG, "simulation": {"connection_probability": 0.1}}, indent=1))
    argv = [sys.executable, "-m", "chronaxie", "simulate", str(path), "--duration", "300", "--backend", "cpu"]
    ran = subprocess.run([*argv, "--out", "run"], capture_output=True, text=True, cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    report = json.loads(ran.stdout)
    assert report["cells"] == 138 and report["spikes"] > 100 and report["rates_hz"]["V1_like"] > 1.0
    assert "not simulated yet" not in ran.stderr and report["died"] == report["born"] == 0
    assert "metaplasticity: the rule of Bienenstock" in ran.stderr and "levels stay at their baselines" in ran.stderr
    # The spikes have a network, which the analysis finds beside them.
    argv = [sys.executable, "-m", "chronaxie", "analyze", "run", "--json", "-", "--quiet"]
    ran = subprocess.run(argv, capture_output=True, text=True, cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert found["spikes"] == report["spikes"]
    assert found["populations"][0]["network"]["in_degree"]["mean"] == pytest.approx(13.7, abs=1.5)
    assert (tmp_path / "run" / "analysis" / "measures.png").stat().st_size > 1000


@pytest.mark.parametrize(
    "change, says",
    [
        (lambda c: c.pop("areas"), "areas is missing"),
        (lambda c: c["plasticity"].update(learning_rat=1.0), "unknown key plasticity.learning_rat; did you mean learning_rate"),
        (lambda c: c["neuron_model"].update(type="LIFF"), "there are LIF, Izhikevich, Hodgkin-Huxley"),
        (lambda c: c["areas"][0]["coord_ranges"].update(x=[0, 9]), "within 0 and 5"),
        (lambda c: c.update(lattice_shape=[6, 5, 4]), "must have 4 sizes"),
    ],
)
def test_a_wrong_configuration_is_refused_by_its_field(change, says):
    config = json.loads(json.dumps(CONFIG))
    change(config)
    with pytest.raises(chronaxie.ConfigError, match=says):
        compat.BrainModel(config)


def test_wrong_neurons_and_synapses_are_refused():
    m = model()
    with pytest.raises(ValueError, match="x = 6 is no coordinate of the lattice, which has 6"):
        m.add_neuron(6, 0, 0, 0)
    with pytest.raises(ValueError, match="model_type = 'lief' is not one of lif"):
        m.add_neuron(0, 0, 0, 0, model_type="lief")
    m.add_neuron(0, 0, 0, 0)
    with pytest.raises(ValueError, match="post = 1 is no neuron; there are 1"):
        m.add_synapse(0, 1)
    with pytest.raises(ValueError, match="delays finite and above 0"):
        m.add_synapse(0, 0, 1.0, 0)
    with pytest.raises(ValueError, match="density = 1.5"):
        m.initialize_neurons(density=1.5)
    with pytest.raises(ValueError, match="'V2' is no area; there are V1_like, Digital_sensor"):
        m.initialize_neurons(["V2"])
    m.step()
    with pytest.raises(ValueError, match="until the first step"):
        m.add_neuron(1, 0, 0, 0)
