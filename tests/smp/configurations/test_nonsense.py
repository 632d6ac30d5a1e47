"""Nonsense is one line; random files are a plan for their ranks, or one line."""

import json
import math
import os
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from helpers.configurations import read_configuration, torchrun_line
from helpers.configurations.keys import keys
from helpers.configurations.reading import LAYOUTS
from helpers.configurations.report import report
from helpers.engine.errors import UserError
from helpers.engine.plan import ParallelPlan
from helpers.entries.json_file import read_json
from helpers.train.arguments import parse


def aliases(node, first):
    """A file that is small, and whose aliases of aliases stand for millions of nodes."""
    names = [f"n{number}" for number in range(13)]
    lines = [
        f"n: &n0 {first}",
        *(f"{name}: &{name} " + node % {"before": before} for before, name in pairwise(names)),
    ]
    return "\n".join([*lines, "distributed_type: FSDP"]).encode()


UNREADABLE = {
    "empty.toml": b"",
    "empty.yaml": b"",
    "empty.json": b"",
    "empty.sh": b"",
    "list.json": b"[1, 2]",
    "number.json": b"1",
    "word.yaml": b"hello",
    "list.yaml": b"- a\n- b\n",
    "binary.toml": bytes(range(256)),
    "binary.yaml": bytes(range(256)),
    "binary.json": b"\x89PNG\r\n\x1a\n\x00\x00",
    "binary.sh": b"\xff\xfe\x00--num-layers",
    "large.toml": b"#" * 10 * 2**20,
    "large.json": b"[" + b"1," * 5 * 2**20 + b"1]",
    "large.yaml": b"a: 1\n" + b"#" * 10 * 2**20,
    "large.sh": b"x" * 10 * 2**20,
    "deep.json": b'{"a":' * 5000 + b"1" + b"}" * 5000,
    "deep.yaml": b"a: " + b"{b: " * 3000 + b"1" + b"}" * 3000,
    "deep.toml": b"a = " + b"[" * 3000 + b"]" * 3000,
    "deeper.toml": b"[" + b".".join([b"a"] * 400) + b"]\nb = 1\n",
    "twice.toml": b"[training]\nsteps = 1\nsteps = 2\n",
    "twice.json": b'{"train_batch_size": 1, "train_batch_size": 2}',
    "twice.yaml": b"distributed_type: FSDP\ndistributed_type: FSDP\n",
    "code.yaml": b"distributed_type: !!python/object/apply:os.system ['true']\n",
    "many.json": json.dumps({f"k{n}": 1 for n in range(6000)}).encode(),
    "other.toml": b"[project]\nname = 'a'\n",
    "other.json": b'{"model_type": "llama", "hidden_size": 64}',
    "other.yaml": b"services: {web: {image: x}}\n",
    "other.sh": b"ls --color\n",
    "cut.toml": b"[training\nsteps = 1\n",
    "cut.json": b'{"train_batch_size": 1',
    "tag.yaml": b"distributed_type: FSDP\na: !!int ''\nb: !!bool x\n",
    "date.yaml": b"distributed_type: FSDP\na: !!timestamp x\n",
    "half.json": b'{"zero_optimization": {"stage": 3}, "a\\ud83d": 1}',
    "keys.yaml": aliases(
        "{a: *%(before)s, b: *%(before)s, c: *%(before)s, d: *%(before)s}", "{x: 1}"
    ),
    "lists.yaml": aliases("[*%(before)s, *%(before)s, *%(before)s, *%(before)s]", "[x, x]"),
    "grows.sh": b"A=xx\n" + b'A="$A$A$A"\n' * 20 + b"torchrun --num-layers 2 --save $A\n",
    "config.py": b"def llama3_8b(): return 1\n",
    "config.ini": b"a = 1\n",
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_what_is_no_configuration_is_one_line(name, tmp_path):
    path = tmp_path / name
    path.write_bytes(UNREADABLE[name])
    with pytest.raises(UserError) as refused:
        read_configuration(path)
    assert len(str(refused.value).splitlines()) == 1
    assert len(str(refused.value)) < 600 + len(str(path))


@pytest.mark.parametrize("name", ["twice.json", "twice.yaml"])
def test_a_key_that_stands_twice_is_said(name, tmp_path):
    path = tmp_path / name
    path.write_bytes(UNREADABLE[name])
    with pytest.raises(UserError, match=r"stands twice, in line \d too: keep one of them"):
        read_configuration(path)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("ds.json", '{"train_batch_size": 8}'),
        ("config.yaml", "distributed_type: FSDP\n"),
        ("titan.toml", "[training]\nseq_len = 64\n"),
        ("flags.sh", "torchrun x.py --tensor-model-parallel-size 1 --num-layers 2\n"),
    ],
)
def test_a_mark_of_utf_8_is_read_past(name, text, read):
    marked = read(f"\ufeff{text}", name, 8)
    assert [line.text for line in marked.lines] == [line.text for line in read(text, name, 8).lines]


