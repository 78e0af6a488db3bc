#!/usr/bin/env python3
"""Two ranks on the cores of one rank: whole training steps of data and tensor parallelism beside one rank with all threads.

    benchmarks/ranks/efficiency.py [--program build/release/pentatron] [--rounds 3] [--steps 5] [key=value ...]

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
    ("TP2 in_process", 2, "in_process", TP),
    ("TP2 mpi", 2, "mpi", TP),
    ("TP2 + sequence parallel in_process", 2, "in_process", TP + ["parallel.sequence_parallel=true"]),
    ("TP2 + sequence parallel mpi", 2, "mpi", TP + ["parallel.sequence_parallel=true"]),
]


def train(program, ranks, backend, keys):
    """Seconds of each step."""
    with tempfile.TemporaryDirectory() as folder:
        command = [program, "train", *keys, f"logger.dir={folder}"]
        if ranks > 1:
            command += ["--ranks", str(ranks), "--backend", backend]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"{' '.join(command)}\n{done.stderr}")
        with open(os.path.join(folder, "metrics.jsonl"), encoding="utf-8") as lines:
            return [json.loads(line)["step_time_s"] for line in lines]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="build/release/pentatron")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=5, help="that count, after two that do not")
    parser.add_argument("--dtypes", default="fp32,bf16")
    parser.add_argument("--only", default="", help="contenders whose name contains this, and the first")
    parser.add_argument("keys", nargs="*", help="key=value for all contenders")
    args = parser.parse_args()
    contenders = [c for c in CONTENDERS if c is CONTENDERS[0] or args.only in c[0]]
    for dtype in args.dtypes.split(","):
        steps = {name: [] for name, *_ in contenders}
        for _ in range(args.rounds):
            for name, ranks, backend, keys in contenders:
                times = train(args.program, ranks, backend, MODEL + keys + [
                    f"dtype={dtype}", f"train.train_iters={args.steps + 2}", *args.keys])
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
