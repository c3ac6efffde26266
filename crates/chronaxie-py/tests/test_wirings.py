"""Wirings against ncps's, bit for bit."""

import copy
import pickle

import pytest

import chronaxie
from chronaxie.torch import wirings

ncps = pytest.importorskip("ncps.wirings")
numpy = pytest.importorskip("numpy")

RULES = [
    ("FullyConnected", (7,), {}),
    ("FullyConnected", (9, 3), {"erev_init_seed": 5, "self_connections": False}),
    ("Random", (12,), {}),
    ("Random", (20, 4), {"sparsity_level": 0.6, "random_seed": 3}),
    ("NCP", (10, 8, 4, 6, 5, 7, 6), {}),
    ("NCP", (5, 4, 2, 1, 1, 0, 1), {"seed": 9}),
    ("AutoNCP", (16, 4), {}),
    ("AutoNCP", (64, 8), {"sparsity_level": 0.8, "seed": 1}),
]


@pytest.mark.parametrize("name, args, options", RULES)
@pytest.mark.parametrize("inputs", [1, 13])
def test_masks_and_polarities_are_those_of_ncps(name, args, options, inputs):
    theirs, ours = getattr(ncps, name)(*args, **options), getattr(wirings, name)(*args, **options)
    if name in ("FullyConnected", "Random"):
        assert numpy.array_equal(ours.adjacency_matrix, theirs.adjacency_matrix)
    theirs.build(inputs)
    ours.build(inputs)
    for matrix in ("adjacency_matrix", "sensory_adjacency_matrix"):
        a, b = getattr(ours, matrix), getattr(theirs, matrix)
        assert a.dtype == b.dtype and numpy.array_equal(a, b)
    for matrix in ("erev_initializer", "sensory_erev_initializer"):
        assert numpy.array_equal(getattr(ours, matrix)(), getattr(theirs, matrix)())
    for what in ("units", "input_dim", "output_dim", "num_layers", "synapse_count", "sensory_synapse_count"):
        assert getattr(ours, what) == getattr(theirs, what), what
    for j in range(ours.units):
        assert ours.get_type_of_neuron(j) == theirs.get_type_of_neuron(j)
    for layer in range(ours.num_layers):
        assert ours.get_neurons_of_layer(layer) == list(theirs.get_neurons_of_layer(layer))


@pytest.mark.parametrize("name, args, options", [*RULES, ("Bernoulli", (9,), {"density": 0.3, "seed": 4})])
def test_configs_copies_and_pickles_make_the_same(name, args, options):
    first = getattr(wirings, name)(*args, **options)
    first.build(6)
    config = first.get_config()
    assert all(v is None or isinstance(v, (int, float, bool)) for v in config.values())
    again = type(first).from_config(config)
    again.build(6)
    matrices = wirings.Wiring.from_config(wirings.Wiring.get_config(first))
    for other in (again, matrices, copy.deepcopy(first), pickle.loads(pickle.dumps(first))):
        assert bool((other.adjacency == first.adjacency).all())
        assert bool((other.sensory_adjacency == first.sensory_adjacency).all())
        assert (other.units, other.output_dim) == (first.units, first.output_dim)
    assert type(first).__name__ in repr(first)


def test_a_wiring_by_hand():
    w = wirings.Wiring(3)
    w.set_output_dim(1)
    with pytest.raises(chronaxie.ConfigError, match="once build"):
        w.add_sensory_synapse(0, 0, 1)
    w.build(2)
    w.add_synapse(0, 2, -1)
    w.add_sensory_synapse(1, 0, 1)
    assert w.adjacency_matrix.tolist() == [[0, 0, -1], [0, 0, 0], [0, 0, 0]]
    assert (w.synapse_count, w.sensory_synapse_count) == (1, 1)
    assert [w.get_type_of_neuron(j) for j in range(3)] == ["motor", "inter", "inter"]
    for args, message in [
        ((3, 0, 1), r"the source 3 of a synapse is not in 0 \.\. 3"),
        ((0, -1, 1), "the target -1 of a synapse"),
        ((0, 0, 2), "a polarity of 2 is not one of -1, 1"),
    ]:
        with pytest.raises(chronaxie.ConfigError, match=message):
            w.add_synapse(*args)
    with pytest.raises(chronaxie.ConfigError, match="built for 2 inputs and is used with 5"):
        w.build(5)


def test_graphs():
    pytest.importorskip("networkx")
    theirs, ours = ncps.NCP(5, 4, 2, 3, 2, 3, 2), wirings.NCP(5, 4, 2, 3, 2, 3, 2)
    theirs.build(3)
    ours.build(3)
    a, b = ours.get_graph(), theirs.get_graph()
    assert set(a.nodes) == set(b.nodes) and set(a.edges) == set(b.edges)
    assert all(a.edges[e]["polarity"] == b.edges[e]["polarity"] for e in b.edges)


def test_bad_rules_are_refused():
    with pytest.raises(chronaxie.ConfigError, match="output_size = 7 must be less than units - 2, where units = 8"):
        wirings.AutoNCP(8, 7)
    with pytest.raises(chronaxie.ConfigError, match="sparsity_level = 1.5"):
        wirings.Random(8, sparsity_level=1.5)
    with pytest.raises(chronaxie.ConfigError, match="output_dim = 9 is more than units = 8"):
        wirings.FullyConnected(8, 9)
    with pytest.raises(chronaxie.ConfigError, match="motor_fanin = 9 is more than the 4 command neurons"):
        wirings.NCP(5, 4, 2, 1, 1, 1, 9)
