"""A web service: each request makes 2,000 texts, answers with them as JSON, and keeps five."""

from __future__ import annotations

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_MOST_KEPT = 500
_kept: list[dict[str, object]] = []


class Handler(BaseHTTPRequestHandler):
    """Answers each request in a thread of its own."""

    def do_GET(self) -> None:
        """Answers with the texts."""
        rows = [{"id": n, "text": f"{n} " * (200 + n % 400)} for n in range(2000)]
        _kept.extend(rows[::400])
        del _kept[:-_MOST_KEPT]
        text = json.dumps(rows).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *words: object) -> None:
        """Says nothing."""


ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
