"""The jobs of notebooks and scripts as runs of this project.

estimators.py finds the calls that start jobs; job.py makes a run of one: distributions.py is its
plan and machines, settings.py its flags (settings.csv has hyperparameters by the names that scripts
give them, settings_left_out.csv those without a flag, families.csv models that are not trained
here), rules.py what watches it, metrics.py what reads its log, pricing.py what it would take.
tuners.py is the same for tuners, as sweeps.

lines.py is the table of every use with its verdict; mistakes.py names what published scripts do
wrong without a word.
"""
