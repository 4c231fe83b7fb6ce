"""Compare services of one model: start, latency, throughput, idle CPU time, memory.

    python examples/serve/bench.py encoder.smelt model.onnx --threads 1

Each path is served by `serve.py` in a process of its own, one after another.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

PORT = 8471
TICKS = os.sysconf("SC_CLK_TCK")


def post(ids: list[list[int]]) -> list[list[float]]:
    """Return the embeddings of texts."""
    connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=120)
    connection.request("POST", "/embed", json.dumps({"ids": ids}))
    response = connection.getresponse()
    body = json.loads(response.read())
    connection.close()
    if response.status != 200:
        raise RuntimeError(f"{response.status}: {body}")
    return body["embeddings"]


def start(path: str, threads: int) -> tuple[subprocess.Popen[bytes], float]:
    """Start a service; return its process and the seconds until the first answer."""
    begin = time.perf_counter()
    serve = Path(__file__).with_name("serve.py")
    command = [sys.executable, str(serve), path, "--port", str(PORT), "--threads", str(threads)]
    process = subprocess.Popen(command)  # noqa: S603
    while process.poll() is None:
        try:
            post([[101, 102]])
            return process, time.perf_counter() - begin
        except OSError:
            time.sleep(0.01)
    raise RuntimeError(f"the service of {path} ended with status {process.returncode}")


def cpu_seconds(pid: int) -> float:
    """Return the processor time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def peak_bytes(pid: int) -> int:
    """Return the most memory that a process has had."""
    (line,) = [x for x in Path(f"/proc/{pid}/status").read_text().splitlines() if "VmHWM" in x]
    return int(line.split()[1]) * 1024


def texts(count: int) -> list[list[int]]:
    """Return texts of 5 to 200 tokens, mostly short."""
    draw = random.Random(0)  # noqa: S311
    lengths = [min(200, 5 + int(draw.expovariate(1 / 40))) for _ in range(count)]
    return [[draw.randrange(1000, 20000) for _ in range(n)] for n in lengths]


def measure(path: str, threads: int, count: int) -> dict[str, str]:
    """Return a column of the table for one service."""
    process, first = start(path, threads)
    try:
        latencies: list[float] = []
        for _ in range(max(count // 8, 5)):
            begin = time.perf_counter()
            post([[2000] * 16])
            latencies.append(1e3 * (time.perf_counter() - begin))
        requests = texts(count)
        with ThreadPoolExecutor(8) as clients:
            list(clients.map(lambda ids: post([ids]), requests[: count // 4]))
            begin, busy = time.perf_counter(), cpu_seconds(process.pid)
            list(clients.map(lambda ids: post([ids]), requests))
        elapsed, busy = time.perf_counter() - begin, cpu_seconds(process.pid) - busy
        idle = cpu_seconds(process.pid)
        time.sleep(3)
        return {
            "start to first answer, s": f"{first:.2f}",
            "one text, median ms": f"{statistics.median(latencies):.1f}",
            "one text, slowest of 100, ms": f"{sorted(latencies)[-1 - len(latencies) // 100]:.1f}",
            "mixed lengths, texts a second": f"{count / elapsed:.0f}",
            "CPU ms a text": f"{1e3 * busy / count:.1f}",
            "CPU ms in 3 idle seconds": f"{1e3 * (cpu_seconds(process.pid) - idle):.0f}",
            "most memory, MB": f"{peak_bytes(process.pid) / 1e6:.0f}",
        }
    finally:
        process.terminate()
        process.wait(30)


def main() -> None:
    """Print the table for the services of the command line."""
    parser = argparse.ArgumentParser(description="Compare services of one model.")
    parser.add_argument("paths", nargs="+")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--texts", type=int, default=400)
    options = parser.parse_args()
    columns = [measure(path, options.threads, options.texts) for path in options.paths]
    names = [Path(path).name for path in options.paths]
    print(f"| | {' | '.join(names)} |\n|---|{'--:|' * len(names)}")
    for row in columns[0]:
        print(f"| {row} | {' | '.join(c[row] for c in columns)} |")


if __name__ == "__main__":
    main()
