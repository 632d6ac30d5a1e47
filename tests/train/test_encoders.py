"""scripts/train.py with an encoder: words that are masked, rows that a head classifies."""

import json
import shutil
from pathlib import Path

import pytest
import transformers

from tests.support import scripts

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
WORDS = (("lovely", "good"), ("awful", "bad"))
SMALL = {"layers": 2, "hidden": 64, "heads": 2, "seq_len": 32}
HELD_OUT = ROOT / "data" / "reviews" / "heldout.tsv"
TOKENIZER = ROOT / "data" / "tokenizer"


def run(nproc: int, out: Path, **flags: object) -> tuple[dict, list[float]]:
    """The summary of a run on so many ranks, and its losses."""
    summary, lines = scripts.trained(nproc, out=out, **flags)
    return summary, [line["loss"] for line in lines]


@pytest.fixture(scope="module")
def masked(tmp_path_factory) -> Path:
    """A BERT that has seen the bundled reviews with words masked, over two ranks of tp."""
    out = tmp_path_factory.mktemp("mlm") / "run"
    flags = SMALL | {"model": "bert-tiny", "task": "mlm", "steps": 60, "lr": 3e-3, "save": True}
    summary, losses = run(2, out, tp=2, sequence_parallel=True, eval_data=HELD_OUT, **flags)
    assert summary["eval"]["loss"] < 0.8 * losses[0]
    return out / "model"


def test_transformers_loads_the_masked_model(masked: Path) -> None:
    model, report = transformers.AutoModelForMaskedLM.from_pretrained(
        masked, output_loading_info=True
    )
    assert type(model).__name__ == "BertForMaskedLM" and not any(report.values())


@pytest.mark.exhaustive
def test_a_head_goes_on_from_it_over_stages(masked: Path, tmp_path: Path) -> None:
    flags = {"model": masked, "tokenizer": TOKENIZER, "task": "classify-head", "seq_len": 32}
    flags |= {"steps": 3, "batch_size": 16}
    _, losses = run(2, tmp_path / "pp", pp=2, **flags)
    _, same = run(1, tmp_path / "one", **flags)
    assert losses == pytest.approx(same, rel=1e-5)


def test_a_head_learns_to_classify(tmp_path: Path) -> None:
    flags = SMALL | {"model": "bert-tiny", "task": "classify-head", "steps": 120, "lr": 3e-3}
    flags |= {"batch_size": 64, "eval_data": HELD_OUT, "save": True}
    summary, _ = run(2, tmp_path, dp_shard=2, **flags)
    assert summary["eval"]["rows"] == 400 and summary["eval"]["accuracy"] > 0.7
    model = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "model")
    assert model.config.id2label == {0: "0", 1: "1"}
    assert model.config.architectures == ["BertForSequenceClassification"]


@pytest.mark.parametrize(("task", "plan"), (("mlm", {"tp": 2}), ("classify-head", {"dp_shard": 2})))
def test_two_ranks_learn_what_transformers_own_loop_does(
    task: str, plan: dict[str, int], tmp_path: Path
) -> None:
    """The same first weights, batches, masked tokens and optimizer: step by step the same loss."""
    pytest.importorskip("accelerate")
    own_loop = scripts.script("measure/encoders").of_transformers
    flags = {"task": task, "steps": 5, "batch_size": 16, "seq_len": 32, "lr": 3e-3, "seed": 3}
    for flag, name, rows in (("data", "train.tsv", 200), ("eval_data", "heldout.tsv", 50)):
        lines = (ROOT / "data" / "reviews" / name).read_text("utf-8").splitlines()
        flags[flag] = tmp_path / name
        flags[flag].write_text("\n".join(lines[:rows]), "utf-8")
    own = own_loop(SMALL | flags | {"model": "bert-tiny"}, tmp_path)
    first = {"model": tmp_path / "first", "tokenizer": tmp_path / "first"}
    summary, losses = run(2, tmp_path / "two", **flags, **first, **plan)
    assert losses == pytest.approx(own.losses, rel=1e-5) and abs(losses[-1] - losses[0]) > 1e-3
    scores = {name: summary["eval"][name] for name in own.scores}
    assert scores == pytest.approx(own.scores, rel=1e-5)


