"""Write data/: the corpus, the instructions, the tokenizer, checksums.

    python scripts/data/make_data.py [--out data]

Everything is computed from this folder's own word lists, byte for byte the same each time.
"""

import argparse
import hashlib
import json
from pathlib import Path

from instruction_grammar import make_instructions
from review_grammar import Row, make_rows

ROOT = Path(__file__).resolve().parents[2]
SEED = 2024
TRAIN_ROWS = 4000
HELD_OUT_ROWS = 400
TRAIN_INSTRUCTIONS = 300
HELD_OUT_INSTRUCTIONS = 60
VOCABULARY = 2048
END = 0  # id of END_TOKEN
END_TOKEN = "<|endoftext|>"


def write_reviews(folder: Path) -> list[Row]:
    """train.tsv and heldout.tsv; returns the training rows."""
    train, held_out = make_rows(SEED, TRAIN_ROWS, HELD_OUT_ROWS)
    for name, rows in (("train.tsv", train), ("heldout.tsv", held_out)):
        lines = ["sentence\tlabel", *(f"{text}\t{label}" for text, label in rows)]
        write(folder / name, "\n".join(lines) + "\n")
    return train


def write_instructions(folder: Path) -> None:
    """train.jsonl and heldout.jsonl."""
    train, held_out = make_instructions(SEED, TRAIN_INSTRUCTIONS, HELD_OUT_INSTRUCTIONS)
    for name, records in (("train.jsonl", train), ("heldout.jsonl", held_out)):
        lines = [json.dumps(record, ensure_ascii=False) for record in records]
        write(folder / name, "\n".join(lines) + "\n")


def write_tokenizer(folder: Path, sentences: list[str]) -> None:
    """A byte-level BPE of VOCABULARY ids, trained on `sentences`."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END_TOKEN],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(sentences, trainer)
    if tokenizer.get_vocab_size() != VOCABULARY or tokenizer.token_to_id(END_TOKEN) != END:
        raise AssertionError("the corpus is too small for the vocabulary, or the ids moved")
    write_json(folder / "tokenizer.json", json.loads(tokenizer.to_str()), indent=1)
    names = {"tokenizer_class": "PreTrainedTokenizerFast"}
    names |= dict.fromkeys(("bos_token", "eos_token", "pad_token"), END_TOKEN)
    write_json(folder / "tokenizer_config.json", names)


def write_checksums(folder: Path) -> None:
    """SHA256SUMS in the format of `sha256sum -c`, over the files that this script writes."""
    parts = ("reviews", "instructions", "tokenizer")
    files = sorted(path for part in parts for path in (folder / part).rglob("*") if path.is_file())
    lines = [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(folder).as_posix()}"
        for path in files
    ]
    write(folder / "SHA256SUMS", "\n".join(lines) + "\n")


def write_json(path: Path, value: object, indent: int = 2) -> None:
    write(path, json.dumps(value, indent=indent, ensure_ascii=False) + "\n")


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode("utf-8"))  # bytes: no platform's line ends


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the bundled data.")
    parser.add_argument("--out", type=Path, default=ROOT / "data", help="folder (default: data)")
    out = parser.parse_args().out
    train = write_reviews(out / "reviews")
    write_instructions(out / "instructions")
    write_tokenizer(out / "tokenizer", [text for text, _ in train])
    write_checksums(out)
    print(f"wrote {out}")


if __name__ == "__main__":
    main()