def test_values_of_json_are_those_of_json(file):
    """YAML takes NaN for a word, and two escapes of one character for halves of two."""
    path = file('{"a": {"b": "\\ud83d\\ude00", "c": NaN}, "d": [-Infinity]}', "own.json")
    values = {one.path: one.value for one in read_json(path)}
    assert values["a.b"] == "\N{GRINNING FACE}" and math.isnan(values["a.c"])
    assert values["d"] == [-math.inf] and [one.line for one in read_json(path)] == [1, 1, 1]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("ds.json", '{"optimizer": {"type": "Adam\\u001b[31m\\nW"}, "a\\u001b[31m\\nb": 1}'),
        ("titan.toml", '[training]\nseq_len = 64\n[model]\nconverters = "a\\nb\\u001b[31m"\n'),
        (
            "fsdp.json",
            '{"distributed_type": "DEEPSPEED", "mixed_precision": "\\u001b[31m",'
            ' "deepspeed_config": {"deepspeed_config_file": "a\\nb"}}',
        ),
    ],
)
def test_orders_to_a_terminal_stay_words(name, text, read):
    found = read(text, name, 8)
    assert found.refused.isprintable() and found.refused
    assert all(line.isprintable() for line in report(found).splitlines())


def test_references_that_multiply_stay_as_they_stand(read):
    names = "abcdefghijkl"
    refer = "\n".join(f"{one}: " + f"${{{other}}}" * 12 for one, other in pairwise(names))
    found = read(f"distributed_type: FSDP\n{refer}\nl: xxxx\n", "config.yaml", 8)
    assert all(len(line.text) < 200 for line in found.lines)


def test_a_pipe_is_no_file(tmp_path):
    path = tmp_path / "pipe.json"
    os.mkfifo(path)
    with pytest.raises(UserError, match="is no file"):
        read_configuration(path)


@pytest.mark.parametrize("ranks", [0, -1, 1.5, "8", True, 10**12])
def test_nonsense_for_ranks_is_one_line(read, ranks):
    with pytest.raises(UserError, match="ranks must be a whole number"):
        read('{"train_batch_size": 8}', "ds.json", ranks)


def test_a_program_that_nobody_knows(read):
    with pytest.raises(UserError, match="no program 'jax'"):
        read('{"train_batch_size": 8}', "ds.json", 8, "jax")


@pytest.mark.parametrize("program", sorted(LAYOUTS))
def test_the_tables_are_whole(program):
    """Each key once, and a reason for each that is left out or refused."""
    names = [row.key for row in keys(program)]
    assert len(names) == len(set(names))
    for row in keys(program):
        assert row.words or row.how not in ("left", "refused", "off", "same") or row.values
        assert row.to or row.how in ("left", "refused", "off", "same")
        assert row.nearest or row.how != "refused"


