"""From text to the token batches that every layout sees alike.

readers.py reads sentences and labels from TSV, CSV, JSON, plain text or a hub data set, and
instructions.py prompts and answers; tokenizer.py turns text into ids, label_words.py classes into
words. rows.py makes rows of ids and tokens.py batches of rows; packing.py lets several documents
share a row, and encoder_rows.py masks tokens. token_files.py keeps tokens for other ranks and runs,
prefetching.py makes batches ahead of need; bundled.py finds the text that comes with the project.

Paper: Ding et al. 2024, Fewer Truncations Improve Language Modeling (packing).
"""

from helpers.engine import lazy

HOMES = {
    "load_tokenizer": "tokenizer",
    "load_examples": "tokens",
    "tokenize": "rows",
    "TokenData": "rows",
    "batches": "tokens",
    "Batch": "tokens",
    "steps_per_epoch": "tokens",
}
__all__ = list(HOMES)
__getattr__, __dir__ = lazy(__name__, HOMES, __all__)
