"""Inputs that are certainly wrong: by tables, and by cutting real files at random bytes.

Each generator takes an empty folder and a random generator, and yields what a case is called and
the arguments of train.py that it makes. All of them must be refused.
"""

import dataclasses
import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import transformers
from tokenizers import Tokenizer, models

from helpers.engine.models.configurations import load_config
from helpers.engine.plan import ParallelPlan
from helpers.text.bundled import bundled

Case = tuple[str, list[str]]
Generator = Callable[[Path, random.Random], Iterator[Case]]
NO_NUMBERS = ("nan", "x", "", "0x10", "1_000", "٣", "²", "None", "[]", "1e", "--", "1,5", "½")
NO_WHOLE = (*NO_NUMBERS, "-1", "1.5", "1e3", "inf", "9" * 30, "9" * 5000, "-0", "+1")
NO_SHARE = (*NO_NUMBERS, "-1", "inf", "-inf", "1e400", "-1e-9")
FLAGS = {
    "whole": "steps epochs batch-size seq-len layers hidden heads lora-rank checkpoint-every keep",
    "count": "warmup seed",
    "positive": "lr clip lora-alpha timeout",
    "from_zero": "weight-decay lora-dropout",
    "choice": "device task template optimizer lr-schedule quantize save-dtype",
}
VALUES = {
    "whole": (*NO_WHOLE, "0"),
    "count": NO_WHOLE,
    "positive": (*NO_SHARE, "0", "-0.0"),
    "from_zero": NO_SHARE,
    "choice": ("", "nope", "0", "LM", "adamw ", "none"),
}
NO_NAMES = (
    *("", "a" * 300, "x/" * 3000, "a\0b", "a\nb", "a\rb", "\x1b[2J", "a\udce4b"),
    "~nobody-here/x",
)
PATHS = ("data", "eval-data", "tokenizer", "model", "resume", "load-adapters", "out")
CONFIG = {
    "n_layer": (0, -1, "x", 1.5, 10**9, []),
    "n_embd": (0, -1, "x", 1.5, 10**9, 7, None),
    "n_head": (0, -1, 3, "x", None),
    "vocab_size": (0, -5, "x", None, 10**12, 1.5),
    "n_positions": (0, -1, "x"),
    "n_inner": (0, -1, "x"),
    "rotary_dim": (0, -2, 1000, "x"),
    "activation_function": ("nope", None, 5),
    "layer_norm_epsilon": ("x", None, float("nan"), float("inf")),
    "attn_pdrop": (2, -1, "x", float("nan"), 1.0),
    "resid_pdrop": (2, -1, "x", float("inf")),
    "embd_pdrop": (1.5, "x"),
    "initializer_range": ("x", float("nan"), float("inf")),
    "model_type": ("nope", None, 5, ""),
    "dtype": ("nope", 7),
    "tie_word_embeddings": (5, "x"),
    "bos_token_id": ("x",),
}
NO_JSON = {
    "nothing": "",
    "a list": "[]",
    "a text": '"x"',
    "null": "null",
    "a number": "1",
    "no type": "{}",
    "deep": '{"a":' + "[" * 50_000 + "]" * 50_000 + "}",
    "a long number": '{"n_layer":' + "1" * 5000 + "}",
    "no UTF-8": b"\xff\xfe\x00",
    "zeros": b"\0" * 100,
}
NO_ROWS = {
    "surrogate.jsonl": '{"text": "a \\ud800 b", "label": 1}\n',
    "deep.jsonl": '{"text": ' + "[" * 50_000 + "]" * 50_000 + "}\n",
    "deep.json": "[" * 100_000,
    "long-number.jsonl": '{"text": "hello there", "label": ' + "1" * 5000 + "}\n",
    "key-twice.jsonl": '{"text": "abc", "text": "def", "label": 1}\n',
    "no-text.jsonl": '{"text": NaN, "label": 1}\n',
    "null.jsonl": '{"text": null, "label": 1}\n',
    "list.jsonl": "[1, 2]\n",
    "words.jsonl": "hello\n",
    "blank.jsonl": '{"text": "  ", "label": 1}\n',
    "columns.tsv": "sentence\tsentence\tlabel\na b\tc d\t1\n",
    "labels.tsv": "sentence\tlabel\tlabel\na b\t0\t1\n",
    "columns.csv": "text,text,label\na,b,1\n",
    "short.tsv": "sentence\tlabel\nabc\n",
    "long.tsv": "sentence\tlabel\nabc\t1\t2\n",
    "header.tsv": "sentence\tlabel\n",
    "other.tsv": "words\tclass\na\t1\n",
    "utf16.tsv": "sentence\tlabel\nabc\t1\n".encode("utf-16"),
    "quote.csv": 'text,label\n"a\n',
    "empty.txt": "",
    "empty.jsonl": "",
    "empty.tsv": "",
    "bytes.jsonl": bytes(range(128, 256)) * 8,
    "odd.parquet": "PAR1",
}
RUN = ["--model", "gptj-tiny", "--steps", "2"]


