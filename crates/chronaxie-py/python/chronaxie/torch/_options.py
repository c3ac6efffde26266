"""Options of an LTC layer."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from .. import _native


class Options(NamedTuple):
    """What of a layer does not change from call to call; ``text`` is how the registry spells it."""

    text: str
    outputs: int
    has_input: bool
    has_norm: bool
    has_output: bool
    store: bool
    softplus: bool
    unfolds: int
    dt: float
    epsilon: float
    input_mapping: str
    output_mapping: str

    @property
    def names(self) -> list[str]:
        """The parameters in the order of every signature."""
        names = ["w", "mu", "sigma", "erev", "sensory_w", "sensory_mu", "sensory_sigma", "sensory_erev"]
        names += ["gleak", "vleak", "cm"]
        for mapping, prefix in ((self.input_mapping, "input"), (None, "norm"), (self.output_mapping, "output")):
            if prefix == "norm":
                names += ["norm_weight", "norm_bias"] if self.has_norm else []
            else:
                count = {"affine": 2, "linear": 1, "none": 0}[mapping or "none"]
                names += [f"{prefix}_w", f"{prefix}_b"][:count]
        return names


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
    store: bool = False,
) -> Options:
    """Options under one spelling. Ranges are the library's business, and are checked when a plan is made."""
    text = (
        f",unfolds={int(unfolds)},dt={float(dt)!r},epsilon={float(epsilon)!r},norm={str(bool(norm)).lower()},"
        f"input={input_mapping},output={output_mapping},outputs={int(outputs)},"
        f"identity={str(not implicit_param_constraints).lower()},store={str(bool(store)).lower()},precision={precision}"
    )
    return parse(text)


@lru_cache(maxsize=256)
def parse(text: str) -> Options:
    """The options that ``text`` spells."""
    values = dict(part.split("=", 1) for part in text.split(",")[1:])
    for key in ("input", "output"):
        if values[key] not in ("affine", "linear", "none"):
            # The library's own sentence.
            _native.problem("ltc", f"B1_T1_D1_H1,density=1,{key}={values[key]}")
    return Options(
        text,
        int(values["outputs"]),
        values["input"] != "none",
        values["norm"] == "true",
        values["output"] != "none",
        values["store"] == "true",
        values["identity"] == "false",
        int(values["unfolds"]),
        float(values["dt"]),
        float(values["epsilon"]),
        values["input"],
        values["output"],
    )

