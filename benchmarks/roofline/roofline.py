#!/usr/bin/env python3
"""The time of a training step on a GPU, derived from its launches: roofline.py [--models llama_1b,...] [--gpu h100|h200] [--shapes 12]

Records the launches of one step without a GPU (tests/roofline, target record_step), with the bytes and FLOPs of each, and prints a table of
operators: how long each takes at least by the rates of the GPU, and its share of the step. Nothing is measured.

  cmake --preset ci && cmake --build build/ci --target record_step
  benchmarks/roofline/roofline.py --record build/ci/tests/roofline/record_step

--record FILE   the program, or with .json what it has printed
--shapes N      also lists the N launches with the most time, with their shapes
--set KEY=VALUE a setting of the run, more than once
"""
import argparse
import collections
import json
import pathlib
import subprocess
import sys

# "sheet": bytes and FLOPs a second by the data sheet, a lower bound of time. "good": what good kernels reach, as published or measured by others:
# a copy; products of a layer's shapes; FlashAttention-2, forward and backward, whose FLOPs count the causal half; products in fp32 without tensor
# cores. "launch": a kernel takes at least so long.
GPUS = {
    "h100": {"name": "H100 SXM", "sheet": {"memory": 3.35e12, "tensor": 989.4e12, "fp32": 66.9e12},
             "good": {"memory": 3.0e12, "tensor": 700e12, "fp32": 50e12, "forward": 320e12, "backward": 300e12, "launch": 2e-6}},
    "h200": {"name": "H200 SXM", "sheet": {"memory": 4.8e12, "tensor": 989.4e12, "fp32": 66.9e12},
             "good": {"memory": 4.3e12, "tensor": 700e12, "fp32": 50e12, "forward": 320e12, "backward": 300e12, "launch": 2e-6}},
}

COMMON = ["dtype=bf16", "model.hidden_dropout=0", "model.attention_dropout=0", "optimizer.clip_grad=1.0", "optimizer.weight_decay=0.1"]


def llama(layers, hidden, heads, batch, sequence=4096):
    return ["model.preset=llama3_8b", f"model.num_layers={layers}", f"model.hidden_size={hidden}", f"model.num_attention_heads={heads}",
            "model.num_query_groups=8", "model.ffn_hidden_size=8192", "model.untie_embeddings_and_output_weights=false",
            f"model.max_position_embeddings={sequence}", f"train.seq_length={sequence}", f"train.micro_batch_size={batch}",
            f"train.global_batch_size={batch}"]


MODELS = {
    "gpt2_124m": ["model.preset=gpt2_124m", "train.seq_length=1024", "train.micro_batch_size=16", "train.global_batch_size=16"],
    "llama_1b": llama(16, 2048, 32, 4),
    "llama_3b": llama(28, 3072, 24, 4),
}


def recorded(args, model):
    path = pathlib.Path(args.record)
    if path.suffix == ".json":
        return json.loads(path.read_text())
    done = subprocess.run([path, *COMMON, *MODELS[model], *args.set], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stderr)
    return json.loads(done.stdout)


def seconds(launch, rates):
    """Of one launch: the time of its bytes or of its products, whichever is longer."""
    time = (launch["read"] + launch["written"]) / rates["memory"]
    if launch["kind"] == "transfer":
        return 0.0
    if launch["flops"] > 0:
        rate = rates["tensor"] if launch["tensor_cores"] else rates["fp32"]
        if launch["kind"] == "attention":
            rate = rates.get("backward" if launch["op"].endswith("backward") else "forward", rate)
        time = max(time, launch["flops"] / rate)
    return max(time, launch["kernels"] * rates.get("launch", 0))


NAMES = {"mm": "products", "addmm": "products", "_flash_attention_forward": "attention forward", "_flash_attention_backward": "attention backward"}


def operator(launch):
    name = NAMES.get(launch["op"], launch["op"])
    if launch["kind"] == "torch":
        return f"LibTorch {name}"
    return name.replace("_", " ")


class Row:
    def __init__(self):
        self.kernels = self.bytes = self.flops = self.sheet = self.good = 0


def table(step, gpu):
    rows, total = collections.defaultdict(Row), Row()
    waits = sum(one["count"] for one in step["launches"] if one["waits"])
    for one in step["launches"]:
        if one["kind"] == "transfer":
            continue
        for row in (rows[operator(one)], total):
            row.kernels += one["count"] * one["kernels"]
            row.bytes += one["count"] * (one["read"] + one["written"])
            row.flops += one["count"] * one["flops"]
            row.sheet += one["count"] * seconds(one, gpu["sheet"])
            row.good += one["count"] * seconds(one, gpu["good"])
    lines = ["| operator | kernels | GB | TFLOP | ms at least | share | ms expected | share |", "|---|---|---|---|---|---|---|---|"]
    for name, row in sorted(rows.items(), key=lambda item: -item[1].good) + [("step", total)]:
        lines.append(f"| {name} | {row.kernels} | {row.bytes / 1e9:.2f} | {row.flops / 1e12:.2f} | {row.sheet * 1e3:.2f} | "
                     f"{100 * row.sheet / total.sheet:.1f} % | {row.good * 1e3:.2f} | {100 * row.good / total.good:.1f} % |")
    peak = gpu["sheet"]["tensor"]
    mfu = [100 * step["model_flops"] / (time * peak) for time in (total.sheet, total.good)]
    lines.append("")
    lines.append(f"MFU: at most {mfu[0]:.1f} %, expected {mfu[1]:.1f} % ({step['tokens'] / total.good:.0f} tokens/s). "
                 f"Reads by the host that wait: {waits}. Tensors at the peak: {step['peak_bytes'] / 2**30:.1f} GiB.")
    lines.append(f"Products and attention: {total.flops / 1e12:.3f} TFLOP; MFU counts {step['model_flops'] / 1e12:.3f}.")
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", default="build/ci/tests/roofline/record_step")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--gpu", default="h100", choices=GPUS)
    parser.add_argument("--shapes", type=int, default=0)
    parser.add_argument("--set", action="append", default=[])
    args = parser.parse_args()
    gpu = GPUS[args.gpu]
    for model in args.models.split(","):
        step = recorded(args, model)
        print(f"### {model}, {step['tokens']} tokens, {step['parameters'] / 1e6:.0f} million parameters, bf16, {gpu['name']}\n")
        print("\n".join(table(step, gpu)), "\n")
        for one in sorted(step["launches"], key=lambda one: -one["count"] * seconds(one, gpu["good"]))[:args.shapes]:
            print(f"{one['count'] * seconds(one, gpu['good']) * 1e3:8.3f} ms {one['count']:5} x {operator(one)} {one['shapes']} "
                  f"{(one['read'] + one['written']) / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
