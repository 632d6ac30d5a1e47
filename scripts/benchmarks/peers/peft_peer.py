"""What one would write without this project: peft's adapters, bitsandbytes' layers, a plain loop.

transformers' own `load_in_4bit` replaces layers whose class is exactly nn.Linear. Falcon's are of a
class of their own, so it would leave them all in full precision; here they are replaced by hand.
"""

import bitsandbytes as bnb
import torch
from peft import PeftModel
from torch import nn

from benchmarks.peers import plain_peer
from benchmarks.work import Work, adapters


class Peer(plain_peer.Peer):
    def lay_out(self, model: nn.Module, work: Work) -> nn.Module:
        for block in plain_peer.find_blocks(model):
            put_in_four_bits(block)
        model.is_loaded_in_4bit = True  # what peft asks before it puts an adapter beside a layer
        return PeftModel.from_pretrained(model, adapters(work), is_trainable=True).train()


def put_in_four_bits(block: nn.Module) -> None:
    for path, layer in list(block.named_modules()):
        if not isinstance(layer, nn.Linear):
            continue
        made = bnb.nn.Linear4bit(
            layer.in_features,
            layer.out_features,
            bias=False,
            compute_dtype=torch.float32,
            quant_type="nf4",
        )
        made.weight = bnb.nn.Params4bit(layer.weight.data, requires_grad=False, quant_type="nf4")
        made.bias = layer.bias
        block.set_submodule(path, made.to("cpu"))  # which quantizes
