"""Ranks that differ are told so at once, and what a run writes does not depend on its layout."""

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file

from tests.support import scripts, tiny

pytestmark = pytest.mark.slow

SMALL = {"layers": 2, "hidden": 64, "heads": 2, "seq_len": 32, "batch_size": 8, "steps": 2}
LAYOUTS = {
    "one": {},
    "tp": {"tp": 2},
    "pp": {"pp": 2},
    "ddp": {"dp_replicate": 2},
    "zero-1": {"dp_shard": 2, "zero_stage": 1},
    "zero-3": {"dp_shard": 2},
}


def write_text(path: Path, words: str) -> Path:
    path.write_text("\n".join([words] * 64) + "\n")
    return path


def write_model(folder: Path, seed: int = 0, family: str = "llama") -> Path:
    model = tiny.fresh(family, torch.float32)
    torch.manual_seed(seed)
    model.resize_token_embeddings(2048)
    model.save_pretrained(folder)
    return folder


def other_text(folder: Path) -> tuple[object, object]:
    first = write_text(folder / "a.txt", "the first of the two texts")
    return first, write_text(folder / "b.txt", "the other of the two texts")


DIFFERENCES: dict[str, Callable[[Path], tuple[object, object]]] = {
    "lr": lambda _: (1e-3, 2e-3),
    "seed": lambda _: (0, 1),
    "steps": lambda _: (2, 3),
    "precision": lambda _: ("fp32", "bf16"),
    "data": other_text,
    "model": lambda folder: (write_model(folder / "a"), write_model(folder / "b", seed=1)),
}


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Ranks are forked from a process with the imports; the first of them waits for these."""
    scripts.process(tp=3, out=tmp_path_factory.mktemp("imported") / "run")


@pytest.mark.usefixtures("imported")
@pytest.mark.parametrize("name", DIFFERENCES)
def test_ranks_that_differ_stop_at_once(tmp_path: Path, name: str) -> None:
    first, other = DIFFERENCES[name](tmp_path)
    flags = SMALL | {"dp_replicate": 2, name: first}
    if name == "model":  # has its own widths
        flags = {flag: flags[flag] for flag in ("model", "seq_len", "steps", "dp_replicate")}
    began = time.monotonic()
    done = scripts.process(2, of_rank={1: {name: other}}, out=tmp_path / "run", **flags)
    assert time.monotonic() - began < 10
    assert done.returncode == 2 and not (tmp_path / "run").exists()
    [line] = set(done.stderr.splitlines())
    assert line.startswith("error: rank 1 has ") and "and rank 0" in line


@pytest.mark.parametrize("what", ["data", "model"])
def test_files_of_one_name_that_differ_are_found_by_their_digest(tmp_path: Path, what: str) -> None:
    """As on two machines: the same arguments, and other content."""
    folders = [tmp_path / "rank0", tmp_path / "rank1"]
    for rank, folder in enumerate(folders):
        folder.mkdir()
        write_text(folder / "text.txt", "the same" if what == "model" else f"of rank {rank}")
        write_model(folder / "model", seed=rank if what == "model" else 0)
    flags = {"data": "text.txt", "model": "model", "seq_len": 32, "steps": 2, "dp_replicate": 2}
    done = scripts.process(2, folders=folders, out=tmp_path / "run", **flags)
    assert done.returncode == 2, done.stdout
    [line] = set(done.stderr.splitlines())
    assert line.startswith(
        "error: rank 1 has " + ("data of digest" if what == "data" else "weights")
    )


def test_every_layout_writes_the_same_kind_of_files(tmp_path: Path) -> None:
    """Some hold bfloat16 with float32 masters, others float32 alone."""
    facts = {}
    for layout, plan in LAYOUTS.items():
        out = tmp_path / layout
        ranks = 2 if plan else 1
        scripts.trained(ranks, out=out, save=True, precision="bf16", **SMALL | plan)
        tensors = load_file(out / "model" / "model.safetensors")
        config = json.loads((out / "model" / "config.json").read_text())
        shapes = {name: (tensor.dtype, tensor.shape) for name, tensor in tensors.items()}
        facts[layout] = (shapes, config["dtype"])
        assert {dtype for dtype, _ in shapes.values()} == {torch.float32}
    assert all(found == facts["one"] for found in facts.values())


@pytest.mark.parametrize("layout", ["one", "tp", "zero-3"])
def test_the_files_have_the_dtype_that_is_asked_for(tmp_path: Path, layout: str) -> None:
    plan = LAYOUTS[layout]
    out, ranks = tmp_path / "run", 2 if plan else 1
    scripts.trained(ranks, out=out, save=True, save_dtype="bf16", **SMALL | plan)
    model = transformers.AutoModelForCausalLM.from_pretrained(out / "model")
    assert model.dtype == torch.bfloat16
    tensors = load_file(out / "model" / "model.safetensors")
    assert {tensor.dtype for tensor in tensors.values()} == {torch.bfloat16}
