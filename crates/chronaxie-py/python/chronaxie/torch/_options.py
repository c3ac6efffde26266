"""Options of an LTC layer."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

from .._errors import ConfigError
from ._checks import number, sizes, whole

_WEIGHTS = {"affine": ("w", "b"), "linear": ("w",), "none": ()}
PRECISIONS = ("exact", "fast")
# What the forward pass keeps for the backward pass; where it is not said the library decides by sizes.
_SAVES = {"auto": "", "recompute": ",store=false", "store": ",store=true", "words": ",store=words"}


class Options(NamedTuple):
    """What of a layer does not change from call to call; ``text`` is how the registry spells it."""

    text: str
    # The parameters in the order of the signature.
    names: list[str]
    outputs: int
    has_norm: bool
    softplus: bool
    unfolds: int
    dt: float
    epsilon: float


@lru_cache(maxsize=256)
def options(
    outputs: int,
    *,
    unfolds: int = 6,
    dt: float = 1.0,
    epsilon: float = 1e-8,
    input_mapping: str = "affine",
    norm: bool = False,
    output_mapping: str = "none",
    implicit_param_constraints: bool = True,
    precision: str = "exact",
    save: str = "auto",
) -> Options:
    """Options under one spelling. Ranges are the library's business: modules ask for them when they are made, and plans are."""
    if whole(unfolds) is None or unfolds < 0:
        sizes("ltc", unfolds=unfolds)
    for name, n in (("dt", dt), ("epsilon", epsilon)):
        if math.isnan(number(n)):
            raise ConfigError(f"ltc: {name} = {n!r} is not a number")
    if precision not in PRECISIONS:
        raise ConfigError(f"ltc: precision `{precision}` is not one of {', '.join(PRECISIONS)}")
    if save not in _SAVES:
        raise ConfigError(f"ltc: save `{save}` is not one of {', '.join(_SAVES)}")
    for mapping in (input_mapping, output_mapping):
        if mapping not in _WEIGHTS:
            raise ConfigError(f"ltc: mapping `{mapping}` is not one of {', '.join(_WEIGHTS)}")
    text = (
        f",unfolds={int(unfolds)},dt={float(dt)!r},epsilon={float(epsilon)!r},norm={str(bool(norm)).lower()},"
        f"input={input_mapping},output={output_mapping},outputs={int(outputs)},"
        f"identity={str(not implicit_param_constraints).lower()}{_SAVES[save]},precision={precision}"
    )
    synapses = ("w", "mu", "sigma", "erev")
    names = [*synapses, *(f"sensory_{name}" for name in synapses), "gleak", "vleak", "cm"]
    names += [f"input_{w}" for w in _WEIGHTS[input_mapping]]
    names += ["norm_weight", "norm_bias"] if norm else []
    names += [f"output_{w}" for w in _WEIGHTS[output_mapping]]
    return Options(
        text, names, int(outputs), bool(norm), implicit_param_constraints, int(unfolds), float(dt), float(epsilon)
    )
