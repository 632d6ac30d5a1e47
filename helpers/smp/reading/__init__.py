"""Scripts and notebooks read without running them: what they use, and what their values come to.

sources.py makes syntax trees of files, and finds the way back from a line to its place; it refuses
what is no Python in one line. catalogue.py is what is known of the libraries, by the tables of
calls/. names.py follows imports and objects, and uses.py lists every use by them.

interpreter.py goes through a program from the top: statements.py has branches, loops and blocks,
stored.py what such a piece binds or changes, joining.py what is known where branches come together,
expressions.py what an expression comes to, functions.py the pure functions whose results are worked
out, values.py what stands for a value that the file does not give. No code of it is called.
"""
