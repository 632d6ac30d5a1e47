"""Leaving the closed service: its configurations, scripts, jobs and recipes become runs of ours.

configuration.py reads a configuration of the SageMaker model parallel library into a plan and what
stands beside it, or says in one line why it cannot be kept and what is nearest. keys.py reads what
it needs to know: keys_v1.json and keys_v2.json, every key of both versions with its default and
what becomes of it; elsewhere.csv, names that are often put among them. distribution/ is the
estimator's argument around it.

leaving.py reads whole files, and nothing of them is run:

- reading/: sources, syntax trees, uses and values; calls/: the tables of every call it knows
- jobs/: estimators, tuners, rules and metrics as runs; recipes/: HyperPod's recipes as runs
- rewriting/: a script with its calls replaced; running/: what such a script calls then

Sources stand in the tables: sagemaker-python-sdk v2.199.0 for version 1, the SageMaker developer
guide and the SDK's class SMP for version 2.
"""
