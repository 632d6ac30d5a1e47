"""A recipe written by a test."""

import pytest


@pytest.fixture
def write(tmp_path):
    def writing(text, name="hf_llama3_8b_seq4k_gpu_p4x4_pretrain.yaml"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    return writing
