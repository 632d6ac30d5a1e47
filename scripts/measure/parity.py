"""Is the split model the same model? Loss and every gradient against transformers' own class.

    torchrun --nproc-per-node 2 scripts/measure/parity.py --model gptj-tiny --tp 2 --out runs/parity
    torchrun --nproc-per-node 4 scripts/measure/parity.py --pp 2 --tp 2 --out runs/parity
    torchrun --nproc-per-node 4 scripts/measure/parity.py --dp-shard 4 --out runs/parity

Every rank builds transformers' whole model with random weights and takes a backward pass in plain
PyTorch. A copy of it is then laid out over the ranks and takes the same pass on the same batch; its
gradients are gathered and compared. In float32 and in float64, on the CPU.

Writes parity.json: the largest difference of each gradient over its largest element, the bytes of
every all-reduce of the first rank's pass, and those of every message that a rank sent to another
stage. Exit code 1 where a difference is above the tolerance.
"""

import argparse
import copy
import itertools
import json
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.distributed.tensor import DTensor

from helpers import text as data
from helpers.commands import is_first, refuse
from helpers.engine.errors import UserError, need
from helpers.engine.models.configurations import check_length, load_config
from helpers.engine.parallelize import parallelize
from helpers.engine.plan import ParallelPlan
from helpers.engine.precision.optimizer import gradient_norm
from helpers.engine.ranks import distributed, over_ranks, run_and_leave, world_size
from helpers.engine.trainer import Trainer
from helpers.planner.dry_run.tensor_watch import Watch
from helpers.text.bundled import bundled

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}


def payloads(watch: Watch, kind: str) -> list[int]:
    """Bytes of each message of a kind."""
    found = [(one, count) for one, count in watch.sent.items() if one.kind == kind]
    return [one.payload_bytes for one, count in found for _ in range(count)]


def first_batch(args: argparse.Namespace) -> data.Batch:
    """Real text, every token labelled."""
    tokenizer = data.load_tokenizer(bundled("tokenizer"))
    examples = data.load_examples(bundled("reviews/train.tsv"), "lm", split="train")
    rows = data.tokenize(examples, tokenizer, "lm", args.seq_len)
    return next(data.batches(rows, args.batch_size, seed=0))


def reference(config: Any, dtype: torch.dtype) -> nn.Module:
    """transformers' own model. GPT-J takes its attention scores in float32 even in a float64 model,
    which would hide all but 7 digits: here they are taken in the model's own precision."""
    transformers = need("transformers", "hf")
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype)
    for module in model.modules():
        if type(module).__name__ == "GPTJAttention" and dtype == torch.float64:
            module._attn = scores_in_own_precision.__get__(module)
    return model


def scores_in_own_precision(self, query, key, value, attention_mask=None):
    scores = query @ key.transpose(-1, -2) / self.scale_attn
    if attention_mask is not None:
        scores = scores + attention_mask
    return scores.softmax(-1) @ value, None


def alone(model: nn.Module, batch: data.Batch) -> tuple[float, float, dict[str, Tensor]]:
    """Loss, gradient norm and gradients of the whole model in plain PyTorch."""
    logits = model(input_ids=batch.input_ids, use_cache=False).logits[:, :-1]
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), batch.labels[:, 1:].flatten())
    loss.backward()
    gradients = {name: p.grad for name, p in model.named_parameters()}
    squares = sum(grad.double().square().sum().item() for grad in gradients.values())
    return loss.item(), math.sqrt(squares), gradients


def difference(ours: Tensor, theirs: Tensor) -> float:
    ours = ours.full_tensor() if isinstance(ours, DTensor) else ours
    scale = theirs.abs().max().item() or 1.0
    return (ours.reshape(theirs.shape) - theirs).abs().max().item() / scale


def compare(config, plan, mesh, batch, dtype) -> tuple[dict[str, float], Watch]:
    """Relative differences by name, the largest of all ranks, and what this rank sent."""
    whole = reference(config, dtype)
    split = copy.deepcopy(whole)
    for module in split.modules():
        module.__dict__.pop("_attn", None)
    trainer = Trainer(parallelize(split, plan, mesh), plan, mesh, lr=1e-3)
    loss, norm, gradients = alone(whole, batch)
    with Watch() as watch:
        our_loss = trainer.backward(batch.input_ids, batch.labels).item()
    ours = trainer.gradients()
    our_norm = gradient_norm(trainer.parts, ours, trainer.device).item()
    found = {"loss": abs(our_loss - loss) / loss, "gradient norm": abs(our_norm - norm) / norm}
    for part in trainer.parts:
        found[part.name] = difference(part.whole(ours[part.name]), gradients[part.name])
    found = largest(over_ranks(found))
    if found.keys() - {"loss", "gradient norm"} != gradients.keys():
        raise RuntimeError("the split model has other parameters than transformers' own")
    return found, watch


def largest(by_rank: list[dict[str, float]]) -> dict[str, float]:
    """Of each name, the largest value of the ranks that have it."""
    found: dict[str, float] = {}
    for name, value in itertools.chain.from_iterable(one.items() for one in by_rank):
        found[name] = max(value, found.get(name, 0.0))
    return found


@record
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="gptj-tiny", help="preset or folder; weights are random")
    for degree in ("tp", "pp", "cp", "dp-replicate", "dp-shard"):
        parser.add_argument(f"--{degree}", type=int, default=1)
    parser.add_argument("--cp-attention", default="ring", help="of cp: ring, gather or ulysses")
    parser.add_argument("--zero-stage", type=int, default=3, help="of dp-shard")
    parser.add_argument("--schedule", default="1f1b", help="of a pipeline")
    parser.add_argument("--microbatches", type=int, default=0, help="0 chooses")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--seq-len", type=int, default=64)
    parser.add_argument("--out", required=True, type=Path)
    args = parser.parse_args()
    try:
        degrees = ("tp", "pp", "cp", "dp_replicate", "dp_shard")
        names = (*degrees, "cp_attention", "zero_stage", "schedule", "microbatches")
        plan = ParallelPlan(**{name: getattr(args, name) for name in names})
        config = load_config(args.model)
        plan.validate(config, world_size=world_size())
        check_length(config, args.seq_len)
    except UserError as error:
        refuse(str(error))
    batch = first_batch(args)
    report: dict[str, Any] = {"batch": list(batch.input_ids.shape), "differences": {}}
    with distributed(plan, torch.device("cpu")) as mesh:
        for dtype in TOLERANCE:
            found, watch = compare(config, plan, mesh, batch, dtype)
            report["differences"][str(dtype).removeprefix("torch.")] = found
            if dtype == torch.float32:
                report["all_reduce_bytes"] = payloads(watch, "all_reduce")
                report["sent_bytes"] = over_ranks(payloads(watch, "send"))
            worst = max(found, key=found.get)
            if not found[worst] <= TOLERANCE[dtype]:
                raise AssertionError(f"{dtype}: {worst} is off by {found[worst]:.2e}")
            if is_first():
                print(f"{dtype}: {len(found)} tensors compared, worst {worst} {found[worst]:.1e}")
    if is_first():
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / "parity.json").write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    run_and_leave(main)
