#!/usr/bin/env python3
"""Two ranks on the cores of one rank: whole training steps of data and tensor parallelism beside one rank with all threads.

    benchmarks/ranks/efficiency.py [--program build/release/pentatron] [--rounds 3] [--steps 5] [--trace] [key=value ...]

Every contender trains the same model on the same tokens. Contenders take turns, round after round, so that a machine
whose speed varies is fair to all; a contender's figure is the fastest round's median step, without the first two steps.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

MODEL = ["model.preset=gpt2_124m", "model.hidden_dropout=0", "model.attention_dropout=0", "model.embedding_dropout=0",
         "dataset.type=mock", "train.seq_length=512", "train.global_batch_size=2", "logger.plot=false",
         "logger.tensorboard=false", "logger.peak_tflops=1", "logger.log_interval=1000000"]
TP = ["train.micro_batch_size=2", "parallel.tensor_model_parallel_size=2"]
DP = ["train.micro_batch_size=1"]
# name, ranks, backend, keys
CONTENDERS = [
    ("1 rank, all threads", 1, None, ["train.micro_batch_size=2"]),
    ("DP2 in_process", 2, "in_process", DP),
    ("DP2 mpi", 2, "mpi", DP),
    ("DP2 + ZeRO-1 in_process", 2, "in_process", DP + ["ddp.zero_stage=1"]),
    ("DP2 + ZeRO-1 mpi", 2, "mpi", DP + ["ddp.zero_stage=1"]),
    ("TP2 in_process", 2, "in_process", TP),
    ("TP2 mpi", 2, "mpi", TP),
    ("TP2 + sequence parallel in_process", 2, "in_process", TP + ["parallel.sequence_parallel=true"]),
    ("TP2 + sequence parallel mpi", 2, "mpi", TP + ["parallel.sequence_parallel=true"]),
]


def run(program, ranks, backend, keys, result):
    """What `result` reads from the folder of a run."""
    with tempfile.TemporaryDirectory() as folder:
        command = [program, "train", *keys, f"logger.dir={folder}"]
        if ranks > 1:
            command += ["--ranks", str(ranks), "--backend", backend]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"{' '.join(command)}\n{done.stderr}")
        return result(folder)


def step_times(folder):
    with open(os.path.join(folder, "metrics.jsonl"), encoding="utf-8") as lines:
        return [json.loads(line)["step_time_s"] for line in lines if "step_time_s" in line]


def shares(folder):
    """Seconds a traced step in passes, optimizer, the rest of the step, and in waits for other ranks inside any of them;
    mean over ranks and steps."""
    with open(os.path.join(folder, "trace.json"), encoding="utf-8") as file:
        events = [e for e in json.load(file)["traceEvents"] if e["ph"] == "X"]
    steps = [e for e in events if e["cat"] == "iteration"]
    waits = [e for e in events if e["cat"] == "wait"]

    def waited(span):
        """Waits do not overlap each other."""
        return sum(w["dur"] for w in waits if w["pid"] == span["pid"] and span["ts"] <= w["ts"] < span["ts"] + span["dur"])

    spent = {"passes": 0.0, "optimizer": 0.0, "rest": 0.0, "waits": sum(waited(s) for s in steps)}
    for event in events:
        if event["cat"] in ("forward", "backward", "input gradient", "weight gradient"):
            spent["passes"] += event["dur"] - waited(event)
        elif event["name"] == "optimizer":
            spent["optimizer"] += event["dur"] - waited(event)
    total = sum(s["dur"] for s in steps)
    spent["rest"] = total - sum(spent.values())
    spent["step"] = total
    return {name: us / 1e6 / len(steps) for name, us in spent.items()}


def print_shares(program, dtype, contenders, more):
    print(f"\n| {dtype} | step s | passes | optimizer | rest | waits for the other rank |\n|---|---|---|---|---|---|")
    for name, ranks, backend, keys in contenders:
        s = run(program, ranks, backend, MODEL + keys + [f"dtype={dtype}", "train.train_iters=4", "profiling.trace=true",
                                                         *more], shares)
        print(f"| {name} | {s['step']:.3f} | {s['passes']:.3f} | {s['optimizer']:.3f} | {s['rest']:.3f} | {s['waits']:.3f} |",
              flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="build/release/pentatron")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=5, help="that count, after two that do not")
    parser.add_argument("--trace", action="store_true", help="instead, where the time of a step goes, from one traced run")
    parser.add_argument("--dtypes", default="fp32,bf16")
    parser.add_argument("--only", default="", help="contenders whose name contains this, and the first")
    parser.add_argument("keys", nargs="*", help="key=value for all contenders")
    args = parser.parse_args()
    contenders = [c for c in CONTENDERS if c is CONTENDERS[0] or args.only in c[0]]
    for dtype in args.dtypes.split(","):
        if args.trace:
            print_shares(args.program, dtype, contenders, args.keys)
            continue
        steps = {name: [] for name, *_ in contenders}
        for _ in range(args.rounds):
            for name, ranks, backend, keys in contenders:
                times = run(args.program, ranks, backend, MODEL + keys + [
                    f"dtype={dtype}", f"train.train_iters={args.steps + 2}", *args.keys], step_times)
                steps[name].append(statistics.median(times[2:]))
                print(f"# {dtype} {name}: {steps[name][-1]:.3f} s", file=sys.stderr, flush=True)
        tokens = 2 * 512
        base = min(steps[CONTENDERS[0][0]])
        print(f"\n| {dtype} | step s, best round | all rounds | tokens/s | efficiency |\n|---|---|---|---|---|")
        for name, times in steps.items():
            rounds = ", ".join(f"{t:.3f}" for t in times)
            print(f"| {name} | {min(times):.3f} | {rounds} | {tokens / min(times):.0f} | {100 * base / min(times):.0f} % |")


if __name__ == "__main__":
    main()
