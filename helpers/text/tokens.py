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

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from helpers.engine.errors import UserError
from helpers.engine.models.document_mask import PADDING
from helpers.text import instructions, packing
from helpers.text import readers as text_files
from helpers.text.label_words import classes, shown, verbalize
from helpers.text.readers import Example, Task
from helpers.text.tokenizer import Tokenizer, load_tokenizer

__all__ = [
    "IGNORED",
    "Batch",
    "Example",
    "Task",
    "TokenData",
    "Tokenizer",
    "batches",
    "load_examples",
    "load_tokenizer",
    "steps_per_epoch",
    "tokenize",
]

IGNORED = -100  # torch's cross_entropy skips this label
DIGESTED = 2**20  # numbers at a time
WINDOW = 64  # batches: rows are grouped by length inside a shuffled window of this many


@dataclass(frozen=True)
class TokenData:
    """Rows of token ids, end to end in one tensor.

    Attributes:
        ids: integers [tokens], all rows one after another.
        targets: integers [tokens], the same with IGNORED where no loss is taken.
        offsets: integers [rows + 1]; row i is ids[offsets[i]:offsets[i + 1]].
        pad_id: fills the end of a shorter row in a batch; its label is IGNORED.
        documents: integers [tokens], of which document of its row a token is; None where each row
            is one. See engine/models/document_mask.py for what a model does with it.
        truncated: rows that were longer than seq_len and kept their beginning.
        label_names: the classes in order; empty for language modelling.
        label_token_ids: the one token that stands for each class.
    """

    ids: Tensor
    targets: Tensor
    offsets: Tensor
    pad_id: int
    documents: Tensor | None = None
    truncated: int = 0
    label_names: tuple[str, ...] = ()
    label_token_ids: dict[str, int] | None = None

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @cached_property
    def digest(self) -> str:
        """Twelve hexadecimal digits that differ where any id, target or row does."""
        checksum = hashlib.sha256()
        for values in (self.ids, self.targets, self.offsets, self.documents):
            if values is None:
                checksum.update(b"none")
                continue
            for part in values.split(DIGESTED):
                checksum.update(part.long().numpy())
        return checksum.hexdigest()[:12]


@dataclass(frozen=True)
class Batch:
    """`input_ids`, `labels` and where rows are packed `documents`: LongTensor [B, S], padded on the
    right.

    `samples` is B; `tokens` counts the ids without the padding.
    """

    input_ids: Tensor
    labels: Tensor
    samples: int
    tokens: int
    documents: Tensor | None = None


def load_examples(
    source: str | Path, task: Task, *, split: str = "train", template: str = "alpaca"
) -> list[Example]:
    """Read a file or a hub data set: text_files.load_examples, and for the task "instruct"
    instructions.load_instructions, which alone takes the template."""
    if task == "instruct":
        return instructions.load_instructions(source, template=template, split=split)
    return text_files.load_examples(source, task, split=split)


def tokenize(
    examples: Sequence[Example],
    tokenizer: Tokenizer,
    task: Task,
    seq_len: int,
    labels: Sequence[str] | None = None,
    packed: bool = True,
) -> TokenData:
    """Examples to rows of at most `seq_len` tokens.

    "lm": the documents, each followed by the end token, cut into rows of seq_len; the remainder is
    a shorter last row, so no token is lost. "classify": a sentence, a prompt and the token that
    stands for the label, on which alone the loss is taken; a sentence that is too long keeps its
    beginning, and `truncated` counts it. "instruct": a prompt, its answer and the end token, with
    the loss on the last two; several share a row, and none loses a token.

    Args:
        labels: the classes that are allowed, in order; those found in the examples when left out.
            Give an evaluation set the `label_names` of the training set.
        packed: let instructions share rows; else each has its own.

    Raises:
        UserError: a label outside `labels`, one class only, a seq_len without room, no end token.
    """
    if task == "lm":
        return _tokenize_lm(examples, tokenizer, seq_len)
    if task == "instruct":
        return _tokenize_instruct(examples, tokenizer, seq_len, packed)
    return _tokenize_classify(examples, tokenizer, seq_len, labels)


def _check_seq_len(seq_len: int) -> None:
    if seq_len < 2:
        raise UserError(f"seq_len {seq_len} leaves nothing to predict; at least 2")


