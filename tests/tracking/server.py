"""A stand-in for W&B's server on the loopback interface, as far as wandb needs it: it records what each run sends."""

from __future__ import annotations

import gzip
import json
import re
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class SentRun:
    """What one run has sent; a line replaces the one at the same offset, as on the real server."""

    upserts: list[dict[str, Any]] = field(default_factory=list)
    lines: dict[int, dict[str, Any]] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    exit_code: int | None = None

    @property
    def history(self) -> list[dict[str, Any]]:
        return [self.lines[at] for at in sorted(self.lines)]


class FakeServer(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128  # the default of 5 is less than what wandb opens at once

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.runs: dict[str, SentRun] = defaultdict(SentRun)
        self.files: dict[str, bytes] = {}
        self.operations: set[str] = set()
        self.lock = threading.Lock()
        self.deleted: set[str] = set()
        self.refusing: set[str] = set()
        self.faults: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Record what the server could not do, but for connections that wandb closes early."""
        if not isinstance(error := sys.exception(), ConnectionError):
            self.faults.append(repr(error))

    def graphql(self, operation: str, variables: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        self.operations.add(operation)
        if operation == "UpsertBucket":
            name = variables["name"]
            if name in self.deleted:
                return 409, {"errors": [{"message": f"run {name} was previously created and deleted"}]}
            self.runs[name].upserts.append(variables)
            project = {"id": "p", "name": variables["project"], "entity": {"id": "e", "name": "somebody"}}
            bucket = {"id": "b", "name": name, "displayName": name, "config": "{}", "project": project}
            return 200, {"data": {"upsertBucket": {"bucket": {**bucket, "historyLineCount": 0}, "inserted": True}}}
        if operation == "CreateRunFiles":
            made = [{"name": name, "uploadUrl": f"{self.url}/up/{name}"} for name in variables["files"]]
            return 200, {"data": {"createRunFiles": {"runID": "b", "uploadHeaders": [], "files": made}}}
        return 200, {"data": {}}

    def stream(self, run_id: str, body: dict[str, Any]) -> None:
        run = self.runs[run_id]
        for name, chunk in body.get("files", {}).items():
            rows = [json.loads(line) for line in chunk["content"]]
            if name == "wandb-history.jsonl":
                run.lines.update(enumerate(rows, chunk["offset"]))
            elif name == "wandb-summary.json":
                run.summary = rows[-1]
        if body.get("complete"):
            run.exit_code = body.get("exitcode")


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FakeServer

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Record requests that cannot be read."""
        self.server.faults.append(f"{code} {message}: {self.raw_requestline[:200]!r}")
        super().send_error(code, message, explain)

    def do_POST(self) -> None:
        body = self._body()
        with self.server.lock:
            if self.path.startswith("/graphql"):
                query = json.loads(body)
                found = re.search(r"(?:query|mutation)\s+(\w+)", query["query"])
                self._answer(*self.server.graphql(found[1] if found else "", query.get("variables") or {}))
                return
            if found := re.fullmatch(r"/files/[^/]+/[^/]+/([^/]+)/file_stream", self.path):
                if found[1] in self.server.refusing:
                    self._answer(403, {"error": "not yours"})
                    return
                self.server.stream(found[1], json.loads(body))
        self._answer(200, {})

    def do_PUT(self) -> None:
        body = self._body()
        with self.server.lock:
            self.server.files[self.path.removeprefix("/up/")] = body
        self._answer(200, {})

    def do_GET(self) -> None:
        self._answer(200, {})

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            data = b""
            while size := int(self.rfile.readline(), 16):
                data += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            data = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        return gzip.decompress(data) if self.headers.get("Content-Encoding") == "gzip" else data

    def _answer(self, code: int, answer: dict[str, Any]) -> None:
        data = json.dumps(answer).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@contextmanager
def serving() -> Iterator[FakeServer]:
    """A server for as long as the context lasts."""
    server = FakeServer()
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
