#!/usr/bin/env python3
"""SmolLM2-135M on three tasks has the log-likelihoods and accuracies that lm-eval gives it with transformers in fp32.

usage: smollm2.py PROGRAM MODEL
"""

import json
import math
import pathlib
import subprocess
import sys
import tempfile

TASKS = ("choice", "documents", "last_word")
DATA = pathlib.Path(__file__).resolve().parents[1] / "data/evaluation/smollm2"
TOLERANCE = 1e-3  # of the log-likelihood of an item, which is up to 500 nats


def as_list(value):
    return value if isinstance(value, list) else [value]


def scores_of(task, items):
    """What lm-eval makes of its items."""
    mean = lambda values: sum(values) / len(items)
    if task == "choice":
        return {"acc": mean(i["acc"] for i in items), "acc_norm": mean(i["acc_norm"] for i in items)}
    total = sum(i["loglikelihood"] for i in items)
    if task == "last_word":
        return {"acc": mean(i["greedy"] for i in items), "perplexity": math.exp(-total / len(items))}
    words, size = sum(i["words"] for i in items), sum(i["bytes"] for i in items)
    return {"word_perplexity": math.exp(-total / words), "byte_perplexity": math.exp(-total / size), "bits_per_byte": -total / size / math.log(2)}


def main():
    program, model = sys.argv[1:3]
    expected = json.loads((DATA / "expected.json").read_text())
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder, "scores.json")
        subprocess.run([program, "evaluate", model, "--tasks", ",".join(str(DATA / f"{task}.yaml") for task in TASKS), "--out", str(out),
                        f"eval.max_length={expected['settings']['max_length']}", "dtype=fp32"], check=True, stdout=subprocess.DEVNULL)
        given = json.loads(out.read_text())
    failures = []
    for task in TASKS:
        items, ours = expected["items"][task], given["items"][task]
        if len(items) != len(ours):
            failures.append(f"{task}: {len(ours)} items, not {len(items)}")
            continue
        farthest = 0
        for number, (theirs, item) in enumerate(zip(items, ours)):
            pairs = list(zip(as_list(theirs["loglikelihood"]), as_list(item["loglikelihood"]), strict=True))
            off = max(abs(a - b) for a, b in pairs)
            farthest = max(farthest, off)
            if not off <= TOLERANCE:
                failures.append(f"{task}: item {number} is {off:.2g} nats off")
            if "greedy" in theirs and theirs["greedy"] != item["greedy"]:
                failures.append(f"{task}: item {number} is greedy: {item['greedy']}, not {theirs['greedy']}")
        for metric, value in scores_of(task, items).items():
            ours_value = given["scores"][task][metric]
            limit = 1e-12 if metric.startswith("acc") else 1e-4 * value
            if not abs(ours_value - value) <= limit:
                failures.append(f"{task}: {metric} is {ours_value}, not {value}")
        print(f"{task}: {len(items)} items, at most {farthest:.1e} nats off")
    for failure in failures:
        print(failure)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
