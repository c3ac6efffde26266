"""The study of the optimizers on a language model: its short form, and what it makes of curves."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"
NAMES = ["adamw", "shampoo", "soap", "kfac", "muon"]


def test_the_short_study_teaches_every_model_and_compares_them(tmp_path):
    script = [sys.executable, str(BENCHMARKS / "study_lm.py"), "--short", "--device", "cpu", "--optimizers", ",".join(NAMES)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CHRONAXIE_NUM_THREADS": "1"}
    done = subprocess.run([*script, "--out", str(tmp_path)], capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "study-lm.json").read_text())
    assert [run["optimizer"] for run in found["runs"]] == NAMES and not found["left_out"]
    for run in found["runs"]:
        first, last = run["points"][0], run["points"][-1]
        # 65 symbols, of which nothing is known at first: ln 65 = 4.17; how often each comes alone gives 3.3.
        assert 4.0 < first[2] < 4.4 and last[2] < 3.3, run
        assert last[0] == run["steps"] and last[1] > 0 and not run["diverged"]
    table = {row["optimizer"]: row for row in found["table"]}
    assert list(table) == NAMES and table["adamw"]["steps_ratio"] == table["adamw"]["seconds_ratio"] == 1.0
    wanted = [name for name, row in table.items() if row["as_wanted"]]
    assert f"within 0.75 of adamw's steps and not more of its seconds: {', '.join(wanted) or 'none'}\n" in done.stdout
    drawn = (tmp_path / "study-lm.svg").read_text()
    # Two axes, two lines of AdamW's last loss, and a curve of each by steps and by seconds.
    assert drawn.count("<path") == 4 + 2 * len(NAMES) and all(f">{name}<" in drawn for name in NAMES)


@pytest.fixture
def study(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import study_lm

    return study_lm


def run(name, seed, losses, a_step=1.0, diverged=False):
    points = [[step, a_step * step, loss, None if step == 0 else loss] for step, loss in enumerate(losses)]
    return dict(optimizer=name, seed=seed, rate=0.1, steps=len(losses) - 1, captured=False, diverged=diverged, points=points)


def test_the_table_tells_where_the_mean_over_seeds_reaches_the_first_ones_last_mean(study):
    runs = [run("adamw", 1, [4.0, 3.5, 3.0, 2.5, 2.0]), run("adamw", 2, [4.0, 3.5, 3.0, 2.5, 3.0])]
    # The mean is 4, 2.9, 2.6, 2.4: 2.5 first at 3 of 4 steps, though one of the two has it at 1.
    runs += [run("soap", 1, [4.0, 2.5, 2.3, 2.2], 1.25), run("soap", 2, [4.0, 3.3, 2.9, 2.6], 1.25)]
    runs += [run("shampoo", 1, [4.0, 2.5, 2.4], 2.5), run("shampoo", 2, [9.0], diverged=True)]
    runs += [run("kfac", 1, [4.0, 3.0, 2.51])]
    adamw, shampoo, soap, kfac = study.table_of(runs, ["adamw", "shampoo", "soap", "kfac"])
    # AdamW's own mean is at its last 2.5 one step earlier.
    assert adamw["last_loss"] == 2.5 and (adamw["reached_at_step"], adamw["steps_ratio"]) == (3, 1.0)
    assert (soap["reached_at_step"], soap["reached_at_seconds"]) == (3, 3.75)
    assert (soap["steps_ratio"], soap["seconds_ratio"], soap["as_wanted"]) == (1.0, 1.25, False)
    assert (shampoo["steps_ratio"], shampoo["runs"], shampoo["diverged"]) == (1 / 3, 1, 1) and shampoo["as_wanted"]
    assert kfac["reached_at_step"] is None and kfac["steps_ratio"] is None and not kfac["as_wanted"]
    assert study.table_of(runs[2:], ["adamw", "soap"]) == []


def test_the_list_of_rates_grows_where_the_best_is_at_its_end_but_not_beyond_adamws(study, monkeypatch):
    of_adamw = len(study.OWN["adamw"][0])
    for name in study.OWN:
        for end in (0, -1):
            tried = []

            class Tuning(study.Study):
                def __init__(self):
                    self.args = type("Args", (), dict(short=False, steps=100, share=0.75))()

                def one(self, name, rate, seed, steps, where):
                    tried.append(rate)
                    # The lower, or the higher a rate, the better.
                    return rate if end == 0 else -rate

            best = Tuning().tune(name)
            assert best == (min(tried) if end == 0 else max(tried)) and len(set(tried)) == len(tried)
            assert len(tried) == (of_adamw + 1 if name == "adamw" else of_adamw)
            assert best not in study.OWN[name][0]
