"""A real server on this machine that can be told to misbehave, one request after the other, and a file to fetch from it."""

import contextlib
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np

CONTENT = np.random.default_rng(0).bytes(300_000)


class Server:
    """Serves each path by a list of behaviours, one for each request; the last one stays."""

    def __init__(self):
        self.script, self.seen, self.released = {}, [], threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                outer.seen.append((self.path, self.headers.get("Range")))
                behaviours = outer.script.get(self.path, [status(404)])
                behaviour = behaviours.pop(0) if len(behaviours) > 1 else behaviours[0]
                self.close_connection = True
                # The client may have been killed.
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    behaviour(self, outer)

            def log_message(self, *_):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.thread = threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.02})
        self.thread.start()

    def url(self, path):
        return f"http://127.0.0.1:{self.http.server_port}{path}"

    def ranges(self, path):
        return [header for asked, header in self.seen if asked == path]

    def close(self):
        self.released.set()
        self.http.shutdown()
        self.http.server_close()
        self.thread.join()


def _head(handler, code, length, **headers):
    handler.send_response(code)
    if length is not None:
        handler.send_header("Content-Length", str(length))
    for name, value in headers.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()


def _begin(handler, content):
    """Headers, with respect for a range; the bytes that were asked for."""
    match = re.match(r"bytes=(\d+)-", handler.headers.get("Range", ""))
    start = int(match[1]) if match else 0
    if start >= len(content):
        _head(handler, 416, 0, Content_Range=f"bytes */{len(content)}")
        return b""
    rest = content[start:]
    if match:
        _head(handler, 206, len(rest), Content_Range=f"bytes {start}-{len(content) - 1}/{len(content)}")
    else:
        _head(handler, 200, len(rest))
    return rest


def serve(content):
    return lambda handler, _: handler.wfile.write(_begin(handler, content))


def cut(content, after):
    """The connection ends when some bytes of the response are sent."""
    return lambda handler, _: handler.wfile.write(_begin(handler, content)[:after])


def hold(content, after):
    """Some bytes, and then silence."""

    def behave(handler, server):
        handler.wfile.write(_begin(handler, content)[:after])
        handler.wfile.flush()
        server.released.wait(60)

    return behave


def whole(content):
    """The whole file, whatever range was asked for."""

    def behave(handler, _):
        _head(handler, 200, len(content))
        handler.wfile.write(content)

    return behave


def wrong_range(content):
    """A range that begins elsewhere than it was asked to."""

    def behave(handler, _):
        if "Range" not in handler.headers:
            return serve(content)(handler, _)
        _head(handler, 206, len(content), Content_Range=f"bytes 0-{len(content) - 1}/{len(content)}")
        handler.wfile.write(content)

    return behave


def status(code):
    return lambda handler, _: _head(handler, code, 0)


def silent(handler, server):
    """Never replies."""
    server.released.wait(60)
