"""Good runs of scripts/train.py: what it writes, what it reads, and that it learns."""

import json
from argparse import Namespace
from pathlib import Path

import pytest
import torch
import transformers

from helpers.engine.models.configurations import load_config
from helpers.lab.launch.launch import launch
from helpers.planner import cost
from helpers.text.bundled import bundled
from helpers.text.tokenizer import load_tokenizer
from helpers.train.arguments import parse
from helpers.train.job import Job, fit_vocabulary, prepare, tokenizer_of
from tests.support import scripts

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
SMALL = {"layers": 2, "hidden": 64, "heads": 2, "seq_len": 32, "steps": 3, "batch_size": 8}
KEYS = {
    "plan",
    "model",
    "parameters",
    "trainable_parameters",
    "world_size",
    "device",
    "phases_s",
    "tokens_per_s",
    "samples_per_s",
    "peak_memory_bytes",
    "state_bytes",
    "final_loss",
    "skipped_steps",
    "resumed_after",
    "compiled",
    "eval",
    "warnings",
    "weights",
    "versions",
    "status",
}
LINE = {
    "step",
    "loss",
    "grad_norm",
    "lr",
    "tokens",
    "samples",
    "step_s",
    "tokens_per_s",
    "mfu",
    "peak_memory_bytes",
}
REVIEWS = [("good fun and well made", 1), ("a dull, long film", 0)] * 8


def train(out: Path, **flags: object) -> dict:
    """Run the script in one process; its summary."""
    summary, _ = scripts.trained(out=out, **SMALL | flags)
    return summary


@pytest.fixture(scope="module")
def classified(tmp_path_factory: pytest.TempPathFactory, warm):
    """A run on two ranks that learns to tell good reviews from bad ones, and is saved."""
    return launch(
        "scripts/train.py",
        nproc=2,
        ranks=warm,
        out=tmp_path_factory.mktemp("train") / "run",
        show=False,
        dp_shard=2,
        zero_stage=1,
        microbatches=2,  # with one, the gradients never stand whole
        task="classify",
        lr=1e-2,
        eval_data=str(ROOT / "data/reviews/heldout.tsv"),
        save=True,
        **SMALL | {"steps": 40, "batch_size": 64},
    )


def test_a_run_writes_what_is_documented(classified) -> None:
    summary = classified.summary
    assert summary.keys() == KEYS and summary["status"] == "done"
    assert set(classified.metrics.columns) == LINE
    assert list(classified.metrics["step"]) == list(range(1, 41))
    assert len(summary["state_bytes"]) == len(summary["peak_memory_bytes"]) == 2
    n = summary["parameters"]
    for state in summary["state_bytes"]:
        formula = cost.state_bytes(n, dp_shard=2, zero_stage=1)
        assert list(state.values()) == pytest.approx(list(vars(formula).values()), rel=0.01)


def test_the_phases_are_the_wall_clock(classified) -> None:
    phases = classified.summary["phases_s"]
    assert all(phases[name] > 0 for name in ("start", "load", "check", "train", "evaluate", "save"))
    steps_s = classified.metrics["step_s"].sum()
    assert steps_s <= phases["train"]
    claimed = classified.before_ranks_s + sum(phases.values())
    assert claimed <= classified.wall_s
    assert claimed > 0.6 * classified.wall_s  # the rest is interpreters that start and end


@pytest.mark.long
def test_compiling_is_no_part_of_the_steps(tmp_path: Path) -> None:
    summary = train(tmp_path / "run", model="gpt2-tiny", compile=True, steps=4)
    compile_s = sum(one["seconds"] for one in summary["compiled"])
    assert summary["phases_s"]["compile"] == pytest.approx(compile_s) and compile_s > 0
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert 0 < sum(json.loads(line)["step_s"] for line in lines) <= summary["phases_s"]["train"]


def test_it_learns_to_classify(classified) -> None:
    loss = classified.metrics["loss"]
    assert loss.iloc[-5:].mean() < 0.5 * loss.iloc[0]
    scores = classified.summary["eval"]
    assert scores["samples"] == 400 and scores["accuracy"] > 0.6


