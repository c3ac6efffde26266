#!/usr/bin/env python3
"""What a call of chronaxie.torch costs above an autograd.Function that does nothing with the same inputs.

    PYTHONPATH=... "$(scripts/venv.sh scripts/requirements-bench.txt)/bin/python" benchmarks/call_overhead.py [--device cuda]

The layer is the smallest there is (B = T = 1, D = H = 2, K = 6; --width for other D = H), so that what is left is the call,
native work included: on a GPU the launches, but not what waits for the kernels, for a round is so short that the queue of
launches does not fill, and is awaited before the next.
"empty" returns new outputs and no gradients; "least" also saves its inputs and returns a new tensor as the gradient of
each, which any function with these gradients does; "dropped" makes these and returns none, so that what lies between the two is
what PyTorch's engine takes to look at them and give them to the parameters. Contenders take turns, round by round, so that what else the machine does
hits all alike; the figure is the median over the rounds of a round's mean, and the least round stands beside it. The parts
are timed in the same rounds: each is a call by itself, so that their sum leaves out what lies between them.
"""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import torch

import chronaxie
from chronaxie import _native
from chronaxie.torch import TrueLiquidTimeConstant, _framework


class Empty(torch.autograd.Function):
    @staticmethod
    def forward(ctx, shapes, x, *params):
        ctx.count = len(params)
        return x.new_empty(shapes[0]), x.new_empty(shapes[1])

    @staticmethod
    def backward(ctx, *grads):
        return (None,) * (2 + ctx.count)


class Least(torch.autograd.Function):
    @staticmethod
    def forward(ctx, shapes, x, *params):
        ctx.save_for_backward(x, *params)
        return x.new_empty(shapes[0]), x.new_empty(shapes[1])

    @staticmethod
    def backward(ctx, *grads):
        return (None, *map(torch.empty_like, ctx.saved_tensors))


class Dropped(Least):
    @staticmethod
    def backward(ctx, *grads):
        made = Least.backward(ctx, *grads)
        return (None,) * len(made)


def measure(calls, rounds, count, clock, wait):
    """Microseconds a call of each, a list over rounds."""
    times = {name: [] for name in calls}
    for call in calls.values():
        for _ in range(100):
            call()
    for _ in range(rounds):
        for name, call in calls.items():
            wait()
            began = clock()
            for _ in range(count):
                call()
            times[name].append((clock() - began) / count * 1e6)
    return times


def parts(layer, x, seed):
    """Pieces of a call, each by itself: native work at addresses, the same on tensors, and the module's way there."""
    with torch.no_grad():
        layer(x)
    sources, synapses = tuple(layer._sources()), layer._synapses
    device = "cpu" if x.device.type == "cpu" else f"cuda:{x.device.index}"
    problem = _native.problem("ltc", f"B1_T1{layer._options.text},wants=x+parameters", synapses.native)
    plan = problem.plan(device)
    caller = _native.Caller(plan, _framework.FRAMEWORK, torch.zeros((), device=x.device))
    lists = layer._synapse_lists
    out, final = caller.run("forward", (x, *sources), lists)
    grads = caller.run("backward", (x, *sources, out), lists, (seed, None))
    stream = torch.cuda.current_stream().cuda_stream if x.is_cuda else 0

    def raw(name, tensors):
        bytes_needed = plan.scratch_bytes(name)
        block = torch.empty(bytes_needed + 256, dtype=torch.uint8, device=x.device)
        pieces = [lists[at // 4 :] for at in synapses.offsets]
        at = len(sources) + 1
        addresses = [t.data_ptr() for t in (*tensors[:at], *pieces, *tensors[at:])]
        base = block.data_ptr() + -block.data_ptr() % 256
        keep = (tensors, block)
        return lambda keep=keep: plan.run(name, addresses, [], base, stream)

    zero = torch.zeros(1, x.shape[2], device=x.device)
    return {
        "forward": {
            "the library's pass, at addresses": raw("forward", [x, *sources, out, final]),
            "the same on tensors": lambda: caller.run("forward", (x, *sources), lists),
            "the module, without gradients": torch.no_grad()(lambda: layer(x)),
        },
        "backward": {
            "the library's pass, at addresses": raw("backward", [x, *sources, out, seed, zero, *grads]),
            "the same on tensors": lambda: caller.run("backward", (x, *sources, out), lists, (seed, None), True),
        },
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, help="40, or 300 on a GPU")
    parser.add_argument("--calls", type=int, help="of a round: 300, or 20 on a GPU, whose queue holds some hundred launches")
    parser.add_argument("--width", type=int, default=2, help="D and H")
    parser.add_argument("--clock", choices=["wall", "thread"], default="wall", help="thread: this thread's own time, for "
                        "the CPU on a machine that is not idle")  # fmt: skip
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    args = parser.parse_args()
    if args.clock == "thread" and args.device != "cpu":
        sys.exit("call_overhead: a GPU's backward pass runs on a thread of PyTorch's: take the wall's clock")
    clock = time.perf_counter if args.clock == "wall" else time.thread_time
    chronaxie.set_num_threads(1)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    device = torch.device(args.device, 0) if args.device == "cuda" else torch.device(args.device)
    gpu, width = device.type == "cuda", args.width
    args.rounds, args.calls = args.rounds or (300 if gpu else 40), args.calls or (20 if gpu else 300)
    wait = torch.cuda.synchronize if gpu else lambda: None
    layer = TrueLiquidTimeConstant(width, width).to(device)
    x = torch.randn(1, 1, width, device=device, requires_grad=True)
    params, shapes, seed = list(layer.parameters()), ((1, 1, width), (1, width)), torch.ones(1, 1, width, device=device)
    contenders = {
        "empty": lambda: Empty.apply(shapes, x, *params),
        "dropped": lambda: Dropped.apply(shapes, x, *params),
        "least": lambda: Least.apply(shapes, x, *params),
        "chronaxie": lambda: layer(x),
    }

    def both(call):
        def run():
            torch.autograd.backward([call()[0]], [seed])
            x.grad = None
            for p in params:
                p.grad = None

        return run

    print(f"{len(params) + 1} tensors that need gradients, D = H = {width}, on {device}, PyTorch {torch.__version__}; us a call")
    print(f"{'':<52}{'median':>8}{'least':>8}{'above empty':>13}")
    pieces, records = parts(layer, x, seed), []
    for title, wrap in (("forward", lambda call: call), ("forward and backward", both)):
        calls = {f"{title}: {name}": wrap(call) for name, call in contenders.items()}
        inner = pieces["forward" if title == "forward" else "backward"]
        calls |= {f"  {'' if title == 'forward' else 'backward: '}{name}": call for name, call in inner.items()}
        times = measure(calls, args.rounds, args.calls, clock, wait)
        empty = times[f"{title}: empty"]
        for name, rounds in times.items():
            # Round by round, against the empty one of the same round.
            above = statistics.median(a - b for a, b in zip(rounds, empty))
            record = {"call": name.strip(), "median_us": statistics.median(rounds), "min_us": min(rounds)}
            if not name.startswith("  "):
                record["above_empty_us"] = above
            records.append(record)
            tail = f"{above:+13.1f}" if "above_empty_us" in record else ""
            print(f"{name:<52}{record['median_us']:8.1f}{record['min_us']:8.1f}{tail}")
    if args.json:
        args.json.write_text(json.dumps(records, indent=1) + "\n")


if __name__ == "__main__":
    main()
