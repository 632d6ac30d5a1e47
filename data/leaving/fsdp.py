"""GPT-NeoX sharded by Hugging Face's Trainer and FSDP, as the job beside it starts it.

Written for this project after what the published script does. It uses nothing of the service.
"""

import argparse

import torch
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments


def yes(word):
    return word.lower() == "true"


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model_id", type=str, required=True)
    parser.add_argument("--dataset_path", type=str, default="train")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--block_size", type=int, default=2048)
    parser.add_argument("--per_device_train_batch_size", type=int, default=2)
    parser.add_argument("--lr", type=float, default=3e-5)
    parser.add_argument("--optimizer", type=str, default="adamw_hf")
    parser.add_argument("--gradient_checkpointing", type=yes, default=True)
    parser.add_argument("--bf16", type=yes, default=True)
    parser.add_argument("--fsdp", type=str, default="")
    parser.add_argument("--fsdp_transformer_layer_cls_to_wrap", type=str, default=None)
    return parser.parse_known_args()[0]


def main():
    args = parse_args()
    model = AutoModelForCausalLM.from_pretrained(
        args.model_id, use_cache=not args.gradient_checkpointing
    )
    training = TrainingArguments(
        output_dir="/tmp/fsdp",
        num_train_epochs=args.epochs,
        per_device_train_batch_size=args.per_device_train_batch_size,
        learning_rate=args.lr,
        optim=args.optimizer,
        bf16=args.bf16,
        gradient_checkpointing=args.gradient_checkpointing,
        fsdp=args.fsdp.strip('"'),
        fsdp_config={"transformer_layer_cls_to_wrap": args.fsdp_transformer_layer_cls_to_wrap},
        save_strategy="no",
    )
    Trainer(model=model, args=training, train_dataset=torch.load(args.dataset_path)).train()


if __name__ == "__main__":
    main()
