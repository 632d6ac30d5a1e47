"""GPT-2 over XLA devices, in the calls that the Training Compiler wanted.

Written for this project after the manual of the compiler.
"""

import argparse

import torch
import torch_xla.core.xla_model as xm
import torch_xla.distributed.parallel_loader as pl
from torch_xla.amp.syncfree import AdamW
from transformers import AutoConfig, AutoModelForCausalLM


def batches(count, size, block):
    generator = torch.Generator().manual_seed(0)
    for _ in range(count):
        yield torch.randint(0, 1000, (size, block), generator=generator)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model_type", default="gpt2")
    parser.add_argument("--per_device_train_batch_size", type=int, default=10)
    parser.add_argument("--block_size", type=int, default=512)
    parser.add_argument("--learning_rate", type=float, default=5e-5)
    parser.add_argument("--max_steps", type=int, default=10)
    args, _ = parser.parse_known_args()
    device = xm.xla_device()
    config = AutoConfig.for_model(args.model_type)
    model = AutoModelForCausalLM.from_config(config).to(device)
    optimizer = AdamW(model.parameters(), lr=args.learning_rate)
    rows = batches(args.max_steps, args.per_device_train_batch_size, args.block_size)
    for step, batch in enumerate(pl.MpDeviceLoader(rows, device)):
        batch = batch.to(device)
        loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        xm.optimizer_step(optimizer)
        optimizer.zero_grad()
        xm.mark_step()
        print(step, loss.item())


def _mp_fn(index):
    main()


if __name__ == "__main__":
    main()
