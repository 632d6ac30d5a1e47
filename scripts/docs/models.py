"""Every causal model type of transformers under every kind of layout, and in files: exact, or
refused and why.

    python scripts/docs/models.py              # writes docs/models.md
    python scripts/docs/models.py mistral opt  # prints the rows of these

A small model of each type with random weights is laid out, and the loss of a batch and every
gradient are held against those of transformers' own class in one process, in float64 (float32 where
the class takes no float64). Files are those that transformers itself saves: they are read, and
what is written is what transformers reads again.
"""

import copy
import json
import multiprocessing as mp
import os
import queue
import sys
import tempfile
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import transformers
from model_files import EXACT, adapters_verdict, files_verdict
from small_models import batch, own_loss, small_model
from torch import nn
from torch.distributed.tensor import DTensor
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from helpers.engine.admission.admitted import admitted
from helpers.engine.admission.trial import is_same_gradient
from helpers.engine.errors import UserError
from helpers.engine.parallelize import lay_out, parallelize
from helpers.engine.plan import ParallelPlan
from helpers.engine.trainer import Trainer

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "models.md"
LAYOUTS = {
    "one process": ParallelPlan(),
    "recomputing": ParallelPlan(activation="full"),
    "tp 2": ParallelPlan(tp=2),
    "sequence parallel": ParallelPlan(tp=2, sequence_parallel=True),
    "ZeRO-3": ParallelPlan(dp_shard=2),
    "cp 2": ParallelPlan(cp=2),
    "pp 2": ParallelPlan(pp=2),
    "ep 2": ParallelPlan(dp_shard=2, ep=2),
}
NO_EXPERTS = "has no experts that ep could deal out"
ALONE = {"files": files_verdict, "QLoRA": adapters_verdict}
OWN = "own size"
COLUMNS = (*LAYOUTS, *ALONE, OWN)
# of the loss; many classes compute norms or softmax in float32 whatever their dtype
TOLERANCE = {torch.float64: 1e-7, torch.float32: 1e-4}
TIMEOUT_S = 180


HEAD = """\
# Models

Written by `python scripts/docs/models.py`; a test writes rows of it anew and compares. Every type
of causal language model that transformers {version} builds small on a CPU, under each kind of
layout over two processes (cp with ring attention; gather and ulysses are checked alike when a model
is laid out). Exact means that the loss of a batch and every gradient are those of the model's own
class in one process: in float64, the loss to 1e-7 and a gradient to 1e-6 of its largest element
(some classes compute norms or softmax in float32 whatever their dtype). All else is refused before
anything starts, in the sentence below the table: before a model is laid out, a small copy of it is.
Files are exact where every weight and buffer of what transformers saves, under the names and in the
pieces that the type has on the hub, is read as transformers reads it, and so of what is written.
QLoRA is exact where peft, with the adapters' files beside the same four bits, has the same loss.
Under ep 2 stands - for a type without experts, or none that its class computes by their interface.
Own size is exact where the type's own configuration, which mostly is a published model's, is laid
out in every way in which the small one is exact: the small copy that decides is made of it.
"""


def verdict(model: nn.Module, plan: ParallelPlan, mesh: Any) -> str:
    """Is the model the same under the plan? Exact, the sentence of a refusal, or what is wrong."""
    ids, labels = batch(model.config.get_text_config().vocab_size)
    reference = copy.deepcopy(model)
    loss = own_loss(reference, ids, labels)
    loss.backward()
    expected = {n: p.grad for n, p in reference.named_parameters() if p.grad is not None}
    try:
        laid = parallelize(copy.deepcopy(model), plan, mesh)
    except UserError as error:
        return str(error)
    trainer = Trainer(laid, plan, mesh, lr=1e-3)
    ours = trainer.backward(ids, labels)
    limit = TOLERANCE[loss.dtype]
    if not abs(ours - loss) <= limit * abs(loss):
        return f"WRONG: loss {ours.item():.8g} for {loss.item():.8g}"
    shapes = laid.stored_shapes
    largest = max(gradient.abs().max() for gradient in expected.values() if gradient.numel())
    gradients = trainer.gradients()
    for part in trainer.parts:
        whole = part.whole(gradients[part.name]) if part.name in gradients else None
        if isinstance(whole, DTensor):
            whole = whole.full_tensor()
        right = expected.get(part.name)
        if right is None and whole is None:
            continue
        right = torch.zeros_like(whole) if right is None else right
        whole = torch.zeros_like(right) if whole is None else whole
        whole = whole.reshape(shapes.get(part.name, right.shape))
        if not is_same_gradient(whole, right, limit, largest):
            return f"WRONG: gradient of {part.name}"
    return EXACT


def own_size(model_type: str, meshes: dict[str, Any]) -> str:
    """Is a model with the type's own sizes, on the meta device, laid out in these layouts?"""
    if not meshes:
        return "as the small one"
    try:
        config = transformers.AutoConfig.for_model(model_type)
        with torch.device("meta"):
            model = transformers.AutoModelForCausalLM.from_config(config)
    except Exception as error:
        return f"transformers does not build it: {type(error).__name__}: {error}".splitlines()[0]
    try:
        for layout, mesh in meshes.items():
            LAYOUTS[layout].validate(config)
            admitted(model, LAYOUTS[layout], mesh, lay_out)
    except UserError as error:
        return str(error)
    return EXACT


