"""The rules over series of losses: healthy runs are left in peace, sick ones found."""

import math
import random
from collections.abc import Callable

import pytest

from helpers.watch.history import History, Watched
from helpers.watch.losses import loss_not_falling, overfitting, poor_initialisation, stands_still
from helpers.watch.observe import Observation, Sums
from helpers.watch.steps import learning_rate_zero, update_too_small, weights_unchanged

RUNS = 100
SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": lambda done: 1.0,
    "linear": lambda done: 1 - done,
    "cosine": lambda done: (1 + math.cos(math.pi * done)) / 2,
    "restarts": lambda done: (1 + math.cos(math.pi * (4 * done % 1))) / 2,
}


def rates(schedule: str, steps: int, warmup: int) -> list[float]:
    """Learning rates, as shares of the largest; a warm-up begins at 0, as in some trainers."""
    rest = range(steps - warmup)
    fallen = [SCHEDULES[schedule](step / len(rest)) for step in rest]
    return [step / warmup for step in range(warmup)] + fallen


def healthy(dice: random.Random) -> tuple[list[float], list[float]]:
    """Losses that fall as a power of what was learned, with noise, and their learning rates."""
    steps = dice.choice([100, 300, 1000])
    lrs = rates(dice.choice(list(SCHEDULES)), steps, int(steps * dice.choice([0, 0.02, 0.3, 0.6])))
    start, power = 10 ** dice.uniform(-2, math.log10(12)), dice.uniform(0.2, 1)
    least, slow, noise = dice.uniform(0, 0.6), 10 ** dice.uniform(0, 2), 10 ** dice.uniform(-3, -1)
    learned, losses = 0.0, []
    for lr in lrs:
        share = least + (1 - least) * (1 + learned / slow) ** -power
        losses.append(start * share * math.exp(dice.gauss(0, noise)))
        learned += lr
    return losses, lrs


def look(step: int, loss: float, lr: float, update: float) -> Watched:
    sums = Sums(gradient=1.0, weight=1.0, update=(update * lr) ** 2, numbers=1.0)
    return Watched(step, loss, 1.0, lr, Observation(layers={0: sums}))


def said(losses: list[float], lrs: list[float] | None = None, update: float = 1e-3) -> list[str]:
    """What the rules say over a run, a look at every tenth step."""
    history, words = History(), []
    for step, loss in enumerate(losses, 1):
        history.losses[step] = loss
        if step == 1 or step % 10 == 0:
            history.watched.append(look(step, loss, lrs[step - 1] if lrs else 1.0, update))
            rules = (loss_not_falling, update_too_small, learning_rate_zero, weights_unchanged)
            words += filter(None, (rule(history) for rule in rules))
    return words


def test_of_a_hundred_healthy_runs_one_at_most_is_told() -> None:
    dice = random.Random(0)
    told = [words for _ in range(RUNS) if (words := said(*healthy(dice), update=1e-5))]
    assert len(told) <= 1, told


def noisy(mean: Callable[[int], float], steps: int, noise: float = 0.02) -> list[float]:
    dice = random.Random(steps)
    return [mean(step) * (1 + dice.gauss(0, noise)) for step in range(steps)]


def fall(step: int) -> float:
    return 3 + 6 * (1 + step / 20) ** -0.6


SICK = {
    "never falls": (noisy(lambda step: 4.0, 1000), "the loss was 4 at first"),
    "rises from the start": (noisy(lambda step: 2 + step / 1000, 400), "the loss was 2.0"),
    "falls and leaps up": (
        noisy(lambda step: fall(step) if step < 500 else 4.9, 700),
        "the loss was 3.862 up to step 500, and is 4.869",
    ),
    "falls and stays": (
        noisy(lambda step: fall(min(step, 300)), 3000),
        "has not fallen for 1000 steps",
    ),
}


@pytest.mark.parametrize("kind", SICK)
def test_a_loss_that_falls_no_more_is_told(kind: str) -> None:
    losses, words = SICK[kind]
    assert words in said(losses)[0]


def test_the_warm_up_and_the_end_of_a_decay_are_no_trouble() -> None:
    lrs = rates("linear", 600, 300)
    flat = [4.0] * 300
    assert not said(flat + [4 - step / 200 for step in range(300)], lrs, update=1e-5)
    learned = noisy(lambda step: fall(min(step, 900)), 2400)
    assert not said(learned, rates("linear", 2400, 0))
    told = said(flat + [4.0] * 300, lrs, update=1e-7)
    assert told[0].startswith("a step changes the weights by 1e-07 of their size")
    assert any("the loss was 4 at first and is 4 after 360 steps" in words for words in told)


