"""A search's answer in words with numbers: why this plan, what was ruled out, what would change it.

print(explain(result))
"""

from collections.abc import Iterator
from dataclasses import replace

from helpers.engine.errors import UserError
from helpers.engine.plan import ParallelPlan
from helpers.planner.hardware.catalog import DAY_S, GIB
from helpers.planner.hardware.devices import Cluster
from helpers.planner.hardware.lookup import recorded_prices
from helpers.planner.memory.peak import fullest
from helpers.planner.model.job_checks import ways
from helpers.planner.search.planned import Choice, check_choice, fits, in_words
from helpers.planner.search.ranges import rounded
from helpers.planner.search.request import Question
from helpers.planner.search.search import SearchResult, search_plans
from helpers.planner.time.step_time import step_time

PARTS = (
    ("compute_s", "computing"),
    ("again_s", "recomputing"),
    ("tensor_s", "messages of tp"),
    ("context_s", "messages of cp"),
    ("bubble_s", "waiting for the pipeline"),
    ("data_s", "messages of the data axes"),
    ("optimizer_s", "the optimizer"),
    ("host_s", "waiting for the host"),
    ("straggle_s", "waiting for the slowest node"),
)


def explain(result: SearchResult, what_if: bool = True) -> str:
    """Why the best plan won, what it needs, what was ruled out by what, the next best, and with
    `what_if` what would change the answer: the search once more with other machines or batches.

    Raises:
        UserError: it is no result of a search.
    """
    if not isinstance(result, SearchResult):
        raise UserError(f"give all that search_plans(...) returned, not a {type(result).__name__}")
    best = result.best
    lines = [
        _winner(result),
        *_whose_price(best.cluster),
        *_what_trains(result.question),
        _where_time_goes(best),
        _where_memory_goes(best),
        *_why_context(best),
        *_why_savers(best),
        *_why_not(result),
        _ruled_out(result),
    ]
    if what_if:
        lines += _what_would_change(result)
    return "\n".join(lines)


def describe(choice: Choice) -> str:
    """A choice in one line: degrees, switches, machines.

    Raises:
        UserError: it is none.
    """
    check_choice(choice)
    cluster = choice.cluster
    return f"{in_words(choice.job)} on {cluster.nodes} x {cluster.name}"


def _winner(result: SearchResult) -> str:
    best, question = result.best, result.question
    line = (
        f"Best by {question.by}: {describe(best)}. A step of {question.batch} x "
        f"{question.seq_len:,} tokens takes {_seconds(best.time.total_s)} "
        f"({_between(*map(_seconds, best.range_s))}), {best.tokens_per_s:,.0f} tokens/s"
    )
    if best.peak_flops is not None and (utilisation := best.mfu(best.peak_flops)) is not None:
        line += f", {100 * utilisation:.0f} % of the peak (MFU)"
    if best.usd_per_token is not None:
        line += f", {1e6 * best.usd_per_token:.2g} dollars per million tokens"
    if question.tokens is not None:
        days = question.tokens / best.tokens_per_s / DAY_S
        ends = (_days(days * end) for end in (best.range.low, best.range.high))
        line += f"; {_count(question.tokens)} tokens take {_days(days)} days ({_between(*ends)})"
        if best.usd_per_token is not None:
            usd = question.tokens * best.usd_per_token
            low, high = (in_money(usd * end, best) for end in (best.range.low, best.range.high))
            line += f" and {in_money(usd, best)} dollars ({_between(low, high)})"
    return line + "."


def _whose_price(cluster: Cluster) -> Iterator[str]:
    """What a machine costs, and where its price is a recorded one from when it is."""
    usd = cluster.usd_per_hour
    if usd is None:
        return
    line = f"Money is at {usd:g} dollars an hour for a {cluster.name}"
    for price in recorded_prices(cluster.name):
        if price.usd_per_hour == usd:
            line += f", {price.service}'s price {price.kind} of {price.date} ({price.region})"
            break
    yield f"{line}."


