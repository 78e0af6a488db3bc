#!/usr/bin/env python3
"""Trains examples/bert.yaml and examples/t5.yaml to their end. BERT must predict masked bytes at least twice as often as the
most frequent byte does, and T5's loss must be at least 0.5 nats below the entropy of bytes (docs/encoders.md has figures). run_examples.py PENTATRON [TRAIN_ITERS]: about ten minutes on two cores."""
import collections
import json
import math
import os
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def frequencies():
    """Of the bytes of the novels."""
    counts = collections.Counter()
    folder = os.path.join(ROOT, "corpus", "austen")
    for name in sorted(os.listdir(folder)):
        with open(os.path.join(folder, name), "rb") as file:
            counts.update(file.read())
    total = sum(counts.values())
    return [count / total for count in counts.values()]


def last(folder, key):
    """Its last value in the metrics of a run."""
    with open(os.path.join(folder, "metrics.jsonl"), encoding="utf-8") as file:
        values = [line[key] for line in map(json.loads, file) if key in line]
    return values[-1]


def trained(program, name, more):
    with tempfile.TemporaryDirectory() as folder:
        begin = time.monotonic()
        subprocess.run([program, "train", os.path.join(ROOT, "examples", name), f"logger.dir={folder}/log",
                        f"checkpoint.save={folder}/checkpoints", "logger.progress=off", *more], check=True, cwd=folder, stdout=subprocess.DEVNULL)
        key = "validation_lm_accuracy" if name == "bert.yaml" else "validation_loss"
        if not os.path.exists(os.path.join(folder, "log", "loss.svg")):
            raise SystemExit(f"{name}: no plot")
        return last(os.path.join(folder, "log"), key), time.monotonic() - begin


def main(program, *more):
    program = os.path.abspath(program)
    keys = [f"train.train_iters={more[0]}"] if more else []
    shares = frequencies()
    guessing, entropy = max(shares), -sum(p * math.log(p) for p in shares)
    accuracy, seconds = trained(program, "bert.yaml", keys)
    print(f"bert: {accuracy:.3f} of the masked bytes, guessing the most frequent byte {guessing:.3f}; {seconds:.0f} s", flush=True)
    loss, seconds = trained(program, "t5.yaml", keys)
    print(f"t5: {loss:.3f} nats a token, entropy of bytes {entropy:.3f}; {seconds:.0f} s", flush=True)
    good = accuracy >= 2 * guessing and loss <= entropy - 0.5
    print("both learned" if good else "FAILED")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
