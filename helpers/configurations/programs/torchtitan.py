"""torchtitan's TOML files as plans."""

import re
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from helpers.configurations.facts import Facts, Layout, batches, check_ranks, left_over
from helpers.configurations.models import Sizes
from helpers.engine.errors import UserError
from helpers.engine.plan import ParallelPlan
from helpers.tables import read_table

FLAVORS = Path(__file__).parents[1] / "tables" / "flavors.csv"
EIGHT_BITS = re.compile(r".*(float8|fp8).*")
WITHIN_TEXTS = re.compile(r"_(flex|varlen)(_attn)?$")  # flavors with attn_mask_type block_causal
LOOPED = ("interleaved", "zero-bubble-v")
SPLIT = re.compile(r"layers\.(\d{1,6})")


@dataclass(frozen=True)
class Flavor(Sizes):
    """A model's name and flavor, and what both mean.

    since: a key by which a file is young enough for these sizes; older ones had others.
    refused: why such a model is not trained here.
    """

    name: str = ""
    flavor: str = ""
    since: str = ""
    refused: str = ""


@cache
def flavors() -> dict[tuple[str, str], Flavor]:
    rows = read_table(FLAVORS, Flavor)
    return {(name, row.flavor): row for row in rows for name in row.name.split("|")}


def sizes(facts: Facts) -> Sizes | None:
    """Of the model that the file names, where they are known.

    Raises:
        UserError: such a model is not trained here.
    """
    name, flavor = str(facts.get("name")), str(facts.get("flavor"))
    found = flavors().get((name, flavor))
    if found and found.refused:
        raise UserError(f"model.flavor: {name} {flavor}: {found.refused}")
    if found and (not found.since or found.since in facts.keys):
        return found
    if found:
        facts.lacks = f"The sizes of {name} {flavor} were others before files had {found.since}"
    elif facts.get("flavor"):
        known = [key[1] for key, row in flavors().items() if key[0] == name and not row.refused]
        words = f"No sizes are known of {name} {flavor!r:.60}"
        facts.lacks = words + (f", but of {', '.join(known)}" if known else "")
    return None


def layout(facts: Facts, ranks: int | None, model: Sizes | None) -> Layout:
    """The plan.

    Raises:
        UserError: what the file asks for cannot be kept, in one line.
    """
    tp, pp, cp = (facts.get(name, 1) for name in ("tp", "pp", "cp"))
    replicas, shards = facts.get("dp_replicate", 1), facts.get("dp_shard", -1)
    if shards == -1:
        degrees = {"dp_replicate": replicas, "pp": pp, "cp": cp, "tp": tp}
        shards = left_over(ranks, **degrees)
    degrees = {"dp_replicate": replicas, "dp_shard": shards, "pp": pp, "cp": cp, "tp": tp}
    check_ranks(ranks, **degrees)
    batch, parts = batches(facts, replicas * shards)
    lost: list[str] = []
    changes = _recomputing(facts, lost) | _pipeline(
        facts, pp, batch, replicas * shards, parts, model
    )
    if WITHIN_TEXTS.search(str(facts.get("flavor"))):
        lost.append("attention is within each text of a row there, and over the whole row here")
    compiles = bool(facts.get("compile")) and "model" in str(facts.get("compiled_parts", "model"))
    if compiles and changes["activation"] == "selective":
        lost.append("compile: beside activation=selective the engine compiles nothing")
    plan = ParallelPlan(
        **degrees,
        zero_stage=_stage(facts, pp),
        sequence_parallel=tp > 1,
        cp_attention=facts.get("cp_attention", "gather") if cp > 1 else "ring",
        precision=_precision(facts, lost, tp * pp > 1 and shards * cp == 1),
        reduce_dtype=facts.get("reduce_dtype", "fp32"),
        compile=compiles and changes["activation"] != "selective",
        **changes,
    )
    return Layout(plan, batch, lost, "torchtitan" if compiles else "torchtitan-eager")


def _precision(facts: Facts, lost: list[str], whole: bool) -> str:
    """What FSDP computes in; float32 where ranks of tp or pp are all that there are (`whole`)."""
    said = facts.get("precision", "bf16")
    if whole and said != "fp32":
        lost.append(f"mixed precision {said}: without FSDP there is none beside tp and pp there")
        said = "fp32"
    return "fp8" if _eight_bits(facts) else said


