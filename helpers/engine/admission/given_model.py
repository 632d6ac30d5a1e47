"""What a model must be before it is laid out, whatever the layout: as its class of transformers
makes it, with weights that are numbers of their own."""

import collections
from hashlib import sha256

from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.utils.parametrize import is_parametrized

from ..errors import UserError
from ..models.architecture import family_of, text_config
from ..plan import ParallelPlan
from ..ranks.agreeing import is_same_on_all

COMPARED = 8  # numbers of a parameter, about


def check_given(model: nn.Module, plan: ParallelPlan) -> None:
    """Raise a UserError if the model cannot be laid out as it is handed over."""
    from transformers import PreTrainedModel

    if not isinstance(model, PreTrainedModel):
        raise UserError(
            f"parallelize takes a model of transformers, not a {type(model).__name__}: hand it the "
            "model that this wraps"
        )
    if any(isinstance(p, DTensor) for p in model.parameters()) or hasattr(model, "plan"):
        raise UserError("this model is laid out already: hand parallelize a plain one, once")
    if any(hasattr(module, "lora_A") for module in model.modules()):
        raise UserError(
            "this model has adapters already: load it by load_adapted, which puts them beside the "
            "parts of a laid-out model"
        )
    for name, parameter in model.named_parameters():
        if not parameter.is_floating_point():
            raise UserError(
                f"{name} is {str(parameter.dtype).removeprefix('torch.')}, quantized: hand over "
                "the model in floating point, or load it by load_adapted"
            )
    if getattr(text_config(model.config), "layerdrop", None):
        raise UserError("layerdrop leaves layers out at random, on each rank others: set it to 0")
    if plan.tp > 1 and (of := [path for path, m in model.named_modules() if is_parametrized(m)]):
        raise UserError(
            f"{of[0]} is parametrized, so tp cannot split its weight: remove the parametrization, "
            "or take dp_shard, dp_replicate or pp"
        )
    empty = [name for name, parameter in model.named_parameters() if not parameter.numel()]
    if plan.zero == 3 and empty:
        raise UserError(
            f"{empty[0]} has no elements, which zero_stage=3 cannot shard: take zero_stage=1 or 2"
        )
    _check_shared(model)


def check_same_configuration(model: nn.Module) -> None:
    """Raise a UserError on every rank if the ranks hand over models of different kinds."""
    facts = f"{type(model).__name__} {model.config.to_json_string(use_diff=False)}"
    if not is_same_on_all(facts.encode()):
        raise UserError("the ranks hand over different models: make one, the same on every rank")


def digest_of_weights(model: nn.Module) -> bytes:
    """Of a few numbers of each parameter: what is drawn without a seed differs in all of them."""
    digest = sha256()
    for p in model.parameters():
        if not p.is_meta:
            some = p.detach().flatten()[:: max(1, p.numel() // COMPARED)]
            digest.update(some.double().cpu().numpy().tobytes())
    return digest.digest()


def check_same_weights(model: nn.Module) -> None:
    """Raise a UserError on every rank if the model that is laid out had different weights on the
    ranks: each would train another."""
    if not is_same_on_all(model.digest):
        raise UserError(
            "the ranks held different weights when the model was laid out: call torch.manual_seed "
            "with one seed before it is made, or load the same files on every rank"
        )


def _check_shared(model: nn.Module) -> None:
    """Raise a UserError if parameters are shared that the class does not share itself: each rank of
    a pipeline would train a copy of its own."""
    names = collections.defaultdict(list)
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names[id(parameter)].append(name)
    ties = getattr(model, "all_tied_weights_keys", {})
    own = {*ties, *ties.values()}
    for shared in names.values():
        if len(shared) == 1 or own.issuperset(shared):
            continue
        family = family_of(model)  # whose two ends may be one matrix
        if {name.rpartition(".")[0] for name in shared} != {family.embedding, family.head}:
            raise UserError(
                f"{shared[0]} and {shared[1]} are one parameter, which {type(model).__name__} "
                "itself does not make so: give each its own"
            )
