"""What a model must be before it is laid out, whatever the layout: as its class of transformers
makes it, with weights that are numbers of their own."""

import copy
from contextlib import suppress

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.utils.parametrize import is_parametrized

from ..errors import UserError
from ..files.blank import parameters_without_memory
from ..models.architecture import family_of, names_of, text_config, tied_names
from ..models.objectives import is_of_transformers
from ..plan import ParallelPlan
from .hooks import check_hooks_inside, check_no_gradient_hooks
from .kinds import kind_of, made_by, other_number


def check_given(model: nn.Module, plan: ParallelPlan) -> None:
    """Raise a UserError if the model cannot be laid out as it is handed over."""
    from transformers import PreTrainedModel

    if not isinstance(model, PreTrainedModel):
        named = f"the class {model.__name__}" if isinstance(model, type) else ""
        parts = model.modules() if isinstance(model, nn.Module) else ()
        wraps = any(isinstance(part, PreTrainedModel) for part in parts)
        raise UserError(
            f"parallelize takes a model of transformers, not {named or f'a {type(model).__name__}'}"
            f": {'hand it the model that this wraps' if wraps else 'hand it one that is made'}"
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
                f"{name} is {str(parameter.dtype).removeprefix('torch.')}: hand over the model in "
                "floating point; load_adapted loads one in 4 bits"
            )
    if getattr(text_config(model.config), "layerdrop", None):
        raise UserError("layerdrop leaves layers out at random, on each rank others: set it to 0")
    if plan.tp > 1 and (of := [path for path, m in model.named_modules() if is_parametrized(m)]):
        raise UserError(
            f"{of[0]} is parametrized, so tp cannot split its weight: remove the parametrization, "
            "or take dp_shard, dp_replicate or pp"
        )
    _check_shared(model)
    _check_buffers(model)
    if plan.zero:
        _check_has_rows(model)
    if plan.zero == 3:
        _check_shardable(model)
    _check_unchanged(model, plan)
    if plan.tp > 1 or plan.zero == 3:
        check_no_gradient_hooks(model)
    if plan.tp * plan.cp * plan.ep > 1:
        check_hooks_inside(model, plan)


def _check_has_rows(model: nn.Module) -> None:
    """Raise a UserError if a parameter has no rows that ranks could share."""
    for name, parameter in model.named_parameters():
        if not parameter.dim():
            raise UserError(
                f"{name} is a number without dims, which dp_shard and cp cannot share: give it the "
                "shape [1], or take dp_replicate"
            )


def _check_shardable(model: nn.Module) -> None:
    """Raise a UserError if fully_shard cannot take a parameter, or blocks have it together."""
    blocks = f"{family_of(model).blocks}."
    for parameter, names in names_of(model).items():
        of = {n.removeprefix(blocks).partition(".")[0] for n in names if n.startswith(blocks)}
        shared = f"is another block's {names[-1]}" if len(of) > 1 else ""
        if reason := shared or ("" if parameter.numel() else "has no elements"):
            raise UserError(
                f"{names[0]} {reason}, which zero_stage=3 cannot shard: take zero_stage=1 or 2"
            )


def _check_buffers(model: nn.Module) -> None:
    """Raise a UserError if buffers that no file holds are not what a class of one's own makes:
    from_pretrained gives them memory, and no values that it knows of."""
    if is_of_transformers(type(model)):
        return
    try:
        with parameters_without_memory():
            made = type(model)._from_config(copy.deepcopy(model.config))
    except Exception:  # each class has its own complaints; made_by says what is wrong
        return
    theirs, stored = dict(made.named_buffers()), model.state_dict().keys()
    for name, own in model.named_buffers():
        expected = theirs.get(name)
        if name in stored or own.is_meta or expected is None or expected.shape != own.shape:
            continue
        if not torch.allclose(own, expected.to(own), rtol=1e-2):
            raise UserError(
                f"{name} is not what {type(model).__name__} makes, and no file holds it: "
                "transformers' from_pretrained leaves such a buffer without values; make the model "
                "of its configuration, and load its weights into it by load_state_dict"
            )


