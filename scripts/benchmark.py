"""What this engine and its alternatives reach on the same cores, weights, batches and optimizer.

    python scripts/benchmark.py tp                  # tensor parallelism, GPT-J and GPT-NeoX
    python scripts/benchmark.py fsdp                # DDP, ZeRO-1, 2, 3, GPT-NeoX
    python scripts/benchmark.py pipeline            # schedules on two stages, GPT-J
    python scripts/benchmark.py memory              # bytes by layout and by what is recomputed
    python scripts/benchmark.py qlora               # adapters on 4 bits; naive split or pipeline
    python scripts/benchmark.py compile             # blocks compiled and not, GPT-2 of 6 x 384
    python scripts/benchmark.py bf16                # layouts in bf16, and what they reach, GPT-NeoX
    python scripts/benchmark.py two-nodes           # FSDP and HSDP over a link of --mbit, GPT-NeoX
    python scripts/benchmark.py plan                # the planner's pick among all layouts, 4 ranks
    python scripts/benchmark.py long                # context parallelism by length, Llama, 2 x 256
    python scripts/benchmark.py messages            # gloo and shared memory, by size, 2 to 8 ranks
    python scripts/benchmark.py packed              # documents one by one, and a mask of the row
    python scripts/benchmark.py experts             # a mixture under tp, ZeRO-3 and ep
    python scripts/benchmark.py small-step          # where a step of tens of ms goes, by layout

Two processes of one thread each are held against one process with two threads. All peers stay alive
and take turns, so that what else the machine does meets all of them alike. The share of one process
is the median over steps of (one process's time / the peer's time), warm-up left out. Steps during
which other programs took more than a tenth of the cores are left out, and made up for to a limit.
CPU times say nothing of GPUs.
"""

import argparse
import dataclasses
import datetime
import json
import os
import platform
import shlex
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks import compare, registry, work
from benchmarks.studies import (
    compiling,
    experts,
    long_sequences,
    memory,
    messages,
    naive_split,
    packed,
    predicted,
    regret,
    small_step,
    two_nodes,
)

from helpers.engine.errors import UserError
from helpers.lab.launch.nodes.network_namespaces import Link
from helpers.lab.machine.installed_versions import installed_version
from helpers.planner.measure.calibrate import calibrate
from helpers.train.arguments import from_zero, positive, whole

