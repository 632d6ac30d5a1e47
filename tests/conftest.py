"""Settings for every test."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # a test that needs the hub would pass here by chance
