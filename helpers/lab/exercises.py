"""The exercises of the notebooks and what looks at an answer.

    check("1a traffic", my_bytes)

says in words whether the answer is right, and gives a hint where it is not: never the answer. An
answer that is None, or a function that returns None, is "not done yet", so an unsolved notebook
still runs to its end.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from helpers.engine.errors import UserError
from helpers.lab.grading import Result, audit_of_the_published_run, traffic, vocabulary_loss
from helpers.lab.show import show_text


@dataclass(frozen=True)
class Exercise:
    """A question, the function that judges an answer, and hints that go further one by one."""

    name: str
    question: str
    grade: Callable[[Any], Result]
    hints: tuple[str, ...]


@dataclass(frozen=True)
class Verdict:
    """What `check` found. `state` is passed, not yet, or not done yet."""

    exercise: str
    state: str
    message: str

    @property
    def passed(self) -> bool:
        return self.state == "passed"

    def __str__(self) -> str:
        return f"{self.exercise}: {self.state}. {self.message}".rstrip()

    def _ipython_display_(self) -> None:
        """Nothing more: `check` has shown it."""


EXERCISES = {
    exercise.name: exercise
    for exercise in (
        Exercise(
            name="1a traffic",
            question=(
                "GPT-J-6B (28 layers, width 4096) is trained with tp=8 on 8 samples of 1024 tokens "
                "a step, activations in bf16. How many bytes do the blocks all-reduce in one step, "
                "forward and backward together? Count each message once, at its full size; leave "
                "out embedding, head and loss."
            ),
            grade=traffic,
            hints=(
                "One message is the activation of all tokens: tokens x width x bytes a number.",
                "Look at the drawing of f and g: which of the two sends forward, which backward?",
                "GPT-J adds attention and MLP to the residual together: one sum a layer will do.",
            ),
        ),
        Exercise(
            name="1b vocabulary loss",
            question=(
                "Write loss(shards, targets): the mean cross-entropy of tokens whose logits are "
                "split by vocabulary. shards is a list with one [tokens, vocabulary/n] tensor a "
                "rank, targets is [tokens] with token ids of the whole vocabulary. No tensor may "
                "be as large as all logits together."
            ),
            grade=vocabulary_loss,
            hints=(
                "Cross-entropy of a token is log(sum of exp of its logits) - its target's logit.",
                "Subtract the largest logit of the whole vocabulary first: a maximum over shards.",
                "Rank r owns ids r·width to (r+1)·width - 1; the others add zero for that target.",
            ),
        ),
        Exercise(
            name="1c audit",
            question=(
                "From the published log (helpers.planner.published.GPTJ_TENSOR_PARALLEL): what was "
                "the run's MFU, what did the job cost in dollars, and which share of the billed "
                "time was training? Answer with a dictionary of mfu, usd and training_share."
            ),
            grade=audit_of_the_published_run,
            hints=(
                "tokens a second = samples a second x sequence length, of the whole job.",
                "6·N FLOPs a token; recomputed work is the machine's, not the model's.",
                "The peak is that of 8 chips, dense, in fp16: find_gpu('A100-40').",
            ),
        ),
    )
}


def check(name: str, answer: Any, hint: int = 1) -> Verdict:
    """Judge an answer, show what was found, and return it.

    Args:
        name: an exercise's name; `EXERCISES` has them all.
        answer: a number, a function or a dictionary, as the question asks.
        hint: which hint to give where the answer is wrong and its mistake is not a known one.

    Raises:
        UserError: there is no exercise of that name.
    """
    exercise = EXERCISES.get(name)
    if exercise is None:
        raise UserError(f"no exercise {name!r}; there are: {', '.join(EXERCISES)}")
    result = Result(done=False) if answer is None else exercise.grade(answer)
    verdict = _verdict(exercise, result, hint)
    show_text(str(verdict))
    return verdict


def _verdict(exercise: Exercise, result: Result, hint: int) -> Verdict:
    if not result.done:
        return Verdict(exercise.name, "not done yet", exercise.question)
    if result.right:
        return Verdict(exercise.name, "passed", result.words)
    last = len(exercise.hints)
    number = min(max(hint, 1), last)
    message = f"{result.words} Hint {number} of {last}: {exercise.hints[number - 1]}"
    if number < last:
        message += f" (another: hint={number + 1})"
    return Verdict(exercise.name, "not yet", message.strip())
