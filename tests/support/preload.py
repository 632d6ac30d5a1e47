"""Imported by the process that all others are forked from, so that none of them waits for it."""

import hypothesis  # noqa: F401
import peft  # noqa: F401
import pytest  # noqa: F401
import torch
import transformers

import helpers.engine.files.checkpoints
import helpers.engine.files.weights  # noqa: F401
from tests.support import scripts, tiny

scripts.module()
with torch.device("meta"):  # transformers imports a family when its first model is made
    for name in (*tiny.FAMILIES, *tiny.PUBLISHED):
        transformers.AutoModelForCausalLM.from_config(tiny.config(name))
