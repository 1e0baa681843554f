"""A web hook in a process of its own, so that it can be killed: `python -m tests.chaos.receiving PORT FILE`.

Every body is in the file before it is answered.
"""

from __future__ import annotations

import http.server
import os
import sys
import threading
import time


def main(port: int, path: str) -> None:
    lock = threading.Lock()
    file = open(path, "ab", buffering=0)  # noqa: SIM115

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            with lock:
                file.write(body.rstrip(b"\n") + b"\n")
            self.send_response_only(204)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            return

    threading.Thread(target=end_with, args=(os.getppid(),), daemon=True).start()
    http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()


def end_with(parent: int) -> None:
    """Ends the process when the test that started it is gone."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
