"""The tables of every call of the closed libraries: one row a name, what it became, what is lost.

libraries.csv has the libraries, where each is imported from, and where the names of its table come
from; endings.csv what its own pages say of its end; the others are a table for each library, which
reading/catalogue.py reads and explains. A verdict is the project's own judgement: `converted`,
`left out` (it does nothing here) or `refused`.
"""
