"""What of a script has a form of its own: the training step, how models are made, how it ends."""

import ast
from collections.abc import Iterator
from typing import Any

from helpers.smp.reading.names import Names, takes_gradients, text_of
from helpers.smp.rewriting.calls import CannotReplace
from helpers.smp.rewriting.edits import Edit, Removed, Text, ancestors

CLIPS = ("torch.nn.utils.clip_grad_norm_", "torch.nn.utils.clip_grad_value_")
MAKERS = {"from_pretrained": "", "from_config": "config="}


class Steps:
    """Finds them in one program."""

    def __init__(
        self, tree: ast.Module, text: Text, names: Names, parents: dict[ast.AST, ast.AST]
    ) -> None:
        self.tree, self.text, self.names, self.parents = tree, text, names, parents

    def wrapped(self) -> list[ast.FunctionDef]:
        """The functions that smp.step wraps."""
        return [
            node
            for node in ast.walk(self.tree)
            if isinstance(node, ast.FunctionDef) and any(map(self._is_step, node.decorator_list))
        ]

    def _is_step(self, decorator: ast.expr) -> bool:
        called = decorator.func if isinstance(decorator, ast.Call) else decorator
        return self.names.short(called) == "smp.step"

    def step_edits(self) -> Iterator[Edit]:
        """The bodies of wrapped functions: the model's call becomes forward and backward at once.

        Raises:
            CannotReplace: a function does something else with the model.
        """
        for function in self.wrapped():
            calls = list(self._model_calls(function))
            if not calls:
                raise CannotReplace(
                    f"{function.name} (line {function.lineno}) does not call the model with "
                    "input_ids and labels by name: its loss is not the model's own"
                )
            method = "backward" if takes_gradients(function) else "evaluate"
            for call in calls:
                yield self.text.replace(call.func, f"run.{method}")
            for decorator in filter(self._is_step, function.decorator_list):
                yield self._decorator(decorator, function)

    def _decorator(self, decorator: ast.expr, function: ast.FunctionDef) -> Edit:
        inside = isinstance(self.parents.get(function), ast.ClassDef)
        first = function.args.args[0].arg if function.args.args else ""
        start = self.text.data.rindex(b"@", 0, self.text.start(decorator))
        if inside and first != "self":  # the library's wrapper took no self
            return Edit(start, self.text.end(decorator), "@staticmethod")
        end = self.text.line_start(decorator.end_lineno + 1)
        return Edit(self.text.line_start(decorator.lineno), end, "")

    def _model_calls(self, function: ast.FunctionDef) -> Iterator[ast.Call]:
        given = {one.arg for one in (*function.args.args, *function.args.kwonlyargs)}
        for node in ast.walk(function):
            if isinstance(node, ast.Call) and text_of(node.func) in given:
                keywords = {keyword.arg for keyword in node.keywords}
                if {"input_ids", "labels"} <= keywords and not node.args:
                    yield node

    def making(self) -> Iterator[Edit]:
        """Models that are made inside smp.model_creation: each rank gets its slices alone."""
        for node in ast.walk(self.tree):
            if not isinstance(node, ast.With):
                continue
            headers = [getattr(item.context_expr, "func", None) for item in node.items]
            if not any(head is not None and self._creates(head) for head in headers):
                continue
            for call in (n for n in ast.walk(node) if isinstance(n, ast.Call)):
                maker = text_of(call.func).rpartition(".")[2]
                if maker in MAKERS and call.args:
                    first = self.text.of(call.args[0])
                    yield self.text.replace(call, f"run.load({MAKERS[maker]}{first})")

    def _creates(self, node: ast.expr) -> bool:
        return self.names.short(node) in ("smp.model_creation", "smp.delay_param_initialization")

    def devices(self, removed: Removed) -> Iterator[Edit]:
        """A rank's device is the session's."""
        for node in ast.walk(self.tree):
            if not isinstance(node, ast.Call):
                continue
            dotted = self.names.dotted(node.func) or text_of(node.func)
            if dotted == "torch.cuda.set_device":
                parent = self.parents.get(node)
                if isinstance(parent, ast.Expr):
                    removed.add(parent)
            elif dotted == "torch.device" and node.args:
                first = node.args[0]
                if isinstance(first, ast.Constant) and str(first.value).startswith("cuda"):
                    yield self.text.replace(node, "run.device")

    def clipping(self) -> Iterator[Edit]:
        """Gradients are the engine's: their norm is limited at the step, over all ranks.

        Raises:
            CannotReplace: it is not known whose gradients these are.
        """
        optimizers = {
            text_of(node.targets[0])
            for node in ast.walk(self.tree)
            if isinstance(node, ast.Assign)
            and isinstance(node.value, ast.Call)
            and self.names.short(node.value.func) == "smp.DistributedOptimizer"
        }
        for node in ast.walk(self.tree):
            called = self.names.dotted(node.func) if isinstance(node, ast.Call) else None
            if called not in CLIPS:
                continue
            if called != CLIPS[0] or len(node.args) < 2 or len(optimizers) != 1:
                raise CannotReplace(
                    f"line {node.lineno}: gradients are the engine's: write "
                    "optimizer.clip_master_grads(limit) with the optimizer of run.optimizer"
                )
            limit = self.text.of(node.args[1])
            (optimizer,) = optimizers
            yield self.text.replace(node, f"{optimizer}.clip_master_grads({limit})")

    def ending(self) -> Iterator[Edit]:
        """`if __name__ == "__main__": main()` ends as the engine's runs do."""
        for node in self.tree.body:
            if not isinstance(node, ast.If) or "__name__" not in ast.unparse(node.test):
                continue
            last = node.body[-1]
            if isinstance(last, ast.Expr) and isinstance(last.value, ast.Call):
                call = last.value
                plain = not call.args and not call.keywords
                main = self.text.of(call.func) if plain else f"lambda: {self.text.of(call)}"
                yield self.text.replace(call, f"run.leave_after({main})")

    def start_arguments(self, start: ast.Call, given: dict[str, Any] | None) -> Iterator[Edit]:
        """More arguments of run.start: the job's own configuration, and what is recomputed."""
        words = []
        if given:
            words.append(f"given={given!r}")
        words += self._recomputing(start)
        given_last = [*start.args, *(keyword.value for keyword in start.keywords)]
        at = max(map(self.text.end, given_last), default=self.text.end(start) - 1)
        separator = ", " if given_last else ""
        if words:
            yield Edit(at, at, separator + ", ".join(words))

    def _recomputing(self, start: ast.Call) -> list[str]:
        calls = [
            node
            for node in ast.walk(self.tree)
            if isinstance(node, ast.Call)
            and self.names.short(node.func) == "smp.set_activation_checkpointing"
        ]
        if not calls:
            return []
        tests = [test for test in map(self._outermost_test, calls) if test is not None]
        condition = "True"
        if len(tests) == len(calls):
            texts = dict.fromkeys(self.text.of(test) for test in tests)
            alike = len(texts) == 1 and self._plain(tests[0], start)
            condition = next(iter(texts)) if alike else "True"
        words = [f"recompute={condition}"]
        strategies = [k.value for call in calls for k in call.keywords if k.arg == "strategy"]
        if strategies and self._plain(strategies[0], start):
            words.append(f"strategy={self.text.of(strategies[0])}")
        return words

    def _outermost_test(self, node: ast.AST) -> ast.expr | None:
        """The condition of the outermost `if` around a node, in its function."""
        found = None
        for parent in ancestors(node, self.parents):
            if isinstance(parent, ast.FunctionDef):
                break
            if isinstance(parent, ast.If) and node in parent.body:
                found = parent.test
            node = parent
        return found

    def _plain(self, node: ast.expr, start: ast.Call) -> bool:
        """Can an expression be said at the start, too? Of arguments, in the same function."""
        roots = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
        calls = any(isinstance(n, ast.Call) for n in ast.walk(node))
        here, there = self._function_of(start), self._function_of(node)
        used_before = {
            n.id for n in ast.walk(here) if isinstance(n, ast.Name) and n.lineno <= start.end_lineno
        }
        return not calls and here is there and roots <= used_before

    def _function_of(self, node: ast.AST) -> ast.AST:
        around = ancestors(node, self.parents)
        return next(one for one in around if isinstance(one, (ast.FunctionDef, ast.Module)))
