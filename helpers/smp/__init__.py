"""Configurations of the SageMaker model parallel library, read as plans of the engine.

keys_v1.json and keys_v2.json have every key of both versions of the library, with its default and
what becomes of it here; elsewhere.csv has names that are often put among them. keys.py reads and
checks these files; configuration.py reads a configuration by them, into a ParallelPlan and what
stands beside it, or says in one line why it cannot be kept and what is nearest.

Sources stand in each row: sagemaker-python-sdk v2.199.0 for version 1, the SageMaker developer
guide and the SDK's class SMP for version 2.
"""
