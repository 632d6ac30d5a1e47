"""What holds where a file is silent: its program's own values, and what its script decides."""

from helpers.configurations.facts import Facts
from helpers.configurations.keys import Key, defaults, judge
from helpers.train.arguments import parse

# what a run cannot do without, as helpers.train calls it
NEEDED = (
    "precision",
    "batch_size",
    "seq_len",
    "lr",
    "weight_decay",
    "clip",
    "lr_schedule",
    "warmup",
)
LENGTHS = ("steps", "epochs")  # one of them is enough


def fill(facts: Facts, program: str) -> list[str]:
    """Take the program's own values for what the file does not say.

    Returns:
        Those that the plan does not hold, each in words.
    """
    lost = []
    for row in defaults(program):
        name = row.to or row.key
        said = name in facts.said_by or name in facts.open or row.key in facts.keys
        if said or name in facts.silent or (row.where and row.where not in facts.keys):
            continue
        found = judge(row, row.default)
        if found.lost:
            lost.append(f"{row.key} is not said, and is {row.default} there: {found.words}")
        elif row.to:
            facts.values[name], facts.silent[name] = found.fact, _words(row)
    return lost


def _words(row: Key) -> str:
    return f"{row.key} = {row.default}" + (f" ({row.note})" if row.note else "")


def left_to_the_script(given: dict[str, object]) -> list[str]:
    """Flags that neither the file nor its program says, as helpers.train has them without."""
    own = vars(parse(["--out", "OUT"]))
    needed = NEEDED if any(given.get(name) for name in LENGTHS) else (*NEEDED, "epochs")
    names = [name for name in needed if given.get(name) is None]
    if "lr_schedule" not in names:  # which says of a warm-up, too, where there is one
        names = [name for name in names if name != "warmup"]
    return [f"--{name.replace('_', '-')} {own[name]}" for name in names]
