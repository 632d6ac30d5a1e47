"""Knowledge as data: every row has its source and date, a broken one is a clear line, and a row of
your own is read like the others."""

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from helpers.engine.errors import UserError
from helpers.planner.audit import constants
from helpers.planner.bill import failures
from helpers.planner.hardware import catalog
from helpers.planner.model import block_tensors, eight_bits
from helpers.planner.model.block_tensors import program
from helpers.planner.published import models, posts, runs
from helpers.planner.published.models import PublishedModel, published_model
from helpers.planner.published.posts import find_post
from helpers.planner.published.runs import Machine
from helpers.planner.search import ranges
from helpers.smp import keys
from helpers.smp.keys import Key
from helpers.smp.reading import catalogue
from helpers.tables import read_rows, read_table

ROOT = Path(__file__).resolve().parents[2]
SUFFIXES = (".csv", ".json")


class File(NamedTuple):
    """A file of data, how it is read, a change that breaks its first row, and the words for it."""

    path: Path
    read: Callable
    changes: dict
    words: str


FILES = [
    File(failures.FAILURES, failures.counted, {"gpus": 0}, "gpus must be a number above 0"),
    File(catalog.GPUS, catalog.gpus, {"memory_gib": "16 GB"}, "memory_gib must be of type int"),
    File(catalog.INSTANCES, catalog.instances, {"gpus": 4}, "several need it, one has none"),
    File(catalog.PRICES, catalog.prices, {"usd_per_hour": -1}, "usd_per_hour must be above 0"),
    File(catalog.MESHES, catalog.meshes, {"ranks": 0}, "ranks must be above 0"),
    File(
        catalog.NETWORKS, lambda path: catalog.network("tcp", path), {"share": "all"}, "share must"
    ),
    File(
        catalog.GENERATIONS,
        lambda path: catalog.generation("ampere", path),
        {"products": "most"},
        "products must be of type float",
    ),
    File(
        catalog.PROTOCOLS, catalog.protocols, {"start_us": "few"}, "start_us must be of type float"
    ),
    File(ranges.RANGES, ranges.ranges, {"low": "less"}, "low must be of type float"),
    File(
        block_tensors.PROGRAMS,
        lambda path: program("GPT-J", path),
        {"forward": {"inner": 4}},
        "forward: no field is called 'inner'",
    ),
    File(
        block_tensors.PROGRAMS,
        lambda path: program("GPT-J", path),
        {"like": "none"},
        "there is no row 'none' before it",
    ),
    File(
        eight_bits.EIGHT_BITS,
        lambda path: read_table(path, eight_bits.EightBits),
        {"operations": [1, 2, 3]},
        "operations must have 2 values, not 3",
    ),
    File(runs.RUNS, runs.runs, {"model": "gpt-5"}, "no model 'gpt-5' in models.csv"),
    File(
        runs.MACHINES,
        lambda path: read_table(path, Machine),
        {"devices_per_node": "four"},
        "devices_per_node must be of type int, not 'four'",
    ),
    *(File(path, runs.runs, {"model": "gpt-5"}, "no model 'gpt-5'") for path in runs.THROUGHPUT),
    File(runs.SOURCES, runs.sources, {"title": ""}, "the field 'title' is missing"),
    File(runs.FIGURE_1, runs.figure_1, {"states_gib": "much"}, "states_gib must be of type float"),
    File(
        models.MODELS,
        lambda path: read_table(path, PublishedModel),
        {"family": "bert"},
        "family is one of gpt2, gptj, llama, nemotron, not 'bert'",
    ),
    File(
        posts.POSTS,
        lambda path: find_post("gptj-tensor-parallel", path),
        {"kind": "tweet"},
        "kind is one of training log, pipeline",
    ),
    File(
        keys.KEYS[1], lambda path: keys.keys(1, path), {"kind": "any"}, "kind is one of whole, num"
    ),
    File(keys.KEYS[2], lambda path: keys.keys(2, path), {"default": -1}, "default must be a whole"),
    File(keys.ELSEWHERE, keys.elsewhere, {"place": ""}, "the field 'place' is missing"),
    File(
        catalogue.LIBRARIES,
        lambda path: read_table(path, catalogue.Library),
        {"module": ""},
        "the field 'module' is missing",
    ),
    File(
        catalogue.ENDINGS,
        lambda path: read_table(path, catalogue.Ending),
        {"words": ""},
        "the field 'words' is missing",
    ),
]
EACH_FILE = pytest.mark.parametrize("file", FILES, ids=lambda file: file.path.name)


