"""Figures and tables that everyone can read, of runs and of plans.

Read style.py first, the palette and an empty figure, and tables.py, a table as HTML and as text.
display.py shows a figure with its alternative text, the table of its numbers and a sentence;
alternative_text.py reads that text off a plot.
drawing.py has boxes, arrows and keys, charts.py bars and lines of a table. The plots are
training_plots.py (finished runs), pipeline_plots.py and sharding_plots.py (measured beside
predicted) and planning_plots.py (plans on paper). what_if_tables.py are tables of plans;
what_if_sliders.py lets the reader change what they ask.

Sources: Okabe and Ito 2008, Color universal design; W3C, WAI tutorials on tables and on images.
"""
