"""The table of what blocks do and keep, against the engine's own operations and tensors."""

from dataclasses import replace

import pytest

pytest.importorskip("transformers")
import transformers

from helpers.engine.plan import ParallelPlan
from helpers.planner.memory.activations import kept_bytes
from helpers.planner.model.block_tensors import program, program_of
from helpers.planner.model.training_job import Job
from helpers.planner.model.widths import Widths
from helpers.planner.shape.families import model_shape
from helpers.planner.time.tensor_messages import tensor_messages
from tests.support.count_blocks import ROWS, SEQ_LEN, TOKENS, as_on_a_gpu, count_block

WIDTHS = {"hidden_size": 64, "num_attention_heads": 4, "vocab_size": 64}
MAKERS = {
    "gptj": lambda layers: transformers.GPTJConfig(
        n_embd=64, n_head=4, n_layer=layers, n_inner=160, rotary_dim=4, vocab_size=64,
        n_positions=64,  # in transformers before 5.24 every block reads the table of positions
    ),
    "gpt2": lambda layers: transformers.GPT2Config(
        n_embd=64, n_head=4, n_layer=layers, n_inner=160, vocab_size=64, n_positions=64,
        resid_pdrop=0, embd_pdrop=0, attn_pdrop=0,
    ),
    "gpt_neox": lambda layers: transformers.GPTNeoXConfig(
        **WIDTHS, num_hidden_layers=layers, intermediate_size=160
    ),
    "falcon": lambda layers: transformers.FalconConfig(
        **WIDTHS, num_hidden_layers=layers, ffn_hidden_size=160, num_kv_heads=2,
        new_decoder_architecture=True,
    ),
    "llama": lambda layers: transformers.LlamaConfig(
        **WIDTHS, num_hidden_layers=layers, intermediate_size=160, num_key_value_heads=2
    ),
}  # fmt: skip
# Falcon's values are a view or a copy of the fused projection, as its groups are cut
KEPT_WITHIN = {"falcon": 0.04}


def job_of(family, **plan):
    shape = model_shape(MAKERS[family](3))
    made = ParallelPlan(microbatches=1, **plan)
    return Job(shape, made, ROWS, SEQ_LEN, program_of(shape, made.precision, "cpu"))


def beside(job):
    """Bytes that the table leaves out: two numbers per token and norm, and a rotary table's row."""
    return job.element_bytes * (2 * job.shape.norms * TOKENS + 4 * job.shape.hidden)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("activation", ["none", "selective", "full"])
@pytest.mark.parametrize("family", MAKERS)
def test_what_a_block_keeps_is_what_stays_alive(family, activation, precision):
    job = job_of(family, activation=activation, precision=precision)
    counted = count_block(MAKERS[family], job.plan)
    vectors = beside(job)
    assert kept_bytes(job, 1) == pytest.approx(
        counted.kept_bytes, rel=KEPT_WITHIN.get(family, 0.003), abs=vectors
    )


@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parametrize("family", MAKERS)
def test_what_a_block_keeps_on_a_tensor_rank(family, sequence_parallel):
    job = job_of(family, tp=2, sequence_parallel=sequence_parallel)
    counted = count_block(MAKERS[family], job.plan)
    vectors = beside(job)
    assert kept_bytes(job, 1) == pytest.approx(
        counted.kept_bytes, rel=KEPT_WITHIN.get(family, 0.003), abs=vectors
    )


