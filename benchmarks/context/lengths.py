#!/usr/bin/env python3
"""Long samples on context-parallel ranks: peak memory of the rank that needs most beside the estimate made before the first
step, and the time of a step beside the FLOPs of the formula.

    benchmarks/context/lengths.py build/dev/pentatron [--lengths 2048,...,65536] [--ranks 1,2,4] [--layers 1] [--hidden 64] [key=value ...]

Memory is counted allocation by allocation, so it is the same on every machine. The samples of all ranks are the same, so are
the losses, which are compared.
"""
import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile

HEAD, VOCAB = 64, 512
UNITS = {"B": 2**-20, "KiB": 2**-10, "MiB": 1, "GiB": 1024}


def mib(text):
    number, unit = text.split()
    return float(number) * UNITS[unit]


def flops(tokens, layers, hidden):
    """Of a step: of products with weights, and of attention, 2 products of n^2 / 2 pairs forward and 5 backward."""
    ffn = 4 * hidden
    weights = layers * (hidden * (2 * hidden + 2 * HEAD) + 3 * hidden * ffn) + VOCAB * hidden
    return 6 * weights * tokens, 7 * tokens**2 * hidden * layers


def run(args, tokens, ranks):
    keys = [f"model.num_layers={args.layers}", f"model.hidden_size={args.hidden}", f"model.num_attention_heads={args.hidden // HEAD}",
            "model.num_query_groups=1", f"model.ffn_hidden_size={4 * args.hidden}", f"model.vocab_size={VOCAB}",
            f"model.max_position_embeddings={tokens}", f"train.seq_length={tokens}", "train.micro_batch_size=1",
            "train.global_batch_size=1", f"train.train_iters={args.steps}", "dataset.type=mock",
            f"parallel.context_parallel_size={ranks}", "logger.plot=false", "logger.tensorboard=false", "logger.peak_tflops=1",
            *args.keys]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([args.program, "train", *keys, "--ranks", str(ranks), f"logger.dir={folder}/run"], capture_output=True,
                              text=True, check=False)
        if done.returncode:
            sys.exit(done.stderr)
        lines = [json.loads(line) for line in pathlib.Path(folder, "run", "metrics.jsonl").read_text().splitlines()]
    peaks = re.findall(r"memory peak  at most (\S+ \S+) per rank \(estimated (\S+ \S+)\).* activations (\S+ \S+) \((\S+ \S+)\)", done.stderr)
    steps = [line for line in lines if "step_time_s" in line]
    return [mib(text) for text in peaks[-1]], steps[-1]["step_time_s"], steps[0]["loss"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--lengths", default="2048,4096,8192,16384,32768,65536")
    parser.add_argument("--ranks", default="1,2,4")
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--steps", type=int, default=2, help="of which the last is timed")
    parser.add_argument("keys", nargs="*", help="key=value for all runs")
    args = parser.parse_args()
    print("| tokens | ranks | peak MiB | estimate | its ratio | activations MiB | estimate | of 1 rank's activations | step s | TFLOP | TFLOP/s |\n"
          "|---|---|---|---|---|---|---|---|---|---|---|")
    for tokens in map(int, args.lengths.split(",")):
        first = None
        for ranks in map(int, args.ranks.split(",")):
            (peak, plan, kept, kept_plan), seconds, loss = run(args, tokens, ranks)
            first = first or (kept, loss)
            if abs(loss - first[1]) > 2e-5 * abs(first[1]):
                sys.exit(f"error: the loss is {loss} on {ranks} ranks instead of {first[1]}")
            tera = sum(flops(tokens, args.layers, args.hidden)) / 1e12
            print(f"| {tokens} | {ranks} | {peak:.1f} | {plan:.1f} | {plan / peak:.2f} | {kept:.1f} | {kept_plan:.1f} | {kept / first[0]:.3f} | "
                  f"{seconds:.2f} | {tera:.3g} | {tera / seconds:.2f} |", flush=True)


main()
