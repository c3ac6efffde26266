"""benchmarks/ranks.py: what it counts and compares, and that a rank which fails ends all of them with its sentence."""

import json
import os
import subprocess
import sys

import pytest
import torch

from conftest import module_of, script

SCRIPT = script("ranks")
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def ranks():
    return module_of(SCRIPT)


def test_pieces_are_those_of_the_whole_and_bytes_are_the_least(ranks):
    for text in ("linear_scan:B1_D4:summary", "selective_scan:B1_D4_T8_N2:summary", "mlstm:B1_NH2_K16_V32,parts=2:wavefront"):
        case = ranks.Case(text, CPU)
        (whole, seed), *pieces = (case.inputs(CPU, 8, 4, own) for own in (range(4), range(2), range(2, 4)))
        for name, (shape, _) in case.tensors(case.sizes)[0].items():
            assert torch.equal(torch.cat([t[name] for t, _ in pieces], shape.index("T")), whole[name]), (text, name)
        # Time is before the channels of an mLSTM's seed.
        assert torch.equal(torch.cat([s for _, s in pieces], 2), seed)
    case = ranks.Case("linear_scan:B1_D4:summary", CPU)
    assert case.bytes(10, False) == 10 * 4 * 12 and case.bytes(10, True) == 10 * 4 * 32
    assert case.fits(CPU, 1 << 24) == 1 << 23 and case.fits(CPU, 1 << 10) == 1 << 10
    assert ranks.Case("mlstm:B1_NH2_T8_K16_V32,parts=2:wavefront", CPU).name(16) == "B1_NH2_T16_K16_V32,parts=2"
    with pytest.raises(SystemExit, match="case `linear:B1_D4:summary` is not ENTRY:SIZES:DESIGN"):
        ranks.Case("linear:B1_D4:summary", CPU)


def test_two_ranks_over_gloo(tmp_path):
    file = tmp_path / "ranks.json"
    cases = ["linear_scan:B1_D4_T64:summary", "mlstm:B1_NH2_T64_K16_V32,parts=2:wavefront", "linear_scan:B1_D4_T64:ring"]
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--device", "cpu", "--ranks", "2", "--repeats", "1", "--json", str(file), "--cases", *cases],
        capture_output=True, text=True, timeout=120, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    # The last case fails on every rank, behind the records of the others.
    assert done.returncode == 1 and done.stderr.strip().splitlines()[-1].endswith(
        "chronaxie.ConfigError: linear_scan: design `ring` is not one of auto, summary, wavefront"
    ), done.stderr
    records = json.loads(file.read_text())
    assert [(r["family"], r["pass"], r["design"], r["parts"], r["ranks"]) for r in records] == [
        ("linear_scan", "forward", "summary", 1, 2), ("linear_scan", "forward_backward", "summary", 1, 2),
        ("mlstm", "forward", "wavefront", 2, 2), ("mlstm", "forward_backward", "wavefront", 2, 2),
    ]  # fmt: skip
    assert len(done.stdout.splitlines()) == 4
    for r in records:
        assert 0 < r["max_error"] < 5e-5 and r["speedup"] == r["one_median_ms"] / r["median_ms"] > 0 and r["one_steps"] == 64
