"""Imported once by the process that all ranks are forked from, so that none of them waits for it."""

import torch.distributed.device_mesh
import torch.distributed.fsdp
import torch.distributed.tensor
import transformers.models.gptj.modeling_gptj

import helpers.engine.trainer
import helpers.engine.weights  # noqa: F401
