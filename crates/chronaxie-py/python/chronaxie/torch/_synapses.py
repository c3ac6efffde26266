"""Prepared synapses: masks compacted into index lists, with the plans made over them."""

from __future__ import annotations

import ctypes
import hashlib
import threading
import weakref
from collections import OrderedDict
from typing import Any

import torch

from .. import _native
from .._errors import ConfigError, ShapeError
from ._plan import Layer

_BY_KEY: weakref.WeakValueDictionary[int, Synapses] = weakref.WeakValueDictionary()
# What compiled graphs of another process name: nothing else holds it.
_REBUILT: OrderedDict[int, Synapses] = OrderedDict()
_LOCK = threading.Lock()
_MAX_REBUILT = 32


def _lasting(made: torch.Tensor) -> bool:
    """Whether a tensor may be kept: what a tracer or a transform makes has no memory of its own, and ends with it."""
    return type(made) is torch.Tensor and not torch._C._are_functorch_transforms_active()


def _bytes(mask: torch.Tensor, what: str) -> bytes:
    host = mask.detach().to("cpu")
    if not bool(((host == 0) | (host == 1)).all()):
        raise ConfigError(f"ltc: the {what} holds values other than 0 and 1")
    host = host.to(torch.uint8).contiguous()
    return ctypes.string_at(host.data_ptr(), host.numel()) if host.numel() else b""


class Synapses:
    """The synapses of an LTC layer as index lists: what :func:`prepare` makes, and a caller makes anew when a mask
    changes. It does not change itself, can be shared, copied and pickled.

    Attributes:
        inputs, hidden: D and H.
        recurrent, sensory: how many synapses there are between neurons and from inputs.
        key: a hash of the masks, by which compiled graphs name them.
    """

    def __init__(self, recurrent: bytes, sensory: bytes, inputs: int, hidden: int) -> None:
        self.native = _native.prepare(recurrent, sensory, inputs, hidden)
        self.inputs, self.hidden = inputs, hidden
        self.recurrent, self.sensory = self.native.recurrent, self.native.sensory
        self.key = _key(recurrent, sensory, inputs, hidden)
        lists = [data for _, data in self.native.lists()]
        packed = b"".join(lists)
        host = torch.frombuffer(bytearray(packed), dtype=torch.int32) if packed else torch.empty(0, dtype=torch.int32)
        self._lists: dict[torch.device, torch.Tensor] = {host.device: host}
        self._masks: dict[tuple[torch.device, torch.dtype], tuple[torch.Tensor, torch.Tensor]] = {}
        # Byte offsets of the lists in what `lists` packs, in the order of every signature.
        self.offsets = [0]
        for data in lists[:-1]:
            self.offsets.append(self.offsets[-1] + len(data))
        self.packed = len(packed) // 4
        self._layers: dict[str, Layer] = {}
        self._args = (recurrent, sensory, inputs, hidden)
        with _LOCK:
            _BY_KEY[self.key] = self

    def lists(self, device: torch.device) -> torch.Tensor:
        """All index lists behind each other, 32-bit integers on ``device``."""
        found = self._lists.get(device)
        if found is None:
            found = next(iter(self._lists.values())).to(device)
            if _lasting(found):
                self._lists[device] = found
        return found

    def masks(self, device: torch.device, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """The masks again: ``[H, H]`` and ``[D, H]``, 0 or 1."""
        found = self._masks.get((device, dtype))
        if found is None:
            recurrent, sensory, inputs, hidden = self._args

            def dense(data: bytes, sources: int) -> torch.Tensor:
                if not data:
                    return torch.zeros(sources, hidden, device=device, dtype=dtype)
                mask = torch.frombuffer(bytearray(data), dtype=torch.uint8)
                return mask.view(sources, hidden).to(device=device, dtype=dtype)

            found = dense(recurrent, hidden), dense(sensory, inputs)
            if _lasting(found[0]):
                self._masks[device, dtype] = found
        return found

    def layer(self, text: str) -> Layer:
        """The LTC layer over these synapses with the options that ``text`` spells."""
        found = self._layers.get(text)
        if found is None:
            found = self._layers[text] = Layer("ltc", text, self.native)
        return found

    def __reduce__(self) -> Any:
        return _shared, self._args

    def __deepcopy__(self, memo: Any) -> Synapses:
        return self

    def __repr__(self) -> str:
        return (
            f"Synapses(inputs={self.inputs}, hidden={self.hidden}, recurrent={self.recurrent}, sensory={self.sensory})"
        )


def _key(recurrent: bytes, sensory: bytes, inputs: int, hidden: int) -> int:
    digest = hashlib.sha256(b"%d,%d;" % (inputs, hidden) + recurrent + sensory).digest()
    # 63 bits: a compiled graph carries it as a signed integer.
    return int.from_bytes(digest[:8], "little") >> 1


def _shared(recurrent: bytes, sensory: bytes, inputs: int, hidden: int) -> Synapses:
    with _LOCK:
        found = _BY_KEY.get(_key(recurrent, sensory, inputs, hidden))
    return found if found is not None else Synapses(recurrent, sensory, inputs, hidden)


def prepare(mask: torch.Tensor, sensory_mask: torch.Tensor) -> Synapses:
    """Compacts the masks of a layer: ``mask`` ``[H, H]`` and ``sensory_mask`` ``[D, H]``, row-major by source, 0 or 1.

    A masked synapse adds nothing and its gradients are exactly 0, so that leaving it out is exact. Make it anew when a
    mask changes.

    Raises:
        ShapeError: the masks do not fit together.
        ConfigError: a mask holds anything but 0 and 1, or a neuron has no synapse at all.
    """
    hidden = mask.shape[-1]
    if mask.shape != (hidden, hidden) or sensory_mask.dim() != 2 or sensory_mask.shape[1] != hidden:
        raise ShapeError(
            f"ltc: mask.shape = {tuple(mask.shape)} and sensory_mask.shape = {tuple(sensory_mask.shape)} are not "
            "[H, H] and [D, H]"
        )
    recurrent, sensory = _bytes(mask, "mask"), _bytes(sensory_mask, "sensory_mask")
    return _shared(recurrent, sensory, sensory_mask.shape[0], hidden)


def find(key: int, lists: torch.Tensor, inputs: int, hidden: int) -> Synapses:
    """The synapses that a compiled graph names; made again from its lists where this process never saw them."""
    with _LOCK:
        found = _BY_KEY.get(key)
    if found is not None:
        return found
    host, at, masks = lists.cpu(), 0, []
    for sources in (hidden, inputs):
        offsets = host[at : at + hidden + 1]
        count = int(offsets[-1]) if hidden else 0
        source_of = host[at + hidden + 1 : at + hidden + 1 + count].long()
        target_of = torch.repeat_interleave(torch.arange(hidden), offsets.diff().long())
        mask = torch.zeros(sources, hidden, dtype=torch.uint8)
        mask[source_of, target_of] = 1
        masks.append(mask)
        at += (hidden + 1) + count + (sources + 1) + 2 * count
    found = prepare(*masks)
    if found.key != key:
        raise ConfigError("ltc: the index lists of a compiled graph are not those that its key names")
    with _LOCK:
        _REBUILT[key] = found
        while len(_REBUILT) > _MAX_REBUILT:
            _REBUILT.popitem(last=False)
    return found
