"""The package without any framework: exceptions, devices, checks, the command line, and the low-level call."""

import array
import os
import pickle
import signal
import subprocess
import sys
import threading
import time

import pytest

import chronaxie
from chronaxie import _native


def run(code, **kwargs):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, **kwargs)


def test_import_loads_no_framework():
    loaded = run("import sys, chronaxie, chronaxie.cuda; print(sorted({'torch', 'numpy', 'jax'} & set(sys.modules)))")
    assert loaded.stdout == "[]\n", loaded.stderr


@pytest.mark.parametrize(
    "name, base",
    [
        ("ShapeError", ValueError),
        ("DtypeError", TypeError),
        ("DeviceError", RuntimeError),
        ("BackendUnavailableError", RuntimeError),
        ("CompileError", RuntimeError),
        ("OutOfMemoryError", MemoryError),
        ("ConfigError", ValueError),
        ("DataError", ValueError),
        ("CheckpointError", ValueError),
    ],
)
def test_exceptions_have_their_bases_and_pickle(name, base):
    cls = getattr(chronaxie, name)
    assert issubclass(cls, base) and issubclass(cls, chronaxie.ChronaxieError) and cls.__module__ == "chronaxie"
    again = pickle.loads(pickle.dumps(cls("a sentence")))
    assert type(again) is cls and str(again) == "a sentence"


def test_errors_are_sentences_of_their_class():
    with pytest.raises(chronaxie.ConfigError, match="family `ltcc` is not one of .*did you mean `ltc`"):
        chronaxie.check("ltcc")
    with pytest.raises(chronaxie.ConfigError, match=r"unfolds = 0 is not in 1 \.\.= 1024") as e:
        _native.problem("ltc", "B1_T1_D1_H1,unfolds=0")
    assert isinstance(e.value, ValueError)
    with pytest.raises(chronaxie.DeviceError, match="device `gpu` is not one of"):
        chronaxie.memory_info("gpu")
    with pytest.raises(chronaxie.ConfigError, match="pass `sideways` is not one of forward, backward, step"):
        _native.problem("ltc", "B1_T1_D1_H1").signature("sideways")


def test_devices_and_memory():
    found = chronaxie.devices()
    assert found["cpu"]["cores"] >= 1 and {"driver", "nvrtc", "cuda"} <= set(found)
    free, total = chronaxie.memory_info("cpu")
    assert 0 < free <= total
    if "missing" in found["driver"]:
        with pytest.raises(chronaxie.BackendUnavailableError, match="no CUDA driver"):
            chronaxie.memory_info("cuda:0")


