"""Classes that research code makes of transformers': what the small copy must see of them."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import nn
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutput

from helpers.engine.admission.admitted import check_alone, check_precision
from helpers.engine.admission.given_model import check_given
from helpers.engine.admission.kinds import kind_of
from helpers.engine.admission.packed_rows import check_documents
from helpers.engine.errors import UserError
from helpers.engine.parallelize import lay_out, parallelize
from helpers.engine.plan import ParallelPlan
from helpers.engine.ranks.meeting import distributed
from helpers.engine.trainer import Trainer
from tests.support import tiny
from tests.support.ranks import mesh_of, pool

LAYERS = 5
LAYOUTS = {
    "one": ParallelPlan(),
    "tp": ParallelPlan(tp=2),
    "pp": ParallelPlan(pp=2),
    "cp": ParallelPlan(cp=2),
    "zero-2": ParallelPlan(dp_shard=2, zero_stage=2),
    "parts": ParallelPlan(microbatches=2),
    "again": ParallelPlan(activation="full"),
}


class NormedMLP(nn.Module):
    """With a bias and a norm of all its features."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        middle = self.gate_proj(x) * self.up_proj(x)
        return self.down_proj(F.layer_norm(middle, middle.shape[-1:]))


class OtherLast(transformers.LlamaForCausalLM):
    """The last of many blocks is another, which two blocks have none of."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        if config.num_hidden_layers >= LAYERS:
            self.model.layers[-1].mlp = NormedMLP(config)


class Centred(nn.Module):
    """The features of the fourth block, about their mean."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - x.mean(-1, keepdim=True) if self.number == 3 else x


class OtherFourth(transformers.LlamaForCausalLM):
    """A block between the first and the last goes by its number, which no module tells."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        for number, layer in enumerate(self.model.layers):
            layer.mlp.act_fn = Centred(number)


class LooksBack(nn.Module):
    """At what was 20 tokens ago."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + F.pad(x, (0, 0, 20, 0))[:, : x.shape[1]]


class FarBack(transformers.LlamaForCausalLM):
    def __init__(self, config: Any) -> None:
        super().__init__(config)
        for layer in self.model.layers:
            layer.mlp.act_fn = LooksBack()


class SkippingModel(transformers.LlamaModel):
    """What goes into a block comes again as far from the end, as in a U-net."""

    def forward(self, input_ids: Any = None, inputs_embeds: Any = None, **_: Any) -> Any:
        x = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        places = torch.arange(x.shape[1]).unsqueeze(0)
        turned, half, skips = self.rotary_emb(x, places), len(self.layers) // 2, []
        for number, layer in enumerate(self.layers):
            x = x + 0.5 * skips.pop() if number >= half else x
            x = layer(x, position_embeddings=turned, position_ids=places)
            skips += [x] if number < half else []
        return BaseModelOutputWithPast(last_hidden_state=self.norm(x))


class Skipping(transformers.LlamaForCausalLM):
    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.model = SkippingModel(config)
        self.post_init()


class Extended(transformers.LlamaForCausalLM):
    """With a module after each activation."""

    after: type[nn.Module]

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        for layer in self.model.layers:
            layer.mlp.act_fn = nn.Sequential(layer.mlp.act_fn, self.after())


