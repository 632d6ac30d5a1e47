"""Megatron-LM's flags and NeMo 1's configurations as plans."""

from typing import Any

from helpers.configurations.facts import Facts, Layout, batches, left_over
from helpers.configurations.models import Sizes
from helpers.engine.errors import UserError
from helpers.engine.plan import ParallelPlan
from helpers.smp.configuration import precision_of

GPT2_TOKENS = 50257  # of the tokenizer whose vocabulary a file need not name
GPT2_NAMES = ("GPT2BPETokenizer",)
SHARDED = "sharded adamw"  # NeMo's optimizers that share their state over the data ranks
OWN_STRATEGY = "data-parallel-sharding-strategy = optim_grads_params (no_shard before 2026-04)"
TORCH = "torch adamw"  # NeMo's name for torch's own, which decays by 0.01 where nothing is said
TORCH_DECAY = 0.01
NUMBERS = ("norm_eps", "std", "dropout", "attention_dropout")
PARTS = {"layers": "layers", "hidden": "width", "heads": "heads"}


def sizes(facts: Facts) -> Sizes | None:
    """The model, where the file has all its sizes, and it is one of GPT's or Llama's form."""
    hidden, layers, heads = (facts.get(name) for name in ("hidden", "layers", "heads"))
    vocab = _vocabulary(facts)
    facts.lacks = _lacks(facts, vocab)
    if facts.lacks or not (hidden and layers and heads and vocab) or hidden % heads:
        return None
    rotary = bool(facts.get("rotary")) or facts.get("positions_are", "learned") == "rope"
    swiglu = bool(facts.get("swiglu")) or facts.get("mlp", "gelu") == "swiglu"
    rms = facts.get("norm", "layer") == "rms"
    ffn = facts.get("ffn")
    common = {"hidden": hidden, "layers": layers, "heads": heads, "vocab": vocab}
    common |= {"positions": facts.get("positions"), "tied": not facts.get("untied")}
    common |= {"ffn": int(ffn) if ffn and ffn == int(ffn) else _width(facts, hidden)}
    if "tied" in facts.values:
        common["tied"] = bool(facts.get("tied"))
    common |= {name: facts.get(name) for name in NUMBERS}
    bias = bool(facts.get("bias", not facts.get("no_bias")))
    other = facts.get("other_form") or facts.get("rotary_share", 1) != 1
    if rotary and swiglu and rms and not other:
        more = {"kv_heads": _groups(facts), "head_dim": facts.get("head_dim"), "bias": bias}
        return Sizes("llama", **common, **more, rope_theta=facts.get("rope_theta"))
    plain = (
        facts.get("mlp", "gelu") == "gelu" and facts.get("positions_are", "learned") == "learned"
    )
    other = other or rotary or swiglu or rms or not plain or not bias
    if other or _groups(facts) or facts.get("head_dim"):
        facts.lacks = "The file has a model's sizes, and its form is neither GPT-2's nor Llama's"
        return None
    return Sizes("gpt2", **common)


def _lacks(facts: Facts, vocab: int | None) -> str:
    """What of the sizes is missing, where the file has some of them."""
    missing = [words for name, words in PARTS.items() if not facts.get(name)]
    if len(missing) == len(PARTS):
        return ""
    missing += [] if vocab else ["vocabulary, which its tokenizer has"]
    if not missing:
        return ""
    return f"The file says the model's sizes but for its {' and its '.join(missing)}"


def _width(facts: Facts, hidden: int) -> int | None:
    """Megatron-LM's own inner width beside --swiglu: two thirds, in multiples of 64."""
    return int(4 * hidden * 2 / 3 / 64) * 64 if facts.get("swiglu") else None


def _groups(facts: Facts) -> int | None:
    """Heads of keys: as many as are said, else 1, where Megatron-LM's switch is on; NeMo has no
    switch."""
    if "grouped" not in facts.values:
        return facts.get("groups")
    return facts.get("groups", 1) if facts.get("grouped") else None


