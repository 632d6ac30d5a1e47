"""Which plan: all that a cluster can run, the ones that fit, the fastest or cheapest of them.

Read estimate.py first: one plan on one cluster. planned.py is the result, a plan with what it takes
and the command that starts it. layouts.py lists the plans worth trying; cheapest_saver.py finds the
cheapest saver of activations that fits, for each way to share the state; search.py keeps the best.
request.py checks what is asked, and says in one line what would do where nothing does; ranges.py
says how far a prediction can be off, explain.py puts an answer into words.

Papers: Alpa (arXiv 2201.12023) and Galvatron (2211.13878) search the same space by other means.
"""
