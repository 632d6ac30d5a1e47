"""Warm ranks: interpreter and imports are paid once, and not by every run (Linux).

Read ranks.py first: `Ranks`, which a notebook makes once and hands to each `launch`. It starts
server.py, the process that has imported what ranks need and from which each run is forked.
request.py is what the guard of such a run starts in torchrun's place: it asks the server for the
run and ends with its exit code. The server's agent does torchrun's part, and leaves on disk what
torchrun leaves: logs a rank, and who failed.

What the closed service of the posts called warm pools. Sources: fork(2), unix(7) (SCM_RIGHTS),
proc(5) (environ) and prctl(2) (PR_SET_PDEATHSIG) of Linux; torch's manual of torchrun.
"""