def _tokenize_lm(examples: Sequence[Example], tokenizer: Tokenizer, seq_len: int) -> TokenData:
    _check_seq_len(seq_len)
    if tokenizer.end_id is None:
        raise UserError("this tokenizer has no token that ends a document")
    stream: list[int] = []
    for ids in tokenizer.encode([example.text for example in examples]):
        stream.extend(ids)
        stream.append(tokenizer.end_id)
    ends = [*range(seq_len, len(stream), seq_len), len(stream)]
    if len(ends) > 1 and len(stream) % seq_len == 1 and seq_len > 2:
        ends[-2] -= 1  # a row of one token has nothing to predict: the row before gives it one more
    ids = torch.tensor(stream, dtype=torch.long)
    return TokenData(ids, ids, torch.tensor([0, *ends]), pad_id=tokenizer.end_id)


def _tokenize_instruct(
    examples: Sequence[Example], tokenizer: Tokenizer, seq_len: int, packed: bool
) -> TokenData:
    _check_seq_len(seq_len)
    parts: list[tuple[list[int], list[int]]] = []  # ids and targets
    for document, prompt in zip(*instructions.encode(examples, tokenizer), strict=True):
        targets = [*[IGNORED] * prompt, *document[prompt:]]
        for part in packing.cut(len(document), seq_len):
            # what stands before a part in its row is not what comes before it in its document
            rest = targets[part.start + 1 : part.stop]
            parts.append((document[part.start : part.stop], [IGNORED, *rest]))
    lengths = [len(ids) for ids, _ in parts]
    rows = packing.pack(lengths, seq_len) if packed else [[index] for index in range(len(parts))]
    order = [index for row in rows for index in row]
    numbers = [number for row in rows for number, index in enumerate(row) for _ in parts[index][0]]
    sizes = [sum(lengths[index] for index in row) for row in rows]
    return TokenData(
        ids=torch.tensor([token for index in order for token in parts[index][0]]),
        targets=torch.tensor([target for index in order for target in parts[index][1]]),
        offsets=torch.tensor([0, *sizes]).cumsum(0),
        pad_id=tokenizer.end_id,
        documents=torch.tensor(numbers) if packed else None,
    )


def _tokenize_classify(
    examples: Sequence[Example],
    tokenizer: Tokenizer,
    seq_len: int,
    labels: Sequence[str] | None,
) -> TokenData:
    names = tuple(labels) if labels is not None else classes(examples)
    if len(names) < 2:
        raise UserError(f"classification needs two labels or more; found: {shown(names) or 'none'}")
    prompt, tokens = verbalize(names, tokenizer)
    room = seq_len - len(prompt) - 1
    if room < 1:
        raise UserError(f"seq_len {seq_len} leaves no room for text; at least {len(prompt) + 2}")
    ids: list[int] = []
    offsets = [0]
    truncated = 0
    sentences = tokenizer.encode([example.text.strip() for example in examples])
    for example, sentence in zip(examples, sentences, strict=True):
        if example.label not in tokens:
            raise UserError(
                f"{example.where}: the label {example.label!r:.60} is not among {shown(names)}"
            )
        truncated += len(sentence) > room
        ids += [*sentence[:room], *prompt, tokens[example.label]]
        offsets.append(len(ids))
    rows = torch.tensor(offsets)
    all_ids = torch.tensor(ids, dtype=torch.long)
    targets = torch.full_like(all_ids, IGNORED)
    last = rows[1:] - 1
    targets[last] = all_ids[last]
    pad_id = tokenizer.end_id if tokenizer.end_id is not None else 0
    return TokenData(all_ids, targets, rows, pad_id, None, truncated, names, tokens)


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
    order = _order(data, batch_size, seed, epoch) if shuffle else torch.arange(len(data))
    for rows in order.split(batch_size)[start:]:
        yield _batch(data, rows.tolist())


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


def _batch(data: TokenData, rows: list[int]) -> Batch:
    spans = [(int(data.offsets[row]), int(data.offsets[row + 1])) for row in rows]
    longest = max(end - start for start, end in spans)

    def padded(values: Tensor, fill: int) -> Tensor:
        made = torch.full((len(rows), longest), fill, dtype=torch.long)
        for index, (start, end) in enumerate(spans):
            made[index, : end - start] = values[start:end]
        return made

    return Batch(
        input_ids=padded(data.ids, data.pad_id),
        labels=padded(data.targets, IGNORED),
        samples=len(rows),
        tokens=sum(end - start for start, end in spans),
        documents=None if data.documents is None else padded(data.documents, PADDING),
    )
