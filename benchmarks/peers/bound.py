#!/usr/bin/env python3
"""How far a training step is from what its machine allows: the rows of compare.py against a bound measured in the same run.

The bound of a step is the sum of
  - every product of a linear layer, of the head and of attention (forward, and both gradients) at the shortest time that any
    kernel of pentatron or LibTorch needed for it alone (bench_kernels), and
  - for everything else, the bytes that it must at least read and write, at the bandwidth that `pentatron doctor` measures.
The bound is the smallest of the rounds, so where the speed of the machine varies it compares with the fastest step. Nothing
is subtracted for data that stays in a cache, and nothing added for the start of operators or for waits.

  bound.py --pentatron build/release/pentatron --kernels build/release/benchmarks/bench_kernels
           [--models gpt2_124m,llama_8x512,mixtral_4x512] [--classes fp32,bf16] [--rounds 2] [--steps 4] [--threads 2]
"""
import argparse
import json
import os
import re
import statistics
import subprocess
import sys

import compare

# Shapes of a layer; linear: (in, out) of its linear layers; gated: the feed-forward layer has a gate; experts: their number, how many
# a token chooses, and (in, out) of their linear layers (one product for each expert and an equal share of the rows).
ROWS = {
    "gpt2_124m": {"tokens": 1024, "layers": 12, "hidden": 768, "ffn": 3072, "gated": False, "vocab": 50257,
                  "rotary": 0, "norm": "layer", "learned_positions": 1024, "tied": True, "biases": True,
                  "linear": [(768, 2304), (768, 768), (768, 3072), (3072, 768)], "attention": (1, 1024, 12, 12, 64)},
    "llama_8x512": {"tokens": 2048, "layers": 8, "hidden": 512, "ffn": 1408, "gated": True, "vocab": 32000,
                    "rotary": 512 + 256, "norm": "rms", "learned_positions": 0, "tied": False, "biases": False,
                    "linear": [(512, 1024), (512, 512), (512, 2816), (1408, 512)], "attention": (2, 1024, 8, 4, 64)},
    "mixtral_4x512": {"tokens": 2048, "layers": 4, "hidden": 512, "ffn": 1024, "gated": True, "vocab": 32000,
                      "rotary": 512 + 256, "norm": "rms", "learned_positions": 0, "tied": False, "biases": False,
                      "linear": [(512, 1024), (512, 512)], "attention": (4, 512, 8, 4, 64),
                      "experts": (8, 2, [(512, 2048), (1024, 512)])},
}
PRODUCTS = ("forward", "input_gradient", "weight_gradient")


def best_rates(args, pattern):
    """(operator, shape) -> the most GFLOP/s of any kernel, LibTorch's included."""
    out = subprocess.run([args.kernels, f"--benchmark_filter={pattern}", "--benchmark_format=json"], check=True,
                         capture_output=True, text=True).stdout
    best = {}
    for row in json.loads(out)["benchmarks"]:
        operator, shape = re.fullmatch(r"(.+)/\w+/(\w+:\d.*)/min_time.*", row["name"]).groups()
        rate = max(row["GFLOP/s"], row["torch_GFLOP/s"])
        best[operator, shape] = max(rate, best.get((operator, shape), 0))
    return best


def products_s(args, row, dtype):
    """Seconds of the products of linear layers and head, and of attention."""
    shapes = {f"tokens:{row['tokens']}/in:{i}/out:{o}": row["layers"] for i, o in row["linear"]}
    if "experts" in row:
        experts, chosen, linear = row["experts"]
        shapes |= {f"tokens:{row['tokens'] * chosen // experts}/in:{i}/out:{o}": row["layers"] * experts for i, o in linear}
    shapes[f"tokens:{row['tokens']}/in:{row['hidden']}/out:{row['vocab']}"] = 1
    rates = best_rates(args, f"^gemm_({'|'.join(PRODUCTS)})_{dtype}/.*/({'|'.join(shapes)})/")
    seconds = 0.0
    for shape, times in shapes.items():
        flops = 2.0
        for size in re.findall(r":(\d+)", shape):
            flops *= int(size)
        for product in PRODUCTS:
            seconds += times * flops / (1e9 * rates[f"gemm_{product}_{dtype}", shape])
    batch, sequence, heads, groups, size = row["attention"]
    shape = f"batch:{batch}/sequence:{sequence}/heads:{heads}/kv_heads:{groups}/head_size:{size}"
    rates = best_rates(args, f"^attention/(forward|backward)_{dtype}/.*/{shape}/")
    attention = 0.0
    for product, count in (("forward", 2), ("backward", 5)):
        flops = count * batch * sequence * heads * size * (sequence + 1.0)
        attention += row["layers"] * flops / (1e9 * rates[f"attention/{product}_{dtype}", shape])
    return seconds, attention