FOLDERS = [ROOT / "helpers/planner", ROOT / "helpers/smp"]
THERE = {path for folder in FOLDERS for path in folder.rglob("*.*") if path.suffix in SUFFIXES}
VERDICTS = sorted(THERE - {file.path for file in FILES} - {constants.LEFT_OUT})


def test_no_file_of_data_is_forgotten():
    assert {file.path for file in FILES} < THERE
    assert all(path.is_relative_to(ROOT / "helpers/smp") for path in VERDICTS)


@pytest.mark.parametrize("path", VERDICTS, ids=lambda path: path.name)
def test_a_table_of_verdicts_says_once_where_its_names_are_from(path):
    """Its rows are the project's own judgement of each name."""
    head = [line for line in path.read_text("utf-8").splitlines() if line.startswith("#")]
    assert re.fullmatch(r"# Source: .+; 20\d\d-\d\d-\d\d\.", head[-1])


@EACH_FILE
def test_every_row_has_a_source_and_a_date(file):
    for where, row in read_rows(file.path):
        assert row.get("source"), where
        assert re.fullmatch(r"20\d\d(-\d\d){0,2}", row.get("date", "")), where


@EACH_FILE
def test_a_broken_row_is_a_line_that_names_file_and_row(file, tmp_path):
    path, place = changed(file, tmp_path)
    with pytest.raises(UserError) as caught:
        file.read(path)
    text = str(caught.value)
    assert text.startswith(f"{file.path.name} {place}")
    assert file.words in text and "\n" not in text


@EACH_FILE
def test_a_row_without_its_source_is_refused(file, tmp_path):
    path, place = changed(file._replace(changes={"source": None}), tmp_path)
    with pytest.raises(UserError, match=f"{file.path.name} {place}: the field 'source' is missing"):
        file.read(path)


def changed(file, folder):
    """A copy of a file whose first row is changed; None takes a field away. And the row's place."""
    path = folder / file.path.name
    if path.suffix == ".json":
        rows = json.loads(file.path.read_text("utf-8"))
        rows[0].update(file.changes)
        rows[0] = {key: value for key, value in rows[0].items() if value is not None}
        path.write_text(json.dumps(rows), "utf-8")
        return path, "object 1"
    (where, first), *_ = read_rows(file.path)
    lines = file.path.read_text("utf-8").splitlines()
    number = int(where.split()[-1])
    header = next(line for line in lines if not line.startswith("#")).split(",")
    values = {**first, **file.changes}
    cells = [f'"{"" if values.get(name) is None else values[name]}"' for name in header]
    lines[number - 1] = ",".join(cells)
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return path, f"line {number}"


# --- a row more -------------------------------------------------------------------------------


def test_your_own_gpu_is_a_row_more(tmp_path):
    path = tmp_path / "gpus.csv"
    row = "MINE,,mine,My GPU,96,95,1000,100,,50,,400,400,,,,,,2026-01-01,its data sheet\n"
    path.write_text(catalog.GPUS.read_text("utf-8") + row, "utf-8")
    *_, gpu = catalog.gpus(path)
    assert gpu.name == "MINE" and gpu.memory_bytes == 95 * 2**30
    assert gpu.peak_flops == {"fp32": 50e12, "bf16": 400e12, "fp16": 400e12}
    assert gpu.matmul_flops is None
    assert len(catalog.gpus(path)) == len(catalog.gpus()) + 1


@pytest.mark.parametrize("name", ['"My GPU', '"My" GPU', '"My\nGPU"'])
def test_a_quote_that_does_not_end_with_its_cell_is_a_line_that_names_it(name, tmp_path):
    path = tmp_path / "gpus.csv"
    path.write_text(f"key,name,source\n\nMINE,{name},its data sheet\n", "utf-8")
    with pytest.raises(UserError, match=r"gpus\.csv line 3: a quote does not end, or not with its"):
        catalog.gpus(path)


@pytest.mark.parametrize("file", [catalog.GPUS, runs.RUNS])
def test_a_file_may_begin_with_the_mark_of_an_editor(file, tmp_path):
    marked = tmp_path / file.name
    marked.write_text(file.read_text("utf-8"), "utf-8-sig")
    assert list(read_rows(marked)) == list(read_rows(file))


