"""Imported by the process that all ranks are forked from, so that none of them waits for it."""

import torch.distributed.fsdp
import transformers.models.gptj.modeling_gptj

import helpers.engine.checkpoint
import helpers.engine.weights  # noqa: F401