def test_transformers_loads_what_is_saved(classified) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(classified.path / "model")
    assert model.num_parameters() == classified.summary["parameters"]
    words = "a film that nobody should miss"
    theirs = transformers.AutoTokenizer.from_pretrained(classified.path / "model")
    own = load_tokenizer(bundled("tokenizer"))
    assert theirs(words, add_special_tokens=False)["input_ids"] == own.encode([words])[0]
    again = Namespace(model=str(classified.path / "model"), tokenizer=None)
    assert tokenizer_of(again) == again.model


def test_random_weights_have_the_ids_of_the_tokenizer() -> None:
    config = load_config("gptj-tiny")
    args = Namespace(model="gptj-tiny", from_scratch=False, task="lm")
    ids = config.vocab_size + 5
    fit_vocabulary(config, args, Namespace(vocab_size=ids, end_id=7, begin=[3]))
    assert (config.vocab_size, config.bos_token_id, config.eos_token_id) == (ids, 3, 7)
    assert config.pad_token_id is None


def test_a_run_starts_from_the_weights_of_a_folder(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=2048,
        n_embd=64,
        n_layer=2,
        n_head=2,
        n_positions=32,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        model.transformer.wte.weight[0] += 0.3  # so that the start differs from any other
    model.save_pretrained(tmp_path / "model")
    options = {"model": tmp_path / "model", "tokenizer": ROOT / "data/tokenizer"}
    flags = SMALL | dict.fromkeys(("layers", "hidden", "heads")) | options
    flags = {name: value for name, value in flags.items() if value is not None}
    _, [first] = scripts.trained(out=tmp_path / "run", **flags | {"steps": 1, "save": True})
    from helpers import text as data

    tokenizer = data.load_tokenizer(ROOT / "data/tokenizer")
    examples = data.load_examples(ROOT / "data/reviews/train.tsv", "lm")
    tokens = data.tokenize(examples, tokenizer, "lm", SMALL["seq_len"])
    batch = next(iter(data.batches(tokens, SMALL["batch_size"], seed=0)))
    logits = model(input_ids=batch.input_ids).logits[:, :-1].flatten(0, 1)
    loss = torch.nn.functional.cross_entropy(logits, batch.labels[:, 1:].flatten())
    assert first["loss"] == pytest.approx(loss.item(), rel=1e-5)


def write_tsv(path: Path) -> None:
    lines = [f"{sentence}\t{label}" for sentence, label in REVIEWS]
    path.write_text("\n".join(["sentence\tlabel", *lines]) + "\n")


def write_csv(path: Path) -> None:
    lines = [f'"{sentence}",{label}' for sentence, label in REVIEWS]
    path.write_text("\n".join(["sentence,label", *lines]) + "\n")


def write_jsonl(path: Path) -> None:
    rows = [{"sentence": sentence, "label": label} for sentence, label in REVIEWS]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_txt(path: Path) -> None:
    path.write_text("\n".join(sentence for sentence, _ in REVIEWS) + "\n")


def test_text_in_any_file_format(tmp_path: Path) -> None:
    digests = []
    for write in (write_tsv, write_csv, write_jsonl):
        path = tmp_path / f"reviews.{write.__name__.removeprefix('write_')}"
        write(path)
        digests.append(prepared(path).train.digest)
    assert len(set(digests)) == 1, digests


def test_text_of_lines(tmp_path: Path) -> None:
    """A line's end is a part of its text."""
    path = tmp_path / "reviews.txt"
    write_txt(path)
    ids = prepared(path).train.ids.tolist()
    assert load_tokenizer(bundled("tokenizer")).backend.decode(ids) == path.read_text()


def prepared(path: Path) -> Job:
    words = ["--model", "gptj-tiny", "--steps", "1", "--seq-len", "32", "--data", str(path)]
    return prepare(parse([*words, "--out", str(path.parent / "run")]))


def test_moments_of_8_bits_are_counted(tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes")
    plain, eight = (
        train(tmp_path / kind, optimizer=kind)["state_bytes"][0]["optimizer"]
        for kind in ("adamw", "adamw8bit")
    )
    assert 0.2 * plain < eight < 0.5 * plain  # a byte for four, and small parameters' as they were