OWN_RUN = {
    "model": "llama3-8b",
    "machine": "p5.48xlarge",
    "layout": "dp_shard=8 precision=bf16",
    "batch": 16,
    "seq_len": 8192,
    "tokens_per_s_per_gpu": 4096,
    "date": "2026-01-01",
    "source": "our cluster",
}


def own_run(folder, **changes):
    path = folder / "runs.json"
    path.write_text(json.dumps([OWN_RUN | changes]), "utf-8")
    (run,) = runs.runs(path)
    return run


def test_your_own_run_is_a_row_more(tmp_path):
    run = own_run(tmp_path, layout="", plan={"dp_shard": 8, "precision": "bf16"}, title="8B")
    assert run.name == "8B"
    assert run.measured_s == 16 * 8192 / (4096 * 8) == 4.0
    assert runs.cluster_of(run).devices == 8
    assert runs.job_of(run).shape == published_model("llama3-8b").shape


@pytest.mark.parametrize(
    ("given", "sizes"),
    [
        ({"layers": 16}, (16, 4096, 32)),
        ({"hidden": 2048, "heads": 16}, (32, 2048, 16)),
        ({"layers": 32, "hidden": 4096, "heads": 32}, (32, 4096, 32)),
    ],
)
def test_a_run_may_have_other_sizes_than_its_model(given, sizes, tmp_path):
    """Without layers they were left out, layers alone were a TypeError, and of all three there
    were as many key-value heads as heads."""
    run = own_run(tmp_path, **given)
    assert (run.shape.layers, run.shape.hidden, run.shape.heads) == sizes
    assert run.name.startswith(f"llama3-8b {sizes[0]} x {sizes[1]}, p5.48xlarge")
    keys_and_values = run.shape.block[1]
    assert run.shape.kv_heads == 8
    assert keys_and_values.outputs == 2 * 8 * run.shape.head_dim


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"machine": "p9"}, "unknown instance 'p9'"),
        ({"plan": {"tensor": 8}}, "a plan has no field 'tensor'"),
        ({"plan": {"tp": 7}}, "tp=7 does not divide 64 heads"),
        ({"heads": 0}, "heads must be a whole number of at least 1, not 0"),
        ({"program": "by hand"}, "no program 'by hand' in programs.json"),
        (
            {"samples_per_s": 4.0},
            "a run needs one of step_s, samples_per_s, tokens_per_s_per_gpu, tflops_per_gpu",
        ),
        ({"plan": {}, "layout": "dp_shard=12"}, "12 ranks do not fill machines of 8 devices each"),
        ({"plan": {}, "layout": "tp=8 tp=4"}, "the layout gives 'tp' more than once"),
        *(({"step_s": pace}, "step_s must be a number above 0") for pace in (0, -5, math.nan)),
        ({"why_not": "unknown"}, "needs what was measured, in words"),
        ({"batch": "many"}, "batch must be of type int, not 'many'"),
    ],
)
def test_what_is_wrong_with_a_run_is_said_with_its_place(change, words, tmp_path):
    file = next(file for file in FILES if file.path == runs.RUNS)
    path, _ = changed(file._replace(changes=change), tmp_path)
    with pytest.raises(UserError, match=r"runs\.json object 1: ") as caught:
        runs.runs(path)
    assert words in str(caught.value)


# --- by name ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda: find_post("gptj"), "no post 'gptj' in posts.json; there is gptj-tensor-parallel"),
        (lambda: published_model("gptj"), "no model 'gptj' in models.csv; there is megatron-22b"),
        (lambda: program("gptj"), "no program 'gptj' in programs.json; there is GPT-J"),
    ],
)
def test_an_unknown_name_lists_those_that_are_there(ask, words):
    with pytest.raises(UserError, match=words):
        ask()


def test_every_post_is_read_and_has_a_name_of_its_own():
    names = [row["name"] for _, row in read_rows(posts.POSTS)]
    assert len(set(names)) == len(names)
    assert [find_post(name).name for name in names] == names


def test_a_rented_run_knows_its_devices_and_its_price():
    run = find_post("neox-sharded")
    assert (run.devices, run.price.usd_per_hour, run.price.date) == (16, 37.688, "2023-05")


def test_a_key_with_one_value_says_why():
    with pytest.raises(UserError, match="says why not the others"):
        Key("horovod", "flag", "2026-01-01", "a test", only=False)
