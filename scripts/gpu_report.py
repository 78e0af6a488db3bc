#!/usr/bin/env python3
"""One page about a check on a GPU, and the same as JSON.

usage: gpu_report.py --out FOLDER [--device NAME] [--driver VERSION] [--torch VERSION] [--junit FILE] [--metrics FILE]
                     [--peers FILE]

Writes FOLDER/gpu_report.md and FOLDER/gpu_report.json. --junit is what `ctest --output-junit` wrote, --metrics the
metrics.jsonl of a training run on the GPU, --peers the JSON of benchmarks/peers/compare.py. What is missing is left out.
Exits with 1 if a test failed, or if none ran.
"""
import argparse
import json
import os
import statistics
import sys
import xml.etree.ElementTree as ElementTree

WARMUP = 5  # steps of a training run that are not counted
FIGURES = ("step_time_s", "tokens_per_s", "tflops", "mfu", "memory_bytes")


def read_tests(path):
    """Names of tests by what became of them."""
    result = {"passed": [], "failed": [], "skipped": []}
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        status = case.get("status", "")
        kind = "skipped" if status in ("notrun", "disabled") else "passed" if status == "run" else "failed"
        output = case.findtext("system-out") or ""
        if kind == "passed" and "[  SKIPPED ]" in output and "[       OK ]" not in output:
            kind = "skipped"
        result[kind].append(case.get("name"))
    return result


def read_metrics(path):
    """Medians of the steps behind the warm-up."""
    with open(path, encoding="utf-8") as file:
        steps = [entry for entry in map(json.loads, file) if "loss" in entry][WARMUP:]
    figures = {"steps": len(steps)}
    for name in FIGURES:
        values = [step[name] for step in steps if step.get(name) is not None]
        if values:
            figures[name] = statistics.median(values)
    return figures


def read_peers(path):
    """Median step times by model and type, then by program."""
    with open(path, encoding="utf-8") as file:
        runs = json.load(file)["runs"]
    return {name: {label: statistics.median(run["step_times_s"]) if run.get("step_times_s") else "failed"
                   for label, run in programs.items()} for name, programs in runs.items()}


def page(report):
    lines = ["# Check on a GPU", "", "| | |", "|---|---|"]
    lines += [f"| {name} | {report[name]} |" for name in ("device", "driver", "torch") if report.get(name)]
    if tests := report.get("tests"):
        counts = {kind: len(names) for kind, names in tests.items()}
        lines.append(f"| tests | {counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped |")
    if training := report.get("training"):
        lines.append(f"| training | {training['steps']} steps, medians |")
        if "step_time_s" in training:
            lines.append(f"| step | {1000 * training['step_time_s']:.1f} ms |")
        if "tokens_per_s" in training:
            lines.append(f"| tokens/s | {training['tokens_per_s']:.0f} |")
        if "tflops" in training:
            mfu = f", {100 * training['mfu']:.1f} % MFU" if "mfu" in training else ", MFU unknown"
            lines.append(f"| model TFLOP/s | {training['tflops']:.1f}{mfu} |")
        if "memory_bytes" in training:
            lines.append(f"| peak memory of tensors | {training['memory_bytes'] / 2**30:.2f} GiB |")
    for kind in ("failed", "skipped"):
        if names := report.get("tests", {}).get(kind):
            lines += ["", f"## Tests that {'failed' if kind == 'failed' else 'were skipped'}", ""]
            lines += [f"- `{name}`" for name in names]
    if peers := report.get("peers"):
        lines += ["", "## Step times", "", "| run | program | seconds |", "|---|---|---|"]
        for run, programs in peers.items():
            lines += [f"| {run} | {label} | {value if isinstance(value, str) else f'{value:.4f}'} |"
                      for label, value in programs.items()]
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description="one page about a check on a GPU, and the same as JSON")
    parser.add_argument("--out", required=True)
    for name in ("--device", "--driver", "--torch", "--junit", "--metrics", "--peers"):
        parser.add_argument(name)
    args = parser.parse_args()
    report = {name: getattr(args, name) for name in ("device", "driver", "torch") if getattr(args, name)}
    for name, path, read in (("tests", args.junit, read_tests), ("training", args.metrics, read_metrics),
                             ("peers", args.peers, read_peers)):
        if path and os.path.exists(path):
            report[name] = read(path)
    text = page(report)
    os.makedirs(args.out, exist_ok=True)
    with open(os.path.join(args.out, "gpu_report.json"), "w", encoding="utf-8") as file:
        json.dump(report, file, indent=1)
    with open(os.path.join(args.out, "gpu_report.md"), "w", encoding="utf-8") as file:
        file.write(text)
    print(text, end="")
    tests = report.get("tests")
    return 1 if tests and (tests["failed"] or not tests["passed"]) else 0


if __name__ == "__main__":
    sys.exit(main())
