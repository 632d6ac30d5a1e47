"""The exercises of the notebooks: questions, hints, and what judges an answer.

Read exercises.json first, questions and hints as data, then check.py, which a notebook calls:
check("1a traffic", my_bytes) says in words whether an answer is right and never what it is.
questions.py reads the file; judges.py has what judges share: numbers held against others, a
reader's function called on cases. The folder topics has a judge for each question, and on_ranks
those of what runs on real ranks. solutions.py has a solution of each, which
show_solution("1a") shows to whoever asks.

Sources: each notebook's own papers and published runs, as helpers.planner.published has them.
"""