def _check_unchanged(model: nn.Module, plan: ParallelPlan) -> None:
    """Raise a UserError if what the engine computes itself is not as the class has it: the model's
    forward and loss, and its linear layers and embeddings."""
    if "forward" in vars(model) or "_loss_function" in vars(model):
        raise UserError(
            "this model's forward or loss was replaced, which a laid-out model computes itself: "
            "hand it over as its class makes it, or make a class of its own"
        )
    made = made_by(kind_of(model))
    given, own = (getattr(one, "loss_type", None) or "ForCausalLM" for one in (model, made))
    if given != own:
        raise UserError(f"this model's loss_type is {given}, and its class has {own}: set it back")
    if number := other_number(model, made):
        raise UserError(
            f"this model's {number} is {getattr(model, number)!r:.20}, and its class has "
            f"{getattr(made, number)!r:.20}, which its small copy is tried with: let the "
            "configuration say it"
        )
    _check_depth(model, made)
    _check_layers(model, made)
    head = model.get_output_embeddings()
    if head is not None and (head._forward_hooks or head._forward_pre_hooks):
        raise UserError("hooks on the head see no logits in a laid-out model: take them off")
    if plan.pp > 1 and model._forward_hooks:
        raise UserError("hooks on a model see no outputs of it in a pipeline: take them off")


def _check_depth(model: nn.Module, made: nn.Module) -> None:
    """Raise a UserError if lists of blocks are not as long as the configuration says."""
    lists = (each for each in made.named_modules() if isinstance(each[1], nn.ModuleList))
    own = dict(model.named_modules())
    for path, theirs in lists:
        given = own.get(path)
        if isinstance(given, nn.ModuleList) and len(given) != len(theirs):
            raise UserError(
                f"{path} has {len(given)} modules, and the model's configuration is for "
                f"{len(theirs)}: change both"
            )


def _check_layers(model: nn.Module, made: nn.Module) -> None:
    """Raise a UserError if a linear layer or an embedding, or what stands at either end in the
    place of one, has a forward that is not the class's own."""
    from transformers.pytorch_utils import Conv1D

    kinds, own = (nn.Linear, nn.Embedding, Conv1D), dict(made.named_modules())
    ends = set()
    with suppress(NotImplementedError):  # some have no one table of tokens
        ends = {made.get_input_embeddings(), made.get_output_embeddings()} - {None}
    for path, layer in model.named_modules():
        theirs = own.get(path)
        if is_parametrized(layer) or not (theirs in ends or isinstance(layer, kinds)):
            continue
        plain = type(layer) in kinds and theirs not in ends
        if "forward" in vars(layer) or not (plain or type(theirs) is type(layer)):
            raise UserError(
                f"{path} is a {type(layer).__name__} whose forward is not the class's own, and a "
                "laid-out model computes it itself: put such a layer into a class of your own"
            )


def trained(model: nn.Module) -> set[str]:
    """The names of the parameters that train."""
    return {name for name, p in model.named_parameters() if p.requires_grad}


def check_trained(model: nn.Module, known: set[str]) -> None:
    """Raise a UserError if another Trainer has the model by now, or a parameter was unfrozen that
    no optimizer knows of."""
    if model.trained_by is not known:
        raise UserError("another Trainer was made with this model since: only the last takes steps")
    if new := trained(model) - known:
        raise UserError(
            f"{min(new)} did not train when the Trainer was made: set requires_grad before, or "
            "make another Trainer"
        )


def _check_shared(model: nn.Module) -> None:
    """Raise a UserError if parameters are shared that the class does not share itself: each rank of
    a pipeline would train a copy of its own."""
    ties = getattr(model, "all_tied_weights_keys", {})
    own = {*ties, *ties.values()}
    for shared in tied_names(model):
        if own.issuperset(shared):
            continue
        family = family_of(model)  # whose two ends may be one matrix
        if {name.rpartition(".")[0] for name in shared} != {family.embedding, family.head}:
            raise UserError(
                f"{shared[0]} and {shared[1]} are one parameter, which {type(model).__name__} "
                "itself does not make so: give each its own"
            )
