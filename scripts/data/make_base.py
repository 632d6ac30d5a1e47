"""Write data/base: a small Falcon that has learned the kinds of tasks of data/instructions.

    python scripts/data/make_base.py [--out data/base] [--hidden 128 --heads 4] [--steps 2500]

The tasks are drawn anew in every step, asked in words and templates of their own, and never with an
input that stands in data/instructions. About 25 minutes on two CPU cores for the size that is
bundled. The same each time on one machine; elsewhere sums are rounded otherwise.
"""

import argparse
import json
import math
import random
import time
from pathlib import Path
from typing import NamedTuple

import torch
from instruction_grammar import KINDS, Chooser
from torch import Tensor
from torch.nn import functional
from torch.nn.utils import clip_grad_norm_

from helpers.engine.models.configurations import load_config
from helpers.engine.ranks import pick_device
from helpers.text import load_tokenizer

ROOT = Path(__file__).resolve().parents[2]
BATCH, LR, WARMUP, LEAST_LR = 64, 1.5e-3, 100, 0.05  # documents; the last: of LR, at the end
PROMPT_WEIGHT = 0.1  # of a prompt's tokens in the loss, beside 1 of an answer's
# other words than those of the instructions, by kind of task
WORDINGS = {
    "classify": ("Does the writer like the film?", "Good or bad?", "What does the critic think?"),
    "count": ("How long is this in words?", "Number of words?"),
    "reverse": ("Turn this list around.", "From last to first:", "Say the list backwards."),
    "sort": ("Order this list from a to z.", "From a to z:", "Alphabetical list:"),
    "capitals": (
        "{input} in large letters, please.",
        "Large letters: {input}",
        "Shout {input}.",
    ),
    "find_title": ("What is the film called?", "Film?", "Give the title."),
    "find_player": ("Name of the player?", "Actor?", "Whose role is it?"),
    "find_aspect": ("What is the topic?", "Subject?", "What does the writer speak of?"),
    "deny": ("Write that it is not so.", "Put a not into it.", "Turn it into its contrary."),
    "complete": ("Go on.", "Finish it.", "And then?"),
}
# with an input, and without
TEMPLATES = (
    (
        "### Question\n{q}\n\n### Text\n{i}\n\n### Reply\n",
        "### Question\n{q}\n\n### Reply\n",
    ),
    ("{i}\n\n{q}\n", "{q}\n"),
    (
        "### Task\n{q}\n\n### Given\n{i}\n\n### Result\n",
        "### Task\n{q}\n\n### Result\n",
    ),
)


class Document(NamedTuple):
    kind: str
    prompt: str
    answer: str


class Tasks:
    """An endless supply of tasks, the same for the same seeds."""

    def __init__(self) -> None:
        self.makers = {make.__name__: make for _, make in KINDS}
        self.choose, self.draw = Chooser(77), random.Random(1)
        files = (ROOT / "data" / "instructions").glob("*.jsonl")
        lines = [line for file in files for line in file.read_text("utf-8").splitlines()]
        records = [json.loads(line) for line in lines]
        self.kept_out = {record["input"] or record["instruction"] for record in records}

    def one(self) -> Document:
        kind = self.draw.choice(list(self.makers))
        while True:
            given, answer = self.makers[kind](self.choose)
            if given not in self.kept_out:
                break
        question = self.draw.choice(WORDINGS[kind])
        whole, short = TEMPLATES[self.draw.randrange(len(TEMPLATES))]
        if "{input}" in question:
            return Document(kind, short.format(q=question.format(input=given)), answer)
        return Document(kind, whole.format(q=question, i=given), answer)


def batch_of(documents: list[Document], tokenizer) -> tuple[Tensor, Tensor]:
    """Ids [documents, longest], and each token's weight in the loss."""
    prompts = tokenizer.encode([document.prompt for document in documents])
    answers = tokenizer.encode([document.answer for document in documents])
    longest = max(len(prompt) + len(answer) for prompt, answer in zip(prompts, answers)) + 1
    ids = torch.zeros(len(documents), longest, dtype=torch.long)
    weights = torch.zeros(len(documents), longest)
    for row, (prompt, answer) in enumerate(zip(prompts, answers)):
        text = [*prompt, *answer, tokenizer.end_id]
        ids[row, : len(text)] = torch.tensor(text)
        weights[row, : len(text)] = 1.0
        weights[row, : len(prompt)] = PROMPT_WEIGHT
    return ids, weights


def lr_at(step: int, steps: int) -> float:
    """A linear rise, then half a cosine down to LEAST_LR of the peak."""
    fallen = 0.5 * (1 + math.cos(math.pi * step / steps))
    return LR * min(1.0, (step + 1) / WARMUP) * (fallen * (1 - LEAST_LR) + LEAST_LR)


def train(model, tokenizer, steps: int, device: torch.device) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), weight_decay=0.01)
    tasks, began = Tasks(), time.monotonic()
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = lr_at(step, steps)
        ids, weights = batch_of([tasks.one() for _ in range(BATCH)], tokenizer)
        ids, weights = ids.to(device), weights.to(device)[:, 1:]
        logits = model(input_ids=ids).logits[:, :-1]
        losses = functional.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none")
        loss = (losses * weights).sum() / weights.sum()
        optimizer.zero_grad()
        loss.backward()
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if (step + 1) % 100 == 0:
            took_s = time.monotonic() - began
            print(f"step {step + 1}/{steps}  loss {loss.item():.3f}  {took_s:.0f} s", flush=True)


def main() -> None:
    from transformers import FalconForCausalLM

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "data" / "base")
    parser.add_argument("--steps", type=int, default=2500)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--heads", type=int)
    args = parser.parse_args()
    sizes = {"num_hidden_layers": args.layers, "hidden_size": args.hidden}
    sizes |= {"num_attention_heads": args.heads} if args.heads else {}
    device = pick_device()
    torch.manual_seed(0)
    model = FalconForCausalLM(load_config("falcon-tiny", **sizes)).to(device)
    train(model, load_tokenizer(ROOT / "data" / "tokenizer"), args.steps, device)
    model.to(torch.bfloat16).save_pretrained(args.out)


if __name__ == "__main__":
    main()
