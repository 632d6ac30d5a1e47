"""Instructions and answers: which columns hold them, and how they are put to a model.

    prompt    ### Instruction / Count the words. / ### Context / ... / ### Answer /     no loss
    answer    7<|endoftext|>                                                           the loss

Any file with an instruction, perhaps an input, and an answer can be put in any of the templates.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helpers.engine.errors import UserError
from helpers.text.readers import Example, Row, read_rows, shown_names
from helpers.text.tokenizer import Tokenizer

# part of a record -> what data sets call its column, in the order in which it is looked for
COLUMNS = {
    "instruction": ("instruction", "question", "prompt"),
    "input": ("input", "context", "dialogue"),
    "output": ("output", "response", "answer", "completion", "summary"),
}
# what data sets call parts of a prompt that no template here has
WITHOUT_A_PLACE = ("system", "system_prompt", "history")


@dataclass(frozen=True)
class Template:
    """A prompt, after which the answer comes. The parts that it needs stand in braces.

    Attributes:
        prompt: with an input.
        short: where a record has none; None if such a record cannot be asked.
    """

    prompt: str
    short: str | None


# alpaca: Taori et al. 2023, github.com/tatsu-lab/stanford_alpaca, section "Data Release", with the
# new line before the answer that github.com/tloen/alpaca-lora and torchtune have.
# falcon: the published Falcon-40B fine-tuning on dolly. dialogue: the same model on samsum.
TEMPLATES = {
    "alpaca": Template(
        "Below is an instruction that describes a task, paired with an input that provides further "
        "context. Write a response that appropriately completes the request.\n\n"
        "### Instruction:\n{instruction}\n\n### Input:\n{input}\n\n### Response:\n",
        "Below is an instruction that describes a task. Write a response that appropriately "
        "completes the request.\n\n### Instruction:\n{instruction}\n\n### Response:\n",
    ),
    "falcon": Template(
        "### Instruction\n{instruction}\n\n### Context\n{input}\n\n### Answer\n",
        "### Instruction\n{instruction}\n\n### Answer\n",
    ),
    "dialogue": Template("Summarize the chat dialogue:\n{input}\n---\nSummary:\n", None),
}


def load_instructions(
    source: str | Path, *, template: str = "alpaca", split: str = "train"
) -> list[Example]:
    """Prompts, and as their labels the answers, of a TSV, CSV, JSON or JSONL file or a hub data
    set, as readers.read_rows takes them.

    Records that ask nothing or have no answer are left out; a template without a `short` form
    leaves out those without an input.

    Args:
        template: a name in TEMPLATES.

    Raises:
        UserError: there is no such template, or the source is missing, broken or lacks a column.
    """
    if template not in TEMPLATES:
        raise UserError(f"unknown template {template!r}: {', '.join(TEMPLATES)}")
    form = TEMPLATES[template]
    return read_rows(
        source,
        lambda names, where: find_columns(names, form, where),
        lambda row, where: fill(row, form, where),
        split,
    )


def find_columns(names: Sequence[str], form: Template, where: str) -> dict[str, str]:
    """Of the record's columns `names`, the one that holds each part.

    Raises:
        UserError: a part that every record must have is missing.
    """
    columns = {
        part: next((n for n in known if n in names), None) for part, known in COLUMNS.items()
    }
    for part in ("output", *_needed(form.short or form.prompt)):
        if columns[part] is None:
            wanted = " or ".join(COLUMNS[part])
            raise UserError(f"{where}: no column {wanted}; found: {shown_names(list(names))}")
    return {part: name for part, name in columns.items() if name is not None}


def fill(row: Row, form: Template, where: str) -> Example | None:
    """The record's prompt and answer; None where a part that they need is blank.

    Raises:
        UserError: a column is missing, its value is no text, or a part of the prompt has no place.
    """
    columns = find_columns(list(row), form, where)
    for name in WITHOUT_A_PLACE:
        if row.get(name) and str(row[name]).strip():
            raise UserError(
                f"{where}: {name} has no place in a template here: write it into the instruction, "
                "or leave the column out"
            )
    parts = {part: _part(row, part, where) for part in columns}
    given = {part for part, text in parts.items() if text.strip()}
    prompt = form.short if "input" not in given else form.prompt
    if prompt is None or not given.issuperset(("output", *_needed(prompt))):
        return None
    return Example(prompt.format(**parts), parts["output"], where)


def _part(row: Row, part: str, where: str) -> str:
    """Of the columns that may hold a part the first that is not blank in this record: a file of
    several data sets has the columns of all."""
    texts = (_text(row[name], name, where) for name in COLUMNS[part] if name in row)
    return next((text for text in texts if text.strip()), "")


def _needed(prompt: str) -> list[str]:
    return [part for part in COLUMNS if f"{{{part}}}" in prompt]


def _text(value: Any, name: str, where: str) -> str:
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise UserError(f"{where}: {name} is not text but {value!r:.60}")
    return str(value)


def encode(examples: Sequence[Example], tokenizer: Tokenizer) -> tuple[list[list[int]], list[int]]:
    """Ids of each prompt, answer and end token together, and how many of them are the prompt's.

    Prompt and answer are encoded apart, as they are when a model answers: no token spans both.

    Raises:
        UserError: the tokenizer has no token that ends an answer.
    """
    if tokenizer.end_id is None:
        raise UserError("this tokenizer has no token that ends an answer")
    prompts = tokenizer.encode_documents([one.text for one in examples])
    answers = tokenizer.encode([one.label for one in examples])
    documents = [
        [*prompt, *answer, tokenizer.end_id]
        for prompt, answer in zip(prompts, answers, strict=True)
    ]
    return documents, [len(prompt) for prompt in prompts]
