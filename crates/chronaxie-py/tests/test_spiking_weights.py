"""Weights of 32 bits, from code."""

import json

import numpy as np
import pytest

import chronaxie
from chronaxie import spiking


def same(a, b):
    return np.array_equal(a.step, b.step) and np.array_equal(a.neuron, b.neuron)


def test_weights_of_32_bits_are_single_precisions_own(tmp_path, backend):
    def heavy(weight_bits=None, synapses=None):
        net = spiking.Network(dt=0.1, seed=4)
        net.population("E", "lif_exp", 400, parameters={"I_e": spiking.normal(500.0, 20.0)})
        weight, delay = spiking.lognormal(-1.0, 2.5), spiking.uniform(0.1, 5.0)
        options = {"weight_bits": weight_bits, "synapses": synapses}
        net.projection("E", "E", "fixed_outdegree", outdegree=50, weight=weight, delay=delay, **options)
        return net

    with pytest.raises(chronaxie.ConfigError, match="are wrong by up to .* or say weight_bits = 32"):
        heavy().build(backend)
    with pytest.raises(chronaxie.ConfigError, match="weight_bits is 8, but weights have 16 or 32 bits"):
        heavy(8).build(backend)
    sim = heavy(32).build(backend)
    weights = np.sort(sim.weights("E", "E"))
    assert len(weights) == sim.synapse_count == 20_000 and weights.min() >= 0.0 and len(np.unique(weights)) > 3000
    # e^(-1 + 2.5 z), z at the quantiles of a normal distribution.
    for share, z in [(0.5, 0.0), (0.8413447, 1.0), (0.9772499, 2.0)]:
        assert abs(np.log(weights[int(share * 20_000)]) + 1.0 - 2.5 * z) < 0.15
    whole = sim.run(200.0)
    assert len(whole) > 1000
    assert same(heavy(32, "procedural").build(backend).run(200.0), whole)
    parts = heavy(32).build(backend)
    first = parts.run(77.7)
    rest = heavy(32).build("cpu", resume=parts.save(tmp_path / "half")).run(122.3)
    assert np.array_equal(np.concatenate([first.step, rest.step]), whole.step)
    assert np.array_equal(np.concatenate([first.neuron, rest.neuron]), whole.neuron)
    # A list's weights are its own, beside each other's.
    net = spiking.Network(dt=0.1, seed=4)
    net.population("A", "lif_exp", 30)
    given = np.geomspace(0.5, 20_000.0, 30).astype(np.float32)
    edges = {"source": np.arange(30), "target": np.arange(30)[::-1], "weight": given, "delay": 1.0}
    net.projection("A", "A", edges=edges, weight_bits=32)
    got = net.build(backend).weights("A", "A")
    # 20,000 is less than 2^15 and the only input, so that there are 16 bits behind the point.
    assert np.array_equal(got[given >= 256.0], given[given >= 256.0]) and np.abs(got - given).max() <= 2.0**-17
    assert json.loads(heavy(32).to_json())["projection"][0]["weight_bits"] == 32
