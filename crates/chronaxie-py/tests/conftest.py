"""Devices, and how errors are measured."""

import importlib.util
import io
import os
import sys
from pathlib import Path

import pytest
import torch

import chronaxie.torch  # noqa: F401

# As layers/ltc/spec.rs declares them: relative to the norm of the float64 result.
OUTPUT, GRADIENT, CANCELLING = 5e-6, 1e-5, 1e-4


def script(name):
    """The path of a script of benchmarks/, which a package alone has not."""
    path = Path(__file__).resolve().parents[3] / "benchmarks" / f"{name}.py"
    if not path.exists():
        pytest.skip(f"there is no benchmarks/{name}.py here", allow_module_level=True)
    return path


def module_of(path):
    """A script as a module."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _cuda() -> bool:
    there = torch.cuda.is_available()
    if not there and os.environ.get("CHRONAXIE_REQUIRE_GPU") == "1":
        pytest.fail("CHRONAXIE_REQUIRE_GPU=1 and PyTorch sees no CUDA device")
    return there


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request):
    if request.param == "cuda" and not _cuda():
        pytest.skip("PyTorch sees no CUDA device")
    return torch.device(request.param, 0) if request.param == "cuda" else torch.device("cpu")


@pytest.fixture
def cuda():
    if not _cuda():
        pytest.skip("PyTorch sees no CUDA device")
    return torch.device("cuda", 0)


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def backend(request):
    """The name of a backend that runs here, without PyTorch's word for it."""
    if request.param == "cuda" and not chronaxie.devices()["cuda"]:
        if os.environ.get("CHRONAXIE_REQUIRE_GPU") == "1":
            pytest.fail("CHRONAXIE_REQUIRE_GPU=1 and there is no CUDA device")
        pytest.skip("there is no CUDA device")
    return request.param


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)
    # cuDNN's recurrent layers and convolutions round to 10 bits otherwise, where they are held against our float32.
    torch.backends.cudnn.allow_tf32 = False
    # A function is compiled anew eight times in a process at most, all tests together.
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()


def distance(ours, law):
    """The norm of the difference, relative to the law's (absolute where that is 0)."""
    ours, law = ours.detach().double().cpu(), law.detach().double().cpu()
    assert ours.shape == law.shape
    scale = law.norm()
    return float((ours - law).norm() / (scale if scale > 0 else 1.0))


def assert_near(name, ours, law, bound=None):
    bound = bound or (CANCELLING if name.endswith(("cm", "elapsed")) else GRADIENT)
    error = distance(ours, law)
    assert error <= bound, f"{name}: {error:.2e} > {bound:.0e}"


def gradients(module, tensors, outputs, seeds):
    """Gradients of everything that requires them, by name, for the given gradients of the outputs."""
    named = {n: p for n, p in module.named_parameters() if p.requires_grad} | tensors
    got = torch.autograd.grad(outputs, list(named.values()), seeds, allow_unused=True)
    return {n: torch.zeros_like(t) if g is None else g for (n, t), g in zip(named.items(), got)}


def goes_on_with_the_same_bits(make, optimize, run):
    """Whether a run that was saved and loaded by others goes on as the one that was not: ``make(seed)`` gives a model,
    ``optimize(model, first)`` its optimizer (not the first one has other options, which loading replaces), and
    ``run(model, optimizer, part)`` some steps of the part before or behind."""
    model = make(1)
    optimizer = optimize(model, True)
    run(model, optimizer, 0)
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    run(model, optimizer, 1)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    other = make(7)
    other.load_state_dict(saved["model"])
    again = optimize(other, False)
    again.load_state_dict(saved["optimizer"])
    run(other, again, 1)
    for (name, a), b in zip(model.named_parameters(), other.parameters()):
        assert torch.equal(a, b), name


def pytest_terminal_summary(terminalreporter):
    # As every step of `make test` ends.
    count = lambda *kinds: sum(len(terminalreporter.stats.get(k, [])) for k in kinds)  # noqa: E731
    line = f"{count('passed')} passed, {count('failed', 'error')} failed, {count('skipped')} skipped"
    terminalreporter.ensure_newline()
    terminalreporter.write_line(line)
