"""Mistakes that a script's syntax shows: what was published has them, and a run of it does not say
so.

Each is told with its place, what it does, and what to do. Nothing else of a script is judged.
"""

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from helpers.smp.reading.names import Names, takes_gradients, text_of
from helpers.smp.reading.sources import Place, Program

OPTIMIZERS = ("Adam", "AdamW", "SGD", "Adafactor", "LAMB", "FusedAdam", "FusedLAMB", "Adagrad")


@dataclass(frozen=True, order=True)
class Mistake:
    """Where, which, and in words what it does and what to do."""

    place: Place
    kind: str
    words: str


def mistakes(program: Program, names: Names) -> list[Mistake]:
    """All of a program, in its order."""
    found = [
        *_bool_arguments(program),
        *_keys_twice(program),
        *_counted_twice(program),
        *_never_stepped(program, names),
        *_never_loaded(program, names),
        *_optimizer_first(program, names),
    ]
    return sorted(set(found))


def _bool_arguments(program: Program) -> Iterator[Mistake]:
    for node in ast.walk(program.tree):
        if not isinstance(node, ast.Call) or not text_of(node.func).endswith("add_argument"):
            continue
        for keyword in node.keywords:
            if keyword.arg == "type" and text_of(keyword.value) == "bool":
                flag = (
                    node.args[0].value
                    if node.args and isinstance(node.args[0], ast.Constant)
                    else ""
                )
                yield Mistake(
                    program.place(keyword.lineno),
                    "type=bool",
                    f"`{flag} False` is read as True, for every text but the empty one is true: "
                    "helpers.train has --x and --no-x",
                )


def _keys_twice(program: Program) -> Iterator[Mistake]:
    for node in ast.walk(program.tree):
        if not isinstance(node, ast.Dict):
            continue
        keys = Counter(
            key.value
            for key in node.keys
            if isinstance(key, ast.Constant) and isinstance(key.value, str)
        )
        for key in node.keys:
            if isinstance(key, ast.Constant) and keys.pop(key.value, 1) > 1:
                yield Mistake(
                    program.place(key.lineno),
                    "a key twice",
                    f'the dictionary has "{key.value}" twice, and the last one holds',
                )


def _counted_twice(program: Program) -> Iterator[Mistake]:
    """A counter of steps that a loop's body raises twice on the same way through it."""
    for loop in ast.walk(program.tree):
        if not isinstance(loop, (ast.For, ast.While)):
            continue
        raised: dict[str, ast.AugAssign] = {}
        for node in loop.body:
            if not isinstance(node, ast.AugAssign) or not isinstance(node.op, ast.Add):
                continue
            name = text_of(node.target)
            one = isinstance(node.value, ast.Constant) and node.value.value == 1
            if one and "step" in name and name in raised:
                yield Mistake(
                    program.place(node.lineno),
                    "steps counted twice",
                    f"{name} rises by 2 for each batch, so half of the batches are taken: "
                    "--steps counts batches",
                )
            if one:
                raised[name] = node


def _functions(tree: ast.Module) -> Iterator[ast.AST]:
    """Functions, and the program outside of them."""
    yield from (n for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef)))
    yield tree


def _own(function: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function, without those of functions inside it."""
    waiting = list(ast.iter_child_nodes(function))
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            waiting += ast.iter_child_nodes(node)


def _never_stepped(program: Program, names: Names) -> Iterator[Mistake]:
    """A loop that takes gradients and never updates: no .step() beside them but a schedule's."""
    trains = {name for name in names.step_gives if _takes_gradients(program.tree, name)}
    for function in _functions(program.tree):
        calls = [node for node in _own(function) if isinstance(node, ast.Call)]
        called = {text_of(node.func): node for node in calls}
        steps = [text for text in called if text.rpartition(".")[2] == "step"]
        updates = [text for text in steps if "sched" not in text.lower()]
        taken = [node for text, node in called.items() if text.rpartition(".")[2] in trains]
        loops = any(isinstance(node, (ast.For, ast.While)) for node in _own(function))
        cleared = any(text.endswith(".zero_grad") for text in called)
        if taken and loops and not updates and (cleared or steps):
            yield Mistake(
                program.place(taken[0].lineno),
                "never stepped",
                "gradients are taken, and no optimizer is stepped: the weights stay as they are. "
                "The trainer updates them at every step",
            )


def _takes_gradients(tree: ast.Module, name: str) -> bool:
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
    first = next((node for node in functions if node.name == name), None)
    return first is not None and takes_gradients(first)


def _never_loaded(program: Program, names: Names) -> Iterator[Mistake]:
    """Weights that are loaded inside smp.model_creation, whose layers the library draws anew."""
    calls = [text_of(node.func) for node in ast.walk(program.tree) if isinstance(node, ast.Call)]
    loads_later = any(
        call.rpartition(".")[2] == "load_state_dict" and "model" in call for call in calls
    )
    for node in ast.walk(program.tree):
        if not isinstance(node, ast.With) or loads_later:
            continue
        if not any(
            names.short(getattr(i.context_expr, "func", i.context_expr)) == "smp.model_creation"
            for i in node.items
        ):
            continue
        for inner in ast.walk(node):
            if isinstance(inner, ast.Call) and text_of(inner.func).endswith(".from_pretrained"):
                yield Mistake(
                    program.place(inner.lineno),
                    "weights never loaded",
                    "the library draws new weights for the layers that it splits, and nothing "
                    "loads these afterwards: training starts from random ones. load_model keeps "
                    "them",
                )


def _optimizer_first(program: Program, names: Names) -> Iterator[Mistake]:
    """An optimizer over the parameters of a model that is wrapped only afterwards."""
    for function in _functions(program.tree):
        made = {}
        for node in _own(function):
            if isinstance(node, ast.Call):
                name = names.short(node.func)
                if name == "smp.DistributedModel":
                    made["wrapped"] = min(node.lineno, made.get("wrapped", node.lineno))
                elif text_of(node.func).rpartition(".")[2] in OPTIMIZERS and ".parameters()" in (
                    ast.unparse(node)
                ):
                    made["optimizer"] = min(node.lineno, made.get("optimizer", node.lineno))
        if made.get("optimizer", 10**9) < made.get("wrapped", 0):
            yield Mistake(
                program.place(made["optimizer"]),
                "optimizer before the model is wrapped",
                "its parameters are no longer the model's once it is laid out: make it afterwards",
            )
