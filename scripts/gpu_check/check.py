#!/usr/bin/env python3
"""Runs the parts of a check on a GPU and writes OUT/gpu_check.json and OUT/gpu_check.md.

usage: check.py --bundle FOLDER [--device cuda|cpu] [--out FOLDER] [--parts start,kernels,...] [--limit SECONDS]

Every part is a process of its own that is stopped after --limit seconds (170); what it found until then counts. Exits with 1 if
a check failed, a part broke off or, on a GPU, checked nothing.
"""
import argparse
import json
import os
import signal
import subprocess
import sys
import time

import page

HERE = os.path.dirname(os.path.abspath(__file__))
PARTS = ("start", "kernels", "parity", "curves", "training", "use", "ranks", "speed")


def run_part(name, args):
    """The results of a part, how it ended, and its seconds."""
    path = os.path.join(args.out, "work", name, "results.json")
    os.makedirs(os.path.dirname(path), exist_ok=True)
    start = time.monotonic()
    with open(os.path.join(args.out, "work", name, "output.txt"), "w+", encoding="utf-8") as output:
        process = subprocess.Popen([sys.executable, os.path.join(HERE, name + ".py"), args.bundle, args.device, path, str(args.limit)], stdout=output,
                                   stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True)
        try:
            status = process.wait(args.limit)
            ended = "complete" if status == 0 else f"broke off with exit status {status}"
        except subprocess.TimeoutExpired:
            ended = f"stopped after {args.limit} s"
        try:
            os.killpg(process.pid, signal.SIGKILL)  # with what it started
        except ProcessLookupError:
            pass
        process.wait()
        output.seek(0)
        text = output.read()[-2000:]
    results = {"checks": [], "figures": {}}
    if os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            results = json.load(file)
    results.update(ended=ended, seconds=round(time.monotonic() - start, 1))
    if ended != "complete":
        results["output"] = text
    return results


def main():
    parser = argparse.ArgumentParser(description="checks a GPU with a bundle of pentatron")
    parser.add_argument("--bundle", required=True)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--out", default="gpu_check")
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--limit", type=float, default=170)
    args = parser.parse_args()
    args.bundle, args.out = os.path.abspath(args.bundle), os.path.abspath(args.out)
    names = args.parts.split(",")
    for name in names:
        if name not in PARTS:
            sys.exit(f"error: --parts {name}: no such part\n  try: {', '.join(PARTS)}")
    report = {"device": args.device, "parts": {}}
    for name in names:
        print(f"{name} ...", file=sys.stderr, flush=True)
        report["parts"][name] = run_part(name, args)
        with open(os.path.join(args.out, "gpu_check.json"), "w", encoding="utf-8") as file:
            json.dump(report, file, indent=1)
        with open(os.path.join(args.out, "gpu_check.md"), "w", encoding="utf-8") as file:
            file.write(page.page(report))
    print(page.page(report), end="")
    checks = [check for part in report["parts"].values() for check in part["checks"]]
    failed = [check for check in checks if check["ok"] is False]
    broken = [name for name, part in report["parts"].items() if part["ended"] != "complete" or page.checked_nothing(args.device, part)]
    return 1 if failed or broken or not any(check["ok"] for check in checks) else 0


if __name__ == "__main__":
    sys.exit(main())
