"""Following a run while it goes: its merged output from a pipe, its metrics from a growing file."""

import codecs
import json
import os
import re
import threading
import time
from collections import deque
from pathlib import Path
from typing import IO, Any

KEPT_LINES = 40
LONGEST_LINE = 2_000  # characters; a rank may write for ever without a newline
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Output(threading.Thread):
    """Reads a pipe to its end in a thread: every byte to a file, the last lines in memory.

    It never stops reading, since a full pipe would stop the ranks. `error` says why the file is
    not whole, if it is not.
    """

    def __init__(self, pipe: IO[bytes], log: Path) -> None:
        super().__init__(daemon=True, name="run output")
        self.error: str | None = None
        self.last_heard_s = time.monotonic()
        self._pipe = pipe
        self._log = open(log, "wb", buffering=0)  # noqa: SIM115 (closed at the end of run)
        self._lines: deque[str] = deque(maxlen=KEPT_LINES)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._unfinished_line = ""
        self._lock = threading.Lock()

    def run(self) -> None:
        with self._log, self._pipe:
            while chunk := self._pipe.read1(1 << 16):  # type: ignore[attr-defined]
                self.last_heard_s = time.monotonic()
                self._save(chunk)
                text = self._unfinished_line + self._decoder.decode(chunk)
                *lines, unfinished = text.split("\n")
                with self._lock:
                    self._lines.extend(lines[-KEPT_LINES:])
                    self._unfinished_line = unfinished[-LONGEST_LINE:]

    def last(self, count: int) -> list[str]:
        """The last `count` non-empty lines, without colours, as a terminal would leave them."""
        with self._lock:
            lines = [*self._lines, self._unfinished_line]
        # a progress bar rewrites its line after each \r: the last of them is what stands there
        lines = [line.rstrip("\r").rpartition("\r")[2] for line in lines]
        clean = [_ANSI.sub("", line[:LONGEST_LINE]).rstrip() for line in lines]
        return [line for line in clean if line][-count:]

    def _save(self, chunk: bytes) -> None:
        if self.error:
            return
        try:
            self._log.write(chunk)
        except OSError as error:
            self.error = f"the log could not be written any more: {error.strerror}"


class Metrics:
    """The last line of metrics.jsonl as it grows; what is not a whole line yet waits."""

    def __init__(self, path: Path) -> None:
        self.last: dict[str, Any] = {}
        self.last_heard_s = time.monotonic()
        self._path = path
        # a resumed run appends: what stands there already is not news
        self._offset = path.stat().st_size if path.exists() else 0

    def read(self) -> None:
        try:
            with open(self._path, "rb") as file:
                if os.fstat(file.fileno()).st_size < self._offset:
                    self._offset = 0  # ranks that were restarted begin the file anew
                file.seek(self._offset)
                new = file.read()
        except OSError:
            return  # not there yet
        whole = new[: new.rfind(b"\n") + 1]
        if not whole:
            return
        self._offset += len(whole)
        self.last_heard_s = time.monotonic()
        try:
            last = json.loads(whole.splitlines()[-1])
        except (ValueError, RecursionError):
            return  # the reader of the finished run says what is wrong with the file
        if isinstance(last, dict):
            self.last = last
