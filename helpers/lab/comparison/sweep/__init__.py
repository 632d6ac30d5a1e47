"""Which settings train best? A sweep tries them, one run after another, and can be killed.

    ranks = Ranks(2)
    space = {"lr": ("log", 1e-4, 1e-2)}
    found = sweep("helpers.train", space, trials=12, model="gptj-tiny", steps=60, nproc=2,
                  tp=2, ranks=ranks, out="runs/sweep")
    found.best, found.table, found.sentence

space.py is what may be tried. sweep.py begins a sweep, or goes on with it; runner.py runs trials.
What is tried next, and which trials are stopped on the way, is Optuna's choice. result.py is what
came out of it, with its table, __main__.py the same from a shell. The
folder holds everything; the same call goes on where a killed sweep was.

Papers: Bergstra et al. 2011, Algorithms for Hyper-Parameter Optimization (`tpe`); Li et al. 2020, A
System for Massively Parallel Hyperparameter Tuning (halving); Akiba et al. 2019, Optuna.
"""
