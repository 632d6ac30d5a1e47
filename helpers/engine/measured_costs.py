"""What the parts of a model cost on this device, from a short profile, for the partition.

    costs = measured_costs(config, rows=2, seq_len=128)
    balance(costs, stages=2)

Modelled costs count matrix products alone. Norms, softmax and the look-up of the embedding take
time too, and a product's rate depends on its size; a profile sees all of it.
"""

import copy
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from helpers.engine.errors import UserError, need
from helpers.engine.families import family_of
from helpers.engine.partition import Cost, Costs, model_costs

REPEATS = 5  # after one to warm up


def measured_costs(
    config: Any, rows: int, seq_len: int, device: torch.device | str = "cpu"
) -> Costs:
    """Seconds of forward and backward of a micro-batch, and parameters, of each part.

    A layer takes what a model of two layers takes beyond one of one layer; the rest of the latter
    is the embedding, which is measured alone, and the norm, head and loss.

    Args:
        config: of a transformers causal language model of a known family; its layers are alike.
        rows, seq_len: of a micro-batch.

    Raises:
        UserError: the model is of no known family, or rows or seq_len are below 1.
    """
    if rows < 1 or seq_len < 2:
        raise UserError(f"a micro-batch of {rows} x {seq_len} tokens has nothing to measure")
    transformers = need("transformers", "hf")
    ids = torch.randint(config.vocab_size, (rows, seq_len), device=device)

    def model(layers: int) -> Any:
        small = copy.deepcopy(config)
        small.num_hidden_layers = layers
        with torch.device(device):
            return transformers.AutoModelForCausalLM.from_config(small).train()

    one, two = model(1), model(2)
    embedding = one.get_submodule(family_of(config).embedding)
    one_s = _seconds(lambda: one(input_ids=ids, labels=ids).loss.backward(), device)
    two_s = _seconds(lambda: two(input_ids=ids, labels=ids).loss.backward(), device)
    embedding_s = _seconds(lambda: embedding(ids).sum().backward(), device)
    layer_s = max(0.0, two_s - one_s)
    head_s = max(0.0, one_s - layer_s - embedding_s)
    memory = model_costs(one, seq_len)
    layer = Cost(layer_s, memory.layers[0].memory)
    return Costs(
        Cost(embedding_s, memory.embedding.memory),
        (layer,) * config.num_hidden_layers,
        Cost(head_s, memory.head.memory),
    )


def _seconds(work: Callable[[], None], device: torch.device | str) -> float:
    """The median of some runs."""
    found = []
    for _ in range(1 + REPEATS):
        began = time.perf_counter()
        work()
        if torch.device(device).type == "cuda":
            torch.cuda.synchronize()
        found.append(time.perf_counter() - began)
    return statistics.median(found[1:])
