"""Measured timelines of a pipeline: from all ranks to a file, and back.

timeline.json   {"steps": [[rank 0's spans, rank 1's, ...], ...]}, a span being
                [kind, stage, micro-batch, start_s, end_s]
"""

import json
from pathlib import Path

from helpers.engine.errors import UserError, as_path
from helpers.engine.files.whole import replace_text
from helpers.engine.pipeline.schedules import KINDS, Action
from helpers.engine.pipeline.simulator import Span, Timeline
from helpers.engine.ranks import over_ranks
from helpers.engine.trainer import Trainer
from helpers.trace.files import is_moderate


def gather(trainer: Trainer) -> list[list[list[list]]]:
    """The spans of the last timed steps, by step and pipeline rank, of the first data and tensor
    rank. Every rank must call it."""
    coordinate = dict(zip(trainer.mesh.mesh_dim_names, trainer.mesh.get_coordinate(), strict=True))
    rank = coordinate.pop("pp")
    history = trainer.pipeline.history
    spans = [[[*span.action, span.start_s, span.end_s] for span in step] for step in history]
    first = not any(coordinate.values())
    by_rank = dict(over_ranks((rank, spans) if first else (None, None)))
    by_rank.pop(None, None)
    return [list(ranks) for ranks in zip(*(by_rank[r] for r in sorted(by_rank)), strict=True)]


def write_timelines(path: Path, steps: list[list[list[list]]]) -> None:
    """Write what `gather` found."""
    replace_text(path, json.dumps({"steps": steps}) + "\n")


def read_timelines(path: str | Path) -> list[Timeline]:
    """The timelines of a file's steps, each with its clock at 0 where the step begins.

    Raises:
        UserError: there is no such file, or it holds something else.
    """
    try:
        steps = json.loads(as_path(path).read_text(encoding="utf-8"))["steps"]
        return [_timeline(ranks) for ranks in steps]
    except OSError as error:
        raise UserError(
            f"{path} cannot be read ({error.strerror}): a run writes it with --timeline"
        ) from None
    except (ValueError, LookupError, TypeError, RecursionError):
        raise UserError(f"{path} holds no timelines") from None


def _timeline(ranks: list[list[list]]) -> Timeline:
    began = min(span[3] for spans in ranks for span in spans)
    spans = tuple(tuple(_span(began, *span) for span in rank) for rank in ranks)
    return Timeline(spans, peak_bytes=())


def _span(
    began_s: float, kind: str, stage: int, microbatch: int, start_s: float, end_s: float
) -> Span:
    """As `gather` found it, from where its step began.

    Raises:
        ValueError: it is none.
    """
    known = kind in KINDS and isinstance(stage, int) and isinstance(microbatch, int)
    if not (known and is_moderate(start_s) and is_moderate(end_s) and start_s <= end_s):
        raise ValueError
    return Span(Action(kind, stage, microbatch), start_s - began_s, end_s - began_s)
