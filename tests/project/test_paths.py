"""Whoever asks for a file or a folder refuses what is neither, in one line."""

import pytest
from transformers import GPT2Config, GPT2LMHeadModel

from helpers import load_run, save_model
from helpers.configurations import read_configuration
from helpers.engine.adapters.lora import load_adapters
from helpers.engine.errors import UserError
from helpers.engine.files.checkpoints import Checkpoints, pick
from helpers.engine.models.configurations import load_config
from helpers.lab.comparison.sweep.result import load_sweep
from helpers.lab.notebook.source_code import show_source
from helpers.leave import leave
from helpers.planner.hardware.catalog import gpus
from helpers.planner.measure.calibrate import calibrate, load_cluster
from helpers.text.readers import load_examples
from helpers.text.tokenizer import load_tokenizer
from helpers.trace.perfetto import write_timeline
from helpers.trace.traces import read_traces

WITH_A_PATH = {
    "adapters": lambda path: load_adapters(model(), path),
    "calibrate": calibrate,
    "checkpoints": Checkpoints,
    "cluster": load_cluster,
    "config": load_config,
    "configuration": read_configuration,
    "examples": lambda path: load_examples(path, "lm"),
    "leave": lambda path: leave([path]),
    "pick": pick,
    "run": load_run,
    "save": lambda path: save_model(model(), path),
    "source": show_source,
    "sweep": load_sweep,
    "table": gpus,
    "timeline": lambda path: write_timeline([], path),
    "tokenizer": load_tokenizer,
    "traces": read_traces,
}


def model():
    return GPT2LMHeadModel(GPT2Config(n_embd=8, n_head=2, n_layer=1, vocab_size=8))


@pytest.mark.parametrize("value", [2, None, b"runs"])
@pytest.mark.parametrize("asks", WITH_A_PATH)
def test_what_is_no_path_is_refused(asks, value):
    with pytest.raises(UserError) as caught:
        WITH_A_PATH[asks](value)
    assert str(caught.value) == f"{value!r} is no path: give the name of a file or a folder"
