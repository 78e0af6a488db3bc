#!/usr/bin/env python3
"""Tokens per second of `pentatron serve` with 1 and 16 clients, and of llama.cpp's llama-server on the same GGUF file.

usage: serving.py PROGRAM MODEL.gguf [LLAMA_SERVER] [key=value...]

Each client sends one request after another: another prompt each time, TOKENS new tokens, end tokens ignored. The servers run one
after the other, in rounds (ROUNDS, default 3), with all threads of the machine; the figures are medians of the rounds. LLAMA_SERVER: the
program, which serving_llama.sh builds from the sources in the package llama-cpp-python. Keys are for pentatron (dtype=bf16).
"""

import http.client
import json
import os
import socket
import statistics
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../tests/serve/peers"))
from server import Server  # noqa: E402

CLIENTS, TOKENS, REQUESTS, ROUNDS = 16, 64, 4, int(os.environ.get("ROUNDS", "3"))


def ask(port, number):
    body = {"prompt": f"Chapter {number}. It was a bright cold day in April, and the clocks were striking. " * 2, "max_tokens": TOKENS,
            "temperature": 0, "ignore_eos": True, "cache_prompt": False}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    content = json.loads(answer.read())
    assert answer.status == 200, content
    assert content["usage"]["completion_tokens"] == TOKENS, content["usage"]
    connection.close()


def rate(port, clients, requests):
    """New tokens per second, all clients together."""
    def client(number):
        for i in range(requests):
            ask(port, 1000 * number + i)

    threads = [threading.Thread(target=client, args=(n,)) for n in range(clients)]
    start = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return clients * requests * TOKENS / (time.monotonic() - start)


class LlamaServer:
    def __init__(self, program, model):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.process = subprocess.Popen([program, "-m", model, "--host", "127.0.0.1", "--port", str(self.port), "-np", str(CLIENTS),
                                         "-c", str(1024 * CLIENTS), "-t", str(os.cpu_count())],
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(600):
            try:
                connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
                connection.request("GET", "/health")
                if connection.getresponse().status == 200:
                    return
            except OSError:
                pass
            time.sleep(0.1)
        raise SystemExit("llama-server did not start")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()


def main(program, model, *more):
    llama = next((m for m in more if "=" not in m), None)
    keys = [m for m in more if "=" in m]
    systems = {"pentatron": lambda: Server(program, model, "--no-prefix-sharing", *keys)}
    if llama:
        systems["llama-server"] = lambda: LlamaServer(llama, model)
    one, many = {name: [] for name in systems}, {name: [] for name in systems}
    for _ in range(ROUNDS):
        for name, start in systems.items():
            with start() as server:
                rate(server.port, 1, 1)  # the first calls of everything
                one[name].append(rate(server.port, 1, 2))
                many[name].append(rate(server.port, CLIENTS, REQUESTS))
    one, many = ({name: statistics.median(rates) for name, rates in all_rates.items()} for all_rates in (one, many))
    for name in systems:
        print(f"{name:13} {one[name]:8.1f} tokens/s with 1 client, {many[name]:8.1f} with {CLIENTS} ({many[name] / one[name]:.2f} times)")
    if llama:
        print(f"pentatron / llama-server: {one['pentatron'] / one['llama-server']:.2f} with 1 client, "
              f"{many['pentatron'] / many['llama-server']:.2f} with {CLIENTS}")


if __name__ == "__main__":
    main(*sys.argv[1:])
