"""Cells that die and are born: from Python, from a checkpoint, on the command line, and as the original's model has them."""

import json
import subprocess
import sys

import numpy as np
import pytest

import chronaxie
from chronaxie import spiking
from chronaxie.spiking import compat
from test_brain_model import CONFIG, STILL


def mortal(**life):
    net = spiking.Network(dt=0.1, seed=6)
    net.population("E", "lif_exp", 160, parameters={"I_e": 420.0}, initial={"V": spiking.uniform(-65.0, -50.0)})
    net.population("I", "lif_exp", 40, parameters={"I_e": 400.0})
    net.population("P", "poisson", 20, parameters={"rate": 30.0})
    net.projection("E", ["E", "I"], "fixed_indegree", indegree=20, weight=spiking.normal(40.0, 4.0, low=0.0), delay=1.5)
    net.projection("P", "E", "fixed_indegree", indegree=4, weight=50.0, delay=1.0, plasticity={"rule": "stdp", "w_max": 100.0})
    net.projection("I", ["E", "I"], "fixed_indegree", indegree=8, weight=-150.0, delay=spiking.uniform(0.5, 1.0))
    given = {"max_age": 80.0, "initial_age": spiking.uniform(0.0, 80.0), "mutation_std_params": 0.02, "interval": 8.0}
    net.lifecycle(**{"mutation_std_weights": 4.0, **given, **life})
    return net


def same(a, b):
    return np.array_equal(a.step, b.step) and np.array_equal(a.neuron, b.neuron)


def test_cells_die_and_are_born_and_a_saved_simulation_goes_on(tmp_path, backend):
    sim = mortal().build(backend)
    begun = sim.synapses("I", "E")
    assert not sim.generations("E").any() and sim.ages("E").max() > 40.0 and sim.deaths_and_births == (0, 0)
    first = sim.run(100.0)
    saved = sim.save(tmp_path / "state")
    last = sim.run(100.0)
    generations, ages = sim.generations("E"), sim.ages("E")
    assert generations.min() >= 2 and ages.max() <= 88.0 and (sim.generations("P") == 0).all() and sim.alive("I").all()
    died, born = sim.deaths_and_births
    assert died == born == generations.sum() + sim.generations("I").sum() > 300
    assert len(first) + len(last) > 1000
    now = sim.synapses("I", "E")
    assert np.array_equal(begun.source, now.source) and (begun.weight != now.weight).mean() > 0.9 and (now.weight <= 0.0).all()
    again = mortal().build("cpu", resume=saved)
    assert same(again.run(100.0), last) and again.spikes_sha256 == sim.spikes_sha256
    assert np.array_equal(again.generations("E"), generations) and np.array_equal(again.ages("E"), ages)
    for source, target in (("I", "E"), ("P", "E"), ("E", "I")):
        assert np.array_equal(again.weights(source, target), sim.weights(source, target))
    assert np.array_equal(again.state("E")["V"], sim.state("E")["V"])
    # Back to where it was, and other inputs, which children have too.
    again.restore(saved)
    again.set_current("E", 0.0)
    again.set_current("E", 420.0)
    assert same(again.run(100.0), last)


def test_cells_without_children_leave_their_places_empty():
    sim = mortal(reproduction=False, populations="E").build("cpu")
    spikes = sim.run(160.0)
    assert not sim.alive("E").any() and sim.alive("I").all() and np.isnan(sim.state("E")["V"]).all()
    assert sim.deaths_and_births == (160, 0)
    time, neuron = spikes.of("E")
    assert len(time) > 100 and time.max() < 88.1
    assert (sim.ages("E") <= 88.0).all() and not np.isnan(sim.state("I")["V"]).any()


@pytest.mark.parametrize(
    "life, says",
    [
        ({"max_age": None}, "lifecycle.max_age is missing and health_decay is 0"),
        ({"mutation_std_params": -1.0}, "mutation_std_params is -1"),
        ({"mutating_params": ["tau"]}, 'names "tau", which no model of the cells has'),
        ({"populations": "P"}, "names P, whose cells are sources"),
        ({"interval": 0.0}, "lifecycle.interval is 0 ms, which must be from one step of 0.1 ms"),
        ({"initial_age": spiking.normal(1.0, 3.0)}, "no cell is younger than 0 ms"),
    ],
)
def test_what_is_wrong_is_said_by_its_field(life, says):
    with pytest.raises(chronaxie.ConfigError, match=says.replace("(", r"\(")):
        mortal(**life).build("cpu")


