"""Ask the hub whether a name exists there, once and quietly, before anything loads from it."""

from ..errors import UserError, need


def check_hub(kind: str, name: str) -> None:
    """See that the hub has a model or data set of that name, or that a copy lies in its cache.

    Args:
        kind: "model" or "dataset".

    Raises:
        UserError: the hub says no, cannot be reached, or is switched off and nothing is cached.
    """
    hub = need("huggingface_hub", "hf")
    try:
        hub.snapshot_download(name, repo_type=kind, local_files_only=True)
        return
    except Exception:  # not in the cache, or not whole there: the hub decides
        if hub.constants.HF_HUB_OFFLINE:
            raise UserError(f"HF_HUB_OFFLINE is set and no {kind} {name!r} is cached") from None
    try:
        hub.HfApi().repo_info(name, repo_type=kind, timeout=10)
    except (hub.errors.RepositoryNotFoundError, hub.errors.HFValidationError):
        raise UserError(f"the hub has no {kind} {name!r} that you may read") from None
    except Exception as error:
        # the client's network errors are of many kinds; all mean that the hub was not reached
        raise UserError(f"the hub cannot be asked for {name!r}: {type(error).__name__}") from None