@pytest.mark.parametrize(
    "plan",
    [
        {},
        {"precision": "bf16"},
        {"tp": 2},
        {"tp": 2, "sequence_parallel": True},
    ],
)
@pytest.mark.parametrize("family", MAKERS)
def test_what_a_block_moves_is_what_its_operations_read_and_write(family, plan):
    job = job_of(family, **plan)
    counted = count_block(MAKERS[family], job.plan)
    program, shape = job.program, job.shape
    width = (shape, job.plan.tp, job.plan.sequence_parallel, SEQ_LEN)
    low = job.plan.precision != "fp32"
    gradients = program.parameter_bytes * job.block_parameters if low else 0
    copies = dict.fromkeys(("forward", "backward"), 0.0)
    for message in tensor_messages(job, 0):
        if message.what == "blocks":
            each = message.count / shape.layers * message.payload_bytes
            copies[message.when] += program.message_copies * each
    elements = TOKENS * job.element_bytes
    forward = elements * program.forward.on(*width) + copies["forward"]
    backward = elements * program.backward.on(*width) + copies["backward"] + gradients
    assert forward == pytest.approx(counted.forward_bytes, rel=0.03)
    assert backward == pytest.approx(counted.backward_bytes, rel=0.03)
    forward_operations, backward_operations = program.operations
    assert forward_operations == pytest.approx(counted.forward_operations, abs=6)
    assert backward_operations == pytest.approx(counted.backward_operations, rel=0.32, abs=7)


@pytest.mark.parametrize("family", MAKERS)
def test_what_a_block_does_and_keeps_in_eight_bits(family):
    """As on a GPU. Beside the passes over numbers there are those over their scales, one a token,
    which the table leaves out: of these narrow layers 6 %."""
    job = job_of(family, precision="fp8")
    with as_on_a_gpu():
        counted = count_block(MAKERS[family], job.plan)
    program, width = job.program, (job.shape, 1, False, SEQ_LEN)
    tokens = TOKENS * job.element_bytes
    forward = tokens * program.forward.on(*width) + program.weight_bytes * job.block_parameters
    backward = tokens * program.backward.on(*width)
    backward += program.parameter_bytes * job.block_parameters
    assert forward == pytest.approx(counted.forward_bytes, rel=0.06)
    assert backward == pytest.approx(counted.backward_bytes, rel=0.06)
    operations = counted.forward_operations, counted.backward_operations
    assert program.operations == pytest.approx(operations, rel=0.1)
    scales = 8 * 4 * TOKENS
    assert kept_bytes(job, 1) == pytest.approx(
        counted.kept_bytes, rel=KEPT_WITHIN.get(family, 0.003), abs=beside(job) + scales
    )


def test_widths_on_tensor_ranks():
    shape = model_shape(MAKERS["llama"](1))  # 64 wide, 2 key-value heads of 16
    each = Widths(outside=1, inside=1, query=1, kv=1, ffn=1, scores=1)
    assert each.on(shape, 1, False, 10) == 64 + 64 + 64 + 64 + 160 + 4 * 10
    assert each.on(shape, 4, False, 10) == 64 + 64 + 16 + 32 + 40 + 10  # a head's k and v at least
    assert each.on(shape, 4, True, 10) == 16 + 64 + 16 + 32 + 40 + 10


@pytest.mark.parametrize("tp", [1, 8])
def test_megatrons_block_keeps_the_papers_bytes(tp):
    """sbh(10 + 24/t + 5as/(ht)), and without the last term: arXiv 2205.05198, equations 2 and 6."""
    shape = replace(model_shape(MAKERS["gpt2"](1)), heads=16, kv_heads=16, head_dim=4)
    shape = replace(shape, block=model_shape(transformers.GPT2Config(n_embd=64, n_head=4)).block)
    s, b, h, a = 128, 2, 64, 16
    plan = ParallelPlan(tp=tp, precision="fp16", microbatches=1)
    whole = kept_bytes(Job(shape, plan, b, s, program("Megatron-LM 2022")), 1)
    assert whole == s * b * h * (10 + 24 / tp + 5 * a * s / (h * tp))
    plan = replace(plan, activation="selective", sequence_parallel=tp > 1)
    chosen = kept_bytes(Job(shape, plan, b, s, program("Megatron-LM 2022")), 1)
    assert chosen == s * b * h * 34 / tp
