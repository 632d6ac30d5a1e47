"""The bundled instructions: small tasks about the invented reviews, each with its one answer.

A kind of task is some wordings and a function that makes an input and its answer. A wording with
{input} in it asks without a separate input.
"""

from collections.abc import Callable

import review_grammar as grammar
from review_grammar import Chooser, words

Record = dict[str, str]  # instruction, input, output


def review(choose: Chooser) -> tuple[str, int]:
    """A review of the same grammar as the corpus, and its label."""
    label = choose.one((0, 1))
    template = grammar.training_template(choose)
    return grammar.sentence(choose, template, label, reserved=False), label


def classify(choose: Chooser) -> tuple[str, str]:
    text, label = review(choose)
    return text, ("Blame.", "Praise.")[label]


def count(choose: Chooser) -> tuple[str, str]:
    text, _ = review(choose)
    return text, str(len(text.split()))


def some_words(choose: Chooser) -> list[str]:
    """Three to five different words."""
    found: list[str] = []
    for _ in range(choose.one((3, 4, 5))):
        found.append(choose.one([word for word in words.ROLES.split() if word not in found]))
    return found


def reverse(choose: Chooser) -> tuple[str, str]:
    found = some_words(choose)
    return " ".join(found), " ".join(reversed(found))


def sort(choose: Chooser) -> tuple[str, str]:
    found = some_words(choose)
    return " ".join(found), " ".join(sorted(found))


def title(choose: Chooser) -> str:
    return grammar.neutral_slots(choose)["title"]


def capitals(choose: Chooser) -> tuple[str, str]:
    found = title(choose)
    return found, found.upper()


def aspect(choose: Chooser) -> tuple[str, str, str, str]:
    """An aspect, its verb, an adjective for it and one of the opposite sense."""
    slots = grammar.aspect_slots(choose, choose.one((0, 1)), reserved=False)
    return slots["a1"], slots["is1"], slots["s1"], slots["o1"]


def find_title(choose: Chooser) -> tuple[str, str]:
    found = title(choose)
    noun, verb, adjective, _ = aspect(choose)
    return f"In {found} {noun} {verb} {adjective}.", f"{found}."


def find_player(choose: Chooser) -> tuple[str, str]:
    slots = grammar.neutral_slots(choose)
    noun, verb, adjective, _ = aspect(choose)
    text = f"{slots['person']} plays the {slots['role']}, and {noun} {verb} {adjective}."
    return text, f"{slots['person']}."


def find_aspect(choose: Chooser) -> tuple[str, str]:
    noun, verb, adjective, _ = aspect(choose)
    return f"{noun.capitalize()} {verb} {adjective} {choose.one(words.TAILS)}.", f"{noun}."


def deny(choose: Chooser) -> tuple[str, str]:
    noun, verb, adjective, _ = aspect(choose)
    start = f"{noun.capitalize()} {verb}"
    return f"{start} {adjective}.", f"{start} not {adjective}."


def complete(choose: Chooser) -> tuple[str, str]:
    """A contrast begun; the rest has the opposite sense."""
    label = choose.one((0, 1))
    slots = grammar.aspect_slots(choose, label, reserved=False)
    verdict = choose.one(words.VERDICTS[1 - label])
    return f"Although {slots['a1']} {slots['is1']} {slots['o1']}, the film", f"{verdict}."


KINDS: tuple[tuple[tuple[str, ...], Callable[[Chooser], tuple[str, str]]], ...] = (
    (("Is this praise or blame?", "Say whether this review praises or blames."), classify),
    (("How many words does this sentence have?", "Count the words."), count),
    (("Write these words in reverse order.", "Reverse the order of the words."), reverse),
    (("Put these words in alphabetical order.", "Sort the words by alphabet."), sort),
    (("Write the title {input} in capital letters.", "Write {input} in capitals."), capitals),
    (("Which film is this about?", "Name the film."), find_title),
    (("Who plays in it?", "Name the actor."), find_player),
    (("Which part of the film is judged here?", "What is this sentence about?"), find_aspect),
    (("Deny this sentence.", "Say the opposite."), deny),
    (("Complete the sentence.", "How could this go on?"), complete),
)


def make_instructions(
    seed: int, train_rows: int, held_out_rows: int
) -> tuple[list[Record], list[Record]]:
    """The records of both files: as many of each kind, and no input of a kind stands twice."""
    choose = Chooser(seed)
    seen: set[tuple[str, str]] = set()
    made: list[Record] = []
    while len(made) < train_rows + held_out_rows:
        wordings, make = KINDS[len(made) % len(KINDS)]
        given, output = make(choose)
        if (make.__name__, given) in seen:
            continue
        seen.add((make.__name__, given))
        made.append(record(choose.one(wordings), given, output))
    train, held_out = made[:train_rows], made[train_rows:]
    return shuffled(choose, train), shuffled(choose, held_out)


def record(wording: str, given: str, output: str) -> Record:
    asked = wording.format(input=given)
    return {
        "instruction": asked,
        "input": given if asked == wording else "",
        "output": output,
    }


def shuffled(choose: Chooser, records: list[Record]) -> list[Record]:
    places = [choose.random() for _ in records]
    return [records[index] for index in sorted(range(len(records)), key=places.__getitem__)]
