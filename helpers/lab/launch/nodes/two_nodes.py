"""launch() on two nodes, from the shell.

    bash scripts/two_nodes --nproc 2 --mbit 400 scripts/train.py --dp-shard 4 --out runs/x

Exit codes: 0 done; 2 nothing was started, and why in one line; 1 it failed.
"""

import argparse
import sys
from collections.abc import Sequence

from helpers.commands import Parser
from helpers.engine.errors import UserError
from helpers.lab.launch.flags import from_words
from helpers.lab.launch.launch import launch
from helpers.lab.launch.nodes.network_namespaces import Link
from helpers.lab.runs.failure_report import RunFailed


def main(arguments: Sequence[str] | None = None) -> int:
    parser = Parser(prog="scripts/two_nodes", description="Start a script on two nodes.")
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
            **from_words(args.flags),
        )
    except UserError as error:
        parser.error(str(error))
    except RunFailed as error:
        print(error.message, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