def _what_trains(question: Question) -> Iterator[str]:
    """What is not as with all of a model and AdamW."""
    if question.adapters is not None:
        bits = "in 4 bits (NF4)" if question.adapters.quantize else f"in {question.precision}"
        yield (
            f"Adapters of rank {question.adapters.rank} train beside the blocks' matrices; the "
            f"model is frozen, and these are {bits}."
        )
    if question.optimizer != "adamw":
        yield f"The optimizer is {question.optimizer}."


def in_money(usd: float, choice: Choice) -> str:
    """Dollars to as many digits as a choice's range leaves."""
    money = rounded(usd, choice.range)
    return f"{money:,.0f}" if money >= 10 else f"{money:.2g}"


def _days(days: float) -> str:
    return f"{days:,.0f}" if days >= 100 else f"{days:.3g}"


def _between(low: str, high: str) -> str:
    return f"{low} to {high}"


def _where_time_goes(choice: Choice) -> str:
    total_s = choice.time.total_s
    shares = [(getattr(choice.time, name) / total_s, words) for name, words in PARTS]
    shown = [f"{100 * share:.0f} % {words}" for share, words in shares if share >= 0.005]
    return f"Of the step: {', '.join(shown)}."


def _where_memory_goes(choice: Choice) -> str:
    memory, has = choice.memory, choice.cluster.memory_bytes
    parts = [(size, name) for name, size in memory.by_category.items()]
    shown = [f"{size / GIB:.1f} {name}" for size, name in sorted(parts, reverse=True) if size > 1e8]
    most = f": {', '.join(shown)}; the rest is" if shown else ", most of it"
    return (
        f"It needs {memory.total / GIB:.1f} of {has / GIB:.1f} GiB on the fullest rank{most} the "
        "allocator's and the libraries'."
        + (f" {memory.host / GIB:.1f} GiB of it are in host memory." if memory.host else "")
    )


def _why_context(choice: Choice) -> Iterator[str]:
    """What splitting rows over cp is for, and what the other ways of attention would do."""
    job, plan = choice.job, choice.plan
    if plan.cp == 1:
        return
    yield (
        f"Each row of {job.seq_len:,} tokens lies over {plan.cp} ranks, "
        f"{job.whole_seq_len // plan.cp:,} on each; attention by {plan.cp_attention} sees them all."
    )
    others = [way for way in ways(job.shape, plan.tp, plan.cp) if way != plan.cp_attention]
    cases = [(f"With {way} it", replace(plan, cp_attention=way)) for way in others]
    data_ranks = plan.dp * plan.cp
    if data_ranks > job.batch:
        samples = "sample" if job.batch == 1 else "samples"
        yield f"Without cp there would be {data_ranks} data ranks for {job.batch} {samples}."
    else:
        without = replace(plan, cp=1, dp_shard=plan.shards, cp_attention="ring")
        cases.append(("With whole rows it", without))
    yield from _instead(choice, cases)


def _why_savers(choice: Choice) -> Iterator[str]:
    """For each memory saver of the plan: what would be needed without it."""
    plan, alike = choice.plan, replace(choice.plan, ep=1)
    without: list[tuple[str, ParallelPlan]] = []
    if plan.ep > 1:
        without.append(("With experts gathered, and not tokens,", alike))
    if plan.dp_shard > 1 and plan.cp == 1:
        whole = replace(alike, dp_replicate=plan.dp, dp_shard=1)
        without.append((f"Without sharding the state over {plan.dp_shard} ranks", whole))
    if plan.zero > 1:
        less = replace(alike, zero_stage=plan.zero_stage - 1)
        without.append((f"With ZeRO-{plan.zero_stage - 1}", less))
    if plan.offload:
        without.append(("Without offloading", replace(plan, offload=False)))
    elif plan.activation != "none":
        without.append(("Without recomputation", replace(plan, activation="none")))
    if plan.sequence_parallel:
        without.append(("Without sequence parallelism", replace(plan, sequence_parallel=False)))
    yield from _instead(choice, [(f"{words} it", other) for words, other in without])


