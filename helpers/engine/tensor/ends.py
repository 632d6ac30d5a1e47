"""The two ends of a model over the tensor axis: embedding and head, split by vocabulary."""

from torch import nn

from ..models.architecture import has, text_config
from ..models.blocks import on_input, on_output
from ..models.chunked_loss import LogitTransform
from ..models.families import Family
from ..models.objectives import objective_of
from ..pipeline.elsewhere import Elsewhere
from . import layers
from .boundary import Boundary
from .layers import bind
from .partial_gradients import mark


def leave_blocks(
    model: nn.Module, family: Family, boundary: Boundary, blocks: list[nn.Module]
) -> None:
    """From the last norm work crosses to the head, which the ranks share. What every rank does
    alike gets the whole sequence: a head that the model applies itself, and where there is no last
    norm what stands before the head."""
    crosses = boundary.end if family.whole_logits else boundary.enter
    if family.norm is not None:
        norm = model.get_submodule(family.norm)
        norm.register_forward_hook(on_output(crosses))
        if boundary.sequence_parallel:
            mark(model, f"{family.norm}.", norm)
        return
    blocks[-1].register_forward_hook(on_output(boundary.end))
    if not family.whole_logits:
        head = model.get_submodule(family.head)
        enter = on_input(Boundary(boundary.mesh).enter)
        head.register_forward_pre_hook(enter, with_kwargs=True)


def split_ends(model: nn.Module, family: Family, boundary: Boundary) -> None:
    """Embedding and head by vocabulary, where they are here; tied, they stay one parameter. A head
    whose logits the model makes itself stays as it is."""
    paths = (family.embedding, family.head)
    embedding, head = (model.get_submodule(p) if has(model, p) else Elsewhere() for p in paths)
    begins, ends = (not isinstance(module, Elsewhere) for module in (embedding, head))
    tied = begins and ends and embedding.weight is head.weight
    whole = Boundary(boundary.mesh)  # positions and masks need all of the sequence
    # the head of a model that makes its logits itself may need all of the same matrix
    apart = not family.whole_logits or objective_of(model).of_rows
    if begins and boundary.size > 1 and apart:
        bind(embedding, layers.vocabulary_embedding, whole, weight=0)
    if not ends or family.whole_logits:
        return
    head.transform = LogitTransform.of(text_config(model.config))
    head.late, head.targets = model.many_losses, None
    bias = head.bias
    if tied:
        head.weight = embedding.weight
        bind(head, layers.vocabulary_head, whole, bias=0)
    else:
        bind(head, layers.vocabulary_head, whole, weight=0, bias=0)
    for module in model.modules():  # a class may have the bias under another name, too
        for name, parameter in list(module.named_parameters(recurse=False)):
            if parameter is bias:
                setattr(module, name, head.bias)
