"""What each of this year's decoders has that others have not, over ranks: one named test each."""

from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
import transformers
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from helpers.engine.admission.trial import Trial
from helpers.engine.errors import UserError
from helpers.engine.models.architecture import candidates, family_of
from helpers.engine.models.block_rules import block_rules
from helpers.engine.models.blocks import gpt_neo_attention
from helpers.engine.parallelize import lay_out, parallelize
from helpers.engine.plan import ParallelPlan
from helpers.engine.tensor import layers
from helpers.engine.tensor.boundary import Boundary
from helpers.engine.tensor.partial_gradients import whole_gradients
from helpers.engine.tensor.shards import local
from helpers.engine.tensor.split import own_heads
from tests.support import parity, tiny
from tests.support.parity import laid_out, trainer_of
from tests.support.ranks import mesh_of, pool
from tests.support.refusals import said

TP2 = ParallelPlan(tp=2)


def loss_of(family: str, plan: ParallelPlan, **options) -> float:
    ids, labels = tiny.batch(0)
    return laid_out(family, plan, **options)(input_ids=ids, labels=labels).loss.item()


def reference_loss(family: str, layers: int = 2) -> float:
    return tiny.truth(family, torch.float64, layers)["losses"][0]


# OLMo 2: norms of whole projections, of which each rank has its heads


def numbers_sent() -> float:
    """What the norms of queries and keys send, and the loss if they sent nothing."""
    sent, reduce_out = [], layers.reduce_out
    model, (ids, labels) = laid_out("olmo2", TP2), tiny.batch(0)
    layers.reduce_out = lambda x, group: (sent.append(tuple(x.shape)), reduce_out(x, group))[1]
    try:
        loss = model(input_ids=ids, labels=labels).loss.item()
        layers.reduce_out = lambda x, group: x * group.size()
        alone = model(input_ids=ids, labels=labels).loss.item()
    finally:
        layers.reduce_out = reduce_out
    assert sent == [(8, 17, 1)] * 4  # of two norms in each of two layers
    parity.close("loss", loss, reference_loss("olmo2"), 1e-10)
    return alone


def test_a_norm_of_a_whole_projection_sends_one_number_a_token() -> None:
    for alone in pool(2).run(numbers_sent):
        assert abs(alone - reference_loss("olmo2")) > 1e-4, "a rank's own mean is another"


# Phi-3: queries, keys and values in one matrix, gate and up in another


