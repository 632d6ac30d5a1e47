"""GPT-J in a pipeline, in the calls of the closed library: what the job beside it starts.

Written for this project after what the published script does. Two of its mistakes are kept: no
optimizer is ever stepped, and every batch counts as two steps.
"""

import argparse
import json
import os

import torch
from smdistributed.modelparallel import torch as smp
from torch.utils.data import DataLoader, DistributedSampler
from transformers import AutoModelForCausalLM, get_scheduler, set_seed


@smp.step()
def train_step(model, batch):
    outputs = model(input_ids=batch, labels=batch)
    model.backward(outputs.loss)
    return outputs.loss


class Texts(torch.utils.data.Dataset):
    def __init__(self, folder):
        path = os.path.join(folder, sorted(os.listdir(folder))[0])
        with open(path) as lines:
            self.rows = [json.loads(line)["input_ids"] for line in lines]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return torch.tensor(self.rows[index])


class SMPTrainer:
    """The loop of the script: every rank takes the rows of its data rank."""

    def __init__(self, args):
        self.args = args
        self.device = torch.device("cuda")
        model = AutoModelForCausalLM.from_pretrained(args.model_name_or_path)
        self.model = smp.DistributedModel(model)
        optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=args.learning_rate, betas=(0.9, 0.95), weight_decay=0.0
        )
        self.optimizer = smp.DistributedOptimizer(optimizer)
        self.lr_scheduler = get_scheduler(
            args.lr_scheduler_type, self.optimizer, 0, num_training_steps=args.max_steps
        )

    def get_train_dataloader(self):
        rows = Texts(self.args.training_dir)
        sampler = DistributedSampler(
            rows, num_replicas=smp.dp_size(), rank=smp.dp_rank(), shuffle=False
        )
        return DataLoader(
            rows, self.args.per_device_train_batch_size, sampler=sampler, drop_last=True
        )

    def train_smp(self):
        self.model.train()
        total_steps = 0
        for batch in self.get_train_dataloader():
            if total_steps >= self.args.max_steps:
                break
            self.optimizer.zero_grad()
            loss = train_step(self.model, batch.to(self.device)).reduce_mean()
            self.lr_scheduler.step()
            total_steps += 1
            if smp.rank() == 0:
                print(f"step {total_steps}, loss {loss.item()}", flush=True)
            total_steps += 1


def parse_args():
    parser = argparse.ArgumentParser()  # a job may write its names either way
    parser.add_argument(
        "--model_name_or_path", "--model-name-or-path", default="EleutherAI/gpt-j-6b"
    )
    parser.add_argument(
        "--per_device_train_batch_size", "--per-device-train-batch-size", type=int, default=2
    )
    parser.add_argument("--max_steps", "--max-steps", type=int, default=100)
    parser.add_argument("--learning_rate", "--learning-rate", type=float, default=2e-5)
    parser.add_argument("--lr_scheduler_type", "--lr-scheduler-type", default="linear")
    parser.add_argument("--max_context_width", "--max-context-width", type=int, default=512)
    parser.add_argument("--activation_checkpointing", "--activation-checkpointing", default="True")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument(
        "--training_dir", "--training-dir", default=os.environ.get("SM_CHANNEL_TRAIN", "train")
    )
    return parser.parse_known_args()[0]


def main():
    args = parse_args()
    smp.init()
    set_seed(args.seed)
    SMPTrainer(args).train_smp()


if __name__ == "__main__":
    main()
