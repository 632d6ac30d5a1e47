"""launch() on two nodes, from the shell.

    bash scripts/two_nodes --nproc 2 --mbit 400 scripts/train.py --dp-shard 4 --out runs/x

Exit codes: 0 done; 2 nothing was started, and why in one line; 1 it failed.
"""

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from helpers.engine.errors import UserError
from helpers.lab.failures import RunFailed
from helpers.lab.launch import launch
from helpers.lab.network import Link


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/two_nodes", description="Start a script on two nodes."
    )
    add = parser.add_argument
    add("--nproc", type=int, default=1, help="ranks on each node")
    add("--max-restarts", type=int, default=0, help="of ranks that fail and agents that are killed")
    add("--mbit", type=float, help="10^6 bit/s of a link between two networks; else loopback")
    add("--delay-ms", type=float, default=0.0, help="of the link, one way; needs sch_netem")
    add("script")
    add("flags", nargs=argparse.REMAINDER, help="the script's own")
    args = parser.parse_args(arguments)
    if args.delay_ms and args.mbit is None:
        parser.error("--delay-ms is of a link: give its --mbit, too")
    try:
        link = None if args.mbit is None else Link(args.mbit, args.delay_ms)
        launch(
            args.script,
            nodes=2,
            nproc=args.nproc,
            max_restarts=args.max_restarts,
            link=link,
            **flags(args.flags),
        )
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except RunFailed as error:
        print(error.message, file=sys.stderr)
        return 1
    return 0


def flags(words: Sequence[str]) -> dict[str, Any]:
    """`launch`'s flags from a command line's: those without a value are switches.

    Raises:
        UserError: the first word is no flag.
    """
    found: dict[str, list[str]] = {}
    for word in words:
        if word.startswith("--"):
            name, given, value = word.removeprefix("--").partition("=")
            found[name] = [value] if given else []
        elif not found:
            raise UserError(f"{word!r} is no flag: flags begin with --")
        else:
            found[name].append(word)
    return {
        name: values if len(values) > 1 else (values or [True])[0] for name, values in found.items()
    }


if __name__ == "__main__":
    sys.exit(main())