class Ranks:
    """Two processes joined by gloo that answer one model type after another."""

    def __init__(self) -> None:
        context = mp.get_context("spawn")
        self.answers = context.Queue()
        self.inboxes = [context.Queue() for _ in range(2)]
        store = tempfile.mktemp(prefix="models-")
        self.processes = [
            context.Process(target=_serve, args=(rank, store, inbox, self.answers), daemon=True)
            for rank, inbox in enumerate(self.inboxes)
        ]
        for process in self.processes:
            process.start()

    def verdict(self, model_type: str, layouts: list[str], of_size: str = "small") -> str | None:
        """None where a rank died or hung, after which these ranks are of no use any more."""
        for inbox in self.inboxes:
            inbox.put((model_type, layouts, of_size))
        answers = []
        try:
            while len(answers) < 2:
                answers.append(self.answers.get(timeout=TIMEOUT_S))
        except queue.Empty:
            return next((answer for answer in answers if answer.startswith("ERROR")), None)
        return next((answer for answer in answers if answer != EXACT), EXACT)

    def close(self) -> None:
        for process in self.processes:
            process.kill()


def _serve(rank: int, store: str, inbox: Any, answers: Any) -> None:
    _quiet()
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank)}
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    meshes: dict[str, Any] = {}
    while True:
        model_type, layouts, of_size = inbox.get()
        for layout in layouts:
            if layout not in meshes:
                meshes[layout] = LAYOUTS[layout].mesh("cpu")
        try:
            if of_size == OWN:
                answers.put(own_size(model_type, {name: meshes[name] for name in layouts}))
                continue
            (layout,) = layouts
            answers.put(verdict(small_model(model_type), LAYOUTS[layout], meshes[layout]))
        except Exception:
            answers.put(f"ERROR: {traceback.format_exc().strip().splitlines()[-1][:200]}")


def _quiet() -> None:
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


def rows(types: list[str]) -> Iterator[tuple[str, dict[str, str] | str]]:
    """Of each type the verdict by column, or why transformers has no small model of it."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    alone = ParallelPlan().mesh("cpu")
    ranks = Ranks()
    for model_type in types:
        try:
            model = small_model(model_type)
        except Exception as error:
            yield model_type, f"{type(error).__name__}: {error}".splitlines()[0][:100]
            continue
        found = {}
        for layout, plan in LAYOUTS.items():
            if plan.world_size == 1:
                try:
                    found[layout] = verdict(model, plan, alone)
                except Exception as error:
                    found[layout] = f"ERROR: {type(error).__name__}: {error}"[:200]
                continue
            found[layout], ranks = _asked(ranks, model_type, [layout])
        for column, of_model in ALONE.items():
            try:
                found[column] = of_model(copy.deepcopy(model), alone)
            except Exception as error:
                found[column] = f"ERROR: {type(error).__name__}: {error}"[:200]
        found[OWN], ranks = _asked(ranks, model_type, wide(found), OWN)
        yield model_type, found
    ranks.close()
    dist.destroy_process_group()


def _asked(ranks: Ranks, *question: Any) -> tuple[str, Ranks]:
    """The ranks' verdict, and who answers the next question: others where these are of no use."""
    answer = ranks.verdict(*question) or "ERROR: the ranks hang"
    if not answer.startswith("ERROR"):
        return answer, ranks
    ranks.close()
    return answer, Ranks()


def wide(found: dict[str, str]) -> list[str]:
    """The layouts of several processes in which a small model is exact."""
    return [name for name, plan in LAYOUTS.items() if plan.world_size > 1 and found[name] == EXACT]


def row(model_type: str, verdicts: dict[str, str]) -> str:
    """The type's line of the table."""
    return f"| {model_type} | {' | '.join(cell(verdicts[layout]) for layout in COLUMNS)} |"


def cell(words: str) -> str:
    if NO_EXPERTS in words:
        return "-"
    return "exact" if words == EXACT else "refused"


def refusals(model_type: str, verdicts: dict[str, str]) -> list[str]:
    """A line for each sentence with which the type is refused, and the layouts that it is for."""
    by_sentence: dict[str, list[str]] = {}
    for layout, words in verdicts.items():
        if cell(words) == "refused":
            by_sentence.setdefault(words, []).append(layout)
    return [f"- {model_type}, {', '.join(of)}: {words}" for words, of in by_sentence.items()]


def page(results: dict[str, dict[str, str] | str]) -> str:
    """docs/models.md."""
    tried = {name: found for name, found in results.items() if isinstance(found, dict)}
    not_built = {name: why for name, why in results.items() if isinstance(why, str)}
    counts = {
        layout: sum(verdicts[layout] == EXACT for verdicts in tried.values()) for layout in COLUMNS
    }
    exact = ", ".join(f"{layout} {count}" for layout, count in counts.items())
    lines = [
        *HEAD.format(version=transformers.__version__).splitlines(),
        "",
        f"{len(tried)} types are tried. Exact: {exact}.",
        "",
        f"| type | {' | '.join(COLUMNS)} |",
        "|---" * (len(COLUMNS) + 1) + "|",
        *(row(name, verdicts) for name, verdicts in tried.items()),
        "",
        "## Refused",
        "",
        *(line for name, verdicts in tried.items() for line in refusals(name, verdicts)),
        "",
        "## Not tried",
        "",
        "transformers does not build or run these small, or not as language models of text alone:",
        "",
        *(f"- {name}: {why}" for name, why in not_built.items()),
        "",
    ]
    return "\n".join(lines)


def main() -> int:
    _quiet()
    types = sys.argv[1:] or sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    results = {}
    for model_type, found in rows(types):
        results[model_type] = found
        print(model_type, json.dumps(found, indent=1), flush=True)
    bad = ("WRONG", "ERROR")
    faults = [
        f"{name}, {layout}: {words}"
        for name, found in results.items()
        if isinstance(found, dict)
        for layout, words in found.items()
        if words.startswith(bad)
    ]
    print(*faults, sep="\n")
    if not sys.argv[1:]:
        PAGE.write_text(page(results), encoding="utf-8")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
