"""A configuration that was read, in words: the table of its keys, the run, the planner's answer."""

import shlex
from pathlib import Path
from typing import Any

from helpers.configurations.reading import LAYOUTS, ReadConfiguration, tools
from helpers.configurations.silent import left_to_the_script
from helpers.engine.errors import UserError, cannot_write, check_access, one_line
from helpers.engine.models.configurations import load_config
from helpers.engine.plan import ParallelPlan
from helpers.engine.ranks import start_of_a_node
from helpers.lab.launch.flags import to_words
from helpers.leave.report import uses_table
from helpers.planner.hardware.catalog import GIB
from helpers.planner.hardware.cluster import make_cluster
from helpers.planner.search.estimate import estimate

OF_A_NODE = 8
NO_MODEL = "The file has no model's sizes"
GIVE_MODEL = "give --model a preset, a folder or a hub id."
WRITE_MODEL = "MODEL has the file's sizes: --write-config FOLDER makes it, without weights."


def report(found: ReadConfiguration, model: str | None = None) -> str:
    """All of it as Markdown, but for the planner's answer."""
    title = next(tool.title for tool in tools() if tool.name == found.program)
    parts = [f"{one_line(str(found.path))} is {title}.", uses_table(found.lines)]
    if found.lost:
        parts.append(
            "\n".join(
                ["What the plan does not hold:", *(f"- {one_line(one)}" for one in found.lost)]
            )
        )
    if found.plan is None:
        return "\n\n".join(parts) + "\n"
    parts += _unsaid(found)
    parts.append(f"Plan: {found.plan.describe()}, {found.plan.world_size} ranks.")
    if not (model or found.hub):
        parts.append(WRITE_MODEL if found.model else f"{found.lacks or NO_MODEL}: {GIVE_MODEL}")
    parts.append(f"```bash\n{torchrun_line(found, model)}\n```")
    return "\n\n".join(parts) + "\n"


def _unsaid(found: ReadConfiguration) -> list[str]:
    """Where the values come from that the file does not say."""
    parts = []
    if found.silent:
        parts.append(f"Where the file is silent, as its program has it: {'; '.join(found.silent)}.")
    given = {**found.flags, "batch_size": found.batch, "seq_len": found.seq_len}
    given["precision"] = None if "precision" in found.open else found.plan.precision
    left = left_to_the_script(given) if found.program in LAYOUTS else []
    if left:
        words = "The script decides what is open; give it, or helpers.train takes its own"
        parts.append(f"{words}: {', '.join(left)}.")
    return parts


def torchrun_line(found: ReadConfiguration, model: str | None = None) -> str:
    """What starts the run, on each of its nodes; of at most eight GPUs each where nobody says how
    many. Of several nodes, HEAD is the first one's address.

    Raises:
        UserError: there is no plan.
    """
    if found.plan is None:
        raise UserError(found.refused or "there is no plan")
    ranks = found.plan.world_size
    fewest = -(-ranks // OF_A_NODE)
    nodes = found.nodes or next(n for n in range(fewest, ranks + 1) if ranks % n == 0)
    if ranks % nodes:
        raise UserError(f"{nodes} nodes do not divide {ranks} ranks")
    words = shlex.join(["-m", "helpers.train", *train_words(found, model)])
    return f"{start_of_a_node(nodes, ranks // nodes)} {words}"


def train_words(found: ReadConfiguration, model: str | None = None) -> list[str]:
    """The words of helpers.train; MODEL and DATA where the file has none."""
    flags: dict[str, Any] = {
        "model": model or found.hub or "MODEL",
        "data": "DATA",
        "batch_size": found.batch,
        "seq_len": found.seq_len,
        "from_scratch": True if found.from_scratch else None,
        **found.flags,
        **(found.plan or ParallelPlan()).chosen(),
        "out": f"runs/{found.path.stem}",
    }
    return to_words(flags)


def planned(found: ReadConfiguration, instance: str, nodes: int, model: str | None = None) -> str:
    """The planner's answer: memory, a step's seconds with their range, money.

    Raises:
        UserError: the plan does not fit the model or the machines, or the file lacks a number.
    """
    if found.plan is None:
        raise UserError(found.refused)
    config = load_config(model) if model else found.model
    needed = {"model": config, "batch_size": found.batch, "seq_len": found.seq_len}
    for name, value in needed.items():
        if value is None:
            flag = name.replace("_", "-")
            raise UserError(f"no estimate without a {name}: the file has none, give --{flag}")
    cluster = make_cluster(instance, nodes=nodes)
    made = estimate(
        config, found.plan, cluster, found.batch or 0, found.seq_len or 0, program=found.planner
    )
    low, high = made.range_s
    fits = "fits" if made.fits else "does not fit"
    program = "the engine" if found.planner == "engine" else found.planner
    words = f"{nodes} x {cluster.name}, as {program} computes it: {fits}, "
    words += f"{made.memory.total / GIB:.1f} of {cluster.memory_bytes / GIB:.0f} GiB; a step "
    words += f"{made.time.total_s:.3g} s ({low:.3g} to {high:.3g}), "
    words += f"{made.tokens_per_s:,.0f} tokens/s"
    if made.usd_per_token is not None:
        words += f", ${made.usd_per_token * 1e6:.3g} a million tokens"
    return words + "."


def write_config(found: ReadConfiguration, folder: Path) -> str:
    """Write the model's sizes as transformers' config.json, and return the folder's name.

    Raises:
        UserError: the file has no sizes, or the folder is there or cannot be made.
    """
    if found.plan is None:
        raise UserError(found.refused)
    if found.model is None:
        raise UserError(f"{found.lacks or NO_MODEL}: there is no config.json to write")
    try:
        folder.mkdir(parents=True)
        found.model.save_pretrained(folder)
    except FileExistsError:
        raise UserError(f"{folder} is there already: name a folder that is not") from None
    except OSError as error:
        raise cannot_write(folder, error) from None
    return str(folder)


def gpus_of(instance: str) -> int:
    """GPUs of one machine."""
    return make_cluster(instance, nodes=1).devices


def given(path: Path) -> Path:
    """A file that there is.

    Raises:
        UserError: there is none, or it may not be read.
    """
    check_access(path)
    if not path.is_file():
        raise UserError(f"there is no file {path}")
    return path


def give_sizes(found: ReadConfiguration, batch: int | None, seq_len: int | None) -> None:
    """Put these in the place of the file's, where they are given.

    Raises:
        UserError: the batch does not divide by the plan's data ranks and micro-batches.
    """
    found.seq_len = seq_len or found.seq_len
    if batch is None or found.plan is None:
        return
    each = found.plan.dp * max(1, found.plan.microbatches)
    if batch % each:
        raise UserError(
            f"--batch-size {batch} does not divide by {each}, the plan's data ranks times its "
            f"micro-batches"
        )
    found.batch = batch
