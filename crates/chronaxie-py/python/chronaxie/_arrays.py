"""Passes on arrays of any library that speaks DLPack: NumPy, JAX, CuPy, PyTorch."""

from __future__ import annotations

from typing import Any, Mapping

from . import _native
from ._errors import ConfigError, DeviceError, DtypeError, ShapeError

# DLPack's kind of a CUDA device, and what it calls the legacy default stream, on which the work runs.
_CUDA, _LEGACY = 2, 1


def _connectivity(masks: Any) -> Any:
    sides = [[[int(v != 0) for v in row] for row in m.tolist()] for m in masks]
    if len(sides) != 2 or any(len(row) != len(sides[0]) for side in sides for row in side):
        raise ShapeError("masks are a pair of 0/1 arrays, [H, H] between neurons and [D, H] from inputs")
    recurrent, sensory = (bytes(v for row in side for v in row) for side in sides)
    return _native.prepare(recurrent, sensory, len(sides[1]), len(sides[0]))


def forward(entry: str, case: str, inputs: Mapping[str, Any], *, masks: Any = None) -> dict[str, _native.Array]:
    """The forward pass of an entry, without gradients, on arrays that ``__dlpack__`` hands over without a copy.

    Args:
        entry: one of :func:`families`.
        case: sizes and options as :func:`check` takes them, such as ``"B2_T3_D4_H5,unfolds=6"``. Over ``masks`` it has no
            D and H: ``"B2_T3,unfolds=6"``.
        inputs: an array for each tensor that the pass reads, by the names of its signature, all on one device; there the
            pass runs.
        masks: of an LTC, which synapses there are: 0/1 arrays ``[H, H]`` between neurons and ``[D, H]`` from inputs.

    Returns:
        Outputs and final states, by name. Each has ``__dlpack__``: ``numpy.from_dlpack(out["out"])`` makes an array of it
        without a copy.

    Raises:
        ShapeError, DtypeError, DeviceError, ConfigError: a sentence with the values.
    """
    prepared = None if masks is None else _connectivity(masks)
    problem = _native.problem(entry, case, prepared)
    reads, writes = problem.signature("forward")
    held, seen = [], {}
    for name, array in inputs.items():
        on_cuda = array.__dlpack_device__()[0] == _CUDA
        held.append(array.__dlpack__(stream=_LEGACY) if on_cuda else array.__dlpack__())
        seen[name] = _native.inspect(held[-1])
    devices = sorted({s[4] for s in seen.values()})
    if len(devices) > 1:
        raise DeviceError(f"{entry}: the inputs lie on {' and '.join(devices)}, not on one device")
    device = devices[0] if devices else "cpu"
    lists = dict(prepared.lists()) if prepared is not None else {}
    addresses, strides = [], []
    for at, (name, axes, shape, dtype, role, strided) in enumerate(reads):
        if name in lists:
            count = len(lists[name]) // 4
            values = [float(v) for v in memoryview(lists[name]).cast("i")]
            held.append(_native.Array.of(values, "i32", [count], device))
            addresses.append(held[-1].address)
            continue
        if name not in seen:
            raise ConfigError(f"{entry}: {name} {axes} is not among the inputs ({', '.join(seen) or 'none'})")
        address, holds, sizes, steps, _ = seen.pop(name)
        if sizes != shape:
            raise ShapeError(f"{entry}: {name}.shape = {tuple(sizes)} does not match {axes} = {tuple(shape)}")
        if holds != dtype:
            raise DtypeError(f"{entry}: {name} holds {holds}, {dtype} is needed")
        addresses.append(address)
        if strided or all(n > 0 for n in sizes):
            strides.append((at, steps))
    if seen:
        raise ConfigError(f"{entry}: {', '.join(seen)} is no input; there are {', '.join(t[0] for t in reads)}")
    plan = problem.plan(device)
    made = {name: _native.Array(dtype, shape, device) for name, _, shape, dtype, _, _ in writes}
    scratch = _native.Array("u8", [plan.scratch_bytes("forward")], device)
    plan.run("forward", addresses + [a.address for a in made.values()], strides, scratch.address, 0)
    for array in (*made.values(), scratch):
        # On a GPU: what is held here must outlive the work.
        array.__dlpack__()
    return {name: made[name] for name, _, _, _, role, _ in writes if role != "saved"}
