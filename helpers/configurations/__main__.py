"""`python -m helpers.configurations FILE`: a table of its keys, the run, and the planner's answer.

Exit codes: 0 done; 2 an argument or the file is wrong, or it is refused, in one line (after the
table where the file could be read).
"""

import sys
from pathlib import Path

from helpers.commands import Parser, say
from helpers.configurations.reading import read_configuration, tools
from helpers.configurations.report import (
    give_sizes,
    given,
    gpus_of,
    planned,
    report,
    torchrun_line,
    write_config,
)
from helpers.engine.errors import UserError
from helpers.train.arguments import name, whole


def main(argv: list[str] | None = None) -> int:
    parser = Parser(prog="python -m helpers.configurations", description=__doc__)
    add = parser.add_argument
    add("file", type=Path, help=".toml, .yaml, .json, or a script or list of flags (.sh, .txt)")
    add("--ranks", type=whole, help="of the whole job; those of --on without it")
    add("--program", choices=[tool.name for tool in tools()], help="whose file it is")
    add("--model", type=name, help="preset, folder or hub id, in the place of the file's")
    add("--write-config", type=Path, metavar="FOLDER", help="write the file's sizes, for --model")
    add("--batch-size", type=whole, help="samples of a step over all ranks, in place of the file's")
    add("--seq-len", type=whole, help="tokens of a sample, in the place of the file's")
    add("--on", type=name, metavar="INSTANCE", help="machines that the planner answers for")
    add("--nodes", type=whole, help="how many of them; the file's, else 1")
    args = parser.parse_args(argv)
    try:
        gpus = gpus_of(args.on) if args.on else None
        ranks = args.ranks or (gpus * args.nodes if gpus and args.nodes else None)
        found = read_configuration(given(args.file), ranks, args.program)
        if gpus and found.asked:
            found = read_configuration(args.file, gpus * (args.nodes or 1), args.program)
        found.nodes = args.nodes or found.nodes
        if gpus and found.plan is not None:
            found.nodes = found.nodes or max(1, found.plan.world_size // gpus)
        if found.plan is not None:
            give_sizes(found, args.batch_size, args.seq_len)
            torchrun_line(found, args.model)
        model = args.model
        if args.write_config is not None:
            model = write_config(found, args.write_config)
        say(report(found, model))
        if found.plan is None:
            parser.error(found.refused)
        if gpus:
            say(planned(found, args.on, found.nodes or 1, model))
    except UserError as error:
        parser.error(str(error))
    return 0


if __name__ == "__main__":
    sys.exit(main())
