"""The text that comes with the project: reviews, instructions and a tokenizer for both."""

from pathlib import Path

from helpers.engine.errors import UserError

PACKAGE = Path(__file__).resolve().parents[1]
# inside an installed package; beside it in the project
FOLDERS = (PACKAGE / "data", PACKAGE.parent / "data")


def bundled(name: str) -> Path:
    """The path of a bundled file or folder, as `reviews/train.tsv` or `tokenizer`.

    Raises:
        UserError: it is not there, as where `helpers` was copied without the folder `data`.
    """
    for folder in FOLDERS:
        if (folder / name).exists():
            return folder / name
    raise UserError(
        f"the bundled data/{name} is not here: copy the project's folder data beside helpers, or "
        "give --data and --tokenizer"
    )
