"""A policy behind HTTP, without torch: `python web_handler.py runs/first`, then

curl -d '{"observation": [0.0, 0.0, 0.0, 0.0]}' localhost:8000
"""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock

import numpy as np

import raypid


def server(folder, port=8000):
    """A server of the policy in a run's folder. `serve_forever` serves, `shutdown` ends it."""
    policy, lock = raypid.load_policy(folder), Lock()  # a fully connected network needs NumPy alone

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            try:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"] or 0)))
                if not isinstance(body, dict) or "observation" not in body:
                    raise ValueError('the body is {"observation": [...]}')
                with lock:  # a policy that remembers takes a session for each client: policy.session()
                    action = policy.act(body["observation"])
                code, answer = 200, {"action": action}
            except (
                TypeError,
                ValueError,
                RecursionError,
            ) as error:  # raypid's errors for bad observations are ValueErrors
                code, answer = 400, {"error": str(error)}
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps(answer, default=np.ndarray.tolist).encode())

        def log_message(self, *args):
            pass

    return ThreadingHTTPServer(("127.0.0.1", port), Handler)


def main():
    if len(sys.argv) != 2:
        raise SystemExit("usage: python web_handler.py RUN, the folder of a run such as runs/first")
    try:
        there = server(sys.argv[1])
    except ValueError as error:  # raypid's errors say what is wrong with the folder
        raise SystemExit(str(error)) from None
    except OSError as error:
        raise SystemExit(f"port 8000: {error.strerror}") from None
    print("Serving at http://localhost:8000, until Ctrl-C.", flush=True)
    try:
        there.serve_forever()
    except KeyboardInterrupt:
        there.server_close()


if __name__ == "__main__":
    main()
