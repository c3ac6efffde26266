"""benchmarks/inverse_root.py: its law and its peers, and what it refuses."""

import json
import subprocess
import sys

import pytest
import torch

from conftest import module_of, script

SCRIPT = script("inverse_root")
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def bench():
    return module_of(SCRIPT)


@pytest.mark.parametrize("text", ["3x20", "2x33,p=2,kappa=1e2,relative=1e-3", "2x17,p=3,kappa=50,absolute=1e-2"])
def test_the_law_is_a_root_and_peers_agree_with_it(bench, text):
    case = bench.Case(text, CPU)
    damped = case.a.double() + case.damping(case.a.double()) * torch.eye(case.n)
    assert torch.allclose(torch.linalg.matrix_power(case.law, case.p) @ damped, torch.eye(case.n, dtype=torch.float64), atol=1e-9)
    looked, iterations = case.newton()
    assert 5 < iterations < 30 and torch.equal(looked, case.newton(iterations)[0])
    for root in (case.ours(), case.eigh(), looked, case.numpy()):
        assert root.dtype == torch.float32 and float(case.errors(root).max()) < 1e-5


def test_a_run_writes_a_record_a_case(tmp_path):
    file = tmp_path / "roots.json"
    cases = ["--case", "2x16", "--case", "1x24,p=2,kappa=1e2"]
    command = [sys.executable, str(SCRIPT), "--device", "cpu", "--rounds", "2", "--json", str(file), *cases]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    records = json.loads(file.read_text())
    assert [r["case"] for r in records] == cases[1::2]
    for r in records:
        assert r["device"] == "cpu" and r["runs"] == 2 and r["mean_error"] <= r["error"] < 1e-5 and r["target_met"] is None
        assert all(r[f"{name}_ms"] > 0 and r[f"{name}_error"] < 1e-5 for name in ("eigh", "newton", "newton_blind", "numpy"))


def test_a_wrong_case_is_a_sentence(bench):
    for text, says in {"64": "is not COUNTxORDER", "2x8,q=2": "options are p, kappa", "2x8,p": "is not COUNTxORDER"}.items():
        with pytest.raises(SystemExit, match=says):
            bench.Case(text, CPU)
    with pytest.raises(SystemExit, match="it has no root"):
        bench.Case("1x64,kappa=1e12,absolute=0,relative=0", CPU)
