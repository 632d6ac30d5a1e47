"""Examples to rows of token ids, by what a model is trained for."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from helpers.engine.errors import UserError
from helpers.engine.models.objectives import IGNORED
from helpers.text import instructions, packing
from helpers.text.encoder_rows import Masking, SpecialTokens, stream_rows, text_rows
from helpers.text.label_words import classes, shown, verbalize
from helpers.text.readers import Example, Task
from helpers.text.tokenizer import Tokenizer

DIGESTED = 2**20  # numbers at a time


@dataclass(frozen=True)
class TokenData:
    """Rows of token ids, end to end in one tensor.

    Attributes:
        ids: integers [tokens], all rows one after another.
        targets: integers [tokens], the same with IGNORED where no loss is taken.
        offsets: integers [rows + 1]; row i is ids[offsets[i]:offsets[i + 1]].
        pad_id: fills the end of a shorter row in a batch; its label is IGNORED.
        documents: integers [tokens], of which document of its row a token is; None where each row
            is one. See engine/models/documents.py for what a model does with it.
        truncated: rows that were longer than seq_len and kept their beginning; of instructions,
            those that were cut into parts.
        label_names: the classes in order; empty for language modelling.
        label_token_ids: the one token that stands for each class.
        row_labels: integers [rows], the number of each row's class where a head classifies rows.
        masking: of masked language modelling, which is done anew for each batch.
    """

    ids: Tensor
    targets: Tensor
    offsets: Tensor
    pad_id: int
    documents: Tensor | None = None
    truncated: int = 0
    label_names: tuple[str, ...] = ()
    label_token_ids: dict[str, int] | None = None
    row_labels: Tensor | None = None
    masking: Masking | None = None

    @property
    def for_encoders(self) -> bool:
        """Do rows need a mask of their padding, which an encoder's other tokens would see?"""
        return self.row_labels is not None or self.masking is not None

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @cached_property
    def digest(self) -> str:
        """Twelve hexadecimal digits that differ where any id, target or row does."""
        checksum = hashlib.sha256()
        fields = [self.ids, self.targets, self.offsets, self.documents]
        if self.for_encoders:
            fields.append(self.row_labels)
            checksum.update(repr(self.masking).encode())
        for values in fields:
            if values is None:
                checksum.update(b"none")
                continue
            for part in values.split(DIGESTED):
                checksum.update(part.long().numpy())
        return checksum.hexdigest()[:12]


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
    a shorter last row, so no token is lost, but in rows of 2 one that is left over alone.
    "classify": a sentence, a prompt and the token that stands for the label, on which alone the
    loss is taken; a sentence that is too long keeps its beginning, and `truncated` counts it.
    "instruct": a prompt, its answer and the end token, with the loss on the last two; several share
    a row, and of what is longer than one the parts without a loss are left out. Each document,
    sentence and prompt begins with what the tokenizer puts before a text. "mlm" and "classify-head"
    are rows for encoders, see encoder_rows.py.

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
    if task in ("mlm", "classify-head"):
        return _tokenize_for_encoders(examples, tokenizer, task, seq_len, labels)
    return _tokenize_classify(examples, tokenizer, seq_len, labels)


def _check_seq_len(seq_len: int) -> None:
    if seq_len < 2:
        raise UserError(f"seq_len {seq_len} leaves nothing to predict; at least 2")


def _tokenize_lm(examples: Sequence[Example], tokenizer: Tokenizer, seq_len: int) -> TokenData:
    _check_seq_len(seq_len)
    if tokenizer.end_id is None:
        raise UserError("this tokenizer has no token that ends a document")
    stream: list[int] = []
    for ids in tokenizer.encode_documents([example.text for example in examples]):
        stream.extend(ids)
        stream.append(tokenizer.end_id)
    ends = [*range(seq_len, len(stream), seq_len), len(stream)]
    if len(ends) > 1 and len(stream) % seq_len == 1:  # a row of one token has nothing to predict
        if seq_len > 2:
            ends[-2] -= 1  # the row before gives it one more
        else:
            ends.pop()
            stream.pop()
    ids = torch.tensor(stream, dtype=torch.long)
    return TokenData(ids, ids, torch.tensor([0, *ends]), pad_id=tokenizer.end_id)