def test_nvrtc_is_found_beside_this_python():
    torch = pytest.importorskip("torch")
    pytest.importorskip("nvidia")
    if not torch.version.cuda:
        pytest.skip("a PyTorch without CUDA brings no NVRTC")
    code = "import chronaxie; print(chronaxie.devices()['nvrtc'].get('path'))"
    bare = {"HOME": os.environ.get("HOME", ""), "PATH": "", "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    site = os.path.dirname(os.path.dirname(torch.__file__))
    assert run(code, env=bare).stdout.startswith(site)


def test_threads():
    before = chronaxie.get_num_threads()
    chronaxie.set_num_threads(3)
    assert chronaxie.get_num_threads() == 3
    chronaxie.set_num_threads(before)
    with pytest.raises(chronaxie.ConfigError, match="threads = 0"):
        chronaxie.set_num_threads(0)


def test_check_and_bench_give_records():
    records = chronaxie.check("ltc", cases="B2_T3_D4_H5", backend="cpu")
    assert records and {r["status"] for r in records} == {"passed"}
    assert {"forward.out", "backward.grad_w"} <= {r["quantity"] for r in records}
    (record,) = [r for r in chronaxie.bench("linear_scan", cases="B1_D1_T3", backend="cpu", seconds=0.01) if r["pass"] == "forward"]
    assert record["median_ms"] > 0 and record["backend"] == "cpu" and record["version"] == chronaxie.__version__


def test_the_command_line_is_the_same():
    ran = subprocess.run([sys.executable, "-m", "chronaxie", "devices", "--json", "-"], capture_output=True, text=True)
    assert ran.returncode == 0 and '"cpu"' in ran.stdout
    ran = subprocess.run([sys.executable, "-m", "chronaxie", "check", "nothing"], capture_output=True, text=True)
    assert ran.returncode == 2 and "family `nothing`" in ran.stderr


def pointer(a):
    return a.buffer_info()[0]


def test_the_low_level_call_runs_any_entry():
    problem = _native.problem("linear_scan", "B1_D1_T3")
    inputs, outputs = problem.signature("forward")
    assert [t[0] for t in inputs] == ["a", "x"] and inputs[0][1:4] == ("[B, D, T]", [1, 1, 3], "f32")
    plan = problem.plan("cpu")
    a, x = array.array("f", [0.5] * 3), array.array("f", [1.0] * 3)
    h, last = array.array("f", [0.0] * 3), array.array("f", [0.0])
    scratch = array.array("B", bytes(plan.scratch_bytes("forward") + 256))
    at = pointer(scratch) + -pointer(scratch) % 256
    plan.run("forward", [pointer(a), pointer(x), pointer(h), pointer(last)], scratch=at)
    assert list(h) == [1.0, 1.5, 1.75] and last[0] == 1.75
    # Backwards by a negative stride: the same, as all inputs are.
    end = pointer(x) + 8
    plan.run("forward", [pointer(a), end, pointer(h), pointer(last)], [(1, [3, 3, -1])], at)
    assert list(h) == [1.0, 1.5, 1.75]
    with pytest.raises(chronaxie.ShapeError, match="3 addresses were given, the forward pass has 4 tensors"):
        plan.run("forward", [0, 0, 0])
    with pytest.raises(chronaxie.ShapeError, match="strides .* do not fit input 7"):
        plan.run("forward", [0] * 4, [(7, [1])])
    with pytest.raises(chronaxie.ShapeError, match="not aligned"):
        plan.run("forward", [pointer(a) + 1, pointer(x), pointer(h), pointer(last)], scratch=at)


@pytest.mark.parametrize("family", chronaxie.families())
def test_every_entry_can_be_asked_for(family):
    for case in _native.cases(family):
        problem = _native.problem(family, case)
        passes = [p for p in ("forward", "backward", "step") if has_pass(problem, p)]
        plan = problem.plan("cpu")
        assert problem.entry == family and passes and plan.variant and plan.config
        for name in passes:
            inputs, outputs = problem.signature(name)
            names = [t[0] for t in inputs]
            assert len(set(names)) == len(names) and outputs
            assert plan.scratch_bytes(name) >= 0
            with pytest.raises(chronaxie.ShapeError, match=f"0 addresses were given, the {name} pass has"):
                plan.run(name, [])
    with pytest.raises(chronaxie.ConfigError, match="axis Q is not one of"):
        _native.problem(family, "Q7")


def has_pass(problem, name):
    try:
        problem.signature(name)
    except chronaxie.ConfigError:
        return False
    return True


def test_prepared_synapses_are_refused_by_others():
    connectivity = _native.prepare(b"\1" * 4, b"\1" * 6, 3, 2)
    assert (connectivity.inputs, connectivity.hidden, connectivity.recurrent, connectivity.sensory) == (3, 2, 4, 6)
    with pytest.raises(chronaxie.ConfigError, match="takes nothing that is prepared"):
        _native.problem("linear_scan", "B1_D1_T3", connectivity)
    with pytest.raises(chronaxie.ShapeError, match=r"5 elements does not match \[sources, targets\]"):
        _native.prepare(b"\1" * 5, b"\1" * 6, 3, 2)


LONG = """
import signal
# Whoever runs the tests may ignore the signal, and a child inherits that.
signal.signal(signal.SIGINT, signal.default_int_handler)
import torch, chronaxie.torch as ct, time
layer = ct.TrueLiquidTimeConstant(8, 256, sparsity=1.0)
x = torch.randn(16, 4000, 8)
print("ready", flush=True)
began = time.monotonic()
try:
    with torch.no_grad():
        layer(x)
    print("not interrupted", time.monotonic() - began)
except KeyboardInterrupt:
    print("interrupted", flush=True)
with torch.no_grad():
    print(layer(x[:, :2])[0].isfinite().all().item(), flush=True)
"""


def test_ctrl_c_ends_a_long_call_and_the_next_one_works():
    process = subprocess.Popen([sys.executable, "-c", LONG], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    began = time.monotonic()
    assert process.stdout.readline() == "interrupted\n"
    assert time.monotonic() - began < 2.0
    assert process.stdout.readline() == "True\n"
    assert process.wait(30) == 0


CHECK = """
import signal
# Whoever runs the tests may ignore the signal, and a child inherits that.
signal.signal(signal.SIGINT, signal.default_int_handler)
import chronaxie
print("ready", flush=True)
try:
    chronaxie.check("ltc", backend="cpu", repeats=3)
    print("not interrupted")
except KeyboardInterrupt:
    print("interrupted")
"""


def test_ctrl_c_ends_a_check():
    process = subprocess.Popen([sys.executable, "-c", CHECK], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60)[0] == "interrupted\n"


def test_the_gil_is_free_while_the_cpu_works():
    torch = pytest.importorskip("torch")
    import chronaxie.torch as ct

    layer = ct.TrueLiquidTimeConstant(8, 128, sparsity=1.0)
    x = torch.randn(8, 300, 8)
    ticks, done = 0, False

    def count():
        nonlocal ticks
        while not done:
            ticks += 1
            time.sleep(0.001)

    thread = threading.Thread(target=count)
    thread.start()
    with torch.no_grad():
        before, began = ticks, time.monotonic()
        while time.monotonic() - began < 0.3:
            layer(x)
    ticked = ticks - before
    done = True
    thread.join()
    # Held for the whole of a call, the other thread would tick once a call.
    assert ticked > 20, ticked


def test_works_after_fork():
    code = """
import os, torch, chronaxie.torch as ct
layer, x = ct.TrueLiquidTimeConstant(4, 32), torch.randn(64, 6, 4)
a = layer(x)[0]
pid = os.fork()
if pid == 0:
    os._exit(0 if torch.equal(layer(x)[0], a) else 7)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
    assert run(code, env={**os.environ, "OMP_NUM_THREADS": "2"}).stdout == "0\n"
