"""What an estimator's argument `distribution` has beside a configuration of the library.

mpi_options.py reads what mpirun was to be given, and mpi_options.csv says which variables ranks
still read.
"""