def test_parts_and_replicas_are_refused(tmp_path):
    with pytest.raises(chronaxie.ConfigError, match="replica 0 has a life cycle"):
        mortal().build("cpu", seeds=[1, 2])
    with pytest.raises(chronaxie.ConfigError, match="lifecycle: a part of a network does not let cells die"):
        spiking.Part(mortal(), 0, 2)
    (tmp_path / "net.json").write_text(mortal().to_json())
    argv = [sys.executable, "-m", "chronaxie", "simulate", "net.json", "--backend", "cpu", "--quiet", "--duration", "120"]
    ran = subprocess.run([*argv, "--parts", "2"], capture_output=True, text=True, cwd=tmp_path)
    assert ran.returncode != 0 and "a network in parts does not let cells die" in ran.stderr
    ran = subprocess.run([*argv, "--out", "run"], capture_output=True, text=True, cwd=tmp_path)
    report = json.loads(ran.stdout)
    sim = mortal().build("cpu")
    sim.run(120.0)
    assert report["spikes_sha256"] == sim.spikes_sha256 and (report["died"], report["born"]) == sim.deaths_and_births


def brain(config, **options):
    model = compat.BrainModel(config, "cpu", **options)
    model.initialize_neurons()
    model.initialize_random_synapses(0.1)
    return model


def moved(model, steps):
    found = []
    for n in range(steps):
        model.feed_sense_input("vision", np.full((6, 5), 40.0 + n % 3))
        found.append(model.step())
    return found


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("config", [CONFIG, STILL])
def test_the_original_model_dies_and_is_born_step_by_step(tmp_path, config):
    life = {**CONFIG["cell_lifecycle"], "max_age": 60, "health_decay_per_step": 0.001}
    config = {**config, "cell_lifecycle": life}
    model = brain(config, seed=3, initial_age=spiking.uniform(0.0, 60.0))
    stats = moved(model, 90)
    model.save(tmp_path / "model")
    rest = moved(model, 60)
    assert sum(s["deaths"] for s in stats) == sum(s["births"] for s in stats) > 100
    assert sum(bool(s["deaths"]) for s in stats) > 40 and sum(len(s["spikes"]) for s in stats) > 100
    assert model.generations().min() >= 2 and 0 <= model.ages().min() and model.ages().max() <= 61 and model.alive().all()
    assert np.allclose(model.health(), 1.0 - 0.001 * model.ages())
    again = compat.BrainModel.load(tmp_path / "model")
    assert moved(again, 60) == rest
    assert all(np.array_equal(a, b) for a, b in zip(again.weights(), model.weights()))
    assert np.array_equal(again.generations(), model.generations())


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_original_cells_of_one_age_die_in_one_step():
    life = {**CONFIG["cell_lifecycle"], "health_decay_per_step": 0.05, "enable_reproduction": False}
    model = brain({**STILL, "cell_lifecycle": life})
    stats = [model.step() for _ in range(20)]
    # 1 - 18 * 0.05 is below a tenth, as doubles are subtracted.
    assert [s["step"] for s in stats if s["deaths"]] == [17] and stats[17]["deaths"] == len(model.neurons)
    assert not model.alive().any() and np.isnan(model.potentials()).all()
    model.add_input(0, 1000.0)
    assert model.step()["spikes"] == []


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_weights_of_children_have_the_deviation_of_the_file():
    life = {**CONFIG["cell_lifecycle"], "max_age": 1, "mutation_std_params": 0.0, "mutation_std_weights": 0.1}
    model = compat.BrainModel({**STILL, "cell_lifecycle": life}, "cpu", seed=1)
    model.add_neuron(0, 0, 0, 0)
    model.add_neuron(1, 0, 0, 0)
    model.add_synapses(np.zeros(4000, int), np.ones(4000, int), np.full(4000, 0.8), 1.0)
    before = model.weights()[2]
    model.step()
    model.step()
    # Both its ends have died once.
    change = model.weights()[2] - before
    assert (model.generations() == 1).all()
    assert change.mean() == pytest.approx(0.0, abs=5 * 0.1 * np.sqrt(2 / 4000))
    assert change.std() == pytest.approx(0.1 * np.sqrt(2), abs=5 * 0.1 * np.sqrt(1 / 4000))
