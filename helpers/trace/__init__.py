"""Where a step's time and memory went, from traces of all ranks.

recorder.py traces some steps with torch's profiler, clocks.py says how far apart the ranks' clocks
are, files.py reads a rank's file or refuses it, traces.py puts all of them onto one clock, and
perfetto.py writes them as one timeline for ui.perfetto.dev.
step_times.py takes a step apart (intervals.py does the arithmetic of time), memory.py its memory,
and findings.py says in words what is slow. timelines.py is a pipeline's actions, as they ran.

Sources: Cristian 1989, Probabilistic clock synchronization; Chrome's Trace Event Format.
"""

from helpers.engine import lazy

HOMES = {
    "profiled": "recorder",
    "read_traces": "traces",
    "write_timeline": "perfetto",
    "find": "findings",
    "memory_of_step": "memory",
    "read_timelines": "timelines",
}
__all__ = list(HOMES)
__getattr__, __dir__ = lazy(__name__, HOMES, __all__)