class NormedRows(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - x.mean(0, keepdim=True)


class RowsTogether(Extended):
    """As a norm of batches has them."""

    after = NormedRows


class AddsInBackward(torch.autograd.Function):
    """What goes through, and of another loss its gradient alone."""

    @staticmethod
    def forward(context: Any, x: torch.Tensor, loss: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return gradient, gradient.new_ones(())


class Balanced(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return AddsInBackward.apply(x, 0.1 * x.square().mean())


class HiddenLoss(Extended):
    """Its experts would be balanced so: no loss says it."""

    after = Balanced


class InFewBits(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1, dtype=torch.bfloat16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale


class Rounding(Extended):
    """The gradient of what it holds in bf16, whatever the others are in."""

    after = InFewBits


class RunningMean(nn.Module):
    """Of what went through in training, for evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.training:
            return x - self.mean
        self.mean.lerp_(x.detach().mean(), 0.5)
        return x


class Remembering(Extended):
    """No loss or gradient of training says it."""

    after = RunningMean


class RunningTurn(RunningMean):
    """The same beside the real numbers, as tables of rotary positions have them."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = torch.zeros((), dtype=torch.complex64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.training:
            return x - self.mean.imag
        self.mean.imag.lerp_(x.detach().float().mean(), 0.5)
        return x


class RememberingTurns(Extended):
    after = RunningTurn


class Counting(transformers.LlamaForCausalLM):
    """The batches that it has seen."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.model.register_buffer("seen", torch.zeros(()))
        self.model.register_forward_hook(count)


def count(model: nn.Module, *_: Any) -> None:
    model.seen += model.training


class Dropping(transformers.LlamaForCausalLM):
    """By a layer whose rate no configuration says."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.model.norm = nn.Sequential(self.model.norm, nn.Dropout(0.1))


class DroppingItself(transformers.PreTrainedModel):
    """The same by a function, in a class of which no list says what it is for."""

    config_class = transformers.LlamaConfig

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.lm = transformers.LlamaForCausalLM(config)
        self.post_init()

    def forward(self, labels: Any = None, **inputs: Any) -> Any:
        logits = F.dropout(self.lm(**inputs).logits, 0.1, training=self.training)
        loss = None if labels is None else self.lm.loss_function(logits, labels, logits.shape[-1])
        return CausalLMOutput(loss=loss, logits=logits)


class LittleMore(transformers.LlamaForCausalLM):
    """A z-loss of little weight."""

    weight = 1e-5

    def forward(self, *args: Any, labels: Any = None, **kwargs: Any) -> Any:
        out = super().forward(*args, labels=labels, **kwargs)
        if labels is not None:
            out.loss = out.loss + self.weight * out.logits.logsumexp(-1).square().mean()
        return out


class NoMore(LittleMore):
    weight = 0.0


def said(kind: type, plan: ParallelPlan, weight: float | None = None) -> str:
    torch.manual_seed(0)
    model = kind(tiny.config("llama", LAYERS))
    if weight is not None:
        model.weight = weight
    try:
        parallelize(model, plan, mesh_of(plan))
    except UserError as error:
        return str(error)
    return ""


BUFFER = "Remembering changes its buffer model.layers.0.mlp.act_fn.1.mean with each batch, which "
ROUNDED = "Rounding has model.layers.0.mlp.act_fn.1.scale in bfloat16, to which its gradient is "
HIDDEN = "HiddenLoss adds to its gradients what is not of its loss, as to balance experts"
CASES = (
    (OtherLast, "one", ""),
    (OtherLast, "tp", "llama would not be exact under tp=2: its loss would be"),
    (OtherLast, "pp", ""),
    (OtherFourth, "one", ""),
    (OtherFourth, "tp", "llama would not be exact under tp=2: its loss would be"),
    (OtherFourth, "pp", ""),
    (FarBack, "one", ""),
    (FarBack, "tp", ""),
    (FarBack, "cp", "llama would not be exact under cp=2: its loss would be"),
    (Skipping, "one", ""),
    (Skipping, "tp", ""),
    (Skipping, "pp", "llama would not be exact under pp=2: its loss would be"),
    (RowsTogether, "one", ""),
    (RowsTogether, "tp", ""),
    (RowsTogether, "pp", "RowsTogether computes a row with the others of its batch"),
    (RowsTogether, "zero-2", "RowsTogether computes a row with the others of its batch"),
    (RowsTogether, "parts", "RowsTogether computes a row with the others of its batch"),
    (HiddenLoss, "one", ""),
    (HiddenLoss, "parts", HIDDEN),
    pytest.param(HiddenLoss, "pp", HIDDEN, marks=pytest.mark.exhaustive),
    pytest.param(HiddenLoss, "zero-2", HIDDEN, marks=pytest.mark.exhaustive),
    (Rounding, "one", ""),
    (Rounding, "parts", ROUNDED + "rounded, and for each part of a batch anew, which dp_shard"),
    (Remembering, "one", ""),
    (Remembering, "zero-2", BUFFER + "dp_shard and dp_replicate deal out"),
    (Remembering, "parts", BUFFER + "pp and microbatches deal out"),
    (
        Remembering,
        "again",
        "llama would not be exact under one process with activation=full: its buffer",
    ),
    (RememberingTurns, "one", ""),
    (
        RememberingTurns,
        "zero-2",
        "RememberingTurns changes its buffer model.layers.0.mlp.act_fn.1.mean",
    ),
    (Counting, "zero-2", ""),
    (Counting, "parts", "Counting changes its buffer model.seen with each batch, which pp and"),
    (Dropping, "one", ""),
    (
        DroppingItself,
        "one",
        "a small llama could not be run by transformers to check the layout against (ValueError: "
        "it computes something else each time, as with dropout",
    ),
    (LittleMore, "one", "a small llama could not be run by transformers to check the layout"),
    (NoMore, "one", ""),
)


@pytest.mark.parametrize(("kind", "layout", "words"), CASES)
def test_what_a_class_does_otherwise_is_seen(kind: type, layout: str, words: str) -> None:
    plan = LAYOUTS[layout]
    for told in pool(plan.world_size).run(said, kind, plan):
        assert told.startswith(words) and bool(told) == bool(words) and "\n" not in told


def test_a_number_of_the_model_that_its_class_has_not() -> None:
    [told] = pool(1).run(said, NoMore, LAYOUTS["one"], 0.1)
    assert told.startswith(
        "this model's weight is 0.1, and its class has 0.0, which its small copy"
    )
    assert pool(1).run(said, NoMore, LAYOUTS["one"], 0.0) == [""]


def test_documents_that_are_seen_from_far_are_not_packed() -> None:
    model = FarBack(tiny.config("llama", LAYERS))
    with pytest.raises(UserError, match="lets documents of a row see each other"):
        check_documents(kind_of(model), "cpu", lay_out)


def test_one_process_refuses_for_a_dry_run_what_ranks_would() -> None:
    model = RowsTogether(tiny.config("llama", LAYERS))
    with pytest.raises(UserError, match="RowsTogether computes a row with the others"):
        check_alone(model, LAYOUTS["pp"], lay_out)
    check_alone(model, LAYOUTS["one"], lay_out)


def test_micro_batches_that_a_trainer_alone_has() -> None:
    plan = LAYOUTS["one"]

    def trainer_of(kind: type) -> Trainer:
        model = parallelize(kind(tiny.config("llama", LAYERS)), plan, plan.mesh("cpu"))
        return Trainer(model, LAYOUTS["parts"], model.mesh, lr=1e-3)

    with distributed(plan):
        trainer_of(transformers.LlamaForCausalLM)
        with pytest.raises(UserError, match="RowsTogether computes a row with the others"):
            trainer_of(RowsTogether)


class OwnNames(transformers.PretrainedConfig):
    """Says how wide and deep a model is in words of its own."""

    model_type = "own_names"

    def __init__(self, words: int = 61, depth: int = 2, **more: Any) -> None:
        self.words, self.depth = words, depth
        super().__init__(**more)


class NamedSo(transformers.PreTrainedModel):
    config_class = OwnNames

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.table = nn.Embedding(config.words, 16)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.table


def test_names_of_a_configuration_that_are_asked_for() -> None:
    with pytest.raises(UserError, match=r"no vocab_size, hidden_size, .* in the attribute_map"):
        check_alone(NamedSo(OwnNames()), LAYOUTS["one"], lay_out)
    with pytest.raises(UserError, match="has no num_hidden_layers, by which pp finds the blocks"):
        LAYOUTS["pp"].validate(OwnNames())


class OwnPlaces(transformers.LlamaForCausalLM):
    """With numbers that no file holds."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.register_buffer("places", torch.arange(1.0, 9.0), persistent=False)


def test_buffers_that_nothing_was_read_into() -> None:
    model = OwnPlaces(tiny.config("llama")).to(torch.bfloat16)
    check_given(model, LAYOUTS["one"])
    model.places.zero_()
    with pytest.raises(UserError, match="places is not what OwnPlaces makes, and no file holds"):
        check_given(model, LAYOUTS["one"])


class WiderInEvaluation(nn.Module):
    """Training has the dtype of what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("shift", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if self.training else x + self.shift


class Wider(Extended):
    after = WiderInEvaluation


def test_a_dtype_in_which_a_class_trains_and_is_not_evaluated() -> None:
    kind = kind_of(Wider(tiny.config("llama")))
    with pytest.raises(UserError, match="does not run with its weights in float16"):
        check_precision(kind, torch.float16, "cpu", lay_out)