def test_a_rate_of_zero_is_told_when_it_stays() -> None:
    """A warm-up begins there, and a decay ends there."""
    for lrs in ([0.0, 1.0], [1.0, 0.0], [0.0]):
        looks = [look(step, 3.0, lr, 1e-3) for step, lr in enumerate(lrs)]
        assert learning_rate_zero(History(looks)) is None
    looks = [look(step, 3.0, lr, 1e-3) for step, lr in enumerate([1.0, 0.0, 0.0])]
    assert learning_rate_zero(History(looks)) == "the learning rate is 0: nothing is learned"


def test_a_resumed_run_that_falls_slowly_is_no_trouble() -> None:
    """From step 9001 on the loss is the same, as it may be of 300 steps that late, or of 3000."""
    for last in (9300, 12000):
        history = History(losses=dict.fromkeys(range(9001, last + 1), 3.0))
        assert loss_not_falling(history) is None
    history = History(losses=dict.fromkeys(range(101, 301), 3.0))
    assert loss_not_falling(history) == "the loss was 3 at first and is 3 after 200 steps"


def test_a_learned_loss_has_nothing_left_to_fall_by() -> None:
    """Nor does it rise where it is next to nothing still."""
    fallen = [4 / step for step in range(1, 101)]
    assert not said(fallen + [0.001] * 3000)
    assert not said(fallen + [0.001] * 60 + [0.04] * 80)


def test_a_rise_that_noise_may_be_is_no_trouble() -> None:
    assert not said(noisy(fall, 700, noise=0.5))


def around(mean: float, apart: float = 0.0, steps: int = 20) -> list[float]:
    """Losses above and below a mean by turns."""
    return [mean + apart * (-1) ** step for step in range(steps)]


@pytest.mark.parametrize(("apart", "before", "beyond"), [(0.0, 1.24, 1.26), (0.1, 1.46, 1.48)])
def test_a_rise_is_a_fifth_and_what_noise_may_be(apart, before, beyond) -> None:
    """From 1.0, of means of 20 steps: 0.2, 0.05, and five times the noise, 0.2 / sqrt(20)."""
    for mean, told in ((before, False), (beyond, True)):
        losses = around(5.0) + around(1.0, apart) + around(mean, apart, steps=60)
        history = History(losses=dict(enumerate(losses, 1)))
        assert (loss_not_falling(history) is not None) == told


def test_a_fall_is_seen_from_twice_the_noise_on() -> None:
    """Of two means of 100 losses."""
    noise = 0.001 * math.sqrt(2 / 99)
    for fall, still in ((1.9, True), (2.1, False)):
        after = around(1 - fall * noise, 0.001, steps=100)
        assert stands_still(around(1.0, 0.001, steps=100), after, 0.005) == still


def test_overfitting_is_a_twentieth_more_than_the_least() -> None:
    losses = {step: 3 - step / 100 for step in range(1, 101)}
    for now, told in ((2.08, False), (2.12, True)):
        history = History(losses=losses, held_out=[(20, 2.0), (50, 2.05), (100, now)])
        assert (overfitting(history) is not None) == told


def test_the_full_rate_is_half_of_the_largest() -> None:
    for rate, full in ((0.51, True), (0.49, False)):
        looks = [look(step, 3.0, lr, 1e-3) for step, lr in enumerate([1.0, rate])]
        assert History(looks).at_full_rate() == full


def test_the_first_loss_may_be_half_as_much_again() -> None:
    for loss, told in ((16.0, False), (17.0, True)):
        history = History(losses={1: loss}, first_loss=11.0)
        assert (poor_initialisation(history) is not None) == told


def test_random_weights_should_fall_in_fewer_steps_than_trained_ones() -> None:
    """The noise leaves room for a fall of 0.2 %, which is little at first and much later."""
    flat = dict(enumerate(noisy(lambda step: 4.0, 300, noise=0.005), 1))
    assert loss_not_falling(History(losses=flat)) is None
    assert "after 300 steps" in loss_not_falling(History(losses=flat, first_loss=5.0))


def test_the_least_held_out_loss_stands_beside_the_losses_around_it() -> None:
    """The training loss fell at just the step of the least held-out loss."""
    losses = {step: 3.0 if step <= 20 else 2.0 for step in range(1, 101)}
    history = History(losses=losses, held_out=[(20, 2.0), (50, 2.2), (100, 2.5)])
    assert "was 2 at step 20" in overfitting(history)
