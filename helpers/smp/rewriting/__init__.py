"""`--write`: a script with the library's calls replaced, as a diff; never in place.

replacements.csv says what takes a call's place. edits.py changes spans of a text; calls.py turns
uses into edits by the table; steps.py finds the training step and what else has a form of its own;
imports.py has what the script imports then; undefined.py looks whether every name still means
something. script.py puts them together, and refuses where a use has no replacement, no step is
recognised or a name would be undefined.
"""
