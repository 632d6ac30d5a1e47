"""Falcon fine-tuned by adapters beside a base in 4 bits, as the job beside it starts it.

Written for this project after what the published script does. One of its mistakes is kept: a flag
of the type bool, which no word can switch off.
"""

import argparse

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, Trainer, TrainingArguments


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model_id", type=str, default="tiiuae/falcon-40b")
    parser.add_argument("--dataset_path", type=str, default="train")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--per_device_train_batch_size", type=int, default=4)
    parser.add_argument("--lr", type=float, default=2e-4)
    parser.add_argument("--gradient_checkpointing", type=bool, default=True)
    parser.add_argument("--bf16", type=bool, default=True)
    parser.add_argument("--merge_weights", type=bool, default=True)
    parser.add_argument("--lora_r", type=int, default=64)
    parser.add_argument("--lora_alpha", type=int, default=16)
    parser.add_argument("--lora_dropout", type=float, default=0.1)
    return parser.parse_known_args()[0]


def main():
    args = parse_args()
    quantized = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_use_double_quant=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_compute_dtype=torch.bfloat16,
    )
    model = AutoModelForCausalLM.from_pretrained(
        args.model_id, quantization_config=quantized, device_map="auto"
    )
    adapters = LoraConfig(
        r=args.lora_r,
        lora_alpha=args.lora_alpha,
        lora_dropout=args.lora_dropout,
        target_modules=["query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"],
        task_type="CAUSAL_LM",
    )
    model = get_peft_model(model, adapters)
    training = TrainingArguments(
        output_dir="/tmp/qlora",
        num_train_epochs=args.epochs,
        per_device_train_batch_size=args.per_device_train_batch_size,
        learning_rate=args.lr,
        bf16=args.bf16,
        gradient_checkpointing=args.gradient_checkpointing,
        save_strategy="no",
    )
    Trainer(model=model, args=training, train_dataset=torch.load(args.dataset_path)).train()


if __name__ == "__main__":
    main()
