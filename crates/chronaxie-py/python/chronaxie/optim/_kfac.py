"""K-FAC (Martens and Grosse, "Optimizing neural networks with Kronecker-factored approximate curvature", arXiv:1503.05671), with
weight sharing (Eschenhagen et al., arXiv:2311.00636) and EKFAC (George et al., arXiv:1806.03884)."""

from __future__ import annotations

from typing import Any, Sequence

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from .._errors import ConfigError, ShapeError
from ..torch import CfC, CfCCell, LTC, LTCCell, TrueLiquidTimeConstant
from ._alone import Native
from ._base import Base, check_axis, check_curved, check_model, no_copy, one_of, over_scale, whole_within, wide, within
from ._calls import MAPS, RECURRENT, Call, Recorder, batch_of, positions_of, units_of, uses_of, when_known, when_reached
from ._factors import Sums, as_matrix, balance, damped_inverses, eigenbases, from_matrix, moved, sums_of, wide_factor
from ._uses import Use

_SYNAPSES = ("w", "mu", "sigma", "erev")


class KFAC(Base):
    """Steps preconditioned by Kronecker factors of the Fisher matrix of each layer: ``U = G^-1 (grad W) A^-1``.

    Layers: Linear, Conv1d to Conv3d (a pair of factors for each group), Embedding (A is how often rows are read), LSTM, GRU and
    RNN and their cells (with factors for each gate), CfC and its cells, by hooks on their calls; LTC, whose synapses are no maps, by
    second moments of its samples' gradients. An mLSTM has no parameters: the maps around it are such layers. The other parameters
    take AdamW's step. Hooks stay until :meth:`close`.

    Args:
        model: whose layers are watched, in training mode.
        lr: the learning rate, a number or a tensor.
        params: tensors or groups (lr to the options of AdamW can be set by group; how often factors and inverses are made is the first
            group's); all of the model's by default. A group with ``adamw=True`` (embeddings, a head of words) takes AdamW's step as the
            other parameters do, and has no factors.
        momentum: decay of the sum of steps.
        damping: l, added to the curvature.
        damping_mode: ``exact`` (to the products of eigenvalues) or ``factored`` (``A + pi sqrt(l) I``, ``G + sqrt(l)/pi I``).
        ekfac: second moments in the eigenbases take the place of products of eigenvalues; with ``exact``.
        decay: of the moving averages of the factors.
        factor_frequency, inverse_frequency: steps between two updates of factors, and of what is solved with them, which layers do
            at turns of their own.
        kl_clip: the most of ``lr^2 sum U grad`` for all layers of a group together, or longer steps are shortened; None for no bound.
            Recurrent layers need one: factors know nothing of what steps in time have to do with each other.
        weight_decay, weight_decay_mode: as for :class:`Shampoo`.
        adamw_lr, adamw_betas, adamw_eps: of the other parameters. ``adamw_lr`` is their rate at the group's first lr (``first_lr``),
            and where that goes, as by a schedule, their rate follows by the same factor.
        maximize: climbs.
        capturable: counts on the device and changes state in place, so that a forward pass, a backward pass and the step can be captured
            in one CUDA graph once a step was taken. With ``damping_mode="factored"``, whose inverses wait for nothing, and frequencies
            of 1, as every step of a graph does the same; batches have one size, and lr, where it changes, must be a tensor.
        stochastic_rounding, seed: as for :class:`Shampoo`.
        sharing: where positions share a weight, ``expand`` (each is a sample) or ``reduce`` (inputs averaged, gradients summed).
        fisher: ``empirical`` (from the loss that is trained), or ``sampled`` or ``exact``: from :meth:`observe`.
        reduction, terms: how the trained loss came about, ``mean`` or ``sum``, over how many terms: ``batch`` (samples),
            ``positions`` (samples times the layer's positions, as a language model's) or a number.
        accumulation: backward passes a step, whose losses were divided by it.
        per_gate: whether each gate of a recurrent layer has a G of its own, 1/16 of an LSTM's work.
        grad_scaler: ``torch.amp.GradScaler``, whose scale the hooks' gradients have; it is taken from its device, and nothing waits.
        batch_axis: where samples lie in what layers get that do not say so themselves.

    Raises:
        ConfigError: an option out of range, or no layer, with its value.
        DeviceError: parameters on several devices.

    :meth:`step` says what becomes of gradients that are not finite; factors that are not are left out. In a process group
    (DistributedDataParallel) factors are averaged over its processes, whose batches must go through the same layers.
    """

    _double = True

    def __init__(
        self,
        model: nn.Module,
        lr: float | Tensor = 1e-1,
        *,
        params: Any = None,
        momentum: float = 0.9,
        damping: float = 1e-3,
        damping_mode: str = "exact",
        ekfac: bool = False,
        decay: float = 0.95,
        factor_frequency: int = 1,
        inverse_frequency: int = 10,
        kl_clip: float | None = 1e-2,
        weight_decay: float = 0.0,
        weight_decay_mode: str = "decoupled",
        adamw_lr: float | Tensor = 1e-3,
        adamw_betas: tuple[float, float] = (0.9, 0.999),
        adamw_eps: float = 1e-8,
        maximize: bool = False,
        capturable: bool = False,
        stochastic_rounding: bool = False,
        seed: int = 0,
        sharing: str = "expand",
        fisher: str = "empirical",
        reduction: str = "mean",
        terms: str | int = "batch",
        accumulation: int = 1,
        per_gate: bool = True,
        grad_scaler: Any = None,
        batch_axis: int = 0,
    ) -> None:
        defaults = dict(
            lr=lr, momentum=momentum, damping=damping, damping_mode=damping_mode, ekfac=ekfac, decay=decay,
            factor_frequency=factor_frequency, inverse_frequency=inverse_frequency, kl_clip=kl_clip, weight_decay=weight_decay,
            weight_decay_mode=weight_decay_mode, adamw_lr=adamw_lr, adamw_betas=adamw_betas, adamw_eps=adamw_eps, maximize=maximize,
            capturable=capturable, stochastic_rounding=stochastic_rounding, seed=seed,
            steps=0,
        )  # fmt: skip
        check_model("KFAC", model)
        one_of("KFAC", "sharing", sharing, ("expand", "reduce"))
        one_of("KFAC", "fisher", fisher, ("empirical", "sampled", "exact"))
        one_of("KFAC", "reduction", reduction, ("mean", "sum"))
        if isinstance(terms, str):
            one_of("KFAC", "terms", terms, ("batch", "positions"))
        else:
            within("KFAC", "terms", terms, 1, float("inf"), True)
        check_axis("KFAC", batch_axis)
        whole_within("KFAC", "accumulation", accumulation, 1, 1 << 20)
        self.model, self.sharing, self.fisher, self.reduction, self.terms = model, sharing, fisher, reduction, terms
        self.accumulation, self.batch_axis, self.grad_scaler, self.per_gate = accumulation, batch_axis, grad_scaler, per_gate
        units = [u for u in units_of(model, RECURRENT, True) if isinstance(u.module, (*MAPS, *RECURRENT))]
        if not units:
            raise ConfigError(f"KFAC: {type(model).__name__} has no layer that it knows, of those with parameters that are trained")
        self._biases, self._gates, self._masks = _structure(model, per_gate)
        self._taken_along = set(self._biases.values())
        self._tables = {m.weight for m in model.modules() if isinstance(m, nn.Embedding)}
        # A, positions, G, squares, and observations, since the last step.
        self._sums: dict[Tensor, list[Any]] = {}
        self._calls: list[Call] = []
        self._observed = 0
        self._recorder = Recorder(units, self._note)
        super().__init__(list(model.parameters()) if params is None else params, defaults)
        self._recorder.attach()

    def close(self) -> None:
        """Takes the hooks off the model."""
        self._recorder.detach()

    def __getstate__(self) -> dict[str, Any]:
        raise no_copy("KFAC")

    def _check(self, g: dict[str, Any]) -> None:
        check_curved("KFAC", g)
        within("KFAC", "decay", g["decay"], 0.0, 1.0, True)
        one_of("KFAC", "damping_mode", g["damping_mode"], ("exact", "factored"))
        if g["ekfac"] and g["damping_mode"] != "exact":
            raise ConfigError("KFAC: ekfac = True needs damping_mode = 'exact', which has eigenbases")
        for of in ("factor_frequency", "inverse_frequency"):
            whole_within("KFAC", of, g[of], 1, 1 << 15)
        if g["capturable"]:
            if g["damping_mode"] != "factored":
                raise ConfigError(
                    f"KFAC: capturable = True needs damping_mode = 'factored', not {g['damping_mode']!r}, whose eigenvectors are waited for"
                )
            if (g["factor_frequency"], g["inverse_frequency"]) != (1, 1):
                raise ConfigError(
                    f"KFAC: capturable = True needs frequencies of 1, as all steps of a graph do the same, not factor_frequency = "
                    f"{g['factor_frequency']} and inverse_frequency = {g['inverse_frequency']}"
                )

    # What the hooks see.

    def _due(self) -> bool:
        group = self.param_groups[0]
        return self.model.training and group["steps"] % int(group["factor_frequency"]) == 0

    def _note(self, call: Call, tensors: list[Tensor]) -> None:
        if not self._due():
            return
        if self.fisher != "empirical":
            self._calls.append(call)
            return

        known, samples = call._replace(edges=[]), batch_of(call, self.batch_axis)

        def reached(use: Native) -> None:
            with torch.no_grad():
                by = 1.0 if self.grad_scaler is None else over_scale(self.grad_scaler) ** 2
                self._add_uses(known, [use], samples, None, by=by)

        # What they leave of samples is made of what reaches them.
        if when_reached(call, tensors, samples, reached):
            return

        def seen(grads: Any) -> None:
            with torch.no_grad():
                if self.grad_scaler is not None:
                    scale = over_scale(self.grad_scaler)
                    # What is small without its scale is none in half precision.
                    grads = [None if g is None else (wide(g) if call.unit.plain else g) * scale for g in grads]
                self._add(call, list(grads), None)

        when_known(tensors, seen)

    def _add(self, call: Call, grads: list[Any], weight: float | None, count: bool = True) -> None:
        """Adds what a call says; ``weight`` multiplies G, ``count`` is whether A counts."""
        samples = batch_of(call, self.batch_axis)
        if samples > 0:
            uses = uses_of(call, grads, samples, self.batch_axis, self._recorder)
            self._add_uses(call, uses, samples, weight, count)

    def _add_uses(
        self, call: Call, uses: Sequence[Use], samples: int, weight: float | None, count: bool = True, by: Any = 1.0
    ) -> None:
        apart = {p for group in self.param_groups if group["adamw"] for p in group["params"]}
        for use in uses:
            wanted = [p for p in use.parameters if p not in self._taken_along and p not in apart]
            if not wanted:
                continue
            bases = {p: self._bases(p) for p in wanted}
            for p, s in sums_of(use, wanted, self.sharing == "reduce", self._gates, bases).items():
                w = weight
                if w is None:
                    terms = self.terms
                    if isinstance(terms, str):
                        terms = samples if terms == "batch" else positions_of(call, use)
                    w = (self.accumulation * terms if self.reduction == "mean" else 1.0) * by
                known = self._sums.setdefault(p, [0, 0, 0, None])
                a = s.a * w if s.positions == 0 else s.a
                if count or s.positions == 0:
                    known[0], known[1] = known[0] + a, known[1] + s.positions
                known[2] = known[2] + s.g * w
                if s.squares is not None:
                    known[3] = s.squares * w if known[3] is None else known[3] + s.squares * w

    def _bases(self, p: Tensor) -> list[Any] | None:
        """The eigenbases of A (None of a diagonal one) and G, where second moments in them are kept."""
        state = self.state.get(p, {})
        if "squares" not in state:
            return None
        return [state[n] if state[n].numel() else None for n in ("basis_a", "basis_g")]

    def observe(self, output: Tensor, loss: str) -> None:
        """Makes the factors of the Fisher matrix of the model's own distribution, between the forward pass and the loss's
        ``backward()``. ``.grad`` is not touched.

        Args:
            output: what the model gave: logits ``[B, C, ...]``, or means of any shape ``[B, ..., C]``.
            loss: ``cross_entropy`` or ``mse``, with PyTorch's mean over all. With ``fisher="sampled"`` targets are drawn from PyTorch's
                random numbers, for one backward pass; with ``exact`` there is one for each element of a sample's output.

        Raises:
            ConfigError: ``fisher`` is empirical, or nothing was recorded.
            ShapeError: logits without classes.
        """
        one_of("KFAC.observe", "loss", loss, ("cross_entropy", "mse"))
        if self.fisher == "empirical":
            raise ConfigError("KFAC.observe: fisher = 'empirical' takes the loss's own gradients; make it 'sampled' or 'exact'")
        calls, self._calls = self._calls, []
        if not self._due():
            return
        if not calls:
            raise ConfigError("KFAC.observe: no call of a layer was recorded: it belongs between the forward pass and backward()")
        if output.dim() < 2:
            raise ShapeError(f"KFAC.observe: output.shape = {tuple(output.shape)} is not [B, C, ...] or [B, ..., C]")
        edges = [e for call in calls for e in call.edges]
        self._observed += 1
        with torch.no_grad():
            for nth, (seed, terms) in enumerate(_seeds(output.detach(), loss, self.fisher == "exact")):
                with torch.enable_grad():
                    found = iter(torch.autograd.grad(output, edges, seed, retain_graph=True, allow_unused=True))
                for call in calls:
                    self._add(call, [next(found) for _ in call.edges], 1.0 / terms, nth == 0)

    # What a step makes of it.

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """As for others; but what was observed stays for the next step where one is left out, of which Python has to know."""
        return self.fisher == "empirical" and all(group["capturable"] for group in self.param_groups)

    def _keep(self, group: dict[str, Any], state: dict[str, Any], name: str, value: Tensor) -> None:
        """Keeps a value, where a graph's next run looks for it."""
        if group["capturable"] and name in state:
            state[name].copy_(value)
        else:
            state[name] = value

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forgets gradients, and what backward passes said since the last step; what was observed stays until the step."""
        super().zero_grad(set_to_none)
        if self.fisher == "empirical":
            self._sums.clear()

    def _forget(self) -> None:
        self._sums.clear()
        self._calls.clear()
        self._observed = 0

    def step(self, closure: Any = None) -> Any:
        loss = super().step(closure)
        for group in self.param_groups:
            group["steps"] += 1
        self._forget()
        return loss

    step.__doc__ = Base.step.__doc__

    def factors(self, p: Tensor) -> tuple[Tensor, Tensor]:
        """A and G of a parameter, as they are now; the curvature is ``G kron A`` over the rows of a weight (with its bias as a last
        column), block by block."""
        state = self.state.get(p, {})
        if "a" not in state:
            raise ConfigError(f"KFAC: a parameter of shape {tuple(p.shape)} has no factors")
        return state["a"], state["g"]

    def _average(self, group: dict[str, Any], p: Tensor) -> None:
        """Moves the factors of p by what was seen."""
        a, count, g, squares = self._sums[p]
        state = self.state[p]
        observed = max(self._observed, 1)
        a, g = wide_factor(Sums(a, count, g, None), 1.0 / observed, max(count, 1))
        squares = None if squares is None else squares / observed
        _over_ranks([t for t in (a, g, squares) if t is not None])
        # How many updates there were, where the factors are: whether one is finite is decided there.
        k = torch.as_tensor(state.get("averaged", 0), dtype=a.dtype, device=a.device)
        keep = (k / (k + 1)).clamp_max(group["decay"])
        fine = a.isfinite().all() & g.isfinite().all()
        if self._skip is not None:
            fine = fine & ~self._skip
        for name, value in (("a", a), ("g", g)):
            self._keep(group, state, name, moved(state.get(name), value, keep, fine))
        if squares is not None and "squares" in state:
            state["squares"] = moved(state["squares"], squares, group["decay"], squares.isfinite().all())
        self._keep(group, state, "averaged", k + fine)

    def _solvers(self, group: dict[str, Any], due: list[Tensor]) -> None:
        """Eigenbases or inverses of the parameters whose turn it is."""
        states = [self.state[p] for p in due]
        factors = [s[n] for s in states for n in ("a", "g")]
        if group["damping_mode"] == "exact":
            made = iter(eigenbases(factors))
            for s in states:
                for n in ("a", "g"):
                    values, vectors = next(made)
                    s[f"values_{n}"] = values
                    s[f"basis_{n}"] = values.new_empty(0) if vectors is None else vectors
                if group["ekfac"]:
                    s["squares"] = s["values_g"][..., :, None] * s["values_a"][..., None, :]
            return
        added = [e for s in states for e in balance(s["a"], s["g"], group["damping"])]
        inverses = iter(damped_inverses(list(zip(factors, added)), group["capturable"]))
        for s in states:
            for n in ("a", "g"):
                x, old = next(inverses), s.get(f"inverse_{n}")
                # What has no inverse keeps the one before.
                self._keep(group, s, f"inverse_{n}", torch.where(x.isfinite().all(), x, torch.zeros_like(x) if old is None else old))

    def _solve(self, group: dict[str, Any], state: dict[str, Any], m: Tensor) -> Tensor:
        if group["damping_mode"] == "factored":
            a, g = state["inverse_a"], state["inverse_g"]
            m = g @ m
            return m * a[:, None] if a.dim() == 2 else m @ a
        qa, qg = (q if q.numel() else None for q in (state["basis_a"], state["basis_g"]))
        m = qg.mT @ m
        m = m if qa is None else m @ qa
        curvature = state["squares"] if group["ekfac"] else state["values_g"][..., :, None] * state["values_a"][..., None, :]
        m = qg @ (m / (curvature + group["damping"]))
        return m if qa is None else m @ qa.mT

    def _update(self, group: dict[str, Any], given: list[tuple[int, Tensor, Tensor]]) -> None:
        steps, every = group["steps"], int(group["inverse_frequency"])
        decay, grads = self._shrink(group), {p: g for _, p, g in given}
        places = {p: at for at, p, _ in given}
        l2 = group["weight_decay"] if group["weight_decay_mode"] == "l2" else 0.0
        due = []
        for p in grads:
            if p in self._sums:
                self._average(group, p)
            state = self.state[p]
            solved = "basis_a" in state or "inverse_a" in state
            if "a" in state and (not solved or (steps + places[p]) % every == 0):
                due.append(p)
        if due:
            self._solvers(group, due)
        updates: dict[Tensor, Tensor] = {}
        agreement: Any = 0.0
        for p, g in grads.items():
            state, table = self.state[p], p in self._tables
            if "a" not in state:
                continue
            bias = self._biases.get(p)
            joined = not table and bias is not None and state["a"].shape[-1] * state["g"].shape[0] * state["g"].shape[-1] > p.numel()
            gb = None
            if joined:
                gb = grads[bias] if bias in grads else torch.zeros_like(wide(bias))  # type: ignore[arg-type, index]
                gb = gb + l2 * wide(bias) if l2 else gb  # type: ignore[arg-type]
            g = g + l2 * wide(p) if l2 else g
            m = as_matrix(p, g, gb, state["g"].shape[0], table)
            u, ub = from_matrix(p, self._solve(group, state, m), joined, table)
            if p in self._masks:
                u = u * self._masks[p]()
            updates[p] = u
            agreement = agreement + (u * g).sum()
            if joined and bias in grads:
                updates[bias] = ub.reshape(bias.shape)  # type: ignore[union-attr, index]
                agreement = agreement + (ub * gb.flatten()).sum()
        shorter: Any = 1.0
        if group["kl_clip"] is not None and updates:
            lr = group["lr"]
            shorter = (group["kl_clip"] / (lr * lr * agreement).clamp_min(1e-30)).sqrt().clamp_max(1.0)
        for p, g in grads.items():
            state = self.state[p]
            if p not in updates:
                continue
            u = updates[p] * shorter
            if group["momentum"]:
                if "momentum" not in state:
                    state["momentum"] = torch.zeros_like(u)
                with self._kept(state["momentum"]):
                    u = state["momentum"].mul_(group["momentum"]).add_(u)
            self._move(group, p, u, group["lr"], decay)
        self._plain(group, [item for item in given if item[1] not in updates])


def _over_ranks(tensors: list[Tensor]) -> None:
    """Their means over the processes of the default group, where there are several, in place."""
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        for t in tensors:
            dist.all_reduce(t)
            t /= dist.get_world_size()


def _structure(model: nn.Module, per_gate: bool) -> tuple[dict[Any, Any], dict[Any, int], dict[Any, Any]]:
    """For weights: their biases, how many gates their rows are, and what gives their masks."""
    biases: dict[Any, Any] = {}
    gates: dict[Any, int] = {}
    masks: dict[Any, Any] = {}
    for m in model.modules():
        if isinstance(m, (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)) and m.bias is not None and m.bias.requires_grad:
            biases[m.weight] = m.bias
        if isinstance(m, (nn.RNNBase, nn.RNNCellBase)):
            count = 4 if isinstance(m, (nn.LSTM, nn.LSTMCell)) else 3 if isinstance(m, (nn.GRU, nn.GRUCell)) else 1
            for name, p in m.named_parameters(recurse=False):
                if name.startswith("weight") and "_hr" not in name:
                    gates[p] = count if per_gate else 1
                    bias = getattr(m, name.replace("weight", "bias"), None)
                    if bias is not None and bias.requires_grad:
                        biases[p] = bias
        if isinstance(m, (CfC, LTC)) and m.use_mixed and per_gate:
            gates[m.lstm.input_map.weight] = gates[m.lstm.recurrent_map.weight] = 4
        if isinstance(m, CfCCell) and m.sparsity_mask is not None:
            for head in m._options.heads[:2]:
                masks[getattr(m, head).weight] = lambda m=m: m.sparsity_mask
        if isinstance(m, (LTCCell, TrueLiquidTimeConstant)):
            for name in _SYNAPSES:
                masks[getattr(m, name)] = lambda m=m: m.sparsity_mask
                masks[getattr(m, f"sensory_{name}")] = lambda m=m: m.sensory_sparsity_mask
    return biases, gates, masks


def _seeds(output: Tensor, loss: str, exact: bool) -> Any:
    """Gradients of one term's loss with respect to ``output``, whose outer products sum to its Hessian, and how many terms the mean
    has: all of them in turn, or one that was drawn."""
    axis = 1 if loss == "cross_entropy" else output.dim() - 1
    classes = output.shape[axis]
    terms = output.numel() // classes
    flat = wide(output).movedim(axis, -1)
    shares = F.softmax(flat, -1)

    def placed(t: Tensor) -> Tensor:
        return t.movedim(-1, axis).to(output.dtype)

    if not exact:
        if loss == "mse":
            yield torch.randn_like(output) * (2.0 / classes) ** 0.5, terms
        else:
            drawn = torch.multinomial(shares.reshape(-1, classes), 1).reshape(flat.shape[:-1])
            yield placed(shares - F.one_hot(drawn, classes)), terms
        return
    for element in range(flat[0].numel()):
        position, c = divmod(element, classes)
        seed = torch.zeros_like(flat).reshape(flat.shape[0], -1, classes)
        if loss == "mse":
            seed[:, position, c] = (2.0 / classes) ** 0.5
        else:
            here = shares.reshape(seed.shape)[:, position]
            seed[:, position] = -here
            seed[:, position, c] += 1.0
            seed[:, position] *= here[:, c : c + 1].sqrt()
        yield placed(seed.reshape(flat.shape)), terms
