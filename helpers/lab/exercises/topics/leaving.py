"""How the answers about leaving the closed service are judged."""

from typing import Any

from helpers.lab.exercises.judges import Expected, Result, judge_function, judge_numbers, kind_of

TRUE, FALSE = ("True", "true", "TRUE", "1"), ("False", "false", "FALSE", "0")
WORDS = dict.fromkeys(TRUE, True) | dict.fromkeys(FALSE, False)
OTHERS = ("maybe", "", "Falsch", "2", "yes!")
REFUSED = object()
NODES, GPUS, TP, PP, BATCH = 2, 8, 4, 2, 6
HEAD = "from argparse import ArgumentParser\nparser = ArgumentParser()\n"
SCRIPTS = {  # what stands below HEAD, with the arguments that are declared and never read
    "parser.add_argument('--lr')\nparser.add_argument('--steps')\n"
    "args = parser.parse_args()\nprint(args.lr)\n": {"steps"},
    "parser.add_argument('--lr')\nargs = parser.parse_args()\nprint(args.lr)\n": set(),
    "parser.add_argument('--grad-clip')\na = parser.parse_args()\nprint(a.grad_clip)\n": set(),
    "parser.add_argument('--lr')\n# args.lr is read below\nprint('args.lr')\n": {"lr"},
    "parser.add_argument('--lr')\nargs = parser.parse_args()\nargs.lr = 1\n": {"lr"},
    "parser.add_argument('-s', '--steps')\nparser.add_argument('--seed')\n"
    "x = parser.parse_args()\nprint(x.seed)\n": {"steps"},
}


def words_for_flags(answer: Any) -> Result:
    """10a: yes(word): a flag's word as True or False, and a ValueError for any other."""

    def tried(word: str) -> Any:
        try:
            return answer(word)
        except ValueError:
            return REFUSED

    def look(found: Any, word: str) -> str:
        if found is WORDS.get(word, REFUSED):
            return ""
        if found is REFUSED:
            return f"{word!r} is refused."
        neither = "" if word in WORDS else " neither, and is"
        return f"{word!r} is{neither} read as {found!r:.60}."

    praise = "A word that is neither ends in one line, before anything is trained."
    function = tried if callable(answer) else answer
    return judge_function(function, [(word,) for word in (*WORDS, *OTHERS)], look, praise)


def whose_batch(answer: Any) -> Result:
    """10b: {data_ranks, prescaled, not_prescaled}: samples of a step under both meanings of a
    batch, as sagemaker-python-sdk v2.199.0, smd_model_parallel_general.rst, has them."""
    data_ranks = NODES * GPUS // TP // PP
    expected = {
        "data_ranks": Expected(data_ranks),
        "prescaled": Expected(BATCH * data_ranks),
        "not_prescaled": Expected(BATCH * data_ranks * TP),
    }
    praise = "The library's data ranks count the tensor ranks; this engine's do not."
    return judge_numbers("10b whose batch", answer, expected, praise)


def never_read(answer: Any) -> Result:
    """10c: never_read(source): arguments that a script declares and never reads."""
    praise = "The pipeline job sets activation_checkpointing, which its script never reads."
    return judge_function(answer, [(HEAD + script,) for script in SCRIPTS], _look, praise)


def _look(found: Any, source: str) -> str:
    if not isinstance(found, (set, frozenset, list, tuple)):
        return f"A set of names is wanted, not {kind_of(found)}."
    if strange := [one for one in found if not isinstance(one, str)]:
        return f"A set of names is wanted, and {kind_of(strange[0])} is none."
    right = SCRIPTS[source.removeprefix(HEAD)]
    if extra := sorted(set(found) - right):
        return f"{extra[0]!r:.60} is no argument that this script never reads:\n{source}"
    missing = sorted(right - set(found))
    return f"{missing[0]!r} is missing, of this script:\n{source}" if missing else ""