@given(
    st.sampled_from([(4, 4, 2), (4, 2, 2), (4, 2, 4), (8, 2, 8), (12, 4, 2), (6, 1, 3)]),
    st.integers(1, 5),
)
def test_a_rank_uses_the_rows_of_its_heads(sizes: tuple[int, int, int], width: int) -> None:
    heads, groups, ranks = sizes
    of = [("q", head) for head in range(heads)]
    of += [(kind, group) for kind in "kv" for group in range(groups)]
    rows = [(*one, part) for one in of for part in range(width)]
    seen = []
    for rank in range(ranks):
        mine = [row for part in own_heads(heads, groups, width, ranks, rank) for row in rows[part]]
        queries = [head for kind, head, part in mine if kind == "q" and part == 0]
        for kind in "kv":
            found = [group for name, group, part in mine if name == kind and part == 0]
            needed = list(dict.fromkeys(head * groups // heads for head in queries))
            assert found == needed
        seen += queries
        assert len(mine) == width * (len(queries) + 2 * len(needed))
    assert seen == list(range(heads))


def rows_held(family: str) -> tuple[list[int], list[int]]:
    block = laid_out(family, TP2).model.layers[0]
    fused, gates = block.self_attn.qkv_proj.weight, block.mlp.gate_up_proj.weight
    plain = tiny.fresh(family, torch.float64).model.layers[0]
    gate, up = plain.mlp.gate_up_proj.weight.chunk(2)
    own = torch.stack([half.chunk(2)[dist.get_rank()] for half in (gate, up)])
    assert torch.equal(local(gates), own)
    assert fused.numel() == plain.self_attn.qkv_proj.weight.numel() == 2 * local(fused).numel()
    return list(local(fused).shape), list(local(gates).shape)


def test_fused_projections_are_held_in_parts() -> None:
    """Thirds and halves as such; with fewer key-value heads rows wherever they lie."""
    assert pool(2).run(rows_held, "phi3")[0] == ([3, 16, 32], [2, 24, 32])
    assert pool(2).run(rows_held, "phi3-grouped")[0] == ([32, 32], [2, 24, 32])


# Gemma 3: a scaled embedding, capped scores and logits, and masks that differ from layer to layer


@pytest.mark.parametrize("schedule", ("1f1b", "interleaved"))
def test_masks_by_layer_in_groups_that_are_recomputed(schedule: str) -> None:
    """A group runs its layers later, with the arguments that each of them was given."""
    plan = ParallelPlan(pp=2, activation="group_2", schedule=schedule, microbatches=2)
    pool(2).run(parity.check, "gemma3", plan, torch.float64, 2, 8)


def windows(family: str, plan: ParallelPlan) -> float:
    """The loss where every layer sees all."""
    model = tiny.fresh(family, torch.float64)
    if family == "gemma3":
        model.config.sliding_window = model.config.max_position_embeddings
    else:
        for block in model.transformer.h:
            block.attn.attention.attention_type = "global"
    ids, labels = tiny.batch(0)
    return parallelize(model, plan, mesh_of(plan))(input_ids=ids, labels=labels).loss.item()


@pytest.mark.parametrize("family", ("gemma3", "gpt-neo"))
def test_a_window_is_one_layers_and_not_the_others(family: str) -> None:
    for loss in pool(2).run(windows, family, TP2):
        assert abs(loss - reference_loss(family)) > 1e-4
    for loss in pool(2).run(loss_of, family, TP2):
        assert loss == pytest.approx(reference_loss(family), rel=1e-10)


def test_the_check_sees_a_window_that_is_not_kept() -> None:
    """A planted fault: the small copy has few tokens, and its windows are made smaller still."""
    assert "loss would be" in pool(1).run(difference, windowless)[0]
    assert pool(1).run(difference, gpt_neo_attention)[0] is None


def windowless(self: nn.Module, *args, **kwargs):
    self.attention_type = "global"
    return gpt_neo_attention(self, *args, **kwargs)


def difference(forward) -> str | None:
    model = tiny.fresh("gpt-neo", torch.float32)
    trial = Trial(type(model), model.config)
    family = replace(family_of(model), forwards={"attn.attention": forward})
    return trial.difference(
        lambda model, rank: lay_out(model, family, ParallelPlan(), Boundary(), rank),
        ranks=1,
        gradients=whole_gradients,
    )


# BLOOM: slopes by head, and a residual that its attention adds itself


def first_slopes() -> float:
    """The loss where every rank takes the slopes of the first one's heads."""
    own = Boundary.heads
    Boundary.heads = lambda self, x: x.chunk(self.size, dim=1)[0]
    try:
        return loss_of("bloom", TP2)
    except UserError as error:
        assert "loss would be" in str(error)  # the small copy has shown it already
        return 0.0
    finally:
        Boundary.heads = own


def test_bloom_gives_each_head_its_own_slope() -> None:
    for loss in pool(2).run(first_slopes):
        assert abs(loss - reference_loss("bloom")) > 1e-4
    assert pool(2).run(loss_of, "bloom", TP2)[0] == pytest.approx(reference_loss("bloom"))


# OPT: layers beside each other in the block, tokens in a row, positions from 2, dropout in between


def dropped_alike(sequence_parallel: bool) -> tuple[list[float], float]:
    """What dropout leaves of a rank's part of the sequence, and where the shared stream stands."""
    plan = ParallelPlan(tp=2, sequence_parallel=sequence_parallel)
    config = tiny.config("opt")
    config.dropout = 0.5
    torch.manual_seed(0)
    model = transformers.OPTForCausalLM(config).double()
    model = parallelize(model, plan, mesh_of(plan), check=False).train()
    masks, dropout = [], nn.functional.dropout

    def noted(x, p=0.5, training=True, inplace=False):
        out = dropout(x, p, training)
        masks.append((out == 0).flatten()[:64].float())
        return out

    nn.functional.dropout = noted
    torch.manual_seed(1)
    try:
        model(input_ids=torch.randint(2, 90, (2, 16)), labels=torch.randint(2, 90, (2, 16)))
    finally:
        nn.functional.dropout = dropout
    return torch.cat(masks).tolist(), float(torch.rand(()))


def test_dropout_that_is_no_module_differs_where_the_sequence_is_split() -> None:
    (whole, stream), (also, same) = pool(2).run(dropped_alike, False)
    assert whole == also and stream == same
    (first, stream), (second, same) = pool(2).run(dropped_alike, True)
    assert first != second and stream == same


def test_layers_that_are_left_out_at_random_are_refused() -> None:
    assert "layerdrop" in pool(1).run(layerdrop)[0]


def layerdrop() -> str:
    config = tiny.config("opt")
    config.layerdrop = 0.1
    model = transformers.OPTForCausalLM(config)
    return said(parallelize, model, ParallelPlan(), mesh_of(ParallelPlan()))


# Rules in place of records


def rules(model_type: str, auto: str = "AutoModelForCausalLM") -> tuple:
    config = transformers.AutoConfig.for_model(model_type)
    config.num_hidden_layers = 2
    with torch.device("meta"):
        model = getattr(transformers, auto).from_config(config)
    family = family_of(model)
    return block_rules(model.get_submodule(family.blocks), config.get_text_config())


def test_an_mlp_is_found_by_its_shape_and_attention_by_its_names() -> None:
    attention, mlp = rules("opt")
    assert attention.column == ("self_attn.q_proj",) and attention.row == ("self_attn.out_proj",)
    assert attention.shared_kv == ("self_attn.k_proj", "self_attn.v_proj")
    assert (mlp.sublayers, mlp.column, mlp.row) == (("fc1",), ("fc1",), ("fc2",))
    attention, mlp = rules("phi3")
    assert attention.packed == {"self_attn.qkv_proj": 3} and mlp.packed == {"mlp.gate_up_proj": 2}
    attention, mlp = rules("camembert")
    assert attention.row == ("attention.output.dense",) and mlp.row == ("output.dense",)


def test_heads_of_low_ranks_are_split_and_the_ranks_stay_whole() -> None:
    attention, _ = rules("deepseek_v3")
    assert attention.column == ("self_attn.q_b_proj", "self_attn.kv_b_proj")
    assert attention.row == ("self_attn.o_proj",) and not attention.shared_kv


@pytest.mark.parametrize("model_type", ("mamba", "rwkv", "axk2"))
def test_what_is_no_attention_is_left_whole(model_type: str) -> None:
    attention, _ = rules(model_type)
    assert not attention.row


def ways(model_type: str) -> list[tuple[bool, bool]]:
    config = transformers.AutoConfig.for_model(model_type)
    config.num_hidden_layers = 2
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    return [(bool(way.attention), way.whole_logits) for way in candidates(model, tp=2)]


def test_attention_that_asks_no_interface_is_not_split() -> None:
    """Its dropout would be drawn alike for the heads of all ranks."""
    assert ways("qwen3")[0] == (True, False)
    assert ways("rembert") and not any(attention for attention, _ in ways("rembert"))


def moved(family: str) -> None:
    """A step on ranks moves the weights that one process moves: of what is held in parts, too."""
    trainer = trainer_of(family, TP2)
    before = {part.name: part.tensor.detach().clone() for part in trainer.parts}
    trainer.step(*tiny.batch(0))
    assert all(not torch.equal(before[part.name], part.tensor) for part in trainer.parts)


@pytest.mark.parametrize("family", ("phi3-grouped", "olmo2"))
def test_every_part_moves(family: str) -> None:
    pool(2).run(moved, family)
