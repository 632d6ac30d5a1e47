"""Expressions of metric definitions give the numbers that metrics.jsonl has."""

import json
import re

import pytest

from helpers.smp.jobs.metrics import expression, metrics
from tests.support.scripts import process

# as published jobs have them -> the key of a line
SCRAPED = [
    ("train_loss", r"'loss': ([0-9]+\.[0-9]+)", "loss"),
    ("loss", r"Loss: ([0-9.]+)", "loss"),
    ("learning_rate", r"'learning_rate': ([0-9.e-]+)", "lr"),
    ("eval_loss", r"'eval_loss': ([0-9]+(.|e\-)[0-9]+),?", "eval_loss"),
    ("eval:loss", r"val loss=(.*?);", "eval_loss"),
    ("eval_accuracy", r"eval_accuracy.*=\D*(.*?)$", "eval_accuracy"),
    ("grad", r"'grad_norm': ([0-9.]+)", "grad_norm"),
    ("speed", r"Speed: ([0-9.]+) samples/sec", "samples_per_s"),
    ("throughput", r"train_samples_per_second = ([0-9.]+)", "samples_per_s"),
    ("step", r"Batch ([0-9]+) Loss", "loss"),
]


@pytest.mark.parametrize(("name", "old", "key"), SCRAPED)
def test_a_definition_reads_the_number_that_it_speaks_of(name, old, key):
    [one] = metrics([{"Name": name, "Regex": old}])
    assert one.definition() == {"Name": name, "Regex": expression(key)}


def test_a_definition_without_a_number_of_ours_says_so():
    found = metrics([{"Name": "words", "Regex": "bleu=(.*)"}, {"Name": "x", "Regex": "<REGEX>>"}])
    assert all(not one.regex and one.words for one in found)


@pytest.mark.parametrize("number", ["1", "0.5", "6.25e-05", "-3", "1e+22", "4.875", "123456789"])
def test_every_number_of_json_is_read_whole(number):
    line = json.dumps({"eval_loss": 7.0, "loss": json.loads(number), "lr": 2})
    assert float(re.search(expression("loss"), line)[1]) == json.loads(number)


def test_the_log_of_a_run_gives_the_numbers_of_its_file(tmp_path):
    """All metrics of a run with an evaluation, scraped as an estimator does, line by line."""
    flags = {"model": "gptj-tiny", "from_scratch": True, "steps": 3, "batch_size": 2, "seq_len": 32}
    held_out = tmp_path / "held_out.txt"
    held_out.write_text("Every rank reads the same few words of a text again and again.\n" * 40)
    ended = process(out=tmp_path / "run", log_every=1, eval_data=held_out, **flags)
    assert ended.returncode == 0, ended.stderr
    lines = [json.loads(x) for x in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    log = ended.stdout
    for key in ("step", "loss", "lr", "grad_norm", "tokens_per_s"):
        scraped = [float(found) for found in re.findall(expression(key), log)]
        assert scraped == [line[key] for line in lines if key in line], key
    scores = json.loads((tmp_path / "run/summary.json").read_text())["eval"]
    assert [float(x) for x in re.findall(expression("eval_loss"), log)] == [scores["loss"]]
    speeds = [float(found) for found in re.findall(expression("samples_per_s"), log)]
    assert speeds == [line["samples"] / line["step_s"] for line in lines]


def test_a_log_has_every_nth_step(tmp_path):
    flags = {"model": "gptj-tiny", "from_scratch": True, "steps": 4, "batch_size": 2, "seq_len": 32}
    ended = process(out=tmp_path / "asked", log_every=2, **flags)
    assert [float(x) for x in re.findall(expression("step"), ended.stdout)] == [2, 4]
    assert not re.findall(expression("step"), process(out=tmp_path / "silent", **flags).stdout)