@pytest.mark.exhaustive
def test_a_resumed_run_masks_what_one_without_a_pause_does(tmp_path: Path) -> None:
    flags = SMALL | {"model": "roberta-tiny", "task": "mlm", "batch_size": 8}
    flags["lr_schedule"] = "constant"
    _, whole = run(1, tmp_path / "whole", steps=6, **flags)
    _, first = run(1, tmp_path / "run", steps=4, checkpoint_every=4, **flags)
    _, rest = run(1, tmp_path / "run", steps=6, resume="auto", **flags)
    assert rest[:4] == first
    assert rest == pytest.approx(whole, rel=1e-6)


def test_adapters_train_a_head(masked: Path, tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes")
    flags = {"model": masked, "tokenizer": TOKENIZER, "task": "classify-head", "seq_len": 32}
    flags |= {"steps": 3, "batch_size": 8, "lora_rank": 4, "quantize": "nf4", "save": True}
    summary, _ = run(2, tmp_path / "run", dp_shard=2, merge=True, **flags)
    head = 64 * 64 + 64 + 64 * 2 + 2  # pooler and classifier train whole
    assert summary["trainable_parameters"] > head
    saved = json.loads((tmp_path / "run/adapters/adapter_config.json").read_text())
    assert set(saved["modules_to_save"]) == {"pooler", "classifier"}
    transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "run/model")


@pytest.mark.parametrize(
    ("flags", "words"),
    (
        (("--model", "roberta-tiny", "--seq-len", 513), "longer than the model's 512 positions"),
        (("--model", "bert-tiny", "--seq-len", 2), "leaves no room for text"),
        (("--model", "gptj-tiny"), "transformers cannot build this gptj"),
    ),
)
def test_what_does_not_fit_is_said_in_one_line(flags: tuple, words: str, tmp_path: Path) -> None:
    assert words in scripts.refusal("--task", "mlm", *flags, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.long
def test_a_trained_head_keeps_the_order_of_its_classes(tmp_path: Path) -> None:
    """They were put in the alphabet's, and its rows were not: all answers were the other one."""
    rows = [f"{word} film {n}\t{label}" for n in range(32) for word, label in WORDS]
    data = tmp_path / "data.tsv"
    data.write_text("\n".join(["sentence\tlabel", *rows]))
    flags = SMALL | {"model": "bert-tiny", "task": "classify-head", "data": data, "save": True}
    run(1, tmp_path / "one", steps=20, lr=3e-3, batch_size=16, eval_data=data, **flags)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "one/model")
    assert model.config.id2label == {0: "bad", 1: "good"}
    for values in (model.classifier.weight.data, model.classifier.bias.data):
        values.copy_(values.flip(0))
    model.config.id2label, model.config.label2id = {0: "good", 1: "bad"}, {"good": 0, "bad": 1}
    model.save_pretrained(tmp_path / "turned")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tmp_path / "one/model" / name, tmp_path / "turned")
    flags = {"task": "classify-head", "seq_len": 32, "steps": 1, "lr": 1e-12, "save": True}
    flags |= {"model": tmp_path / "turned", "data": data, "eval_data": data}
    again, _ = run(1, tmp_path / "two", **flags)
    assert again["eval"]["accuracy"] == 1
    saved = json.loads((tmp_path / "two/model/config.json").read_text())
    assert saved["id2label"] == {"0": "good", "1": "bad"}


@pytest.mark.parametrize("task", ("lm", "instruct"))
def test_an_encoder_is_not_trained_to_copy_the_next_word(task: str, tmp_path: Path) -> None:
    flags = ("--model", "roberta-tiny", "--task", task)
    assert "sees the words that follow" in scripts.refusal(*flags, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.exhaustive
def test_float8_is_a_precision_like_others(tmp_path: Path) -> None:
    flags = SMALL | {"model": "neox-tiny", "steps": 3, "batch_size": 8, "precision": "fp8"}
    _, one = run(1, tmp_path / "one", **flags)
    summary, two = run(2, tmp_path / "two", tp=2, **flags)
    assert summary["plan"]["precision"] == "fp8"
    assert two[0] == pytest.approx(one[0], rel=1e-5)
