"""An estimator's argument `distribution`, around a configuration of the library.

argument.py finds the configuration in it, and what stands beside it; mpi_options.py reads what
mpirun was to be given, and mpi_options.csv says which variables ranks still read.
"""
