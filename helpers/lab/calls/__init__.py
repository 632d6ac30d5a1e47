"""A notebook's function, or a cell of it, called on every rank.

Read on_ranks.py first: `on_ranks(function, nproc=2)` calls a function on that many ranks of one
gloo group and brings back what each returned; a rank that raises is named with its line, and ranks
that wait for each other are named with the lines in which they wait. by_value.py makes bytes of a
function, program.py is what runs in a rank. cell.py makes `%%ranks` of it, and side_by_side.py
shows its results, a column per rank.

Sources: cloudpickle's manual (functions of a notebook by value), Python's faulthandler.
"""