def _eight_bits(facts: Facts) -> bool:
    """Do the blocks multiply in 8 bits?

    Raises:
        UserError: a converter does something else.
    """
    given = facts.get("converters", [])
    names = given if isinstance(given, list) else str(given).split(",")
    for name in names:
        if str(name).strip() and not EIGHT_BITS.fullmatch(str(name)):
            raise UserError(
                f"model.converters: {name!s:.60} is not here, as MX formats: take float8"
            )
    dense = [name for name in names if str(name).strip() and "grouped" not in str(name)]
    return bool(dense or facts.get("fp8"))


def _stage(facts: Facts, pp: int) -> int:
    """Whether parameters are gathered again for the way back; by default not beside a pipeline."""
    kept = facts.get("reshard", "default")
    return 2 if kept == "never" or (kept == "default" and pp > 1) else 3


def _recomputing(facts: Facts, lost: list[str]) -> dict[str, Any]:
    mode, option = facts.get("recompute", "selective"), str(facts.get("option", "2"))
    if mode != "selective" or option == "op":
        return {"activation": mode}
    if not option.isdecimal() or int(option[:9]) < 1:
        raise UserError(f"selective_ac_option is op or a number of blocks, not {option!r:.40}")
    if int(option[:9]) == 1:
        return {"activation": "full"}
    lost.append(
        f"selective_ac_option {option}: every such block's input alone; activation=selective "
        "keeps results of matrix products in all of them"
    )
    return {"activation": "selective"}


def _pipeline(
    facts: Facts, pp: int, batch: int | None, dp: int, parts: int, model: Sizes | None
) -> dict[str, Any]:
    """What a pipeline has of its own; micro-batches of accumulation without one."""
    if pp == 1:
        return {"microbatches": parts if parts > 1 else 0}
    schedule = facts.get("schedule", "1f1b")
    found = {"schedule": schedule}
    split = facts.get("split")
    if split:
        found |= _split(split, pp, schedule, model)
    elif schedule in LOOPED:
        found["virtual_stages"] = _virtual(facts, pp, model)
    stages = pp * found.get("virtual_stages", 1)
    return found | {"microbatches": parts * _count(facts, (batch or 0) // dp // parts, stages)}


def _count(facts: Facts, rows: int, stages: int) -> int:
    """Micro-batches of a data rank's rows: of one row each where nothing is said, and before
    2025-04, when these keys were experimental, as many as there are stages."""
    old = not facts.said_by["pp"].startswith("parallelism.")
    count = facts.get("pp_microbatches", stages if old and not facts.get("pp_micro") else None)
    if count is None:
        size = facts.get("pp_micro", 1)
        if rows % size:
            raise UserError(f"micro-batches of {size} do not divide {rows} samples of a rank")
        count = rows // size
    if not count or rows % count:
        raise UserError(f"{count} micro-batches do not divide {rows} samples of a data rank")
    return int(count)


def _virtual(facts: Facts, pp: int, model: Sizes | None) -> int:
    each = facts.get("layers_per_stage")
    if each is None:
        return 2
    if model is None:
        raise UserError("layers of a stage are given, and the model's layers are not known")
    whole = model.layers + 2  # the embedding and the head count as a layer each
    stages = -(-whole // each)
    if stages % pp:
        raise UserError(f"stages of {each} layers are {stages}, which {pp} ranks do not share")
    return max(1, stages // pp)


def _split(given: Any, pp: int, schedule: str, model: Sizes | None) -> dict[str, Any]:
    words = given if isinstance(given, list) else str(given).split(",")
    found = [SPLIT.fullmatch(str(word).strip()) for word in words]
    if not all(found) or model is None:
        raise UserError(
            "pipeline_parallel_split_points needs layers.N of a model whose layers are known: "
            "give --partition, layers of each stage"
        )
    starts = [0, *(int(one[1]) for one in found if one), model.layers]
    layers = [after - before for before, after in pairwise(starts)]
    if len(layers) % pp or min(layers) < 1:
        raise UserError(f"split points make stages of {layers} layers for a pipeline of {pp}")
    virtual = len(layers) // pp
    found = {"partition": ",".join(map(str, layers))}
    return found | ({"virtual_stages": virtual} if schedule in LOOPED else {})
