"""Calls of SMP v2. Each line that uses the library ends with the verdicts of its uses."""

import torch
import torch.sagemaker as tsm  # converted
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.sagemaker.checkpoint.utils import load, save  # converted x2
from torch.sagemaker.delayed_param import DelayedParamIniter  # converted
from torch.sagemaker.tensor_parallel import transformer  # refused
from transformers import AutoConfig, AutoModelForCausalLM

tsm.init({"hybrid_shard_degree": 2, "tensor_parallel_degree": 2})  # converted
config = AutoConfig.for_model("llama")
with DelayedParamIniter(config) as initer:  # converted
    model = AutoModelForCausalLM.from_config(config)
model = tsm.transform(model, load_state_dict_from_rank0=True)  # converted, left out
print(tsm.state.tp_size, tsm.state.dp_process_group)  # converted x2
model = FullyShardedDataParallel(
    model,
    process_group=tsm.state.dp_process_group,  # converted
    param_init_fn=initer.get_param_init_fn(),  # left out
)
save({"model": model.state_dict()}, checkpoint_id="last")  # converted
load({"model": model.state_dict()}, checkpoint_id="last")  # converted
print(torch.sagemaker.nowhere, transformer)  # refused x2
