"""Over a thousand wrong inputs of train.py: each refused in one line, with nothing written.

The counts are printed.
"""

import contextlib
import io
import random
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from helpers.engine.errors import UserError
from helpers.train.arguments import parse
from helpers.train.job import prepare
from tests.train.inputs import bad_inputs

LIMIT_S = 20
SEED = 20
LEAST = {  # different inputs of each kind
    "flags": 400,
    "plans": 240,
    "names": 60,
    "configurations": 140,
    "rows": 120,
    "tokenizers": 65,
    "weights": 70,
}


@pytest.mark.parametrize("generator", bad_inputs.GENERATORS, ids=lambda each: each.__name__)
def test_each_is_refused_in_one_line(generator, tmp_path, monkeypatch, capsys):
    folder, out = tmp_path / "files", tmp_path / "out"
    folder.mkdir()
    monkeypatch.chdir(tmp_path)
    cases = list(generator(folder, random.Random(SEED)))
    assert len({tuple(arguments) for _, arguments in cases}) >= LEAST[generator.__name__]
    outcomes = [(name, outcome(arguments, out)) for name, arguments in cases]
    counts = Counter(what for _, what in outcomes)
    with capsys.disabled():
        print(f"\n{generator.__name__}: {len(outcomes)} inputs, {dict(counts)}")
    assert [(name, what) for name, what in outcomes if what != "refused"] == []


def outcome(arguments: list[str], out: Path) -> str:
    """What became of it, in a word, or in the words that are wrong."""
    said = io.StringIO()
    if not any(word.startswith("--out") for word in arguments):
        arguments = [*arguments, "--out", str(out)]
    signal.signal(signal.SIGALRM, _too_long)
    signal.alarm(LIMIT_S)
    began = time.monotonic()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
            prepare(parse(arguments))
        return "accepted"
    except UserError as error:
        lines, code = str(error).splitlines(), 2
    except SystemExit as left:
        lines, code = said.getvalue().splitlines(), left.code
    except Exception as error:
        return f"{type(error).__name__}: {error!s:.80}"
    finally:
        signal.alarm(0)
    if code != 2 or len(lines) != 1 or not lines[0].isprintable():
        return f"code {code}, {len(lines)} lines: {lines[:2]}"
    if out.exists():
        return "left files"
    return "refused" if time.monotonic() - began < LIMIT_S else "refused late"


def _too_long(*_: object) -> None:
    raise TimeoutError(f"not refused within {LIMIT_S} s")


def test_what_they_spoil_is_accepted(tmp_path):
    model = bad_inputs.saved(tmp_path / "model")
    for arguments in (bad_inputs.RUN, ["--steps", "2", "--model", str(model)]):
        assert outcome(arguments, tmp_path / "out") == "accepted"
