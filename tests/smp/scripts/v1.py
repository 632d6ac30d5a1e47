"""Calls of SMP v1. Each line that uses the library ends with the verdicts of its uses."""

import argparse

import smdistributed.modelparallel  # converted
import smdistributed.modelparallel.torch as smp  # converted
import torch
from smdistributed.modelparallel.torch.nn import FusedLayerNorm as Norm  # converted
from smdistributed.modelparallel.torch.nn.huggingface.gptj import (
    translate_state_dict_to_hf_gptj,  # left out
)
from torch.optim import lr_scheduler
from transformers import AutoConfig, AutoModelForCausalLM

parser = argparse.ArgumentParser()
parser.add_argument("--fp16", type=int, default=0)
parser.add_argument("--degree", type=int, default=2)
args, _ = parser.parse_known_args()

if smdistributed.modelparallel.__version__ >= "1.6":  # left out
    print("new")

config = {
    "ddp": True,  # converted
    "tensor_parallel_degree": args.degree,  # converted
    "microbatches": 2,  # converted
    "fp16": args.fp16 > 0,  # left out
    "default_partition": 0,  # left out
    "sharded_data_parallel_degree": 2,  # converted
}
smp.init(config)  # converted


@smp.step()  # converted
def train_step(model, ids):
    loss = model(input_ids=ids, labels=ids)["loss"]
    model.backward(loss)  # converted
    return loss


@smp.step  # converted
def test_step(model, ids):
    return model(input_ids=ids, labels=ids)["loss"]


def build():
    with smp.model_creation(  # converted
        tensor_parallelism=smp.tp_size() > 1,  # converted x2
        dtype=torch.float16,  # converted
    ):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model("gptj"))
        head = Norm(16)  # converted
    smp.set_tensor_parallelism(model.lm_head, True)  # converted
    with smp.partition(1):  # refused
        smp.set_partition(model.transformer.h[0], 0)  # converted
    return smp.DistributedModel(model, trace_device="gpu"), head  # converted, left out


def main(batches):
    torch.cuda.set_device(smp.local_rank())  # converted
    model, _ = build()
    model = smp.DistributedModel(model)  # converted
    for block in model.get_module().transformer.seq_layers:  # converted x2
        smp.set_activation_checkpointing(block, strategy="each")  # converted
    optimizer = smp.DistributedOptimizer(torch.optim.AdamW(model.parameters()))  # converted
    schedule = lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    content = smp.resume_from_checkpoint("checkpoints", partial=True)  # converted
    print(content, smp.dp_rank(), smp.rdp_rank(), smp.pp_size())  # converted x3
    for ids in batches:
        optimizer.zero_grad()  # converted
        loss = train_step(model, ids).reduce_mean()  # converted
        outputs = test_step(model, ids)
        outputs.concat()  # refused
        optimizer.clip_master_grads(1.0)  # converted
        optimizer.step()  # converted
        if not optimizer.overflow:  # converted
            schedule.step()
        if smp.rank() == 0:  # converted
            print(loss, smp.allgather(1.0, smp.CommGroup.DP_GROUP))  # converted x2
    smp.save_checkpoint("checkpoints", tag="last", model=model)  # converted
    smp.barrier(smp.WORLD)  # converted x2
    model.local_state_dict()  # converted
    smp.never_heard_of(model)  # refused
    print(translate_state_dict_to_hf_gptj)  # left out