def _tokenize_instruct(
    examples: Sequence[Example], tokenizer: Tokenizer, seq_len: int, packed: bool
) -> TokenData:
    _check_seq_len(seq_len)
    parts: list[tuple[list[int], list[int]]] = []  # ids and targets
    written = list(zip(*instructions.encode(examples, tokenizer), strict=True))
    for document, prompt in written:
        targets = [*[IGNORED] * prompt, *document[prompt:]]
        for part in packing.cut(len(document), seq_len):
            # what stands before a part in its row is not what comes before it in its document
            rest = targets[part.start + 1 : part.stop]
            if any(target != IGNORED for target in rest):  # else it teaches nothing: no row for it
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
        truncated=sum(len(ids) > seq_len for ids, _ in written),
    )


def _tokenize_for_encoders(
    examples: Sequence[Example],
    tokenizer: Tokenizer,
    task: Task,
    seq_len: int,
    labels: Sequence[str] | None,
) -> TokenData:
    special = SpecialTokens.of(tokenizer)
    texts = special.encode(examples, tokenizer)
    names, numbers, truncated = (), None, 0
    if task == "classify-head":
        names = _class_names(examples, labels)
        rows = text_rows(texts, special, seq_len)
        numbers = torch.tensor([_class_of(example, names) for example in examples])
        truncated = sum(len(ids) > seq_len - 2 for ids in texts)
    else:
        rows = stream_rows(texts, special, seq_len)
        # a row of special tokens alone, as [CLS] [SEP] [SEP], has nothing that is masked
        rows = [row for row in rows if not set(row) <= set(Masking.by(special).special)]
    if not rows:
        raise UserError("no token of the text is one that is trained on: it is blank")
    ids = torch.tensor([token for row in rows for token in row])
    return TokenData(
        ids=ids,
        targets=ids,
        offsets=torch.tensor([0, *map(len, rows)]).cumsum(0),
        pad_id=special.pad,
        truncated=truncated,
        label_names=names,
        row_labels=numbers,
        masking=Masking.by(special) if task == "mlm" else None,
    )


def _class_names(examples: Sequence[Example], labels: Sequence[str] | None) -> tuple[str, ...]:
    names = tuple(labels) if labels is not None else classes(examples)
    if len(names) < 2:
        raise UserError(f"classification needs two labels or more; found: {shown(names) or 'none'}")
    return names


def _class_of(example: Example, names: Sequence[str]) -> int:
    if example.label not in names:
        raise UserError(
            f"{example.where}: the label {example.label!r:.60} is not among {shown(names)}"
        )
    return names.index(example.label)


def _tokenize_classify(
    examples: Sequence[Example],
    tokenizer: Tokenizer,
    seq_len: int,
    labels: Sequence[str] | None,
) -> TokenData:
    names = _class_names(examples, labels)
    prompt, tokens = verbalize(names, tokenizer)
    room = seq_len - len(prompt) - 1
    begin = len(tokenizer.begin)
    if room <= begin:
        least = begin + len(prompt) + 2
        raise UserError(f"seq_len {seq_len} leaves no room for text; at least {least}")
    ids: list[int] = []
    offsets = [0]
    truncated = 0
    sentences = tokenizer.encode_documents([example.text.strip() for example in examples])
    for example, sentence in zip(examples, sentences, strict=True):
        token = tokens[names[_class_of(example, names)]]
        truncated += len(sentence) > room
        ids += [*sentence[:room], *prompt, token]
        offsets.append(len(ids))
    rows = torch.tensor(offsets)
    all_ids = torch.tensor(ids, dtype=torch.long)
    targets = torch.full_like(all_ids, IGNORED)
    last = rows[1:] - 1
    targets[last] = all_ids[last]
    pad_id = tokenizer.end_id if tokenizer.end_id is not None else 0
    return TokenData(all_ids, targets, rows, pad_id, None, truncated, names, tokens)
