"""Train a compact layer, freeze it, and serve it over HTTP: what a request costs before and after `freeze`.

    python examples/serve.py            # trains, then times requests from four threads and stops
    python examples/serve.py --stay     # goes on serving: curl -d '[0.1, 0.2, ...]' http://127.0.0.1:8000

The task is made up: which of ten hidden directions a noisy vector of 512 numbers points to.
"""

from __future__ import annotations

import argparse
import json
import statistics
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import torch
from torch import Tensor, nn

import torchldr

FEATURES, CLASSES = 512, 10


def drawn(directions: Tensor, count: int) -> tuple[Tensor, Tensor]:
    labels = torch.randint(CLASSES, (count,))
    return directions[labels] + 6 * torch.randn(count, FEATURES), labels


def trained(directions: Tensor, steps: int) -> nn.Module:
    layer = torchldr.StructuredLinear(FEATURES, FEATURES, structure="ldr_sd", rank=2)
    model = nn.Sequential(layer, nn.ReLU(), nn.Linear(FEATURES, CLASSES))
    optimizer = torch.optim.AdamW(torchldr.compress.parameter_groups(model, lr=1e-3))
    for _ in range(steps):
        x, labels = drawn(directions, 64)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), labels).backward()
        optimizer.step()
    return model.eval()


def server_of(model: nn.Module, port: int) -> ThreadingHTTPServer:
    """Answers a POST with a JSON list of numbers by the class; a frozen model serves all threads at once."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # headers and body in one packet

        def do_POST(self) -> None:
            x = torch.tensor(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            with torch.inference_mode():
                answer = json.dumps({"class": int(model(x).argmax())}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    return ThreadingHTTPServer(("127.0.0.1", port), Handler)


def asked(port: int, x: Tensor) -> tuple[list[int], list[float]]:
    """Every row as one request on one connection: classes and seconds."""
    connection, classes, seconds = HTTPConnection("127.0.0.1", port), [], []
    for row in x.tolist():
        body, start = json.dumps(row), time.perf_counter()
        connection.request("POST", "/", body)
        classes.append(json.loads(connection.getresponse().read())["class"])
        seconds.append(time.perf_counter() - start)
    connection.close()
    return classes, seconds


def call_us(model: nn.Module, x: Tensor) -> float:
    """The median time of a call for one row."""
    with torch.inference_mode():
        times = []
        for row in x:
            start = time.perf_counter()
            model(row)
            times.append(time.perf_counter() - start)
    return 1e6 * statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=300, help="of training")
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one; --stay takes 8000")
    parser.add_argument("--stay", action="store_true")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    directions = torch.randn(CLASSES, FEATURES)
    model = trained(directions, arguments.steps)
    x, labels = drawn(directions, arguments.requests)

    served = torchldr.freeze(model)  # constants prepared; `model` can go on training
    print(served.report)
    print(f"a call: {call_us(model, x):.0f} us in eval(), {call_us(served, x):.0f} us frozen")

    server = server_of(served, arguments.port or (8000 if arguments.stay else 0))
    port = server.server_address[1]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda part: asked(port, part), x.chunk(4)))
    classes = torch.tensor([c for found, _ in answers for c in found])
    seconds = [s for _, spent in answers for s in spent]
    with torch.inference_mode():
        same = float((classes == model(x).argmax(1)).float().mean())
    print(f"a request: {1e3 * statistics.median(seconds):.1f} ms, four threads at once")
    print(f"right: {float((classes == labels).float().mean()):.0%}, as the model in eval(): {same:.0%}")
    if arguments.stay:
        print(f"serving on http://127.0.0.1:{port}, stop with Ctrl-C")
        threading.Event().wait()
    server.shutdown()


if __name__ == "__main__":
    main()
