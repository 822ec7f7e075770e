"""A server that answers as the Hugging Face Hub does, and another one that has its large files.

fake_hub.py ROOT LOG: serves ROOT/models/ORG/NAME and ROOT/datasets/ORG/NAME. It writes "ready URL"
and then a line for each request into LOG: server, method, path, Range and Authorization. The end of
a repository's name chooses what goes wrong:

-gated: asks for the token "right"        -private: is not there without the token
-broken: large files come in three parts  -cut: and never whole
-wrong: another byte in large files       -busy: status 503 at the first request for each path
-slow: large files take some seconds      -whole: without ranges
-moved: is now plain                      -circle: redirects for ever
"""
import hashlib
import http.server
import json
import pathlib
import sys
import threading
import time
import urllib.parse

root, log_path = pathlib.Path(sys.argv[1]), sys.argv[2]
commit = "c0ffee" * 6 + "c0ff"
large = (".safetensors", ".bin", ".gguf", ".parquet")
seen, n_tries = set(), {}
lock = threading.Lock()


def tell(*words):
    with lock, open(log_path, "a") as log:
        print(*words, file=log, flush=True)


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    role = "hub"

    def log_message(self, *_):
        pass

    def answer(self, status, body=b"", **headers):
        self.send_response(status)
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        for name, value in ({"Content-Length": len(body)} | given).items():
            self.send_header(name, str(value))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        path = urllib.parse.unquote(self.path)
        tell(self.role, self.command, path, self.headers.get("Range", "-"),
             self.headers.get("Authorization", "-"))
        if self.role == "files":
            return self.send_large(root / path[1:])
        parts = path[1:].split("/")
        is_api = parts[0] == "api"
        if is_api:
            kind, name, revision, file = parts[1], "/".join(parts[2:4]), parts[5], None
        else:
            kind = "datasets" if parts[0] == "datasets" else "models"
            parts = parts[1:] if kind == "datasets" else parts
            name, revision, file = "/".join(parts[:2]), parts[3], "/".join(parts[4:])
        if self.refuses(name, path):
            return None
        if name.endswith("-moved"):
            return self.answer(307, Location=self.path.replace(name, "org/plain"))
        folder = root / kind / name
        if not folder.is_dir():
            return self.answer(404, X_Error_Code="RepoNotFound")
        if revision not in ("main", "v1", commit):
            return self.answer(404, X_Error_Code="RevisionNotFound")
        if is_api:
            files = sorted(p for p in folder.rglob("*") if p.is_file())
            return self.answer(200, json.dumps({"id": name, "sha": commit, "siblings": [
                {"rfilename": str(p.relative_to(folder))} for p in files]}).encode())
        if not (folder / file).is_file():
            return self.answer(404, X_Error_Code="EntryNotFound")
        return self.send_file(folder / file)

    def refuses(self, name, path):
        has_token = self.headers.get("Authorization") == "Bearer right"
        if name.endswith("-gated") and not has_token:
            self.answer(401, X_Error_Code="GatedRepo", X_Error_Message="Access is restricted.")
        elif name.endswith("-private") and not has_token:
            self.answer(401, X_Error_Code="RepoNotFound")
        elif name.endswith("-circle"):
            self.answer(302, Location=self.path)
        elif name.endswith("-busy") and path not in seen:
            seen.add(path)
            self.answer(503)
        else:
            return False
        return True

    def send_file(self, path):
        content = path.read_bytes()
        if path.name.endswith(large):
            digest = hashlib.sha256(content).hexdigest()
            return self.answer(302, X_Repo_Commit=commit, X_Linked_Etag=f'"{digest}"',
                               X_Linked_Size=len(content),
                               Location=f"{files_url}/{path.relative_to(root)}")
        digest = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
        return self.answer(200, content, X_Repo_Commit=commit, ETag=f'"{digest}"')

    def send_large(self, path):
        content, first, repo = path.read_bytes(), 0, "/".join(path.parts)
        fault = path.parent.name.rpartition("-")[2]
        given = self.headers.get("Range")
        if given and fault != "whole":
            first = int(given.removeprefix("bytes=").removesuffix("-"))
            if first >= len(content):
                return self.answer(416)
        if fault == "wrong":
            content = content[:-1] + bytes([content[-1] ^ 1])
        part = content[first:]
        n_tries[repo] = n_tries.get(repo, 0) + 1
        self.send_response(206 if first else 200)
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        if self.command == "HEAD":
            return None
        n = len(part)
        if fault == "broken" and n_tries[repo] < 3:
            n = len(content) // 3
        if fault == "cut":
            n = len(content) // 3 if first == 0 else 0
        for at in range(0, n, 65536):
            if fault == "slow":
                time.sleep(0.25)
            self.wfile.write(part[at:min(at + 65536, n)])
        if n < len(part):
            self.wfile.flush()
            self.close_connection = True
        return None


class Files(Handler):
    role = "files"


class Server(http.server.ThreadingHTTPServer):
    def handle_error(self, *_):  # clients that were killed
        pass


files = Server(("127.0.0.1", 0), Files)
files_url = f"http://localhost:{files.server_port}"
threading.Thread(target=files.serve_forever, daemon=True).start()
hub = Server(("127.0.0.1", 0), Handler)
tell("ready", f"http://127.0.0.1:{hub.server_port}")
hub.serve_forever()
