"""What the modules of the LTC family share: parameters by their order in a signature, masks with their prepared synapses,
and one call."""

from __future__ import annotations

from operator import itemgetter
from typing import Any, Sequence

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling

from . import _eager, _functional, _op
from ._options import Options
from ._plan import LEAD, Layer
from ._synapses import Synapses, prepare

class MaskedModule(nn.Module):
    """A module with the masks ``sparsity_mask`` ``[H, H]`` and ``sensory_sparsity_mask`` ``[D, H]``.

    The synapses are prepared from them when the module is made, when a state_dict is loaded, and in eager mode before a
    call where a mask was replaced or changed in place. After a change that PyTorch does not see (through ``.data``), and
    before a compiled call, :meth:`prepare` does it by hand.
    """

    _options: Options
    _names: list[str]
    # Takes the parameters out of a module's table, a third of the time that a loop takes.
    _pick: itemgetter[Tensor]

    def __init__(self) -> None:
        super().__init__()
        self._seen: tuple[Any, ...] = ()
        self._synapses: Synapses | None = None
        self._layer: Layer | None = None
        self._key = 0
        self.register_buffer("_synapse_lists", torch.empty(0, dtype=torch.int32), persistent=False)

    def _table(self) -> dict[str, Any]:
        # Parameters, as ncps has them, or buffers.
        return self._buffers if "sparsity_mask" in self._buffers else self._parameters

    def _masks(self) -> tuple[Tensor, Tensor]:
        table = self._table()
        return table["sparsity_mask"], table["sensory_sparsity_mask"]

    def prepare(self) -> None:
        """Compacts the masks into index lists again."""
        mask, sensory = self._masks()
        if mask.is_meta:
            self._synapses, self._layer, self._key = None, None, 0
            self._synapse_lists = torch.empty(0, dtype=torch.int32, device="meta")
        else:
            self._synapses = prepare(mask, sensory)
            self._layer = self._synapses.layer(self._options.text)
            self._key = self._synapses.key
            self._synapse_lists = self._synapses.lists(mask.device)
        # Inference tensors count no versions.
        self._seen = (self._table(), mask, sensory, *(-1 if m.is_inference() else m._version for m in (mask, sensory)))

    def _refresh(self) -> None:
        if self._seen:
            table, mask, sensory, version, sensory_version = self._seen
            if table.get("sparsity_mask") is mask and table.get("sensory_sparsity_mask") is sensory:
                if version < 0 or (mask._version == version and sensory._version == sensory_version):
                    return
        self.prepare()

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        if all(not m.is_meta for m in self._masks()):
            self.prepare()

    def __getstate__(self) -> dict[str, Any]:
        # The lists follow from the masks.
        return {**self.__dict__, "_seen": (), "_layer": None}

    def _sources(self, compiling: bool = False) -> Sequence[Tensor]:
        """The parameters in the order of the signature."""
        if not compiling:
            try:
                return self._pick(self._parameters)
            except KeyError:
                # A parametrization took a parameter's place.
                pass
        return [getattr(self, n) for n in self._names]

    def _eagerly(self, tensors: tuple[Any, ...]) -> tuple[Tensor, ...]:
        return _eager.ltc(tensors, self._masks(), self._options)

    def _call(self, x: Tensor, h0: Tensor | None, elapsed: Tensor | None, eager: bool = False) -> tuple[Tensor, Tensor]:
        compiling = is_compiling()
        if not compiling:
            self._refresh()
        tensors = (x, h0, None, elapsed, *self._sources(compiling))
        lists = self._buffers["_synapse_lists"]
        if not (compiling or eager or _functional.autocasts()) and _functional.plain_tensors(x, tensors[LEAD]):
            return _op.call(self._layer, lists, tensors)  # type: ignore[arg-type, return-value]
        return _functional.dispatch(  # type: ignore[return-value]
            "ltc", self._options.text, 2, self._layer, tensors, lists, self._key, self._eagerly, eager
        )

    def _call_mixed(
        self, x: Tensor, h0: Tensor | None, c0: Tensor | None, elapsed: Tensor | None, lstm: tuple[Tensor, ...]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The same with the three parameters of an LSTM cell, which updates (h, c) ahead of each step."""
        text, layer = f"{self._options.text},mixed=true", None
        compiling = is_compiling()
        if not compiling:
            self._refresh()
            layer = None if self._synapses is None else self._synapses.layer(text)
        tensors = (x, h0, c0, elapsed, *self._sources(compiling), *lstm)
        lists = self._buffers["_synapse_lists"]
        return _functional.dispatch(  # type: ignore[return-value]
            "ltc", text, 3, layer, tensors, lists, self._key, self._eagerly
        )


def uniform(low: float, high: float, *shape: int) -> nn.Parameter:
    """A parameter drawn as ncps draws it, so that one seed of PyTorch's gives one layer in both."""
    return nn.Parameter(torch.rand(*shape) * (high - low) + low)
