"""What a notebook does at its beginning and its end, and how it shows the project's code.

Read run_sizes.json first: the sizes of each notebook's runs, from a laptop's to the published
model's, and not_shown.csv, what their results do not show. run_profile.py reads both, preflight.py
picks the profile that fits the machine and shows the choice, source_code.py shows functions as they
stand in their files, predictions.py keeps what the reader predicted, results.py is the folder of
the run, where everything that is shown is kept too, common_tables.py are the tables that several
notebooks show, and record.py writes what ran and what came out as one JSON file.

Source of the published sizes: helpers.planner.published.
"""
