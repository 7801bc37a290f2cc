"""A hub on this machine: one dataset at one commit, over HTTP, as the hub's own client asks for it."""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@contextmanager
def fake_hub(repo: str, files: dict[str, bytes]) -> Iterator[tuple[str, list[str]]]:
    """Serve `files` as dataset `repo`; gives the address and the paths of the files that were fetched."""
    fetched: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = unquote(urlsplit(self.path).path)
            if path.startswith(f"/api/datasets/{repo}/tree/"):
                listed = [{"type": "file", "path": name, "size": len(content), "oid": _etag(content)}
                          for name, content in files.items()]  # fmt: skip
                self.answer(json.dumps(listed).encode())
            elif path in (f"/api/datasets/{repo}", f"/api/datasets/{repo}/revision/main"):
                siblings = [{"rfilename": name} for name in files]
                self.answer(json.dumps({"id": repo, "sha": COMMIT, "siblings": siblings}).encode())
            elif path.startswith(f"/datasets/{repo}/resolve/{COMMIT}/"):
                name = path.split(f"/resolve/{COMMIT}/")[1]
                if self.command == "GET":
                    fetched.append(name)
                self.answer(files[name], {"ETag": f'"{_etag(files[name])}"', "X-Repo-Commit": COMMIT})
            else:
                self.answer(b"{}", {"X-Error-Code": "RepoNotFound"}, status=404)

        do_HEAD = do_GET

        def answer(self, content: bytes, headers: dict[str, str] | None = None, status: int = 200) -> None:
            self.send_response(status)
            for name, value in {"Content-Length": str(len(content)), **(headers or {})}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", fetched
    finally:
        server.shutdown()
        server.server_close()


def _etag(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()
