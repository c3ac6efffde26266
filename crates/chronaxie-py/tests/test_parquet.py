"""Parquet between the command line and pyarrow: spikes that it writes, and edges that it reads."""

import hashlib
import json
import subprocess
import sys

import numpy as np
import pytest

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

NETWORK = {
    "schema": 1,
    "simulation": {"dt": 0.1, "duration": 300.0, "seed": 3},
    "population": [
        {"name": "E", "model": "lif_exp", "size": 80, "parameters": {"I_e": 420.0}},
        {"name": "\u00e9, quiet", "model": "lif_exp", "size": 20},
    ],
    "projection": [{"source": "E", "target": "E", "rule": "edges"}],
}


def simulate(folder, network, *more):
    (folder / "net.json").write_text(json.dumps(network))
    argv = [sys.executable, "-m", "chronaxie", "simulate", "net.json", "--backend", "cpu", "--quiet", *more]
    return subprocess.run(argv, capture_output=True, text=True, cwd=folder)


def analyze(folder, recording):
    argv = [sys.executable, "-m", "chronaxie", "analyze", recording, "--json", "-", "--quiet"]
    ran = subprocess.run(argv, capture_output=True, text=True, cwd=folder)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def edges(count=2000):
    rng = np.random.default_rng(0)
    return {
        "source": np.sort(rng.integers(0, 80, count)),
        "target": rng.integers(0, 80, count).astype(np.uint16),
        "weight": rng.normal(30.0, 3.0, count).astype(np.float32),
        "delay": rng.choice([0.5, 1.0, 1.5], count),
    }


def with_edges(name):
    network = json.loads(json.dumps(NETWORK))
    network["projection"][0]["file"] = name
    return network


def test_pyarrow_reads_the_spikes_of_a_run(tmp_path):
    np.savez(tmp_path / "edges.npz", **edges())
    ran = simulate(tmp_path, with_edges("edges.npz"), "--out", "run")
    assert ran.returncode == 0, ran.stderr
    report = json.loads(ran.stdout)
    # Checksums of pages too.
    table = pq.read_table(tmp_path / "run" / "spikes.parquet", page_checksum_verification=True)
    assert table.num_rows == report["spikes"] > 500
    types = {f.name: f.type for f in table.schema}
    assert types == {"time": pa.float64(), "step": pa.uint64(), "neuron": pa.uint32(), "population": pa.string()}
    names = np.array(["E", "\u00e9, quiet"])
    with np.load(tmp_path / "run" / "spikes.npz") as npz:
        for name in ["time", "step", "neuron"]:
            assert np.array_equal(table[name].to_numpy(), npz[name])
        assert np.array_equal(table["population"].to_numpy(), names[npz["population"]])
    rows = np.column_stack([table["step"].to_numpy(), table["neuron"].to_numpy().astype("u8")]).astype("<u8")
    assert hashlib.sha256(rows.tobytes()).hexdigest() == report["spikes_sha256"]
    about = {k.decode(): v.decode() for k, v in table.schema.metadata.items()}
    assert about["dt_ms"] == "0.1" and about["stop_ms"] == "300" and about["population_sizes"] == "80,20"
    assert about["population_names"].split("\n") == list(names)
    file = pq.ParquetFile(tmp_path / "run" / "spikes.parquet")
    assert file.metadata.num_row_groups == 1 and file.metadata.created_by.startswith("chronaxie version ")
    column = file.metadata.row_group(0).column(0)
    assert column.statistics.min == table["time"].to_numpy()[0]
    assert column.statistics.max == table["time"].to_numpy()[-1]
    kept = pq.read_table(tmp_path / "run" / "spikes.parquet", filters=[("time", ">=", 150.0), ("population", "=", "E")])
    assert kept.num_rows == int((table["time"].to_numpy() >= 150.0).sum())
    coded = pq.read_table(tmp_path / "run" / "spikes.parquet", read_dictionary=["population"])
    assert coded["population"].type == pa.dictionary(pa.int32(), pa.string())
    of_file, of_npz = analyze(tmp_path, "run/spikes.parquet"), analyze(tmp_path, "run/spikes.npz")
    assert of_file["populations"] == of_npz["populations"] and of_file["stop_ms"] == 300.0


def test_a_run_without_spikes_is_a_table_without_rows(tmp_path):
    network = {**NETWORK, "projection": []}
    network["population"] = NETWORK["population"][1:]
    assert simulate(tmp_path, network, "--out", "run").returncode == 0
    table = pq.read_table(tmp_path / "run" / "spikes.parquet")
    assert table.num_rows == 0 and table.column_names == ["time", "step", "neuron", "population"]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"compression": "none", "use_dictionary": False},
        {"compression": "none", "data_page_version": "2.0", "row_group_size": 300, "data_page_size": 512},
        {"use_dictionary": ["source", "delay"], "version": "1.0", "write_page_checksum": True},
        {"data_page_version": "2.0", "dictionary_pagesize_limit": 64, "write_statistics": False},
    ],
)
def test_edges_are_read_as_pyarrow_writes_them(tmp_path, options):
    columns = edges()
    np.savez(tmp_path / "edges.npz", **columns)
    pq.write_table(pa.table({"more": ["x"] * 2000, **columns}), tmp_path / "edges.parquet", **options)
    runs = [simulate(tmp_path, with_edges(f"edges.{kind}"), "--out", kind) for kind in ["npz", "parquet"]]
    assert [ran.returncode for ran in runs] == [0, 0], runs[1].stderr
    want, got = (json.loads(ran.stdout) for ran in runs)
    assert got["spikes_sha256"] == want["spikes_sha256"] and got["synapses"] == 2000 and got["spikes"] > 500


@pytest.mark.parametrize(
    ("change", "options", "says"),
    [
        ({}, {"compression": "zstd"}, 'column "source": it is compressed by Zstandard; Snappy and files that are not'),
        ({}, {"compression": "gzip"}, "it is compressed by gzip"),
        (
            {},
            {"use_dictionary": False, "column_encoding": {"weight": "BYTE_STREAM_SPLIT"}},
            'column "weight": it is encoded as BYTE_STREAM_SPLIT; PLAIN and dictionaries are read',
        ),
        ({"delay": [None] + [1.0] * 1999}, {}, 'column "delay": the value of row 0 is missing'),
        ({"target": [float("nan")] * 2000}, {}, "target[0] is NaN"),
        ({"weight": ["1.0"] * 2000}, {}, 'column "weight": it is BYTE_ARRAY of a logical type of its own'),
        ({"source": [80] * 2000}, {}, "80"),
    ],
)
def test_other_edges_are_refused_in_a_sentence(tmp_path, change, options, says):
    pq.write_table(pa.table({**edges(), **change}), tmp_path / "edges.parquet", **options)
    ran = simulate(tmp_path, with_edges("edges.parquet"), "--out", "run")
    assert ran.returncode == 2 and says in ran.stderr and "panicked" not in ran.stderr, ran.stderr
    assert ran.stderr.strip().count("\n") == 0 and not (tmp_path / "run").exists()


def test_files_that_are_cut_off_are_refused(tmp_path):
    pq.write_table(pa.table(edges()), tmp_path / "whole.parquet")
    whole = (tmp_path / "whole.parquet").read_bytes()
    for cut in [0, 3, 8, len(whole) // 2, len(whole) - 1]:
        (tmp_path / "edges.parquet").write_bytes(whole[:cut])
        ran = simulate(tmp_path, with_edges("edges.parquet"), "--out", "run")
        assert ran.returncode == 2 and "it is no Parquet file, or one that is cut off" in ran.stderr, ran.stderr