def parameters(row):
    linear = sum(i * o for i, o in row["linear"]) + (sum(o for _, o in row["linear"]) if row["biases"] else 0)
    norm = row["hidden"] * (2 if row["norm"] == "layer" else 1)
    tables = row["vocab"] * row["hidden"] * (1 if row["tied"] else 2) + row["learned_positions"] * row["hidden"]
    experts = row["experts"][0] * (row["hidden"] + sum(i * o for i, o in row["experts"][2])) if "experts" in row else 0
    return row["layers"] * (linear + 2 * norm + experts) + norm + tables


def other_bytes(row, dtype):
    """What must be moved beside the products, in bytes."""
    t, h, f, e = row["tokens"], row["hidden"], row["ffn"], 4 if dtype == "fp32" else 2
    norm = (4 + 4) * t * h  # forward with the sum of the residual: reads two, writes two; backward reads three, writes one
    chosen = row["experts"][1] if "experts" in row else 1
    gate = ((3 + 5) if row["gated"] else (2 + 3)) * chosen * t * f  # forward, backward
    # A row is read and written on its way to an expert and back, forward and backward; tokens are read or written once.
    rows = 2 * 2 * (1 + chosen) * t * h if "experts" in row else 0
    rotary = 2 * 2 * t * row["rotary"]
    layer = (2 * norm + gate + rotary + rows) * e
    embedding = 2 * 2 * t * h * e
    loss = 3 * t * row["vocab"] * e  # statistics read logits, the gradient reads and writes them
    update = parameters(row) * (4 + 28 + (2 if dtype == "bf16" else 0))  # norm; AdamW; copy in bf16
    return {"layers": row["layers"] * layer + norm * e, "embedding and loss": embedding + loss, "optimizer": update}


def bandwidth(args):
    text = subprocess.run([args.pentatron, "doctor"], check=True, capture_output=True, text=True,
                          env=dict(os.environ, OMP_NUM_THREADS=str(args.threads))).stdout
    value, unit = re.search(r"bandwidth +([0-9.]+) ?([GMT])B/s", text).groups()
    return float(value) * {"M": 1e6, "G": 1e9, "T": 1e12}[unit]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pentatron", required=True)
    parser.add_argument("--kernels", required=True, help="bench_kernels of the same preset")
    parser.add_argument("--models", default=",".join(ROWS))
    parser.add_argument("--classes", default="fp32,bf16")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    environment = dict(os.environ, OMP_NUM_THREADS=str(args.threads), MKL_NUM_THREADS=str(args.threads))
    print("| row | linear and head s | attention s | layers s | loss s | optimizer s | bound s | step s, median, fastest | of the bound |")
    print("|---|---|---|---|---|---|---|---|---|")
    for model in args.models.split(","):
        for dtype in args.classes.split(","):
            steps, bounds = [], []
            for turn in range(args.rounds):  # bound and step in turn, for both see the same machine
                print(f"{model} {dtype} round {turn + 1}/{args.rounds}", file=sys.stderr, flush=True)
                rate = bandwidth(args)
                linear, attention = products_s(args, ROWS[model], dtype)
                others = {name: amount / rate for name, amount in other_bytes(ROWS[model], dtype).items()}
                bounds.append([linear, attention, *others.values()])
                steps += compare.run_pentatron(args, args.pentatron, model, dtype, environment)["step_times_s"]
            parts = [min(column) for column in zip(*bounds)]
            step, fastest = statistics.median(steps), min(steps)
            print(f"| {model} {dtype} | " + " | ".join(f"{part:.3f}" for part in parts) +
                  f" | {sum(parts):.3f} | {step:.3f}, {fastest:.3f} | {100 * sum(parts) / step:.0f}, "
                  f"{100 * sum(parts) / fastest:.0f} % |", flush=True)


if __name__ == "__main__":
    main()
