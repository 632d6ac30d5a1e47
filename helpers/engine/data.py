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

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from helpers.engine.errors import UserError
from helpers.engine.text_files import Example, Task, load_examples
from helpers.engine.tokenizer import Tokenizer, load_tokenizer

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
WINDOW = 64  # batches: rows are grouped by length inside a shuffled window of this many

# How a label becomes a word that a language model can say: the labels, the prompt, the words.
VERBALIZERS = (
    (("0", "1"), " It was", (" terrible", " great")),
    (("negative", "positive"), " It was", (" terrible", " great")),
    (("neg", "pos"), " It was", (" terrible", " great")),
)
PROMPT = " Label:"  # for any other set of labels


@dataclass(frozen=True)
class TokenData:
    """Rows of token ids, end to end in one tensor.

    Attributes:
        ids: LongTensor [tokens], all rows one after another.
        targets: LongTensor [tokens], the same with IGNORED where no loss is taken.
        offsets: LongTensor [rows + 1]; row i is ids[offsets[i]:offsets[i + 1]].
        pad_id: fills the end of a shorter row in a batch; its label is IGNORED.
        truncated: rows that were longer than seq_len and kept their beginning.
        label_names: the classes in order; empty for language modelling.
        label_token_ids: the one token that stands for each class.
    """

    ids: Tensor
    targets: Tensor
    offsets: Tensor
    pad_id: int
    truncated: int = 0
    label_names: tuple[str, ...] = ()
    label_token_ids: dict[str, int] | None = None

    def __len__(self) -> int:
        return len(self.offsets) - 1


@dataclass(frozen=True)
class Batch:
    """`input_ids` and `labels`: LongTensor [B, S], padded on the right.

    `samples` is B; `tokens` counts the ids without the padding.
    """

    input_ids: Tensor
    labels: Tensor
    samples: int
    tokens: int


def tokenize(
    examples: Sequence[Example],
    tokenizer: Tokenizer,
    task: Task,
    seq_len: int,
    labels: Sequence[str] | None = None,
) -> TokenData:
    """Examples to rows of at most `seq_len` tokens.

    "lm": the documents, each followed by the end token, cut into rows of seq_len; the remainder is
    a shorter last row, so no token is lost. "classify": a sentence, a prompt and the token that
    stands for the label, on which alone the loss is taken; a sentence that is too long keeps its
    beginning, and `truncated` counts it.

    Args:
        labels: the classes that are allowed, in order; those found in the examples when left out.
            Give an evaluation set the `label_names` of the training set.

    Raises:
        UserError: a label outside `labels`, one class only, a seq_len without room, no end token.
    """
    if task == "lm":
        return _tokenize_lm(examples, tokenizer, seq_len)
    return _tokenize_classify(examples, tokenizer, seq_len, labels)


def _tokenize_lm(examples: Sequence[Example], tokenizer: Tokenizer, seq_len: int) -> TokenData:
    if seq_len < 2:
        raise UserError(f"seq_len {seq_len} leaves nothing to predict; at least 2")
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


def _tokenize_classify(
    examples: Sequence[Example],
    tokenizer: Tokenizer,
    seq_len: int,
    labels: Sequence[str] | None,
) -> TokenData:
    names = tuple(labels) if labels is not None else _classes(examples)
    if len(names) < 2:
        raise UserError(
            f"classification needs two labels or more; found: {_shown(names) or 'none'}"
        )
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
                f"{example.where}: the label {example.label!r:.60} is not among {_shown(names)}"
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
    return TokenData(all_ids, targets, rows, pad_id, truncated, names, tokens)


def _classes(examples: Sequence[Example]) -> tuple[str, ...]:
    """The labels that occur: whole numbers by value, then words by alphabet."""
    found = {example.label for example in examples if example.label is not None}
    return tuple(sorted(found, key=lambda name: (not _is_number(name), _number(name), name)))


def _shown(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")


def _is_number(name: str) -> bool:
    return name.lstrip("-").isdecimal()


def _number(name: str) -> int:
    return int(name) if _is_number(name) else 0


def verbalize(names: Sequence[str], tokenizer: Tokenizer) -> tuple[list[int], dict[str, int]]:
    """The prompt's ids, and the one token that stands for each label.

    Known pairs of labels get words that fit the prompt ("It was great"). Other labels stand for
    themselves where each is one token, else numbers do, else the first ids of the vocabulary.
    """
    numbers = [str(number) for number in range(len(names))]
    candidates = [(prompt, words) for known, prompt, words in VERBALIZERS if known == tuple(names)]
    for words in (list(names), numbers):
        candidates += [(PROMPT, [f" {word}" for word in words]), (PROMPT, words)]
    for prompt, words in candidates:
        encoded = tokenizer.encode(list(words))
        distinct = {ids[0] for ids in encoded if len(ids) == 1}
        if len(distinct) == len(names):
            return _prompt_ids(prompt, tokenizer), {
                name: ids[0] for name, ids in zip(names, encoded, strict=True)
            }
    free = [token for token in range(tokenizer.vocab_size) if token != tokenizer.end_id]
    if len(free) < len(names):
        raise UserError(f"{len(names)} labels, but the tokenizer has only {len(free)} tokens")
    return _prompt_ids(PROMPT, tokenizer), dict(zip(names, free, strict=False))


def _prompt_ids(prompt: str, tokenizer: Tokenizer) -> list[int]:
    return tokenizer.encode([prompt])[0]


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
    input_ids = torch.full((len(rows), longest), data.pad_id, dtype=torch.long)
    labels = torch.full((len(rows), longest), IGNORED, dtype=torch.long)
    for index, (start, end) in enumerate(spans):
        input_ids[index, : end - start] = data.ids[start:end]
        labels[index, : end - start] = data.targets[start:end]
    tokens = sum(end - start for start, end in spans)
    return Batch(input_ids, labels, len(rows), tokens)
