"""What the parts of a model cost on this device, from a short profile, for the partition.

    costs = measured_costs(config, rows=2, seq_len=128)
    balance(costs, stages=2)

Modelled costs count matrix products alone. Norms, softmax and the look-up of the embedding take
time too, and a product's rate depends on its size; a profile sees all of it.
"""

import copy
import time
from collections.abc import Callable
from typing import Any

import torch

from helpers.engine.errors import UserError, need
from helpers.engine.models.architecture import family_of
from helpers.engine.pipeline.partition import Cost, Costs, model_costs

REPEATS = 9  # after one to warm up
WORDS = 256
MORE_LAYERS = 4  # the time of one is lost in what else a machine does


def measured_costs(
    config: Any, rows: int, seq_len: int, device: torch.device | str = "cpu"
) -> Costs:
    """Seconds of forward and backward of a micro-batch, and parameters, of each part.

    A layer takes its share of what a model of few words takes with more layers beyond one layer;
    the rest of the whole model of one layer is the embedding, which is measured alone, norm, head
    and loss.

    Args:
        config: of a transformers causal language model of a known family; its layers are alike.
        rows, seq_len: of a micro-batch.

    Raises:
        UserError: the model is of no known family, or rows are below 1, or seq_len below 2.
    """
    if rows < 1 or seq_len < 2:
        raise UserError(f"a micro-batch of {rows} x {seq_len} tokens has nothing to measure")
    transformers = need("transformers", "hf")
    ids = torch.randint(config.vocab_size, (rows, seq_len), device=device)

    def model(layers: int, words: int = config.vocab_size) -> Any:
        small = copy.deepcopy(config)
        small.num_hidden_layers, small.vocab_size = layers, words
        small.pad_token_id = None  # may lie beyond a few words
        with torch.device(device):
            return transformers.AutoModelForCausalLM.from_config(
                small, trust_remote_code=False
            ).train()

    # a layer is little beside a large head, and would be lost in the noise of that one's time
    whole, one_layer, more_layers = model(1), model(1, WORDS), model(1 + MORE_LAYERS, WORDS)
    few = ids % WORDS
    embedding = whole.get_submodule(family_of(whole).embedding)
    rounds = _in_turn(
        lambda: whole(input_ids=ids, labels=ids).loss.backward(),
        lambda: one_layer(input_ids=few, labels=few).loss.backward(),
        lambda: more_layers(input_ids=few, labels=few).loss.backward(),
        lambda: embedding(ids).sum().backward(),
        device=device,
    )
    whole_s, one_s, more_s, embedding_s = map(min, zip(*rounds))  # other work only adds
    layer_s = max(0.0, more_s - one_s) / MORE_LAYERS
    head_s = max(0.0, whole_s - layer_s - embedding_s)
    memory = model_costs(whole, seq_len)
    layer = Cost(layer_s, memory.layers[0].memory)
    return Costs(
        Cost(embedding_s, memory.embedding.memory),
        (layer,) * config.num_hidden_layers,
        Cost(head_s, memory.head.memory),
    )


def _in_turn(*works: Callable[[], None], device: torch.device | str) -> list[tuple[float, ...]]:
    """The seconds of each work, round by round: what else the machine does meets all alike."""
    rounds = [tuple(_seconds(work, device) for work in works) for _ in range(1 + REPEATS)]
    return rounds[1:]


def _seconds(work: Callable[[], None], device: torch.device | str) -> float:
    began = time.perf_counter()
    work()
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began