def _vocabulary(facts: Facts) -> int | None:
    """Rows of the embedding: those of the tokenizer, made up to a multiple for the tensor ranks."""
    if facts.get("padded_vocab"):
        return int(facts.get("padded_vocab"))
    named = str(facts.get("tokenizer")) in GPT2_NAMES
    tokens = facts.get("vocab") or (GPT2_TOKENS if named else None)
    if tokens is None:
        return None
    multiple = facts.get("divisible", 128) * facts.get("tp", 1)
    return -(-tokens // multiple) * multiple


def layout(facts: Facts, ranks: int | None, model: Sizes | None) -> Layout:
    """The plan.

    Raises:
        UserError: what the file asks for cannot be kept, in one line.
    """
    tp, pp, cp = (facts.get(name, 1) for name in ("tp", "pp", "cp"))
    ranks = ranks or facts.get("nproc", 0) * facts.get("nodes", 1) or None
    dp = left_over(ranks, tp=tp, pp=pp, cp=cp)
    batch, parts = batches(facts, dp)
    lost: list[str] = []
    precision = precision_of(facts.get("fp16"), facts.get("bf16"))
    precision = str(facts.get("precision", precision))
    sums = "fp16" if precision == "fp16" and dp > 1 and not facts.get("sums32") else "fp32"
    sums = "bf16" if facts.get("sums16") else facts.get("sums", sums)
    degrees = _data(facts, dp)
    plan = ParallelPlan(
        **degrees,
        **_virtual(facts, pp),
        **_recomputing(facts, lost),
        tp=tp,
        pp=pp,
        cp=cp,
        cp_attention=facts.get("cp_attention", "ring") if cp > 1 else "ring",
        sequence_parallel=bool(facts.get("sequence")) and tp > 1,
        precision="fp8" if facts.get("fp8") else precision,
        reduce_dtype=sums,
        microbatches=parts if parts > 1 or pp > 1 else 0,
    )
    _steps(facts, batch, lost)
    _rows(facts, lost)
    _dropout(facts, model, lost)
    return Layout(plan, batch, lost, "megatron")


def _data(facts: Facts, dp: int) -> dict[str, int]:
    if facts.get("optimizer") == SHARDED:
        facts.values |= {"optimizer": "adamw", "zero1": True}
    if facts.get("optimizer") == TORCH:
        facts.values["optimizer"] = "adamw"
        if "weight_decay" in facts.silent:
            facts.own("weight_decay", TORCH_DECAY, f"model.optim.weight_decay = {TORCH_DECAY}")
    strategy = "full" if facts.get("torch_fsdp") else "none"
    if facts.get("fsdp"):  # the strategy is of this kind alone
        strategy = facts.get("strategy", "full")
        if "strategy" not in facts.said_by:
            facts.own("strategy", "full", OWN_STRATEGY)
    stage = {"optim": 1, "grad": 2, "full": 3}.get(strategy, 1 if facts.get("zero1") else 0)
    if not stage:
        return {"dp_replicate": dp, "zero_stage": 1 if facts.get("cp", 1) > 1 else 3}
    instances = facts.get("instances", 1)
    if dp % instances:
        raise UserError(f"{instances} instances of the optimizer do not divide {dp} data ranks")
    return {"dp_replicate": instances, "dp_shard": dp // instances, "zero_stage": stage}


def _virtual(facts: Facts, pp: int) -> dict[str, Any]:
    stages, each = facts.get("virtual"), facts.get("layers_per_stage")
    if pp == 1 or not (stages or each):
        return {}
    if not stages:
        layers = facts.get("layers")
        if not layers or layers % (pp * each):
            raise UserError(f"stages of {each} layers on {pp} ranks do not divide {layers} layers")
        stages = layers // pp // each
    return {"schedule": "interleaved", "virtual_stages": stages} if stages > 1 else {}


def _recomputing(facts: Facts, lost: list[str]) -> dict[str, str]:
    kind = facts.get("granularity") or ("selective" if facts.get("selective") else "none")
    kind = "full" if facts.get("old_full") else kind
    layers = facts.get("recompute_layers", 1)
    if kind != "full":
        return {"activation": kind}
    if facts.get("method", "uniform") == "uniform":
        return {"activation": f"group_{layers}" if layers > 1 else "full"}
    lost.append(f"recompute-method block: {layers} blocks of each stage alone; here all of them")
    return {"activation": "full"}


def _steps(facts: Facts, batch: int | None, lost: list[str]) -> None:
    """Steps and a warm-up, where the file counts samples and shares."""
    samples, share = facts.get("samples"), facts.get("warmup_share")
    warm, falls = facts.get("warmup_samples"), facts.get("decay_steps")
    if warm and batch:
        facts.values.setdefault("warmup", round(warm / batch))
    if samples and batch and not facts.get("steps"):
        facts.values["steps"] = max(1, samples // batch)
    if facts.get("decay_samples") and batch:
        falls = falls or max(1, facts.get("decay_samples") // batch)
    steps = facts.get("steps")
    falls = falls or steps
    if share and falls and not facts.get("warmup"):
        facts.values["warmup"] = round(share * falls)
    if share and not falls:
        key = facts.said_by["warmup_share"]
        lost.append(f"{key} {share:g}: the file says no steps of it; give --warmup N")
    if steps and falls != steps and facts.get("lr_schedule") != "constant":
        lost.append(f"the learning rate falls over {falls} steps there, and over {steps} here")
    if steps and facts.get("epochs"):
        lost.append(f"it ends after {facts.get('epochs')} epochs there, where these are sooner")
    if not batch and (warm or samples):
        lost.append("samples of the run or its warm-up: the file says no batch; give --steps N")


def _dropout(facts: Facts, model: Sizes | None, lost: list[str]) -> None:
    """What drops out there and not here; a trained model has its own."""
    share = facts.get("dropout") or facts.get("attention_dropout") or 0
    if model is None and share and not facts.get("trained"):
        lost.append(f"dropout of {share:g}: here it is the model's own, which --model says")
    if model and model.model_type == "llama" and model.dropout:
        lost.append(f"hidden dropout of {model.dropout:g}: a Llama drops only of its attention")


def _rows(facts: Facts, lost: list[str]) -> None:
    """The length of a fine-tuning's samples goes before the model's."""
    tokens, model = facts.get("data_seq_len"), facts.get("seq_len")
    if not tokens:
        return
    if model and model != tokens:
        words = f"a seq_length of {model}: the samples of model.data.train_ds are {tokens} long"
        lost.append(words)
    facts.values["seq_len"] = tokens
