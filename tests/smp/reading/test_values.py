"""Values are worked out as Python itself does, or said not to be known; nothing is ever run."""

import ast
import string

from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.smp.reading.interpreter import Interpreter
from helpers.smp.reading.values import Unknown, is_known, unknown_in

NAMES = st.sampled_from("abcd")
WORDS = st.text(string.ascii_lowercase, min_size=1, max_size=4)
PLAIN = st.one_of(st.integers(-9, 99), st.booleans(), WORDS, st.none(), st.floats(0, 9, width=16))


@st.composite
def expressions(draw, depth=2):
    """Python text of an expression over the names a to d."""
    kind = draw(st.integers(0, 11 if depth else 1))
    inner = expressions(depth=depth - 1) if depth else st.nothing()
    if kind == 0:
        return repr(draw(PLAIN))
    if kind == 1:
        return draw(NAMES)
    if kind == 2:
        return f"[{draw(inner)}, {draw(inner)}]"
    if kind == 3:
        return f'{{"{draw(WORDS)}": {draw(inner)}, "{draw(WORDS)}": {draw(inner)}}}'
    if kind == 4:
        sign = draw(st.sampled_from(["+", "-", "*", "//", "==", "and", "or"]))
        return f"({draw(inner)} {sign} {draw(inner)})"
    if kind == 5:
        return f"({draw(inner)} if {draw(inner)} else {draw(inner)})"
    if kind == 6:
        return f'f"x{{{draw(NAMES)}}}y"'
    if kind == 7:
        return f"str({draw(inner)})"
    if kind == 8:
        return f"[one for one in ({draw(inner)}, 1) if one]"
    if kind == 9:
        return f"dict(k={draw(inner)}, l={draw(inner)})"
    if kind == 10:
        return f"[{draw(inner)}][0]"
    return f"(not {draw(inner)})"


@st.composite
def statements(draw, depth=2):
    kind = draw(st.integers(0, 6 if depth else 2))
    name, value = draw(NAMES), draw(expressions())
    if kind in (0, 1):
        return [f"{name} = {value}"]
    if kind == 2:
        return [f"held['{draw(WORDS)}'] = {value}"]
    block = draw(statements(depth=depth - 1))
    if kind == 3:
        other = draw(statements(depth=depth - 1))
        return [f"if {value}:", *_in(block), "else:", *_in(other)]
    if kind == 4:
        return [f"for {name} in (1, 2):", *_in(block)]
    if kind == 5:
        return [f"held.update({{'{draw(WORDS)}': {value}}})", *block]
    return ["def work(a, b=2, *c, **d):", *_in([*block, f"return {value}"]), f"{name} = work(3)"]


def _in(lines):
    return [f"    {line}" for line in lines]


def followed(text):
    return Interpreter(ast.parse(text)).walk().names


@given(st.lists(statements(), min_size=1, max_size=6))
@settings(max_examples=150, deadline=None)
def test_programs_come_to_what_python_makes_of_them(blocks):
    head = ["a, b, c, d = 1, 'w', [2], {'k': 3}", "held = {}"]
    text = "\n".join([*head, *(line for block in blocks for line in block)])
    real = {}
    try:
        exec(text, real)
    except Exception:  # a program that ends in an error has no last values
        return
    for name, value in followed(text).items():
        if name in ("a", "b", "c", "d", "held") and is_known(value):
            assert (type(value), value) in (
                (type(real[name]), real[name]),
                (type(value), real[name]),
            )


def test_most_values_of_such_programs_are_known():
    """A planted fault for the test above: to know nothing would pass it."""
    names = followed(
        "sizes = {'small': {'tp': 2}}\nh = {}\nfor k, v in sizes['small'].items():\n    h[k] = v\n"
        "if h['tp'] > 1:\n    h['name'] = f\"tp{h['tp']}\"\ncopy = {**h, 'x': dict(y=1)}\n"
        "def more(one, two=2):\n    return {'one': one, 'two': two}\nm = more(h['tp'])\n"
    )
    assert names["copy"] == {"tp": 2, "name": "tp2", "x": {"y": 1}}
    assert names["m"] == {"one": 2, "two": 2}


def test_what_the_file_does_not_say_is_asked_for_by_name():
    text = (
        "import os\nimport boto3\nregion = boto3.Session().region_name\n"
        "d = {'r': region, 'e': os.environ['DEGREE'], 'a': 1}\n"
        "if unknown_thing:\n    x = 1\nelse:\n    x = 2\ny = x\n"
    )
    names = followed(text)
    assert isinstance(names["d"]["e"], Unknown) and str(names["d"]["e"]) == "DEGREE"
    assert not is_known(names["d"]["r"]) and names["d"]["a"] == 1
    assert str(unknown_in(names["y"])) == "x"
    program = Interpreter(ast.parse(text), answers={"DEGREE": 4}).walk()
    assert program.names["d"]["e"] == 4 and "DEGREE" in program.wanted


def test_nothing_of_a_program_is_run(tmp_path):
    trap = tmp_path / "ran"
    text = (
        f"open({str(trap)!r}, 'w').close()\n__import__('os').system('touch {trap}')\n"
        f"eval(\"open({str(trap)!r}, 'w')\")\nclass A:\n    open({str(trap)!r}, 'w')\n"
    )
    followed(text)
    assert not trap.exists()


def test_programs_without_an_end_are_left_in_time():
    for text in (
        "while True:\n    x = 1\n",
        "def f(x):\n    return f(x) + f(x)\ny = f(1)\n",
        "x = 10 ** 10 ** 10\ny = 'a' * 10 ** 12\nz = [0] * 10 ** 12\n",
        "x = 'a'\nfor i in range(10 ** 9):\n    x = x + x\n",
        "for i in range(1000):\n  for j in range(1000):\n    for k in range(1000):\n      x = 1\n",
    ):
        names = followed(text)
        assert all(not isinstance(v, (str, list)) or len(v) < 20_000 for v in names.values())
