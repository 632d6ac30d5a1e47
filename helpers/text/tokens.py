"""Text to token batches, the same for every layout.

    tokenizer = load_tokenizer("data/tokenizer")
    data = tokenize(load_examples("data/reviews/train.tsv", "classify"), tokenizer, "classify", 128)
    for batch in batches(data, 32, seed=0):
        ...                                   # batch.input_ids, batch.labels: [32, longest row]

A batch here is the global one. Its rows depend on the seed and the epoch and on nothing else, so
any number of ranks, in any arrangement, sees the same batches and takes its own rows of them.
Labels follow the Hugging Face convention: aligned with the ids (the model shifts them), and -100
where no loss is taken.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from helpers.engine.errors import UserError
from helpers.engine.models.documents import PADDING
from helpers.engine.models.objectives import IGNORED
from helpers.text import instructions
from helpers.text import readers as text_files
from helpers.text.readers import Example, Task
from helpers.text.rows import TokenData

WINDOW = 64  # batches: rows are grouped by length inside a shuffled window of this many


@dataclass(frozen=True)
class Batch:
    """`input_ids`, `labels` and where rows are packed `documents`: LongTensor [B, S], padded on the
    right. Labels of rows are [B]. `attention_mask` [B, S] is 1 but in the padding, where an encoder
    needs it.

    `samples` is B; `tokens` counts the ids without the padding.
    """

    input_ids: Tensor
    labels: Tensor
    samples: int
    tokens: int
    documents: Tensor | None = None
    attention_mask: Tensor | None = None

    @property
    def masks(self) -> dict[str, Tensor]:
        """What a step of the trainer takes beside."""
        return {} if self.attention_mask is None else {"attention_mask": self.attention_mask}


def load_examples(
    source: str | Path, task: Task, *, split: str = "train", template: str = "alpaca"
) -> list[Example]:
    """Read a file or a hub data set: text_files.load_examples, and for the task "instruct"
    instructions.load_instructions, which alone takes the template."""
    if task == "instruct":
        return instructions.load_instructions(source, template=template, split=split)
    return text_files.load_examples(source, task, split=split)


def steps_per_epoch(data: TokenData, batch_size: int) -> int:
    """Batches in one epoch; the last may be smaller."""
    _check_batch_size(batch_size)
    return -(-len(data) // batch_size)


def _check_batch_size(batch_size: int) -> None:
    if batch_size < 1:
        raise UserError(f"batch size {batch_size}: at least 1")


def batches(
    data: TokenData,
    batch_size: int,
    *,
    seed: int,
    epoch: int = 0,
    shuffle: bool = True,
    start: int = 0,
) -> Iterator[Batch]:
    """One epoch of global batches: every row once, each padded to its batch's longest row.

    Rows are shuffled, sorted by length inside windows (little padding), cut into batches, and the
    batches shuffled; a smaller batch comes last. With `shuffle` off, rows keep the file's order.

    Args:
        start: batches to leave out at the beginning, at no cost: how a resumed run goes on.
    """
    _check_batch_size(batch_size)
    if not len(data):
        raise UserError("there is no row to make batches of")
    order = _order(data, batch_size, seed, epoch) if shuffle else torch.arange(len(data))
    for number, rows in enumerate(order.split(batch_size)[start:], start):
        yield _batch(data, rows.tolist(), _one_seed(_one_seed(seed, epoch), number))


def _order(data: TokenData, batch_size: int, seed: int, epoch: int) -> Tensor:
    """A permutation of the rows; a function of the arguments only. LongTensor [rows]."""
    generator = torch.Generator().manual_seed(_one_seed(seed, epoch))
    order = torch.randperm(len(data), generator=generator)
    lengths = data.offsets.diff()
    windows = [
        window[lengths[window].argsort(stable=True)] for window in order.split(batch_size * WINDOW)
    ]
    grouped = list(torch.cat(windows).split(batch_size))
    whole = len(data) // batch_size
    shuffled = torch.randperm(whole, generator=generator).tolist()
    return torch.cat([*(grouped[index] for index in shuffled), *grouped[whole:]])


def _one_seed(seed: int, epoch: int) -> int:
    """One number for both, so that seed 1 epoch 0 differs from seed 0 epoch 1."""
    return (seed * 1_000_003 + epoch) % 2**63


def _batch(data: TokenData, rows: list[int], seed: int) -> Batch:
    """Args:
    seed: of what is masked.
    """
    spans = [(int(data.offsets[row]), int(data.offsets[row + 1])) for row in rows]
    longest = max(end - start for start, end in spans)

    def padded(values: Tensor, fill: int) -> Tensor:
        made = torch.full((len(rows), longest), fill, dtype=torch.long)
        for index, (start, end) in enumerate(spans):
            made[index, : end - start] = values[start:end]
        return made

    ids, labels = padded(data.ids, data.pad_id), padded(data.targets, IGNORED)
    attention_mask = (labels != IGNORED).long() if data.for_encoders else None
    if data.masking is not None:
        ids, labels = data.masking.apply(ids, attention_mask, seed)
    return Batch(
        input_ids=ids,
        labels=labels if data.row_labels is None else data.row_labels[rows],
        samples=len(rows),
        tokens=sum(end - start for start, end in spans),
        documents=None if data.documents is None else padded(data.documents, PADDING),
        attention_mask=attention_mask,
    )