def flags(folder: Path, dice: random.Random) -> Iterator[Case]:
    for kind, names in FLAGS.items():
        for name in names.split():
            for value in VALUES[kind]:
                yield f"--{name} {value:.20}", [*RUN, f"--{name}={value}"]


def plans(folder: Path, dice: random.Random) -> Iterator[Case]:
    choosing = {"microbatches", "virtual_stages"}  # 0 is "to choose"
    for field in dataclasses.fields(ParallelPlan):
        values: tuple[str, ...] = ("nope", "5", "None", "[]", "auto auto", "７")
        if isinstance(field.default, bool):
            values = ()
        elif isinstance(field.default, int):
            values = NO_WHOLE if field.name in choosing else (*NO_WHOLE, "0", "1000000000")
        for value in values:
            yield f"{field.name} {value:.20}", [*RUN, f"--{field.name.replace('_', '-')}={value}"]


def names(folder: Path, dice: random.Random) -> Iterator[Case]:
    for flag in PATHS:
        for name in NO_NAMES:
            yield f"--{flag} {name[:20]!a}", [*RUN, f"--{flag}={name}"]


def configurations(folder: Path, dice: random.Random) -> Iterator[Case]:
    whole = json.loads(load_config("gptj-tiny").to_json_string())
    texts: dict[str, str | bytes] = {
        f"{field} {value!r}": json.dumps(whole | {field: value})
        for field, values in CONFIG.items()
        for value in values
    }
    text = json.dumps(whole)
    for _ in range(80):
        end = dice.randrange(1, len(text))
        texts[f"cut at {end}"] = text[:end]
    for number, (name, content) in enumerate((texts | NO_JSON).items()):
        model = folder / str(number)
        write(model / "config.json", content)
        yield f"config.json: {name}", ["--steps", "2", "--from-scratch", "--model", str(model)]


def rows(folder: Path, dice: random.Random) -> Iterator[Case]:
    for name, content in NO_ROWS.items():
        for task in ("classify", "instruct"):
            path = write(folder / name, content)
            yield f"{name} {task}", [*RUN, "--task", task, "--data", str(path)]
    lines = bundled("instructions/train.jsonl").read_bytes().splitlines()
    for number in range(80):
        line = dice.choice(lines)
        end = dice.randrange(1, len(line) - 1)
        path = write(folder / f"cut-{number}.jsonl", b"\n".join([lines[0], line[:end], lines[1]]))
        yield f"a row cut at {end}", [*RUN, "--task", "instruct", "--data", str(path)]


def tokenizers(folder: Path, dice: random.Random) -> Iterator[Case]:
    source = bundled("tokenizer")
    text = (source / "tokenizer.json").read_bytes()
    contents = {f"cut at {end}": text[:end] for end in dice.sample(range(len(text) - 1), 60)}
    contents["without a token"] = Tokenizer(models.BPE()).to_str().encode()
    for number, (name, content) in enumerate((contents | NO_JSON).items()):
        path = folder / str(number) / "tokenizer.json"
        write(path, content)
        yield f"tokenizer.json: {name}", [*RUN, "--tokenizer", str(path.parent)]


def weights(folder: Path, dice: random.Random) -> Iterator[Case]:
    """A file of weights that ends early, and indexes that do not fit the files."""
    model = saved(folder / "whole")
    data = (model / "model.safetensors").read_bytes()
    header = 8 + int.from_bytes(data[:8], "little")
    ends = [
        *dice.sample(range(header), 30),
        *(dice.randrange(header, len(data)) for _ in range(30)),
    ]
    for number, end in enumerate(ends):
        cut = shutil.copytree(model, folder / f"cut-{number}")
        (cut / "model.safetensors").write_bytes(data[:end])
        yield f"weights cut at {end}", ["--steps", "2", "--model", str(cut)]
    for number, (name, content) in enumerate((NO_JSON | NO_INDEX).items()):
        listed = shutil.copytree(model, folder / f"index-{number}")
        (listed / "model.safetensors").rename(listed / "model-00001-of-00001.safetensors")
        write(listed / "model.safetensors.index.json", content)
        yield f"index: {name}", ["--steps", "2", "--model", str(listed)]


NO_INDEX = {
    "no map": '{"weight_map": 5}',
    "an empty map": '{"weight_map": {}}',
    "a file outside": '{"weight_map": {"transformer.wte.weight": "../x.safetensors"}}',
    "a file that is not there": '{"weight_map": {"transformer.wte.weight": "y.safetensors"}}',
    "a number for a file": '{"weight_map": {"transformer.wte.weight": 5}}',
}


def saved(folder: Path) -> Path:
    """A model with weights."""
    config = load_config("gptj-tiny")
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


def write(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


GENERATORS: tuple[Generator, ...] = (
    flags,
    plans,
    names,
    configurations,
    rows,
    tokenizers,
    weights,
)
