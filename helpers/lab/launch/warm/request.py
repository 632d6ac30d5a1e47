"""What the guard of a warm run starts: it asks the server for the run and waits for its end.

Run as a script, with the standard library alone so that it starts in 20 ms:
    python -I -S request.py SOCKET REQUEST_AS_JSON

The run gets this process's environment, and its standard output.
"""

import json
import os
import socket
import sys


def main() -> int:
    path, request = sys.argv[1], json.loads(sys.argv[2])
    request["environment"] = dict(os.environ)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        words = json.dumps(request).encode() + b"\n"
        sent = socket.send_fds(connection, [words], [1])  # a long environment takes several turns
        connection.sendall(words[sent:])
        answer = connection.makefile().readline()
    return int(answer) if answer else 1


if __name__ == "__main__":
    sys.exit(main())
