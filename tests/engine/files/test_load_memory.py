"""A checkpoint of 1.5 GB: what transformers writes is read in shares, and what is written it reads.

No rank may hold more, at any moment of the load, than its share and a quarter of that.
"""

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import transformers
from torch import Tensor

from helpers.engine.files.weights import save_model
from helpers.engine.parallelize import load_model
from helpers.engine.plan import ParallelPlan
from tests.engine.files.large import SIZE_BYTES, bytes_of, measured, save_large
from tests.support import parity, tiny
from tests.support.matrix import part, product
from tests.support.ranks import Pool, mesh_of, pool

ROOM = 1.25  # of a rank's share
PLANS = {"tp2": ParallelPlan(tp=2), "zero3-4": ParallelPlan(dp_shard=4)}
IDS = torch.arange(16).unsqueeze(0) * 1999


def logits_of(model: torch.nn.Module, ids: Tensor) -> Tensor:
    with torch.no_grad():
        return model.eval()(input_ids=ids).logits


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Tensor]]:
    """A folder that transformers wrote, in several files, and the model's logits for IDS."""
    out = tmp_path_factory.mktemp("large")
    model = save_large(out)
    yield out, logits_of(model, IDS)
    shutil.rmtree(out)


def load(folder: Path, small: Path, plan: ParallelPlan, out: Path | None) -> int:
    """Runs on each rank; returns the load's peak."""
    mesh = mesh_of(plan)
    model, peak = measured(
        lambda: load_model(small, plan, mesh, from_scratch=True),
        lambda: load_model(folder, plan, mesh),
    )
    if out is not None:
        save_model(model, out)
    return peak


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("name", part(["tp2"], ["zero3-4"]))
def test_no_rank_holds_more_than_its_share(
    saved: tuple[Path, Tensor], tmp_path: Path, name: str
) -> None:
    (folder, logits), plan = saved, PLANS[name]
    assert bytes_of(folder) > SIZE_BYTES and len(list(folder.glob("*.safetensors"))) > 3
    tiny.config("neox").save_pretrained(tmp_path / "small")
    out = tmp_path / "export" if name == "tp2" else None
    ranks = Pool(plan.world_size)  # processes of this test alone
    try:
        peaks = ranks.run(load, folder, tmp_path / "small", plan, out)
    finally:
        ranks.close()
    share = bytes_of(folder) / plan.world_size
    for peak in peaks:
        assert share < peak < ROOM * share, f"{peak / share:.2f} of the share"
    if out is not None:
        parity.close("logits of the export", logits_of(read(out), IDS), logits, 1e-6)
        shutil.rmtree(out)


def in_and_out(folder: Path, plan: ParallelPlan, out: Path) -> None:
    save_model(load_model(folder, plan, mesh_of(plan)), out)


@pytest.mark.parametrize(("family", "name"), product((*tiny.FAMILIES, *tiny.PUBLISHED), PLANS))
def test_every_family_is_read_and_written_as_transformers_does(
    family: str, name: str, tmp_path: Path
) -> None:
    plan = PLANS[name]
    tiny.fresh(family, torch.float32).save_pretrained(tmp_path / "theirs")
    pool(plan.world_size).run(in_and_out, tmp_path / "theirs", plan, tmp_path / "ours")
    assert tensors(tmp_path / "ours").keys() == tensors(tmp_path / "theirs").keys()
    ids = tiny.batch(0)[0]
    ours, expected = (read(tmp_path / name) for name in ("ours", "theirs"))
    parity.close("logits", logits_of(ours, ids), logits_of(expected, ids), 0)


def read(folder: Path) -> torch.nn.Module:
    """transformers' own model, every weight of which must be in the folder, and nothing more."""
    model, report = transformers.AutoModelForCausalLM.from_pretrained(
        folder, output_loading_info=True
    )
    assert not report["missing_keys"] and not report["unexpected_keys"]
    return model


def tensors(folder: Path) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    return load_file(folder / "model.safetensors")
