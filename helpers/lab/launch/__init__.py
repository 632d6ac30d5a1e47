"""Starting a training on several ranks from a notebook, and leaving no process behind.

Read launch.py first: prepare, start, follow, judge, show. command.py decides what is started, with
flags.py for the words of a command line. processes.py starts it and ends it, beneath the guard of
process_guard.py, which outlives whoever started it; torchrun_agent.py is torchrun with its verdict
as a file. output_reader.py and live_panel.py read and show a run while it goes, progress.py brings
both together, and verdict.py says how it ended. The folder nodes is several nodes on one machine,
and warm is ranks that have imported everything already.

Sources: torch's manual of torchrun; prctl(2) of Linux.
"""
