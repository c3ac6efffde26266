"""Input from a sense as a drive: which cells get what, and when."""

import numpy as np
import pytest

import chronaxie
from chronaxie import spiking


def test_frames_reach_the_cells_at_their_places():
    net = spiking.Network(dt=0.5, seed=1)
    net.population("V1", "lif_delta", box={"x": [2, 4], "y": [0, 1], "z": [0, 1], "w": [0, 0]}, parameters={"tau_m": 1e9})
    frames = np.array([[[1.0, 0.0], [0.5, 0.25], [2.0, 0.0]], [[0.0, 4.0], [0.0, 0.0], [1.0, 1.0]]], np.float32)
    net.drive("V1", "frames", frames=frames, axes="xy", origin=[2, 0], layer={"z": 1}, weight=0.5, hold=1.0, start=1.0, repeat=2)
    sim = net.build("cpu")
    v = [sim.state("V1")["V"].copy()]
    for _ in range(11):
        sim.run(steps=1)
        v.append(sim.state("V1")["V"].copy())
    places = sim.populations[0].positions
    # Shown in steps 2 to 9, two each; felt a step later.
    for step, jumps in enumerate(np.diff(v, axis=0)):
        shown = frames[(step - 3) // 2 % 2] if 3 <= step < 11 else np.zeros((3, 2))
        want = [0.5 * shown[int(x) - 2, int(y)] if z == 1 else 0.0 for x, y, z, _ in places]
        assert np.allclose(jumps, want, atol=1e-4), (step, jumps, want)
    assert [p.name for p in sim.populations] == ["V1", "V1 frames"]
    for bad, says in (({"hold": 0.1}, "hold is 0.1 ms, which is less than the step"), ({"axes": "xyz"}, r"of shape \[2, 3, 2\] from")):
        other = spiking.Network(dt=0.5)
        other.population("V1", "lif_delta", box={"x": [9, 9]})
        other.drive("V1", "frames", frames=frames, **{"axes": "xy", "weight": 1.0, "hold": 1.0, **bad})
        with pytest.raises(chronaxie.ConfigError, match=says):
            other.build("cpu")
    with pytest.raises(chronaxie.ShapeError, match="frames are an array of <U1, not of numbers"):
        net.drive("V1", "frames", frames=["a"], weight=1.0, hold=1.0)
