"""Four bits: what bitsandbytes makes of the whole model, made without ever holding it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from helpers.engine.adapters import nf4 as quantize
from helpers.engine.adapters.linear_layers import linear_paths
from helpers.engine.adapters.nf4 import dequantize, load_quantized
from helpers.engine.errors import UserError
from helpers.engine.files import weights
from helpers.engine.models.architecture import family_of
from tests.engine.files.large import HIDDEN, SIZE_BYTES, VOCABULARY, bytes_of, save_large
from tests.support import tiny

bnb = pytest.importorskip("bitsandbytes")

ROOT = Path(__file__).resolve().parents[3]
# transformers' own quantization leaves Falcon's layers out: they are of a class of their own
THEIRS = [name for name in tiny.FAMILIES if not name.startswith("falcon")]


def same_state(one, other) -> bool:
    """Equal to the bit, where bitsandbytes' own comparison allows a little."""
    return (
        torch.equal(one.absmax, other.absmax)
        and torch.equal(one.code, other.code)
        and torch.equal(one.offset, other.offset)
        and torch.equal(one.state2.absmax, other.state2.absmax)
        and torch.equal(one.state2.code, other.state2.code)
        and (one.shape, one.dtype, one.blocksize, one.quant_type, one.state2.blocksize)
        == (other.shape, other.dtype, other.blocksize, other.quant_type, other.state2.blocksize)
    )


def is_quantized(parameter: Tensor) -> bool:
    return getattr(parameter, "quant_state", None) is not None


def theirs(matrix: Tensor):
    return bnb.functional.quantize_4bit(
        matrix, blocksize=64, compress_statistics=True, quant_type="nf4"
    )


@settings(deadline=None, max_examples=60)
@given(
    st.integers(1, 400),
    st.integers(1, 90),
    st.integers(1, 4),
    st.sampled_from((torch.bfloat16, torch.float16, torch.float32)),
    st.integers(0, 99),
)
def test_windows_give_bitsandbytes_own_matrix(rows, columns, blocks, dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    matrix = torch.randn(rows, columns, generator=generator) * torch.rand(rows, 1)
    matrix = matrix.to(dtype)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quantize, "WINDOW", 64 * blocks * columns)
        codes, state = quantize.quantize(lambda b, e: matrix[b:e], (rows, columns), matrix[:0, :0])
    expected, expected_state = theirs(matrix)
    assert torch.equal(codes, expected)
    assert same_state(state, expected_state)


@pytest.mark.parametrize("shape", [(64, 64), (96, 50), (1000, 333), (7, 3)])
def test_the_size_is_known_before(shape):
    codes, state = theirs(torch.randn(shape))
    tensors = (
        codes,
        state.absmax,
        state.code,
        state.offset,
        state.state2.absmax,
        state.state2.code,
    )
    assert quantize.nf4_bytes(shape[0] * shape[1]) == sum(t.nbytes for t in tensors)


def saved(family: str, folder: Path) -> nn.Module:
    """The model as transformers reads it from the folder that it wrote."""
    tiny.fresh(family, torch.bfloat16).save_pretrained(folder)
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)


@pytest.mark.parametrize("family", (*tiny.FAMILIES, *tiny.PUBLISHED))
def test_every_linear_layer_of_every_block_and_nothing_else(family: str, tmp_path: Path) -> None:
    plain = saved(family, tmp_path)
    model = load_quantized(tmp_path)
    paths = linear_paths(model)
    for name, parameter in plain.named_parameters():
        path, _, leaf = name.rpartition(".")
        found = model.get_parameter(name)
        assert not found.requires_grad
        if leaf == "weight" and path in paths:
            matrix = (
                parameter.t() if quantize.is_transposed(plain.get_submodule(path)) else parameter
            )
            codes, state = theirs(matrix.detach())
            assert torch.equal(found.data, codes) and same_state(found.quant_state, state)
            assert dequantize(model.get_submodule(path)).shape == parameter.shape
        else:
            assert not is_quantized(found) and torch.equal(found, parameter)
    blocks = plain.get_submodule(family_of(plain).blocks)
    linear = [m for m in blocks.modules() if isinstance(m, nn.Linear) or quantize.is_transposed(m)]
    assert len(paths) == len(linear) > 0
    for name, buffer in plain.named_buffers():
        assert torch.equal(model.get_buffer(name), buffer)


