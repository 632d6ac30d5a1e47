"""Several nodes on one machine, as a cluster would run them.

Read local_nodes.py first: an agent of torchrun for each node, that meet by rendezvous; one that is
killed is started again. network_namespaces.py gives each of two nodes a network of its own, joined
by a link of a stated bandwidth. two_nodes.py is both from a shell (scripts/two_nodes).
lost_agent.py kills an agent in the middle of a run, on purpose.

Sources: torch's manual of its elastic agent; network_namespaces(7) and tc-tbf(8) of Linux.
"""
