"""Imported by the process that all ranks are forked from, so that none of them waits for it."""

import helpers.engine.checkpoint
import helpers.engine.weights  # noqa: F401
