"""What the networks over sequences share: layouts, states, elapsed times, and the LSTM cell of ``mixed_memory``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .._errors import ConfigError, ShapeError


def times(t: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """Elapsed times on x's device; never in half precision, whatever x and the parameters are."""
    return t.to(x.device, torch.float64 if weight.dtype is torch.float64 else torch.float32)


def cell_times(name: str, elapsed: float | Tensor, inputs: Tensor, weight: Tensor) -> Tensor | None:
    """The elapsed times ``[B, 1]`` of one step of a cell: a number, or a tensor of one element, ``[B]`` or ``[B, 1]``."""
    batch = inputs.shape[0]
    if isinstance(elapsed, Tensor):
        if elapsed.numel() not in (1, batch):
            raise ShapeError(
                f"{name} of shape {tuple(elapsed.shape)} is neither one element nor [B] = ({batch},)"
            )
        return times(elapsed, inputs, weight).reshape(-1, 1).expand(batch, 1)
    if elapsed == 1.0:
        return None
    return times(torch.tensor(elapsed, dtype=torch.float64), inputs, weight).expand(batch, 1)


class SequenceModule(nn.Module):
    """A network with the calls of ncps's: ``net(input, hx=None, timespans=None)``."""

    input_size: int
    state_size: int
    return_sequences: bool
    batch_first: bool
    use_mixed: bool

    def _weight(self) -> Tensor:
        """A parameter, for its dtype."""
        raise NotImplementedError

    def _run(
        self, x: Tensor, h: Tensor | None, c: Tensor | None, elapsed: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Outputs ``[B, T, M]`` and final states of x ``[B, T, D]`` and elapsed times ``[B, T]``."""
        raise NotImplementedError

    def forward(self, input: Tensor, hx: Any = None, timespans: Tensor | None = None) -> tuple[Tensor, Any]:
        """Runs over a sequence.

        Args:
            input: ``[B, T, D]``, or ``[T, B, D]`` without batch_first, or ``[T, D]`` without a batch.
            hx: the state ``[B, H]`` (``[H]`` without a batch), with mixed_memory a pair of them; else 0.
            timespans: positive elapsed times before each step, ``[B, T]`` (``[T, B]`` without batch_first, ``[T]``
                without a batch), with or without a last axis of 1; else 1.

        Returns:
            ``(output, hx)``: ``[B, T, M]`` in the layout of the input, or ``[B, M]`` without return_sequences; and the
            state in the form of ``hx``.
        """
        name, batched = type(self).__name__, input.dim() == 3
        if input.dim() not in (2, 3) or input.shape[-1] != self.input_size:
            raise ShapeError(
                f"{name}: input.shape = {tuple(input.shape)} does not match {'[B, T, D]' if self.batch_first else '[T, B, D]'}"
                f" or [T, D] with D = {self.input_size}"
            )
        x = input if batched else input.unsqueeze(0)
        elapsed = timespans
        if elapsed is not None and elapsed.dim() == input.dim() and elapsed.shape[-1] == 1:
            elapsed = elapsed.squeeze(-1)
        if batched and not self.batch_first:
            x = x.transpose(0, 1)
            elapsed = elapsed if elapsed is None else elapsed.transpose(0, 1)
        elif elapsed is not None and not batched:
            elapsed = elapsed.unsqueeze(0)
        if elapsed is not None and elapsed.shape != x.shape[:2]:
            raise ShapeError(
                f"{name}: timespans.shape = {tuple(timespans.shape)} does not fit input.shape = {tuple(input.shape)}"  # type: ignore[union-attr]
            )
        if elapsed is not None:
            elapsed = times(elapsed, x, self._weight())
        h, c = self._initial(hx, x.shape[0], batched)
        out, h, c = self._run(x, h, c, elapsed)
        if not self.return_sequences:
            if x.shape[1] == 0:
                raise ShapeError(f"{name}: a sequence of no steps has no last output")
            out = out[:, -1]
        elif batched and not self.batch_first:
            out = out.transpose(0, 1)
        if not batched:
            out, h, c = (t if t is None else t.squeeze(0) for t in (out, h, c))
        return out, ((h, c) if self.use_mixed else h)

    def _initial(self, hx: Any, batch: int, batched: bool) -> tuple[Tensor | None, Tensor | None]:
        name = type(self).__name__
        if hx is None:
            return None, None
        if self.use_mixed and (isinstance(hx, Tensor) or len(hx) != 2):
            raise ConfigError(f"{name}: with mixed_memory hx is a pair (h, c)")
        pair = hx if self.use_mixed else (hx, None)
        want = (batch, self.state_size) if batched else (self.state_size,)
        for name, t in zip(("h", "c"), pair):
            if t is not None and tuple(t.shape) != want:
                axes = "[B, H]" if batched else "[H]"
                raise ShapeError(f"{name}: {name} of hx has the shape {tuple(t.shape)}, which does not match {axes} = {want}")
        return tuple(t if t is None or batched else t.unsqueeze(0) for t in pair)  # type: ignore[return-value]


class LSTMCell(nn.Module):
    """The memory of ``mixed_memory``: an LSTM cell with forget bias 1, in PyTorch operations."""

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        self.input_map = nn.Linear(input_size, 4 * hidden_size)
        self.recurrent_map = nn.Linear(hidden_size, 4 * hidden_size, bias=False)
        nn.init.xavier_uniform_(self.input_map.weight)
        nn.init.uniform_(self.input_map.bias, -0.1, 0.1)
        nn.init.orthogonal_(self.recurrent_map.weight)

    def forward(self, mapped: Tensor, states: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """The next ``(h, c)`` from ``input_map`` of the inputs ``[B, 4 H]``."""
        new, take, keep, show = (mapped + self.recurrent_map(states[0])).chunk(4, -1)
        c = states[1] * torch.sigmoid(keep + 1.0) + torch.tanh(new) * torch.sigmoid(take)
        return torch.tanh(c) * torch.sigmoid(show), c
