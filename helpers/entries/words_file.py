"""A command line that stands in a shell's script, as its flags with their values and lines.

Nothing is run: lines are joined where they end in \\, a variable that the script gives a text is
put in its place (`$LAYERS`, `${LAYERS:-24}`, `"${ARGS[@]}"`), and words that begin with -- are
flags. A script of Python is a key by its file's name. What echo prints is no flag, nor what cat
writes of the lines below it (`<<EOF`). What a program of the shell would work out, $(...), stays as
it stands, and so does a variable that is not given, or whose flags hold only where an `if` or a
`case` says so.
"""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from helpers.engine.errors import UserError
from helpers.entries.entry import Entry, checked, text_of

GIVEN = re.compile(
    r"(?:export\s+|local\s+|declare\s+(?:-\w+\s+)?)?([A-Za-z_]\w*)\+?=(.*)", re.DOTALL
)
UNLESS_GIVEN = re.compile(r':\s+"?\$\{([A-Za-z_]\w*):?=([^{}]*)\}"?')  # : "${LAYERS:=24}"
USED = re.compile(r"\$(?:\{([A-Za-z_]\w*)(?:\[[@*]\])?(?::?-([^{}$]*))?\}|([A-Za-z_]\w*))")
# flags that the script does not give: ${ARGS[@]}, $EXTRA_ARGS
MORE = re.compile(
    r"\$\{(?!\w*(?:PATH|BLEND))\w+\[[@*]\]\}|\$\{?\w*(ARGS|OPTS|OPTIONS|PARAMS|FLAGS)\}?$",
    re.IGNORECASE,
)
ARM = re.compile(r"\A\s*-[\w-]+(?:\s*\|\s*-[\w-]+)*\)")  # of a case: --layers) LAYERS=$2 ;;
# cat <<EOF, of which the lines up to EOF are text; those for another program may be commands
WRITES = re.compile(
    r"(?:^|[;&{]|\b(?:then|else|do)\b)[ \t]*(?:cat|tee|:)[ \t][^|]{0,200}?"
    r"(?<!<)<<-?[ \t]*(['\"]?)([A-Za-z_]\w*)\1[^|]*$"
)
DEEPEST, LONGEST = 6, 2**17
OPENS, CLOSES = ("if", "case", "for", "while", "until"), ("fi", "esac", "done")
# before an arm's first command, and where the case begins on the same line
LABEL = re.compile(r"\A\s*(?:case\s.*?\sin\s+)?\(?[^\s()$=]+(?:\s*\|\s*[^\s()$=]+)*\)\s+")
SOMETIMES = re.compile(r"\s*(?:if|elif|else|then|do|case|\[\[?|test)\s")
PART = re.compile(r";|&&|\|\||\b(?:then|else|do)\s")
SCRIPT = ".py"
PRINTS = ("echo", "printf")
BEGINS = ("then", "else", "do", "{", "(")  # after which a command begins
COMMAND_ENDS = ("|", "||", "&&", ";", "&", ">", ">>", "2>&1", "<", "<<")


def read_words(path: Path) -> list[Entry]:
    """The flags of all commands of a script; a flag without a value is True, one with several is
    their list. One that has two values, and a variable that has, stand as they are: which of them
    holds is for the shell to say.

    Raises:
        UserError: it cannot be read, or has no flags.
    """
    script = text_of(path)
    for text in (_without_written(script), script):  # one that only writes a job is that job
        found = _commands(path, text)
        if _flagged(found):
            return checked(path, list({(one.path, repr(one.value)): one for one in found}.values()))
    raise UserError(f"{path} has no command with flags")


def _commands(path: Path, script: str) -> list[Entry]:
    """The flags of all commands; where there are none, those that variables hold."""
    variables: dict[str, str] = {}
    open_ones: set[str] = set()
    found: list[Entry] = []
    depth = 0  # of the blocks that a condition opens
    for number, line in _joined(script):
        name, text = _given(line)
        if name:
            _set(variables, open_ones, line, name, text, depth > 0)
            continue
        found += _flags(path, _put(text, variables), number)
        sometimes = SOMETIMES.match(line) or LABEL.match(line)
        for part in PART.split(line) if sometimes else ():
            part = LABEL.sub("", part).strip()
            name, text = _given(part)
            if name:
                _set(variables, open_ones, part, name, text, True)
        first = [part.split()[0] for part in PART.split(line) if part.strip()]
        depth += sum((word in OPENS) - (word in CLOSES) for word in first)
    if not _flagged(found):  # a file that only says the arguments, as others take them in
        found += [one for text in variables.values() for one in _flags(path, text, 0)]
    return found


