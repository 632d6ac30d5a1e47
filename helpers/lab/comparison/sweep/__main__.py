"""A sweep from a shell, with the script's own flags after `--`.

    python -m helpers.lab.comparison.sweep helpers.train --space lr=log:1e-4:1e-2 --trials 12 \\
        --nproc 2 --out runs/sweep -- --steps 60 --tp 2

Exit codes: 0 done; 1 a trial failed at once; 2 an argument is wrong, in one line.
"""

import sys

from helpers.commands import Parser, say
from helpers.engine.errors import UserError
from helpers.lab.comparison.sweep.space import from_words
from helpers.lab.comparison.sweep.sweep import DIRECTIONS, OBJECTIVES, SAMPLERS, sweep
from helpers.lab.launch.flags import from_words as flags_of
from helpers.lab.launch.warm.ranks import Ranks
from helpers.lab.paths import shown
from helpers.lab.runs.failure_report import RunFailed


def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    at = argv.index("--") if "--" in argv else len(argv)
    parser = Parser(
        prog="python -m helpers.lab.comparison.sweep",
        description="Try settings, one run after another.",
    )
    add = parser.add_argument
    add("script", help="a script, or a module such as helpers.train")
    add(
        "--space",
        action="append",
        required=True,
        help="lr=log:1e-4:1e-2, warmup=0:10, optimizer=a,b",
    )
    add("--trials", type=int, required=True)
    add("--sampler", choices=SAMPLERS, default="tpe")
    add("--halving", action="store_true", help="stop trials that are behind")
    add("--objective", choices=OBJECTIVES, default="final_loss")
    add("--direction", choices=DIRECTIONS, default="minimize")
    add("--seed", type=int, default=0)
    add("--nproc", type=int, default=1, help="ranks of each run")
    add("--price-per-hour", type=float, help="dollars for the machine")
    add("--out", help="the sweep's folder; that of a killed sweep goes on with it")
    args = vars(parser.parse_args(argv[:at]))
    try:
        pairs = list(map(from_words, args.pop("space")))
        space = dict(pairs)
        if len(space) < len(pairs):
            raise UserError("--space names a flag twice: give all that may be tried at once")
        flags = flags_of(argv[at + 1 :])
        if taken := sorted(flags.keys() & {*args, "ranks", "show"}):
            raise UserError(f"--{taken[0]} is of the sweep: give it before the --")
        ranks = Ranks(args["nproc"]) if args["nproc"] > 0 else None
        found = sweep(args.pop("script"), space, ranks=ranks, **args, **flags)
    except UserError as error:
        parser.error(str(error))
    except RunFailed as failure:
        print(f"error: {failure.message}", file=sys.stderr)
        return 1
    say(found.table.to_string())
    say(f"{found.sentence} {shown(found.folder)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
