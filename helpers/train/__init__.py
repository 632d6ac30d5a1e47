"""The training entry point: `torchrun -m helpers.train`, or `python -m helpers.train` alone.

arguments.py reads the command line, job.py checks everything that it names before a process group
or a model is made, and same_model.py says with which model a run goes on. preflight.py measures the
ranks if that is asked for, and run.py trains: steps, checkpoints, an evaluation. watching.py looks
at steps for what goes wrong, by the rules of helpers/watch. record.py writes what a run leaves
behind: a line of metrics a step, and summary.json at the end; tracking.py gives the same to
TensorBoard, MLflow or trackio.
"""
