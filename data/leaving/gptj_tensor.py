"""GPT-J over tensor ranks, in the calls of the closed library: what the job beside it starts.

Written for this project after what the published script does. One of its mistakes is kept: the
weights of the pretrained model are never loaded.
"""

import argparse
import json
import math
import os
import time

import smdistributed.modelparallel.torch as smp
import torch
from torch.utils.data import DataLoader, DistributedSampler
from transformers import AutoConfig, AutoModelForCausalLM, set_seed


def parse_args():
    parser = argparse.ArgumentParser()

    def add(name, **more):  # a job may write its names either way
        parser.add_argument(name, name.replace("_", "-"), **more)

    add("--model_name", default=None, help="pretrained weights; without it they are random")
    add("--hidden_width", type=int, default=768)
    add("--num_layers", type=int, default=12)
    add("--num_heads", type=int, default=12)
    add("--vocab_size", type=int, default=50400)
    add("--max_context_width", type=int, default=1024)
    add("--train_batch_size", type=int, default=4)
    add("--max_steps", type=int, default=100)
    add("--lr", type=float, default=2e-4)
    add("--lr_decay_style", choices=["linear", "constant"], default="linear")
    add("--beta1", type=float, default=0.9)
    add("--beta2", type=float, default=0.95)
    add("--weight_decay", type=float, default=0.01)
    add("--grad_clip", type=float, default=1.0)
    add("--seed", type=int, default=12345)
    add("--fp16", type=int, default=0)
    add("--activation_checkpointing", type=int, default=1)
    add("--activation_strategy", default="each")
    add("--tensor_parallel_degree", type=int, default=1)
    add("--pipeline_parallel_degree", type=int, default=1)
    add("--microbatches", type=int, default=1)
    add("--shard_optimizer_state", type=int, default=0)
    add("--prescaled_batch", type=int, default=1)
    add("--optimize", default="speed")
    add("--logging_freq", type=int, default=1)
    add("--checkpoint_freq", type=int, default=10000)
    add("--num_kept_checkpoints", type=int, default=5)
    add("--save_final_full_model", type=int, default=0)
    add("--load_partial", type=int, default=0)
    add("--checkpoint_dir", default="/opt/ml/checkpoints")
    add("--model_dir", default=os.environ.get("SM_MODEL_DIR", "/opt/ml/model"))
    add("--training_dir", default=os.environ.get("SM_CHANNEL_TRAIN", "train"))
    return parser.parse_known_args()[0]


@smp.step
def train_step(model, input_ids, attention_mask):
    loss = model(input_ids=input_ids, attention_mask=attention_mask, labels=input_ids)["loss"]
    model.backward(loss)
    return loss


class Rows(torch.utils.data.Dataset):
    def __init__(self, folder):
        self.rows = []
        for name in sorted(os.listdir(folder)):
            with open(os.path.join(folder, name)) as lines:
                self.rows += [torch.tensor(json.loads(line)["input_ids"]) for line in lines]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index], torch.ones_like(self.rows[index])


def make_model(args):
    config = AutoConfig.for_model(
        "gptj",
        vocab_size=args.vocab_size,
        n_positions=args.max_context_width,
        n_embd=args.hidden_width,
        n_layer=args.num_layers,
        n_head=args.num_heads,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )
    with smp.model_creation(
        tensor_parallelism=smp.tp_size() > 1,
        dtype=torch.float16 if args.fp16 else torch.get_default_dtype(),
    ):
        if args.model_name:
            model = AutoModelForCausalLM.from_pretrained(args.model_name)
        else:
            model = AutoModelForCausalLM.from_config(config)
    model = smp.DistributedModel(model, trace_device="gpu")
    if args.activation_checkpointing:
        for layer in model.get_module().transformer.seq_layers:
            smp.set_activation_checkpointing(layer, strategy=args.activation_strategy)
    return model


def parameter_groups(model, decay):
    matrices = [one for one in model.parameters() if one.ndim > 1]
    rest = [one for one in model.parameters() if one.ndim <= 1]
    return [{"params": matrices, "weight_decay": decay}, {"params": rest, "weight_decay": 0.0}]


def make_loader(args):
    size = smp.rdp_size() if args.prescaled_batch else smp.dp_size()
    rank = smp.rdp_rank() if args.prescaled_batch else smp.dp_rank()
    rows = Rows(args.training_dir)
    sampler = DistributedSampler(rows, num_replicas=size, rank=rank, shuffle=False)
    return DataLoader(rows, args.train_batch_size, sampler=sampler, drop_last=True)


def train(args, model, optimizer, scheduler, device):
    losses = []
    for step, (input_ids, attention_mask) in enumerate(make_loader(args), 1):
        if step > args.max_steps:
            break
        began = time.time()
        optimizer.zero_grad(set_to_none=True)
        input_ids, attention_mask = input_ids.to(device), attention_mask.to(device)
        loss = train_step(model, input_ids, attention_mask).reduce_mean()
        if args.fp16:
            optimizer.clip_master_grads(args.grad_clip)
        optimizer.step()
        if not (args.fp16 and optimizer.overflow):
            scheduler.step()
        losses.append(loss.item())
        if smp.rank() == 0 and step % args.logging_freq == 0:
            speed = args.train_batch_size * smp.rdp_size() / (time.time() - began)
            print(f"({time.time() - began:.1f}s), Batch {step} Loss: {loss.item()}", end=", ")
            print(f"Speed: {speed} samples/sec", flush=True)
        if step % args.checkpoint_freq == 0:
            smp.save_checkpoint(
                args.checkpoint_dir,
                tag=f"step-{step}",
                partial=True,
                model=model,
                optimizer=optimizer,
                user_content={"step": step, "losses": losses},
                num_kept_partial_checkpoints=args.num_kept_checkpoints,
            )
    return losses


def main():
    args = parse_args()
    smp.init(
        {
            "ddp": True,
            "tensor_parallel_degree": args.tensor_parallel_degree,
            "pipeline_parallel_degree": args.pipeline_parallel_degree,
            "microbatches": args.microbatches,
            "shard_optimizer_state": args.shard_optimizer_state > 0,
            "prescaled_batch": args.prescaled_batch > 0,
            "fp16": args.fp16 > 0,
            "optimize": args.optimize,
            "auto_partition": True,
            "default_partition": 0,
        }
    )
    set_seed(args.seed)
    torch.cuda.set_device(smp.local_rank())
    device = torch.device("cuda", smp.local_rank())
    model = make_model(args)
    groups = parameter_groups(model, args.weight_decay)
    optimizer = torch.optim.AdamW(groups, lr=args.lr, betas=(args.beta1, args.beta2))
    optimizer = smp.DistributedOptimizer(optimizer)
    total = args.max_steps
    falls = args.lr_decay_style == "linear"
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: max(0.0, 1 - step / total) if falls else 1.0
    )
    if args.load_partial:
        found = smp.resume_from_checkpoint(args.checkpoint_dir, partial=True)
        print(f"goes on after step {found['step']}")
    losses = train(args, model, optimizer, scheduler, device)
    if args.save_final_full_model:
        smp.save_checkpoint(args.model_dir, tag="fullmodel.pt", partial=False, model=model)
    if smp.rank() == 0 and losses:
        print(f"perplexity of the last batch {math.exp(losses[-1]):.1f}")
    smp.barrier()


if __name__ == "__main__":
    main()
