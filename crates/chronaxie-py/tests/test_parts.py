"""Parts of a network: together they have the bits of the whole."""

import numpy as np
import pytest

import chronaxie
from chronaxie import spiking


def network(plasticity=True, seed=4):
    net = spiking.Network(dt=0.1, seed=seed)
    net.population("E", "lif_exp", 160, initial={"V": spiking.uniform(-65.0, -50.0)})
    net.population("I", "lif_exp", 40)
    change = {"plasticity": {"rule": "stdp", "w_max": 120.0}} if plasticity else {}
    net.projection("E", "E", "fixed_indegree", indegree=20, weight=60.0, delay=spiking.uniform(0.8, 2.0), **change)
    net.projection("E", "I", "fixed_indegree", indegree=20, weight=60.0, delay=1.0)
    net.projection("I", ["E", "I"], "fixed_indegree", indegree=8, weight=-300.0, delay=0.8)
    net.drive(["E", "I"], "poisson", rate=16.0, sources=900, weight=60.0)
    return net


def carry(parts, steps):
    fired, at = [], parts[0].step
    while at < steps:
        some = min(min(part.min_delay for part in parts), steps - at)
        own = [part.advance(some) for part in parts]
        for i, part in enumerate(parts):
            others = [o for k, o in enumerate(own) if k != i]
            part.hear(*(np.concatenate([o[c] for o in others]) for c in range(2)))
        fired += own
        at += some
    step, cell = (np.concatenate([o[c] for o in fired]) for c in range(2))
    order = np.lexsort((cell, step))
    return step[order], cell[order]


@pytest.mark.parametrize("count", [2, 3])
def test_parts_have_the_spikes_of_the_whole_and_go_on_from_their_states(count, device):
    whole = network().build("cpu").run(steps=900)
    parts = [spiking.Part(network(), i, count, method="index", backend=str(device)) for i in range(count)]
    assert all(p.backend == str(device) for p in parts)
    assert sorted(np.concatenate([p.cells for p in parts])) == list(range(200))
    assert sum(p.synapse_count for p in parts) == network().build("cpu").synapse_count
    first = carry(parts, 250)
    states = [p.state() for p in parts]
    # One of them goes on elsewhere than the others do.
    on = [str(device)] * (count - 1) + ["cpu"]
    parts = [spiking.Part(network(), i, count, method="index", backend=on[i]) for i in range(count)]
    for part, state in zip(parts, states):
        part.restore(state)
    last = carry(parts, 900)
    assert len(whole) > 500
    assert np.array_equal(np.concatenate([first[0], last[0]]), whole.step)
    assert np.array_equal(np.concatenate([first[1], last[1]]), whole.neuron)


def test_a_part_knows_the_populations_of_the_whole():
    net = network()
    net.population("S", "lif_exp", box={"x": [0, 1], "y": [0, 1], "z": [0, 0], "w": [0, 1]})
    whole = net.build("cpu").populations
    for index in range(2):
        part = spiking.Part(net, index, 2, method="index")
        assert [p[:6] for p in part.populations] == [p[:6] for p in whole]
        assert [(p.name, p.first, p.size) for p in part.populations] == [("E", 0, 160), ("I", 160, 40), ("S", 200, 8)]
        assert part.populations[0].positions is None
        assert np.array_equal(part.populations[2].positions, whole[2].positions) and whole[2].positions.shape == (8, 4)
        # A cell's population is the last that does not begin after it.
        of = np.searchsorted([p.first for p in part.populations], part.cells, side="right") - 1
        assert np.bincount(of).tolist() == [80, 20, 4]


def test_what_a_part_cannot_do_is_a_sentence():
    part = spiking.Part(network(), 0, 2, method="index")
    assert part.min_delay == 8 and part.method == "index" and "0 of 2" in repr(part)
    with pytest.raises(chronaxie.ChronaxieError, match="at most 8 at a time"):
        part.advance(9)
    with pytest.raises(chronaxie.ChronaxieError, match="everything was heard"):
        part.hear(np.zeros(0), np.zeros(0))
    part.advance(3)
    with pytest.raises(chronaxie.ChronaxieError, match="not heard yet"):
        part.state()
    with pytest.raises(chronaxie.ShapeError, match="do not match"):
        part.hear(np.zeros(2), np.zeros(3))
    with pytest.raises(chronaxie.ChronaxieError, match="cannot have fired in step 3"):
        part.hear(np.array([3]), np.array([0]))
    part.hear(np.array([2]), np.array([150]))
    state = part.state()
    with pytest.raises(chronaxie.CheckpointError, match="another part or network"):
        spiking.Part(network(), 1, 2, method="index").restore(state)
    with pytest.raises(chronaxie.CheckpointError, match="another part or network"):
        spiking.Part(network(seed=5), 0, 2, method="index").restore(state)
    with pytest.raises(chronaxie.CheckpointError, match="cut off"):
        part.restore(state[:-1])
    assert part.offer().endswith(b"it runs on the CPU")
    with pytest.raises(chronaxie.BackendUnavailableError, match="has no GPU to be joined"):
        part.connect([part.offer()] * 2, 8)
    with pytest.raises(chronaxie.ChronaxieError, match="hears nobody"):
        part.advance_together(3)
    with pytest.raises(chronaxie.ConfigError, match="2 GPUs cannot share a part whose backend is cpu"):
        spiking.Part(network(), 0, 2, method="index", gpus=2)
    for arguments in [(2, 2), (0, 0)]:
        with pytest.raises(chronaxie.ConfigError):
            spiking.Part(network(), *arguments)
    with pytest.raises(chronaxie.ConfigError, match="there are auto, index"):
        spiking.Part(network(), 0, 2, method="hash")
