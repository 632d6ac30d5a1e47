"""A solution of each exercise, for whoever asks: show_solution("1a").

A solution without arguments returns an answer; one with arguments is the function that was asked
for. The tests hand each to `check`.
"""

import ast
import inspect
import itertools
import math
from collections.abc import Callable
from typing import Any

import torch

from helpers.engine.models.configurations import load_config
from helpers.lab.exercises.on_ranks.solutions import ON_RANKS
from helpers.lab.exercises.questions import EXERCISES, find_exercise
from helpers.lab.exercises.topics.pipeline import try_plan
from helpers.lab.exercises.topics.qlora import LEVELS
from helpers.lab.figures.display import show_code, show_text
from helpers.planner import cost
from helpers.planner.hardware.cluster import make_cluster
from helpers.planner.hardware.lookup import find_gpu, price
from helpers.planner.model.adapters import adapted_state
from helpers.planner.published.posts import find_post
from helpers.planner.search.search import search_plans
from helpers.planner.shape.families import model_shape


def show_solution(name: str | None = None) -> None:
    """Show an exercise's solution as code; without a name, say how to ask for one.

    Args:
        name: of the exercise, or its number, as "1a".

    Raises:
        UserError: there is no such exercise.
    """
    if name is None:
        show_text("show_solution shows a solution when it is given the name of an exercise.")
        return
    found = find_exercise(name).name
    show_code(f"{found}, a solution", inspect.getsource(SOLUTIONS[found]).rstrip())


def traffic() -> int:
    messages = 2 * 28  # one forward and one backward a layer
    message_bytes = 8 * 1024 * 4096 * 2  # tokens x width x bytes of a bf16 number
    return messages * message_bytes


def vocabulary_loss(shards, targets):
    # three all-reduces: the largest logit, the sum of exponentials, the target's logit
    highest = torch.stack([shard.max(1).values for shard in shards]).max(0).values
    total = sum((shard - highest[:, None]).exp().sum(1) for shard in shards)
    target = 0
    for rank, shard in enumerate(shards):
        column = targets - rank * shard.shape[1]
        mine = (column >= 0) & (column < shard.shape[1])
        found = shard.gather(1, column.where(mine, 0)[:, None])[:, 0]
        target = target + found.where(mine, 0)
    return (total.log() + highest - target).mean()


def audit():
    published = find_post("gptj-tensor-parallel")
    flops_per_s = 6 * published.parameters * published.steady_samples_per_s * published.seq_len
    per_gpu = flops_per_s / published.devices
    return {
        "mfu": per_gpu / find_gpu("A100-40").peak_flops["fp16"],
        "usd": cost.money(published.billed_s, published.price.usd_per_hour),
        "training_share": published.train_s / published.billed_s,
    }


def plan_choice():
    fitting = {}
    for schedule in ("gpipe", "1f1b", "interleaved", "zero-bubble"):
        for count in (4, 8, 16, 32, 64):
            step = try_plan(schedule, count)
            if max(step.peak_bytes) <= 16:
                fitting[schedule, count] = step.makespan_s
    best = min(fitting, key=fitting.get)
    return {"schedule": best[0], "microbatches": best[1]}


def one_f_one_b(rank, ranks, microbatches):
    ahead = min(ranks - 1 - rank, microbatches)  # forwards before the first backward
    actions = [f"F{i}" for i in range(ahead)]
    for i in range(microbatches):
        if ahead + i < microbatches:
            actions.append(f"F{ahead + i}")
        actions.append(f"B{i}")
    return actions


def zero_bubble(rank, ranks, microbatches):
    ahead = min(ranks - 1 - rank, microbatches)
    actions = [f"F{i}" for i in range(ahead)]
    for i in range(microbatches):
        if ahead + i < microbatches:
            actions.append(f"F{ahead + i}")
        actions.append(f"I{i}")
        if i >= rank:  # rank r is r micro-batches late with its W
            actions.append(f"W{i - rank}")
    return actions + [f"W{i}" for i in range(max(0, microbatches - rank), microbatches)]