SIZES = {"layers": 8, "hidden": 512, "heads": 8}
OTHER_SIZES = {
    "compile": {"layers": 6, "hidden": 384, "heads": 6},
    "plan": {"layers": 4, "hidden": 128, "heads": 4, "vocab": 2048, "seq": 256, "batch": 4},
    "long": {"layers": 2, "hidden": 256, "heads": 4, "vocab": 2048, "batch": 1},
    "small-step": {"layers": 4, "hidden": 128, "heads": 4, "vocab": 2048, "seq": 128, "batch": 4},
}
RANKS = 4  # of `plan`
PACKAGES = ("torch", "transformers", "accelerate", "deepspeed", "peft", "bitsandbytes")


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("benchmark", choices=sorted(registry.BENCHMARKS))
    parser.add_argument("--families", help="of gptj, neox, llama; separated by commas")
    parser.add_argument("--peers", help="names separated by commas; `one` is always there")
    parser.add_argument("--list", action="store_true", help="show the peers' names and stop")
    parser.add_argument("--rounds", type=whole, help="undisturbed rounds to time; default 8")
    parser.add_argument("--steps", type=whole, default=1, help="steps a peer takes in a round")
    for size in ("layers", "hidden", "heads"):
        parser.add_argument(f"--{size}", type=whole, help="8 of 512 with 8 heads; else for two")
    parser.add_argument(
        "--vocab", type=whole, help="default: 2048 for GPT-J and Falcon, 8192 for others"
    )
    parser.add_argument(
        "--batch",
        type=whole,
        help="rows of the batch; 16 for pipeline, 4 for two-nodes and plan, else 8",
    )
    parser.add_argument("--seq", type=whole, help="tokens of a row; 64 for two-nodes, else 256")
    parser.add_argument("--lengths", type=whole, nargs="+", help="tokens of a row, for long")
    parser.add_argument("--mbit", type=positive, default=400, help="of the link of two-nodes")
    parser.add_argument("--cores", type=whole, default=min(2, os.cpu_count() or 2))
    parser.add_argument("--patience", type=from_zero, default=30, help="s to wait for quiet cores")
    parser.add_argument(
        "--minutes", type=from_zero, default=10, help="after which no round is made up"
    )
    parser.add_argument("--quick", action="store_true", help="half the layers, three rounds")
    parser.add_argument("--page", type=Path, help="write the layouts of `plan` here as Markdown")
    parser.add_argument("--json", type=Path, help="write everything that was measured here")
    args = parser.parse_args(arguments)
    families = {"tp": "gptj,neox", "pipeline": "gptj", "compile": "gpt2", "qlora": "falcon"}
    families["plan"] = families["tp"]
    families["long"] = "llama"
    default = families.get(args.benchmark, "neox")
    sizes = OTHER_SIZES.get(args.benchmark, SIZES)
    for name, size in sizes.items():
        setattr(args, name, getattr(args, name) or size)
    args.families = _names(parser, "family", args.families or default, registry.FAMILIES)
    known = [peer.name for peer in registry.BENCHMARKS[args.benchmark]]
    args.peers = _names(parser, "peer", args.peers or ",".join(known), known)
    args.batch = args.batch or {"pipeline": 16, "two-nodes": 4}.get(args.benchmark, 8)
    args.seq = args.seq or (64 if args.benchmark == "two-nodes" else 256)
    args.lengths = args.lengths or [1024, 2048, 4096, 8192]
    args.rounds = args.rounds or (3 if args.quick or args.benchmark == "plan" else 8)
    if args.quick:
        args.layers = max(1, args.layers // 2)
    _check(parser, args)
    return args


def _check(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Sizes that make a model of every family; files in folders that are there."""
    if args.hidden % args.heads or args.hidden // args.heads % 2:
        parser.error(f"--heads {args.heads} must share --hidden {args.hidden} in even numbers")
    if args.heads % 2 and args.benchmark in ("tp", "plan"):
        parser.error(f"--heads {args.heads}: two ranks share the heads, so give an even number")
    for path in (args.page, args.json):
        if path is not None and not path.parent.is_dir():
            parser.error(f"there is no folder {path.parent} to write {path.name} in")


def _names(parser: argparse.ArgumentParser, what: str, given: str, known: Sequence[str]) -> set:
    """Names from a list with commas; exit code 2 where one is not known."""
    names = [name for name in given.split(",") if name]
    for name in names:
        if name not in known:
            parser.error(f"no {what} {name!r}; there are: {', '.join(known)}")
    return set(names)


def chosen(args: argparse.Namespace, family: str) -> list[registry.Peer]:
    """The benchmark's peers for a family, in the registry's order, one process always first."""
    peers = [peer for peer in registry.BENCHMARKS[args.benchmark] if family in peer.families]
    return [peer for peer in peers if peer.name in args.peers or peer.name == "one"]


def run(args: argparse.Namespace, family: str) -> dict[str, Any]:
    """One family's table, printed, and its data."""
    peers = chosen(args, family)
    rounds = compare.Rounds(args.rounds, args.steps, args.patience, 60 * args.minutes)
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        one = work.Work(
            family=family,
            layers=args.layers,
            hidden=args.hidden,
            heads=args.heads,
            vocab=args.vocab or (2048 if family in ("gptj", "falcon") else 8192),
            batch=args.batch,
            seq=args.seq,
            steps=rounds.most_steps,
            folder=folder,
        )
        parameters = work.write(one)
        size = f"{parameters / 1e6:.1f}M parameters, {one.layers} layers of {one.hidden}"
        if args.benchmark == "qlora":
            size += f", {work.write_adapters(one):,} trained"
        print(
            f"\n{family}: {size}, {one.vocab} tokens, batch {one.batch} × {one.seq}\n", flush=True
        )
        if args.benchmark == "plan":
            return {"work": one.to_dict() | {"parameters": parameters}} | _plans(args, one)
        if args.benchmark == "long":
            return {"work": one.to_dict()} | _long(args, one, peers, rounds)
        if args.benchmark == "memory":
            rows = memory.measure(peers, one, args.cores, steps=2, say=say)
            print(memory.table(rows))
            found = [memory.to_dict(row) for row in rows]
        elif args.benchmark == "two-nodes":
            rows = two_nodes.measure(peers, one, args.cores, rounds, say, Link(args.mbit))
            print(two_nodes.table(rows, one))
            found = [two_nodes.to_dict(row, one) for row in rows]
        else:
            rows = compare.compare(peers, one, args.cores, rounds, say)
            print(compare.table(rows))
            more = {
                "pipeline": predicted.table,
                "compile": compiling.table,
                "qlora": partial(naive_split.table, cores=args.cores),
            }
            if args.benchmark in more:
                print(f"\n{more[args.benchmark](rows)}")
            found = [compare.to_dict(row) for row in rows]
    return {"work": one.to_dict() | {"parameters": parameters}, "rows": found}


def _long(
    args: argparse.Namespace, one: work.Work, peers: list[registry.Peer], rounds: compare.Rounds
) -> dict[str, Any]:
    """The peers at each length, printed, and its data; each length has a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="lengths-") as folder:
        works = []
        for length in args.lengths:
            path = Path(folder) / str(length)
            path.mkdir()
            works.append(dataclasses.replace(one, seq=length, folder=str(path)))
            work.write(works[-1])
        found = long_sequences.measure(peers, works, args.cores, rounds, say)
    print(long_sequences.table(found))
    return {"rows": long_sequences.to_dict(found)}


def _plans(args: argparse.Namespace, one: work.Work) -> dict[str, Any]:
    """Every layout of one family, printed, and its data."""
    with tempfile.TemporaryDirectory(prefix="calibrated-") as folder:
        cluster = calibrate(Path(folder) / "machine.json", RANKS)
    found = regret.measure(one, cluster, args.cores, args.rounds, say)
    section = regret.section(
        found, f"{one.family}, {one.layers} layers of {one.hidden}, batch {one.batch} × {one.seq}"
    )
    print(section)
    return {"cluster": dataclasses.asdict(cluster), "section": section, **regret.to_dict(found)}


def _alone(study: ModuleType, given: Any) -> dict[str, Any]:
    """A study's table, printed, and its data."""
    rows = study.measure(given)
    print(study.table(rows))
    return {"rows": rows}


def _small_step(args: argparse.Namespace) -> dict[str, Any]:
    sizes = {
        "num_hidden_layers": args.layers,
        "hidden_size": args.hidden,
        "num_attention_heads": args.heads,
        "vocab_size": args.vocab,
    }
    found = small_step.measure(sizes, args.batch, args.seq, say)
    print(f"\ngptj: {args.layers} layers of {args.hidden}, batch {args.batch} × {args.seq}\n")
    print(small_step.table(found))
    return {"layouts": found}


def say(text: str) -> None:
    """Progress, out of the table's way."""
    print(text, file=sys.stderr, flush=True)


def versions() -> dict[str, str]:
    installed = {name: installed_version(name) or "not installed" for name in PACKAGES}
    return {"python": platform.python_version(), **installed}


def processor() -> str:
    """The processor's name as the system tells it."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def main() -> None:
    args = parse()
    if args.list:
        for peer in registry.BENCHMARKS[args.benchmark]:
            print(f"{peer.name:20} {peer.title.strip('*')}")
        return
    command = shlex.join(["python", "scripts/benchmark.py", *sys.argv[1:]])
    alone = {  # of no peers
        "messages": partial(_alone, messages, say),
        "packed": partial(_alone, packed, args.rounds),
        "experts": partial(_alone, experts, args.rounds),
        "small-step": partial(_small_step, args),
    }
    try:
        if args.benchmark in alone:
            results = [alone[args.benchmark]()]
        else:
            results = [run(args, name) for name in registry.FAMILIES if name in args.families]
    except UserError as error:
        sys.exit(f"error: {error}")
    record = {
        "benchmark": args.benchmark,
        "command": command,
        "date": datetime.date.today().isoformat(),
        "versions": versions(),
        "machine": {"processor": processor(), "cores": args.cores},
        "results": results,
    }
    print(f"\n{command}")
    print(", ".join(f"{name} {version}" for name, version in record["versions"].items()))
    print(f"{record['machine']['processor']}, {args.cores} cores")
    if args.page:
        args.page.write_text(regret.page(record), encoding="utf-8")
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(record, indent=1, default=dataclasses.asdict)
        args.json.write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
