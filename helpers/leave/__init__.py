"""`python -m helpers.leave SCRIPT.py [NOTEBOOK.ipynb …]`: leaving the closed service in a command.

What is read, and what becomes of it, is helpers.smp's: syntax trees alone, nothing is run. Here it
is put into words (report.py), into the run's forms for shells and clusters (forms.py), into scripts
with their calls replaced (writing.py), and into a folder (__main__.py). Recipes (.yaml) are read,
too.

    from helpers.leave import leave, torchrun_line
    found = leave([Path("train.py"), Path("job.py")])    # lines, jobs, mistakes
    torchrun_line(found.jobs[0])
"""

from helpers.engine import lazy

HOMES = {
    "leave": "smp.leaving",
    "price": "smp.jobs.pricing",
    "words_of_price": "leave.report",
    "torchrun_line": "leave.forms",
    "run_files": "leave.forms",
    "written": "leave.writing",
}
__all__ = list(HOMES)
__getattr__, __dir__ = lazy("helpers", HOMES, __all__)
