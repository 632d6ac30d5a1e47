"""The grammar of the bundled corpus: invented sentences about invented films, with a label.

A template holds slots. `s...` is filled with praise for label 1 and blame for label 0 (the same
sense as the label), `o...` with the opposite, everything else with words that say nothing about
the label. Every template serves both labels, so none of its own words gives the label away; and in
contrast and negation the words alone mislead, so a count of words cannot score full marks.
"""

import json
import random
from pathlib import Path
from types import SimpleNamespace

# pairs are praise first, blame second; aspects are a noun and its verb
words = SimpleNamespace(
    **json.loads(Path(__file__).with_name("review_words.json").read_text("utf-8"))
)

# Slots: {a1} "the plot", {n1} "plot", {is1} "is"; {s1} {o1} an adjective for it; {sg} {og} one for
# the whole film; {sp} one for a person; {sv} {ov} a verdict; {sw} what a viewer did; {oo} an
# opening; {m1} {m2} shared words; {an_...} the same behind its article; and neutral matter.
PLAIN = (
    "{a1} {is1} {s1}.",
    "{a1} {is1} {s1} {tail}.",
    "{a1} of {title} {is1} {s1}.",
    "{a1} {is1} {s1} and {a2} {is2} {s2}.",
    "{a1} {is1} {m1} and {s1}.",
    "{a1} {is1} {m1}, {m2} and {s1} {tail}.",
    "{film} {sv}.",
    "{film} {sv}, and {a1} {is1} {s1}.",
    "{hedge} {film} {sv}.",
    "{hedge} {a1} {is1} {s1}.",
    "{hedge} {a1} {is1} {s1}, and {film} {sv}.",
    "{title}, {an_m1} {genre} {topic}, {sv}.",
    "this {m1} {genre} {topic} {sv}.",
    "{an_m1} {genre} {topic}, and {a1} {is1} {s1}.",
    "{an_sg} {genre} {topic}.",
    "{person}'s {genre} {topic} {sv}.",
    "{person} plays the {role}, and {a1} {is1} {s1}.",
    "as the {role}, {person} is {sp}, and {film} {sv}.",
    "{sw}, and {a1} {is1} {s1}.",
    "{a1} {is1} so {s1} that {sw}.",
    "I saw it {occasion}, and {sw}.",
    "I saw {title} {occasion}: {a1} {is1} {s1}.",
    "shot in {place} {occasion}, {film} {sv}.",
    "with its {s1} {n1} and {s2} {n2}, {film} {sv}.",
)
CONTRAST = (
    "{oo}, but {a1} {is1} {s1}.",
    "{oo}, but {film} {sv}.",
    "{oo}, yet {a1} {is1} {s1} and {a2} {is2} {s2}.",
    "{a1} {is1} {o1}, but {film} {sv}.",
    "{a1} {is1} {o1}, but {a2} {is2} {s2} and {film} {sv}.",
    "although {a1} {is1} {o1}, {film} {sv}.",
    "although {a1} {is1} {o1} and {a2} {is2} {o2}, {film} {sv}.",
    "{film} {sv}, even though {a1} {is1} {o1}.",
    "{film} {sv}, although {a1} {is1} {o1} {tail}.",
    "despite its {o1} {n1}, {film} {sv}.",
    "{film} {sv}, despite its {o1} {n1} and {o2} {n2}.",
    "{a1} may be {o1}, yet {sw}.",
    "I expected something {og}, but what I saw was {sg}.",
    "I expected {a1} to be {o1}, but {sw}.",
    "what begins as {an_og} {genre} turns into {an_sg} one.",
    "{a1} {is1} {m1} and even {o1}, but {film} {sv}.",
    "{person} is {sp} as the {role}, although {a1} {is1} {o1}.",
)
NEGATION = (
    "{a1} {is1} never {o1}.",
    "{a1} {is1} not {o1} at all.",
    "{a1} {is1} anything but {o1}.",
    "there is nothing {o1} about {a1}.",
    "there is nothing {o1} about {a1}, and {a2} {is2} never {o2}.",
    "I never found {a1} {o1}.",
    "nobody could call {a1} {o1}.",
    "{a1} {is1} not {o1}, nor {is2} {a2} {o2}.",
    "{film} never {ov}.",
    "{hedge} {film} never {ov}.",
    "do not believe those who call {a1} {o1}.",
    "{a1} {is1} {m1}, but never {o1}.",
    "{a1} {is1} far from {o1} {tail}.",
    "not once {is1} {a1} {o1}.",
)
# Never in the training file, yet made of words that are.
HELD_OUT_ONLY = (
    "{a1} {is1} {s1}, and so {is2} {a2}.",
    "nothing about {a1} is {o1}.",
    "even if {a1} {is1} {o1}, {film} {sv}.",
    "{a1} {is1} {o1} at the start, but never after that.",
)
SHARES = ((PLAIN, 0.68), (CONTRAST, 0.18), (NEGATION, 0.14))

NOUNS = [noun for nouns in words.ASPECTS.values() for noun, _ in nouns]

Row = tuple[str, int]


