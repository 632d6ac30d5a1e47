"""Other programs' configuration files, read into plans: torchtitan, accelerate, DeepSpeed, NeMo.

    found = read_configuration(Path("llama3_8b.toml"), ranks=8)
    found.plan, found.model, found.batch, found.seq_len, found.flags
    found.lines              # what became of each key: converted, left out, or refused
    found.refused            # the reason where there is no plan

tables/ has every key of each program and what becomes of it, and programs.csv by which keys a file
is one of theirs; keys.py reads a value as its row says, facts.py holds what the keys said,
models.py makes a model's configuration of its sizes, and silent.py takes the program's own values
where a file says none; programs/ turns facts into plans, and reading.py puts these together.
report.py and __main__.py are the command, `python -m helpers.configurations FILE`.
"""

from helpers.engine import lazy

HOMES = {
    "read_configuration": "configurations.reading",
    "ReadConfiguration": "configurations.reading",
    "torchrun_line": "configurations.report",
}
__all__ = list(HOMES)
__getattr__, __dir__ = lazy("helpers", HOMES, __all__)