def _instead(choice: Choice, others: list[tuple[str, ParallelPlan]]) -> Iterator[str]:
    """What other plans would need, or take."""
    for words, other in others:
        changed = choice.job.under(other)
        memory = fullest(changed, context_bytes=choice.cluster.context_bytes)
        if memory.total > choice.cluster.memory_bytes:
            yield f"{words} would need {memory.total / GIB:.1f} GiB."
        elif not fits(memory, choice.cluster):
            yield f"{words} would need {memory.host / GIB:.1f} GiB of host memory a rank."
        else:
            total_s = step_time(changed, choice.cluster, "quick").total_s
            own_s = step_time(choice.job, choice.cluster, "quick").total_s
            yield f"{words} would fit, and take {_more(total_s / own_s)}."


def _why_not(result: SearchResult) -> Iterator[str]:
    """The best plans of other degrees, and where they lose."""
    best = result.best
    for place, other in enumerate(result.choices[1:3]):
        slower = other.time.total_s / other.job.batch / (best.time.total_s / best.job.batch)
        worst, words = max(
            (getattr(other.time, name) - getattr(best.time, name), words) for name, words in PARTS
        )
        lead = "Next best" if place == 0 else "Then"
        line = f"{lead}: {describe(other)}, {_more(slower)}"
        if worst > 0.001 * best.time.total_s:
            line += f", most of it {words} ({_seconds(worst)} more)"
        yield line + "."


def _ruled_out(result: SearchResult) -> str:
    counts = sorted(result.ruled_out.items(), key=lambda item: -item[1])
    reasons = [f"{count:,} {_plural(reason) if count > 1 else reason}" for reason, count in counts]
    return f"Looked at the memory of {result.tried:,} plans. " + (
        f"Ruled out: {'; '.join(reasons)}." if reasons else "Nothing was ruled out."
    )


def _plural(reason: str) -> str:
    """Of several plans, what is said of one."""
    return reason.replace("does not", "do not")


def _count(number: float) -> str:
    """A large number in words: 2 trillion."""
    for size, word in ((1e12, "trillion"), (1e9, "billion"), (1e6, "million")):
        if number >= size:
            return f"{number / size:,.4g} {word}"
    return f"{number:,.0f}"


def _what_would_change(result: SearchResult) -> Iterator[str]:
    """The same question with one thing other: is the answer another plan, and how fast?"""
    question, best = result.question, result.best
    cluster = best.cluster
    cases = [
        ("a network twice as fast", _faster_network(cluster), question.batch),
        (
            "twice the memory",
            replace(cluster, memory_bytes=2 * cluster.memory_bytes),
            question.batch,
        ),
        (
            "half the memory",
            replace(cluster, memory_bytes=cluster.memory_bytes // 2),
            question.batch,
        ),
        ("a batch twice as large", cluster, 2 * question.batch),
    ]
    for words, other_cluster, batch in cases:
        try:
            other = _ask(question, other_cluster, batch).best
        except UserError as error:
            yield f"With {words}: {error}."
            continue
        faster = other.tokens_per_s / best.tokens_per_s
        change = f"{100 * (faster - 1):+.0f} % tokens/s"
        layout = in_words(other.job)
        same = layout == in_words(best.job)
        yield f"With {words}: {change}, {'the same layout' if same else layout}."


def _ask(question: Question, cluster: Cluster, batch: int) -> SearchResult:
    return search_plans(
        question.shape,
        cluster,
        batch,
        question.seq_len,
        question.precision,
        adapters=question.adapters,
        optimizer=question.optimizer,
    )


def _faster_network(cluster: Cluster) -> Cluster:
    out = replace(cluster.inter, bytes_per_s=2 * cluster.inter.bytes_per_s)
    return replace(cluster, inter=out)


def _seconds(seconds: float) -> str:
    return f"{1000 * seconds:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"


def _more(ratio: float) -> str:
    if ratio < 0.995:
        return f"{100 * (1 - ratio):.1f} % less time"
    return f"{100 * (ratio - 1):.1f} % more time"
