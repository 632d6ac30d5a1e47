"""A configuration file as its keys: each by its path, with its value and its line.

    for entry in read_entries(Path("config.toml")): print(entry.path, entry.value, entry.line)

entry.py is one key, and what a file may be at most; a file a form: yaml_file.py (which follows
${...}), json_file.py, toml_file.py, and words_file.py for command lines in a shell's script.
reading.py takes the one that the file's name asks for. Nothing of a file is run, a key that stands
twice is refused, and what cannot be read is said in one line.
"""
