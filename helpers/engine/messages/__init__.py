"""How messages travel between the processes of a run.

Read carriers.py first: the sums, gathers, reduce-scatters and sends that the rest of the engine
calls, and who carries them. shared_memory.py is a board on which the processes of one machine show
each other what they send, mailboxes.py what a pipeline's ranks leave for each other there;
boards.py says which groups have a board, shared_files.py how ranks come by such memory.
gloo_exchange.py makes gathers and reduce-scatters of gloo's sends and receives.

Papers: Thakur et al. 2005, Optimization of Collective Communication Operations in MPICH (an
all-reduce of a reduce-scatter and a gather); Graham and Shipman 2008, MPI Support for Multi-core
Architectures: Optimized Shared Memory Collectives.
"""
