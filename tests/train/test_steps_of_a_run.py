"""A run's steps are those of a plain loop: what its flags ask for is what its steps do."""

import json
import statistics
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from helpers.engine.models.objectives import IGNORED
from helpers.text import tokens
from helpers.text.rows import TokenData
from helpers.train.arguments import parse
from helpers.train.job import prepare
from helpers.train.run import evaluate, load
from tests.support import scripts, tiny
from tests.support.ranks import mesh_of, pool

EPOCH = 3  # steps: a text of about 20 rows in batches of 8
LR, WARMUP = 1e-2, 2
# none of them as the parser or the trainer has it by default
FLAGS = {"lr": LR, "weight_decay": 0.5, "clip": 0.3, "warmup": WARMUP, "epochs": 2, "seed": 3}
FLAGS |= {"batch_size": 8, "seq_len": 32}
RATES = [LR / 3, 2 * LR / 3, LR, 3 * LR / 4, 2 * LR / 4, LR / 4]  # of --lr-schedule linear


def words_of(flags: dict[str, object]) -> list[str]:
    return [f"--{name.replace('_', '-')}={value}" for name, value in flags.items()]


@pytest.fixture
def flags(tmp_path: Path) -> dict[str, object]:
    """Those of a run on a short text, with weights in a folder."""
    model = tiny.fresh("llama", torch.float32)
    torch.manual_seed(0)
    model.resize_token_embeddings(2048)
    model.save_pretrained(tmp_path / "model")
    (tmp_path / "text.txt").write_text("\n".join(f"line {n}{' and more' * n}" for n in range(24)))
    return FLAGS | {"model": tmp_path / "model", "data": tmp_path / "text.txt"}


def by_a_plain_loop(flags: dict[str, Any], tokenizer_data: TokenData) -> list[dict]:
    """Losses and norms of the steps, by transformers' model and torch's optimizer."""
    model = transformers.AutoModelForCausalLM.from_pretrained(flags["model"])
    parameters = list(model.parameters())
    decay = [p for p in parameters if p.dim() >= 2], [p for p in parameters if p.dim() < 2]
    groups = [{"params": decay[0]}, {"params": decay[1], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95), weight_decay=flags["weight_decay"])
    rates, lines = iter(RATES), []
    for epoch in range(flags["epochs"]):
        for batch in tokens.batches(tokenizer_data, 8, seed=flags["seed"], epoch=epoch):
            loss = tiny.plain_loss(model, batch.input_ids, batch.labels)
            loss.backward()
            norm = nn.utils.clip_grad_norm_(parameters, flags["clip"])
            rate = next(rates)
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()
            optimizer.zero_grad()
            lines.append({"loss": loss.item(), "grad_norm": norm.item()})
            lines[-1] |= {"samples": len(batch.labels), "tokens": real(batch.labels)}
    return lines


def real(labels: Tensor) -> int:
    return int((labels != IGNORED).sum())


@pytest.mark.slow
def test_a_run_is_a_plain_loop(flags: dict[str, object], tmp_path: Path) -> None:
    summary, lines = scripts.trained(out=tmp_path / "run", **flags)
    assert [line["lr"] for line in lines] == pytest.approx(RATES)
    job = prepare(parse([*words_of(flags), "--out", str(tmp_path / "other")]))
    expected = by_a_plain_loop(flags, job.train)
    assert len(lines) == len(expected) == 2 * EPOCH
    for line, one in zip(lines, expected, strict=True):
        assert line.items() >= {name: one[name] for name in ("samples", "tokens")}.items()
        assert line["loss"] == pytest.approx(one["loss"], rel=1e-5)
        assert line["grad_norm"] == pytest.approx(one["grad_norm"], rel=1e-4)
        assert line["tokens_per_s"] == line["tokens"] / line["step_s"]
        assert line["peak_memory_bytes"] > 0
    assert summary["final_loss"] == lines[-1]["loss"]
    for unit in ("tokens", "samples"):  # of the steps after the first two
        rates = [line[unit] / line["step_s"] for line in lines[2:]]
        assert summary[f"{unit}_per_s"] == statistics.median(rates)


def test_a_resumed_run_has_the_batches_that_were_left(
    flags: dict[str, object], tmp_path: Path
) -> None:
    job = prepare(parse([*words_of(flags), "--out", str(tmp_path / "run")]))
    whole = [batch.input_ids.tolist() for batch in job.batches(0)]
    assert len(whole) == 2 * EPOCH and whole[:EPOCH] != whole[EPOCH:]
    for done in range(2 * EPOCH + 1):
        assert [batch.input_ids.tolist() for batch in job.batches(done)] == whole[done:]


def seed_of_dropout(words: list[str]) -> int:
    job = prepare(parse(words))
    load(job, mesh_of(job.plan), torch.device("cpu"), None)
    return torch.initial_seed()


def test_the_seed_is_that_of_dropout_too(flags: dict[str, object], tmp_path: Path) -> None:
    words = [*words_of(flags), "--out", str(tmp_path / "run")]
    assert pool(1).run(seed_of_dropout, words) == [flags["seed"]]


def scores(words: list[str]) -> dict[str, Any]:
    job = prepare(parse(words))
    return evaluate(job, load(job, mesh_of(job.plan), torch.device("cpu"), None))


def test_packed_rows_score_as_they_do_alone(tmp_path: Path) -> None:
    records = [{"instruction": f"Say {n}.", "output": f"{n} " * (n + 1)} for n in range(12)]
    path = tmp_path / "held_out.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    words = words_of({"task": "instruct", "data": path, "eval_data": path, "layers": 1})
    words += words_of({"batch_size": 4, "seq_len": 256, "out": tmp_path / "run"})
    packed, alone = (pool(1).run(scores, [*words, flag])[0] for flag in ("--pack", "--no-pack"))
    assert packed["loss"] == pytest.approx(alone["loss"], rel=1e-5)
    assert packed["tokens"] == alone["tokens"]
    assert packed["samples"] < alone["samples"] == 12
