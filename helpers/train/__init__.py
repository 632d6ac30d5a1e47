"""The training entry point: `torchrun -m helpers.train`, or `python -m helpers.train` alone.

arguments.py reads the command line, job.py checks everything that it names before a process group
or a model is made, and run.py trains: a line of metrics a step, checkpoints, an evaluation, and
summary.json at the end.
"""