NUMBERS = st.one_of(st.integers(-2, 16), st.sampled_from(["auto", None, True, 2.5, "4", [], {}]))
TITAN = (
    "parallelism.data_parallel_replicate_degree",
    "parallelism.data_parallel_shard_degree",
    "parallelism.tensor_parallel_degree",
    "parallelism.pipeline_parallel_degree",
    "parallelism.context_parallel_degree",
    "training.local_batch_size",
    "training.global_batch_size",
    "training.steps",
)
SPEED = (
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
    "zero_optimization.stage",
    "zero_optimization.mics_shard_size",
    "tensor_parallel.autotp_size",
    "sequence_parallel_size",
    "pipeline.stages",
)
ACCELERATE = (
    "num_processes",
    "num_machines",
    "fsdp_config.fsdp_sharding_strategy",
    "parallelism_config.dp_replicate_size",
    "parallelism_config.dp_shard_size",
    "parallelism_config.tp_size",
    "parallelism_config.cp_size",
)
NEMO = (
    "model.tensor_model_parallel_size",
    "model.pipeline_model_parallel_size",
    "model.context_parallel_size",
    "model.virtual_pipeline_model_parallel_size",
    "model.micro_batch_size",
    "model.global_batch_size",
    "model.num_layers",
    "trainer.devices",
    "trainer.num_nodes",
)
FILES = {
    "torchtitan": TITAN,
    "deepspeed": SPEED,
    "accelerate": ACCELERATE,
    "nemo": NEMO,
}


def nested(flat):
    found = {}
    for key, value in flat.items():
        *parents, last = key.split(".")
        inside = found
        for name in parents:
            inside = inside.setdefault(name, {})
        inside[last] = value
    return found


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_random_files_are_a_plan_for_their_ranks_or_one_line(data, tmp_path_factory):
    program = data.draw(st.sampled_from(sorted(FILES)))
    names = data.draw(st.lists(st.sampled_from(FILES[program]), unique=True))
    degrees = st.sampled_from([1, 1, 2, 4]) if data.draw(st.integers(0, 3)) else NUMBERS
    flat = {name: data.draw(degrees) for name in names}
    if program == "accelerate":
        flat["distributed_type"] = data.draw(st.sampled_from(["FSDP", "MULTI_GPU", "DEEPSPEED"]))
    if data.draw(st.integers(0, 9)) == 0:
        flat[data.draw(st.text("abc_", min_size=1))] = data.draw(NUMBERS)
    path = tmp_path_factory.getbasetemp() / "random.json"
    path.write_text(json.dumps(nested(flat)), "utf-8")
    ranks = data.draw(st.sampled_from([None, 1, 2, 8, 16, 24]))
    try:
        found = read_configuration(path, ranks, program)
    except UserError as error:
        assert len(str(error).splitlines()) == 1
        return
    assert len(found.lines) == len(flat)  # no key is lost
    assert bool(found.plan) != bool(found.refused)
    event("plan" if found.plan else "refused")
    if found.plan is None:
        assert len(found.refused.splitlines()) == 1
        return
    assert ranks is None or found.plan.world_size == ranks
    assert found.batch is None or found.batch % found.plan.dp == 0


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_the_line_of_a_run_says_its_plan(data, tmp_path_factory):
    """What the line gives to helpers.train is the plan, its batch and its flags again."""
    flat = {name: data.draw(st.sampled_from([1, 1, 2])) for name in TITAN[:5]}
    flat |= {"training.local_batch_size": 8, "training.seq_len": 64, "optimizer.lr": 1e-4}
    path = tmp_path_factory.getbasetemp() / "line.json"
    path.write_text(json.dumps(nested(flat)), "utf-8")
    found = read_configuration(path)
    words = torchrun_line(found, "llama-tiny").split("helpers.train ")[1].split()
    args = parse(words)
    fields = ParallelPlan().to_dict()
    assert ParallelPlan(**{name: getattr(args, name) for name in fields}) == found.plan
    assert (args.batch_size, args.seq_len, args.lr) == (found.batch, 64, 1e-4)