class Chooser:
    """Choices that are the same on every platform and Python: only random() promises that."""

    def __init__(self, seed: int):
        self.random = random.Random(seed).random

    def one(self, items):
        """One of a sequence, or one word of a string of words."""
        items = items.split() if isinstance(items, str) else items
        return items[int(self.random() * len(items))]

    def adjective(self, kind: str, noun: str, label: int, reserved: bool, taken: list[str]) -> str:
        """Praise for label 1, blame for 0; the kind's own words twice as often as general ones."""
        found = [
            word
            for name in (kind, kind, "any")
            for word in words.ADJECTIVES[name][1 - label].split()
            if is_reserved(noun, name, label, word) == reserved and word not in taken
        ]
        return self.one(found)


def is_reserved(noun: str, kind: str, label: int, word: str) -> bool:
    """One pair of aspect and adjective in eight never meets in the training file."""
    place = words.ADJECTIVES[kind][1 - label].split().index(word)
    return (NOUNS.index(noun) + place) % 8 == 0


def sentence(choose: Chooser, template: str, label: int, reserved: bool) -> str:
    """Fill `template` for `label`, with reserved pairs of aspect and adjective or without any."""
    slots = {
        **aspect_slots(choose, label, reserved),
        **feeling_slots(choose, label),
        **neutral_slots(choose),
    }
    slots |= {f"an_{name}": with_article(slots[name]) for name in ("m1", "sg", "og")}
    text = template.format(**slots)
    return text[0].upper() + text[1:]


def aspect_slots(choose: Chooser, label: int, reserved: bool) -> dict[str, str]:
    slots: dict[str, str] = {}
    taken: list[str] = []
    for number in "12":
        kind = choose.one([kind for kind, nouns in words.ASPECTS.items() for _ in nouns])
        noun, verb = choose.one([pair for pair in words.ASPECTS[kind] if pair[0] not in taken])
        same = choose.adjective(kind, noun, label, reserved, taken)
        other = choose.adjective(kind, noun, 1 - label, reserved, taken)
        taken += [noun, same, other]
        slots |= {f"n{number}": noun, f"a{number}": f"the {noun}", f"is{number}": verb}
        slots |= {f"s{number}": same, f"o{number}": other}
    return slots


def feeling_slots(choose: Chooser, label: int) -> dict[str, str]:
    return {
        "sg": choose.one(words.ADJECTIVES["any"][1 - label]),
        "og": choose.one(words.ADJECTIVES["any"][label]),
        "sp": choose.one(words.ADJECTIVES["people"][1 - label]),
        "sv": choose.one(words.VERDICTS[1 - label]),
        "ov": choose.one(words.VERDICTS[label]),
        "sw": choose.one(words.VIEWERS[1 - label]),
        "oo": choose.one(words.OPENINGS[label]),
    }


def neutral_slots(choose: Chooser) -> dict[str, str]:
    first = choose.one(words.SHARED)
    genre = choose.one(words.GENRES)
    title = f"{choose.one(words.TITLE_FIRST)} {choose.one(words.TITLE_LAST)}"
    return {
        "m1": first,
        "m2": choose.one([word for word in words.SHARED.split() if word != first]),
        "hedge": choose.one(words.HEDGES),
        "tail": choose.one(words.TAILS),
        "genre": genre,
        "topic": choose.one(words.TOPICS),
        "place": choose.one(words.PLACES),
        "occasion": choose.one(words.OCCASIONS),
        "person": f"{choose.one(words.FIRST_NAMES)} {choose.one(words.LAST_NAMES)}",
        "role": choose.one(words.ROLES),
        "title": title,
        "film": choose.one(("the film", "this film", "it", f"the {genre}", title, title)),
    }


def with_article(word: str) -> str:
    return f"{'an' if word[0] in 'aeiou' else 'a'} {word}"


def training_template(choose: Chooser) -> str:
    mark = choose.random()
    for templates, share in SHARES:
        if mark < share:
            return choose.one(templates)
        mark -= share
    return choose.one(SHARES[-1][0])


def make_rows(seed: int, train_rows: int, held_out_rows: int) -> tuple[list[Row], list[Row]]:
    """The rows of both files: no sentence stands twice, labels are half and half.

    Of the held-out sentences, one in ten has a template that training never shows, and half use
    only pairs of aspect and adjective that training never shows.
    """
    choose = Chooser(seed)
    seen: set[str] = set()

    def add(rows: list[Row], template: str, reserved: bool) -> None:
        label = len(rows) % 2
        text = sentence(choose, template, label, reserved)
        if text not in seen:
            seen.add(text)
            rows.append((text, label))

    train: list[Row] = []
    while len(train) < train_rows:
        add(train, training_template(choose), reserved=False)
    held_out: list[Row] = []
    while len(held_out) < held_out_rows:
        pair = len(held_out) // 2  # one row of each label
        new = choose.one(HELD_OUT_ONLY) if pair % 10 == 0 else training_template(choose)
        add(held_out, new, reserved=pair % 2 == 0)
    return shuffled(choose, train), shuffled(choose, held_out)


def shuffled(choose: Chooser, rows: list[Row]) -> list[Row]:
    return [row for _, row in sorted((choose.random(), row) for row in rows)]