def _flagged(found: list[Entry]) -> bool:
    """Is there a flag among the names of scripts?"""
    return any(not one.path.endswith(SCRIPT) for one in found)


def _set(
    variables: dict[str, str], open_ones: set[str], line: str, name: str, text: str, sometimes: bool
) -> None:
    """Take a variable's text; forget one that is given two that do not build on each other, and one
    whose flags hold only under a condition."""
    if sometimes and (name in open_ones or re.search(r"(^|\s)--\w", _put(text, variables))):
        open_ones.add(name)
        variables[name] = f"${{{name}[@]}}"  # as flags that are not in the file
        return
    builds = any(name in used.groups() for used in USED.finditer(text))
    whole = _put(text, variables)
    if f"{name}+=" in line:
        whole = _short(f"{variables.get(name, '')} {whole}")
    elif name in open_ones or (not builds and variables.get(name, whole) != whole):
        open_ones.add(name)
        variables.pop(name, None)
        return
    variables[name] = whole


def _without_written(script: str) -> str:
    """With empty lines in place of those that cat and its like write."""
    kept, end = [], ""
    for line in script.splitlines():
        kept.append("" if end else line)
        if end:
            end = "" if line.strip() == end else end
        elif found := WRITES.search(line):
            end = found[2]
    return "\n".join(kept)


def _joined(script: str) -> Iterator[tuple[int, str]]:
    """Lines with those that go on in the next; an array's words are one line."""
    whole, start = "", 0
    for number, line in enumerate(script.splitlines(), start=1):
        line = re.sub(r"(^|\s)#.*", "", line).rstrip()
        start = start if whole else number
        whole = f"{whole} {line.removesuffix(chr(92))}" if whole else line.removesuffix(chr(92))
        found = GIVEN.fullmatch(whole.strip())
        text = found[2].strip() if found else ""
        inside = _open(text, "(", ")") or (text.startswith('"') and text.count('"') % 2)
        if line.endswith("\\") or inside:
            continue
        if whole.strip():
            yield start, whole.strip()
        whole = ""
    if whole.strip():
        yield start, whole.strip()


def _open(text: str, first: str, last: str) -> bool:
    return text.startswith(first) and text.count(first) > text.count(last)


def _given(line: str) -> tuple[str, str]:
    """A variable's name and text; no name where the line is a command."""
    found = UNLESS_GIVEN.fullmatch(line) or GIVEN.fullmatch(line)
    if not found:
        return "", line
    text = found[2].strip()
    bare = text[1:-1] if text[:1] + text[-1:] in ('""', "''", "()") else text
    if bare is text and re.search(r"\s--", text):  # NAME=value command --flag …
        return "", line
    return found[1], bare


def _put(text: str, variables: dict[str, str]) -> str:
    def value(found: re.Match[str]) -> str:
        name = found[1] or found[3]
        return variables.get(name, found[2] if found[2] is not None else found[0])

    for _ in range(DEEPEST):
        text, before = _short(USED.sub(value, text)), text
        if text == before:
            break
    return text


def _short(text: str) -> str:
    if len(text) > LONGEST:
        raise UserError(f"a command or a variable is longer than {LONGEST} characters")
    return text


def _flags(path: Path, text: str, line: int) -> Iterator[Entry]:
    flag, values = "", []
    for word in [*_spoken(_words(ARM.sub("", text))), "--"]:
        ends = word.startswith("--") or word.endswith(SCRIPT) or word in COMMAND_ENDS
        if ends or MORE.match(word):
            if flag:
                yield Entry(flag, _value(values), line)
            flag, values = "", []
        if MORE.match(word):
            yield Entry(word, True, line)
        elif word.startswith("--"):
            flag, equals, value = word.removeprefix("--").partition("=")
            values = [value] if equals else []
        elif word.endswith(SCRIPT):  # its name says what it trains, or that it trains nothing
            yield Entry(Path(word).name, word, line)
        elif flag:
            values.append(word)


def _words(text: str) -> list[str]:
    try:
        words = shlex.split(text)
    except ValueError:
        words = text.replace('"', " ").replace("'", " ").split()
    return [part for word in words for part in (word.split() if " --" in f" {word}" else [word])]


def _spoken(words: list[str]) -> Iterator[str]:
    """The words of commands, but for what is only printed."""
    first, printed = True, False
    for word in words:
        printed = word in PRINTS if first else printed
        first = word in (*COMMAND_ENDS, *BEGINS) or word.endswith(";")
        printed = printed and not first
        if not printed:
            yield word


def _value(words: list[str]) -> object:
    if not words:
        return True
    if words[0].startswith(("$(", "`")):  # what a program of the shell would work out
        return words[0] if words[0].startswith("$((") else f"$({' '.join(words)})"
    return words[0] if len(words) == 1 else words
