#!/usr/bin/env python3
"""What a call of chronaxie.torch costs above an autograd.Function that does nothing with the same inputs.

    PYTHONPATH=... "$(scripts/venv.sh scripts/requirements-bench.txt)/bin/python" benchmarks/python_calls.py [--device cuda]

The layer is the smallest there is (B = T = 1, D = H = 2, K = 6), so that what is left is the call, native work included.
"empty" returns new outputs and no gradients; "allocating" also saves its inputs and returns a new tensor as the gradient of
each, which is the least that any function with these gradients does. The best of the rounds is printed, and the median.
"""

import argparse
import statistics
import time

import torch

import chronaxie
from chronaxie.torch import TrueLiquidTimeConstant


class Empty(torch.autograd.Function):
    @staticmethod
    def forward(ctx, shapes, x, *params):
        ctx.count = len(params)
        return x.new_empty(shapes[0]), x.new_empty(shapes[1])

    @staticmethod
    def backward(ctx, *grads):
        return (None,) * (2 + ctx.count)


class Allocating(torch.autograd.Function):
    @staticmethod
    def forward(ctx, shapes, x, *params):
        ctx.save_for_backward(x, *params)
        return x.new_empty(shapes[0]), x.new_empty(shapes[1])

    @staticmethod
    def backward(ctx, *grads):
        return (None, *map(torch.empty_like, ctx.saved_tensors))


def measure(call, rounds, calls):
    for _ in range(200):
        call()
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        for _ in range(calls):
            call()
        times.append((time.perf_counter() - began) / calls * 1e6)
    return min(times), statistics.median(times)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--calls", type=int, default=1000)
    args = parser.parse_args()
    chronaxie.set_num_threads(1)
    torch.manual_seed(0)
    layer = TrueLiquidTimeConstant(2, 2).to(args.device)
    x = torch.randn(1, 1, 2, device=args.device, requires_grad=True)
    params, shapes, seed = list(layer.parameters()), ((1, 1, 2), (1, 2)), torch.ones(1, 1, 2, device=args.device)
    contenders = {
        "empty": lambda: Empty.apply(shapes, x, *params),
        "allocating": lambda: Allocating.apply(shapes, x, *params),
        "chronaxie": lambda: layer(x),
    }

    def both(call):
        def run():
            torch.autograd.backward([call()[0]], [seed])
            x.grad = None
            for p in params:
                p.grad = None

        return run

    print(f"{len(params) + 1} tensors that need gradients, on {args.device}; us a call, best (median)")
    for title, wrap in (("forward", lambda call: call), ("forward and backward", both)):
        found = {name: measure(wrap(call), args.rounds, args.calls) for name, call in contenders.items()}
        for name, (best, median) in found.items():
            above = f", {best - found['empty'][0]:+.0f} above empty" if name != "empty" else ""
            print(f"{title:<22} {name:<11} {best:6.1f} ({median:.1f}){above}")
    with torch.no_grad():
        best, median = measure(contenders["chronaxie"], args.rounds, args.calls)
    print(f"{'without gradients':<22} {'chronaxie':<11} {best:6.1f} ({median:.1f})")


if __name__ == "__main__":
    main()
