"""What this machine is, and what is missing on it.

hardware.py finds GPUs, cores, memory and disk. installed_versions.py holds the versions of packages
against those that helpers asks for. report.py is what the doctor (helpers/lab/doctor.py) shows: a
line a fact, each with a verdict and a next step. two_rank_check.py is what the doctor starts on two
ranks, an all-reduce whose result is known.

Sources: the packaging specifications of Python for versions and metadata (PEP 440, PEP 566);
cgroups(7) of Linux for a container's memory.
"""