@pytest.mark.parametrize("family", THEIRS)
def test_logits_are_those_of_transformers_own_four_bits(family: str, tmp_path: Path) -> None:
    saved(family, tmp_path)
    expected = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, dtype=torch.bfloat16, quantization_config=four_bits()
    )
    ids = tiny.batch(0)[0]
    with torch.no_grad():
        ours = load_quantized(tmp_path)(input_ids=ids).logits
        # nothing is dropped out; in inference bitsandbytes rounds otherwise on some processors
        assert torch.equal(ours, expected.train()(input_ids=ids).logits)


def four_bits() -> transformers.BitsAndBytesConfig:
    return transformers.BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16,
    )


@pytest.mark.parametrize("family", ("gpt2", "falcon-new", "llama"))
def test_a_model_without_weights_is_drawn_as_load_model_draws_it(
    family: str, tmp_path: Path
) -> None:
    config = tiny.config(family)
    config.save_pretrained(tmp_path)
    with torch.device("meta"):
        plain = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    weights.fill(plain, None, 3, "cpu")
    model = load_quantized(tmp_path, seed=3, from_scratch=True)
    for name, parameter in plain.named_parameters():
        path = name.rpartition(".")[0]
        found = model.get_parameter(name)
        if is_quantized(found):
            turned = quantize.is_transposed(plain.get_submodule(path))
            codes, state = theirs((parameter.t() if turned else parameter).detach())
            assert torch.equal(found.data, codes) and same_state(found.quant_state, state)
        else:
            assert torch.equal(found, parameter)
    tied = config.tie_word_embeddings
    assert (model.get_output_embeddings().weight is model.get_input_embeddings().weight) == tied


def test_a_missing_weight_is_said_in_one_line(tmp_path: Path) -> None:
    saved("neox", tmp_path)
    config = tiny.config("neox", layers=3)
    with pytest.raises(
        UserError, match=r"holds no weight .*layers\.2.*is it this model's"
    ) as caught:
        load_quantized(tmp_path, config=config)
    assert "\n" not in caught.value.args[0]


# --- memory ----------------------------------------------------------------------------------

LAYER_BYTES = 4 * 12 * HIDDEN**2  # as the files hold it
MEASURE = """
import json, sys
from helpers.engine.adapters.nf4 import load_quantized
from tests.engine.files.large import measured

small, large = sys.argv[1:]
model, peak = measured(lambda: load_quantized(small), lambda: load_quantized(large))
held = sum(p.nbytes for p in model.parameters())
for p in model.parameters():
    if getattr(p, "quant_state", None) is not None:
        held += p.quant_state.absmax.nbytes + p.quant_state.state2.absmax.nbytes
print(json.dumps([peak, held]))
"""


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_loading_holds_the_four_bits_and_at_most_half_a_layer(tmp_path: Path) -> None:
    save_large(tmp_path / "large")
    assert bytes_of(tmp_path / "large") > SIZE_BYTES
    saved("neox", tmp_path / "small")
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(tmp_path / "small"), str(tmp_path / "large")],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    peak, held = json.loads(done.stdout.splitlines()[-1])
    tables = 2 * 2 * VOCABULARY * HIDDEN  # two of words in bf16
    assert held < 0.25 * SIZE_BYTES + tables  # 4 bits
    print(f"peak {peak / 1e6:.0f} MB, held {held / 1e6:.0f} MB, layer {LAYER_BYTES / 1e6:.0f} MB")
    assert held < peak < held + LAYER_BYTES / 2  # 17 to 18 MB more were seen