def claims():
    p4d = find_post("compiler-on-p4d")
    native, compiled = p4d.native, p4d.compiled
    counted = compiled.steps_per_s * compiled.batch / (native.steps_per_s * native.batch)
    return {
        "rate": 100 * (compiled.samples_per_s / native.samples_per_s - 1),
        "time": 100 * (1 - compiled.runtime_s / native.runtime_s),
        "counted": 100 * (counted - 1),
    }


def trained(rows, batch, epochs, drop_last):
    whole, left = divmod(rows, batch)
    if drop_last or left == 0:
        return epochs * whole * batch, epochs * whole
    return epochs * rows, epochs * (whole + 1)


def break_even(compile_s, native_s, compiled_s):
    gained_s = native_s - compiled_s
    if gained_s <= 0:
        return math.inf
    return math.ceil(compile_s / gained_s)


def trainable():
    falcon = load_config("falcon-7b")
    width, head = falcon.hidden_size, falcon.hidden_size // falcon.num_attention_heads
    ends = [
        width + (width + 2 * head),  # queries of all heads, keys and values of one
        width + width,
        width + 4 * width,
        4 * width + width,
    ]
    return falcon.num_hidden_layers * 16 * sum(ends)


def nf4(weights):
    levels = torch.tensor(LEVELS)
    blocks = weights.view(-1, 64)
    magnitudes = blocks.abs().amax(1, keepdim=True)
    nearest = ((blocks / magnitudes)[..., None] - levels).abs().argmin(-1)
    return (levels[nearest] * magnitudes).flatten()


