#!/usr/bin/env python3
"""The three kernels of a network's step, of `chronaxie bench`, beside the same step in JAX on the same card.

    python benchmarks/spiking_jax.py --binary CHRONAXIE --json FILE [--rounds N] [--steps N] [--case neuron_update:N100000 ...]

JAX has cells of lif_exp by exact propagators in float32, a ring of sums of 64 steps, and rows of synapses (target, weight, delay) by
source, compiled as one loop over --steps steps, so that no call is paid for by step. `neuron_update` is a whole step of both, with one
synapse onto each cell; `synaptic_delivery` the rows of so many spikes alone; `stdp_update` a whole step of as many sources and cells,
with pairs of all spikes, bounds that weights approach, traces, and lists of incoming synapses. Sources of JAX fire a fixed number at a
time, which shapes want. Random numbers are drawn before. How many cells fired a step says that both do the same; ours is checked against
its CPU engine by `bench` itself.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import time

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402

CASES = ["neuron_update:N100000", "neuron_update:N1000000", "synaptic_delivery:100000x1000_S50", "synaptic_delivery:1000000x1000_S500",
         "stdp_update:100000x1000_S50"]  # fmt: skip
DT, C, TAU, TAU_SYN, E_L, V_TH, REFRACTORY, RING = 0.1, 250.0, 10.0, 0.5, -65.0, -50.0, 20, 64
P11, P22 = math.exp(-DT / TAU_SYN), math.exp(-DT / TAU)
P21 = TAU * TAU_SYN / (C * (TAU - TAU_SYN)) * (P22 - P11)
P20 = TAU / C * (1 - P22)
# Of stdp_update.
A_PLUS, A_MINUS, TAU_TRACE = 0.01, 0.01, 20.0
DECAY = math.exp(-DT / TAU_TRACE)


def cells(n, key):
    """States of n cells: potential above rest, current, steps of refractoriness."""
    return 15.0 * jax.random.uniform(key, (n,)), jnp.zeros(n), jnp.zeros(n, jnp.int32)


def update(state, current, arrivals):
    u, i, held = state
    v = jnp.where(held > 0, 0.0, P22 * u + P21 * i + P20 * current)
    fired = v >= V_TH - E_L
    held = jnp.where(fired, REFRACTORY, jnp.maximum(held - 1, 0))
    return (jnp.where(fired, 0.0, v), P11 * i + arrivals, held), fired


def neuron_update(n, _, __, key):
    keys = jax.random.split(key, 4)
    source = jax.random.randint(keys[0], (n,), 0, n)
    weight = 1 + 0.1 * jax.random.normal(keys[1], (n,))
    delay = jax.random.randint(keys[2], (n,), 1, RING)
    current = jnp.where(jnp.arange(n) < n - n // 5, 370.0, 380.0)
    all_ = jnp.arange(n)

    def step(t, carry):
        state, ring, count = carry
        now = t % RING
        state, fired = update(state, current, ring[now])
        ring = ring.at[now].set(0.0)
        ring = ring.at[(t + delay) % RING, all_].add(jnp.where(fired[source], weight, 0.0))
        return state, ring, count + fired.sum()

    return step, (cells(n, keys[3]), jnp.zeros((RING, n)), jnp.int32(0))


def rows(n, degree, key):
    """Targets, weights and delays of every source."""
    keys = jax.random.split(key, 3)
    target = jax.random.randint(keys[0], (n, degree), 0, n, jnp.int32)
    weight = (1000.0 / degree) * (1 + 0.1 * jax.random.normal(keys[1], (n, degree), jnp.float32))
    return target, weight, keys[2]


def synaptic_delivery(n, degree, spikes, key):
    made, drawn = jax.random.split(key)
    target, weight, last = rows(n, degree, made)
    delay = jax.random.randint(last, (n, degree), 1, RING, jnp.int8)
    ids = jax.random.randint(drawn, (RING, spikes), 0, n)

    def step(t, carry):
        ring, count, target, weight, delay = carry
        who = ids[t % RING]
        ring = ring.at[(t + delay[who]) % RING, target[who]].add(weight[who])
        return ring, count + spikes, target, weight, delay

    return step, (jnp.zeros((RING, n)), jnp.int32(0), target, weight, delay)


def stdp_update(n, degree, spikes, key):
    made, drawn, states, incoming = jax.random.split(key, 4)
    target, weight, last = rows(n, degree, made)
    delay = jax.random.randint(last, (n, degree), 1, 30, jnp.int8)
    ids = jax.random.randint(drawn, (RING, spikes), 0, n)
    # As many incoming synapses of each cell, of any source.
    comes = jax.random.randint(incoming, (n, degree), 0, n * degree, jnp.int32)
    most, w_max = max(64, n // 100), 2000.0 / degree

    def step(t, carry):
        state, ring, pre, post, count, target, weight, delay = carry
        now, who = t % RING, ids[t % RING]
        state, fired = update(state, 380.0, ring[now])
        ring = ring.at[now].set(0.0)
        ring = ring.at[(t + delay[who]) % RING, target[who]].add(weight[who])
        pre, post = DECAY * pre, DECAY * post
        weight = weight.at[who].multiply(1 - A_MINUS * post[target[who]])
        after = jnp.nonzero(fired, size=most, fill_value=n)[0]
        back = comes.at[after].get(mode="fill", fill_value=n * degree)
        at = back // degree, back % degree
        had = weight.at[at].get(mode="fill", fill_value=0.0)
        weight = weight.at[at].add(A_PLUS * (w_max - had) * pre.at[at[0]].get(mode="fill", fill_value=0.0), mode="drop")
        pre, post = pre.at[who].add(1.0), post + fired
        return state, ring, pre, post, count + fired.sum(), target, weight, delay

    return step, (cells(n, states), jnp.zeros((RING, n)), jnp.zeros(n), jnp.zeros(n), jnp.int32(0), target, weight, delay)


# And where in what a step carries the count of those that fired is.
FAMILIES = {"neuron_update": (neuron_update, 2), "synaptic_delivery": (synaptic_delivery, 1), "stdp_update": (stdp_update, 4)}


def sizes(case):
    first, *more = case.split("_")
    n, degree = (first[1:], 0) if first.startswith("N") else first.split("x")
    return int(n), int(degree), int(more[0][1:]) if more else 0


def peer(family, case, steps, rounds):
    """Milliseconds a step, the median over rounds, and how many cells (or sources) fired a step."""
    made, at = FAMILIES[family]
    step, carry = made(*sizes(case), jax.random.key(1))
    run = jax.jit(lambda t0, carry: jax.lax.fori_loop(t0, t0 + steps, step, carry), donate_argnums=1)
    times, fired = [], []
    for turn in range(rounds + 1):
        before = int(carry[at])
        began = time.perf_counter()
        carry = jax.block_until_ready(run(jnp.int32(turn * steps), carry))
        times.append(1e3 * (time.perf_counter() - began) / steps)
        fired.append((int(carry[at]) - before) / steps)
    return statistics.median(times[1:]), statistics.mean(fired[1:])


def ours(binary, family, case):
    command = [binary, "bench", family, "--quiet", "--backend", "cuda", "--seconds", "0.15", "--case", case, "--json", "-"]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)[0]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--binary", required=True)
    parser.add_argument("--case", action="append")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--json")
    args = parser.parse_args()
    if jax.default_backend() != "gpu":
        raise SystemExit(f"JAX runs on {jax.default_backend()}, not on a GPU: nothing is timed")
    records = []
    for name in args.case or CASES:
        family, case = name.split(":")
        record = ours(args.binary, family, case)
        found, fired = peer(family, case, args.steps, args.rounds)
        record.update(
            peer="jax", peer_version=jax.__version__, peer_median_ms=found, ratio=found / record["median_ms"], peer_spikes_per_step=fired
        )  # fmt: skip
        records.append(record)
        print(f"{name}: {1e3 * record['median_ms']:.2f} us, {record['spikes_per_step']:.1f} spikes; JAX {1e3 * found:.2f} us, {fired:.1f}: "
              f"{record['ratio']:.1f}x", flush=True)  # fmt: skip
        if args.json:
            with open(args.json, "w") as f:
                f.write(json.dumps(records, indent=2) + "\n")


if __name__ == "__main__":
    main()
