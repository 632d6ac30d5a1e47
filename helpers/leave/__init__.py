"""`python -m helpers.leave SCRIPT.py [NOTEBOOK.ipynb …]`: leaving the closed service in a command.

What is read, and what becomes of it, is helpers.smp's: syntax trees alone, nothing is run. Here it
is put into words (report.py), into the run's forms for shells and clusters (forms.py), into scripts
with their calls replaced (writing.py), and into a folder (__main__.py). Recipes (.yaml) are read,
too.
"""