def largest_rank():
    falcon, room = load_config("falcon-40b"), 4 * 24e9
    largest = {}
    for name, quantize in {"lora": False, "qlora": True}.items():
        one, two = (adapted_state(falcon, r, quantize=quantize, base_bytes=2).total for r in (1, 2))
        largest[name] = 1 + int((room - one) // (two - one))  # the state grows with the rank
    return largest


def fewest_gpus():
    neox = cost.parameters(model_shape(load_config("neox-20b")))
    fewest = {}
    for name, stage in {"ZeRO-1": 1, "ZeRO-2": 2, "ZeRO-3": 3}.items():
        fits = [
            gpus
            for gpus in range(1, 1025)
            if cost.state_bytes(neox, "mixed", dp_shard=gpus, zero_stage=stage).total <= 80e9
        ]
        fewest[name] = fits[0] if fits else 0
    return fewest


def sharded_step(weights, gradients, lr):
    rows = -(-len(weights) // len(gradients))
    chunks = []
    for rank in range(len(gradients)):
        mine = slice(rank * rows, (rank + 1) * rows)
        total = torch.stack([gradient[mine] for gradient in gradients]).sum(0)  # reduce-scatter
        chunks.append(weights[mine] - lr * total)
    return chunks


def as_on_the_slide():
    published = find_post("neox-sharded")
    script, slide, n = published.settings, published.misstated, published.devices
    neox = cost.parameters(model_shape(load_config(published.model)))
    samples = int(slide["epochs"]) / int(script["epochs"])
    return {
        "steps": samples * int(script["batch of a GPU"]) / int(slide["batch of a GPU"]),
        "state_gb": cost.state_bytes(neox, dp_shard=n).total / 1e9,
        "sent_gb": 3 * 4 * neox * (n - 1) / n / 1e9,
    }


def bill():
    count = cost.parameters(model_shape(load_config("gpt3-175b")))
    reached = 64 * 8 * 0.4 * find_gpu("H100").peak_flops["bf16"]
    takes_s = 6 * count * 300e9 / reached
    return {
        "days": takes_s / 86400,
        "usd": cost.money(takes_s, price("p5.48xlarge").usd_per_hour, 64),
    }


def layout():
    # 330 GB of state fill eight GPUs of 39 GiB and leave nothing for the rest: cut it by all 16,
    # and recompute the activations
    return {"dp_shard": 16, "activation": "full"}


def most_machines():
    llama, bills = load_config("llama2-13b"), {}
    for nodes in [2**i for i in range(9)]:
        best = search_plans(llama, make_cluster("p4d.24xlarge", nodes), 512, 4096).best
        bills[nodes] = {
            "nodes": nodes,
            "days": 300e9 / best.tokens_per_s / 86400,
            "usd": 300e9 * best.usd_per_token,
        }
    least = min(bill["usd"] for bill in bills.values())
    affordable = [bill for bill in bills.values() if bill["usd"] <= 1.1 * least]
    return min(affordable, key=lambda bill: bill["days"])


def diagnosis():
    # what each trace shows: who waits, and in which range
    return {
        "a": "straggler",  # rank 1's forward is long, and rank 0 waits in the sums
        "b": "input",  # rank 1's range data is long
        "c": "communication",  # both wait for gathers beside little arithmetic
        "d": "bubble",  # one stage at a time
        "e": "launch",  # thousands of operations on sixteen tokens
    }


def exposed(messages, computing):
    def goes_on(spans, start, end):
        return any(first <= start and end <= last for first, last in spans)

    cuts = sorted({at for span in [*messages, *computing] for at in span})
    stretches = list(itertools.pairwise(cuts))
    bare = [one for one in stretches if goes_on(messages, *one) and not goes_on(computing, *one)]
    return sum(end - start for start, end in bare)


def most_gained():
    saved_s = 12_000 * 0.4 * 0.3
    return {"times": 1 / (1 - 0.3), "usd": saved_s / 3600 * price("p4d.24xlarge").usd_per_hour * 16}


def over_the_link():
    whole, link = 4e9, 12.5e9  # bytes; bytes per second
    return {
        "fsdp_s": 3 * whole * 15 / 16 / link,  # two gathers and a reduce-scatter, over 16 ranks
        "hsdp_s": 2 * whole * 1 / 2 / link,  # an all-reduce of all shards, over two nodes
    }


def steps_lost(done, every):
    return done % every


def best_interval():
    mtbf_s = 30 * 86_400 / 64
    return {"mtbf_s": mtbf_s, "interval_s": math.sqrt(2 * 60 * mtbf_s)}


def words_for_flags(word):
    words = {"true": True, "1": True, "false": False, "0": False}
    if word.lower() not in words:
        raise ValueError(f"{word!r} is neither True nor False")
    return words[word.lower()]


def whose_batch():
    data_ranks = 2 * 8 // (4 * 2)  # what tensor and pipeline ranks leave
    return {
        "data_ranks": data_ranks,
        "prescaled": 6 * data_ranks,
        "not_prescaled": 6 * data_ranks * 4,  # every tensor rank brings rows of its own
    }


def never_read(source):
    nodes = list(ast.walk(ast.parse(source)))
    declared = {
        word.value.removeprefix("--").replace("-", "_")
        for node in nodes
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument"
        for word in node.args
        if isinstance(word, ast.Constant) and word.value.startswith("--")
    }
    loads = (n for n in nodes if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Load))
    return declared - {node.attr for node in loads}


ON_PAPER: dict[str, Callable[..., Any]] = {
    "1a traffic": traffic,
    "1b vocabulary loss": vocabulary_loss,
    "1c audit": audit,
    "2a plan": plan_choice,
    "2b 1f1b": one_f_one_b,
    "2c zero bubble": zero_bubble,
    "3a claims": claims,
    "3b trained": trained,
    "3c break-even": break_even,
    "4a trainable": trainable,
    "4b nf4": nf4,
    "4c largest rank": largest_rank,
    "5a fewest GPUs": fewest_gpus,
    "5b sharded step": sharded_step,
    "5c as on the slide": as_on_the_slide,
    "6a bill": bill,
    "6b layout": layout,
    "6c most machines": most_machines,
    "7a diagnosis": diagnosis,
    "7b exposed": exposed,
    "7c most gained": most_gained,
    "8a over the link": over_the_link,
    "8b steps lost": steps_lost,
    "8c best interval": best_interval,
    "10a words for flags": words_for_flags,
    "10b whose batch": whose_batch,
    "10c never read": never_read,
}
EVERY = ON_PAPER | ON_RANKS
SOLUTIONS = {name: EVERY[name] for name in EXERCISES}
