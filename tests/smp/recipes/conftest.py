"""A recipe written by a test."""

import pytest


@pytest.fixture
def write(file):
    return lambda text, name="hf_llama3_8b_seq4k_gpu_p4x4_pretrain.yaml": file(text, name)
