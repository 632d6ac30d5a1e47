"""Is one way of training faster than another? Only over the same work, and in one meaning.

Read sides.py first: it launches the sides in turn and refuses those that did not do the same work.
measures.py is one run as rows, results.py the tables and the sentence of a comparison, plots.py its
figures. Two more questions are of several runs: batch_finder.py, the largest batch that fits, and
sweep/, the settings that train best.

What is refused was published: unequal samples, dropped remainders, two meanings of "faster", one
side after the other (helpers/planner/published/posts.json has the logs). Papers: Shallue et
al. 2018, Measuring the Effects of Data Parallelism; Goyal et al. 2017 and Malladi et al. 2022 for
the learning rate of another batch.
"""
