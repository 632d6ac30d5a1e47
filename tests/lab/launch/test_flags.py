"""A command line's words and a script's flags say the same, in both directions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.engine.errors import UserError
from helpers.lab.launch.flags import from_words, to_words

names = st.from_regex(r"[a-z]+(_[a-z]+){0,2}", fullmatch=True).filter(
    lambda name: not name.startswith("no_")
)


def is_plain(text: str) -> bool:
    """Whether a text is read neither as a flag nor as a number."""
    try:
        float(text)
    except ValueError:
        return not text.startswith("--")
    return False


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12).filter(is_plain)
numbers = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
values = st.booleans() | numbers | texts | st.lists(numbers | texts, min_size=2, max_size=3)


@given(st.dictionaries(names, values, max_size=5))
def test_flags_come_back_from_their_words(flags):
    assert from_words(to_words(flags)) == flags


@given(names, texts, st.lists(numbers | texts, max_size=2))
def test_a_text_that_would_be_a_flag_is_refused(name, text, others):
    for value in (f"--{text}", [*others, f"--{text}"]):
        with pytest.raises(UserError, match=f"^{name} has .*, which would be a flag of its own$"):
            to_words({name: value})


@given(names, st.dictionaries(names, values, max_size=3))
def test_an_empty_list_leaves_its_flag_out(name, others):
    assert to_words({**others, name: []}) == to_words({**others, name: None})


@given(st.dictionaries(names, st.lists(st.text().filter(is_plain), max_size=3), max_size=4))
def test_words_come_back_from_their_flags(given_words):
    words = [
        word
        for name, some in given_words.items()
        for word in (f"--{name.replace('_', '-')}", *some)
    ]
    assert to_words(from_words(words)) == words


def test_how_they_are_written():
    flags = {"batch_size": 8, "lr": 1e-3, "save": True, "tie": False, "at": [1, 2]}
    words = ["--batch-size", "8", "--lr", "0.001", "--save", "--no-tie", "--at", "1", "2"]
    assert to_words({**flags, "resume": None}) == words
    assert from_words(words) == flags


@pytest.mark.parametrize(
    ("words", "flags"),
    [
        ("--profile=3:6 --lr -1", {"profile": "3:6", "lr": -1}),
        ("--dp-shard 4 --dp-shard 2", {"dp_shard": 2}),
        ("--tag 007 --lr 1e-3 --mode nan", {"tag": "007", "lr": "1e-3", "mode": "nan"}),
        ("", {}),
    ],
)
def test_how_they_are_read(words, flags):
    assert from_words(words.split()) == flags
