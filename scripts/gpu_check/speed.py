"""How fast are a step, each operator and the machine's limits? pentatron beside compiled PyTorch models, alternately, in one run."""
import importlib.util
import json
import os
import statistics
import sys
import time

import torch

from part import Part
from shapes import SHAPES, keys

HERE = os.path.dirname(os.path.abspath(__file__))
WARMUP = 5


def seconds_of(call, device, runs=5):
    """Of the fastest run."""
    best = None
    for i in range(runs + 3):
        if device == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        if device == "cuda":
            torch.cuda.synchronize()
        if i >= 3:
            best = min(best or 1e9, time.perf_counter() - start)
    return best


def limits(part):
    """The machine's limits as this torch reaches them: products of large matrices."""
    size = 8192 if part.device == "cuda" else 512
    for dtype in (torch.bfloat16, torch.float32):
        a, b = (torch.randn(size, size, device=part.device, dtype=dtype) for _ in range(2))
        part.figure(f"product_flops_per_s {str(dtype)[6:]}", 2 * size**3 / seconds_of(lambda a=a, b=b: a @ b, part.device))
    shape = (4, 16, 4096, 128) if part.device == "cuda" else (1, 4, 256, 64)
    q, k, v = (torch.randn(shape, device=part.device, dtype=torch.bfloat16) for _ in range(3))
    attention = seconds_of(lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True), part.device)
    part.figure("attention_flops_per_s bfloat16", 2 * shape[0] * shape[1] * shape[2] ** 2 * shape[3] / attention)


def operators(part):
    """Each operator's kernel: the share of the bandwidth of a copy that it reaches."""
    program = os.path.join(part.bundle, "tests", "kernels_gpu_test")
    if not os.path.exists(program):
        part.skip("rates of operators", "kernels_gpu_test is not in this bundle")
        return
    rates = json.loads(part.run([program, "--rates"], 100))
    copy = rates["copy_bytes_per_s"]
    part.figure("copy_bytes_per_s", copy)
    part.figure("operators", [dict(one, share_of_copy=one["bytes"] / one["seconds"] / copy) for one in rates["operators"]])
    part.check("rates of operators", bool(rates["operators"]) and rates["gpu"] == (part.device == "cuda"))


def own_steps(part, name, dtype, steps, turn, label, more):
    folder = "".join(c if c.isalnum() else "_" for c in f"speed_{name}_{dtype}_{turn}_{label}")
    lines = part.train(folder, *keys(name), f"dtype={dtype}", f"train.train_iters={WARMUP + steps}", *more,
                       timeout=100)
    lines = [line for line in lines if "step_time_s" in line][WARMUP:]
    return {"step_times_s": [line["step_time_s"] for line in lines], "memory_bytes": max(line["memory_bytes"] for line in lines),
            "mfu": statistics.median(line["mfu"] for line in lines) if lines[0].get("mfu") is not None else None,
            "tflops": statistics.median(line["tflops"] for line in lines)}


def peer_steps(part, name, dtype, steps, more):
    return json.loads(part.run([sys.executable, os.path.join(HERE, "peer.py"), name, dtype, part.device, str(steps), *more],
                               100).splitlines()[-1])


def runs_of(part, name, dtype, steps):
    """Labels and runs, those that tell most first: own(turn) and peer(turn)."""
    def own(label, *more):
        return label, lambda turn: own_steps(part, name, dtype, steps, turn, label, more)

    def peer(label, *more):
        return label, lambda turn: peer_steps(part, name, dtype, steps, more)

    runs = [own("pentatron"), peer("PyTorch, compiled", "compiled"), peer("PyTorch, eager", "eager")]
    if part.device == "cuda" and dtype == "bf16":  # PyTorch's runs are not deterministic
        free = "deterministic=false"
        runs.insert(1, own("pentatron, " + free, free))
        runs.insert(3, own("pentatron, FP8, " + free, free, "mixed_precision.fp8=hybrid"))
        capability = int(part.results["machine"].get("compute_capability", "0.0").split(".")[0])
        blocks = {9: ("FP8 in blocks", "blockwise")}.get(capability, ("MXFP8", "mxfp8") if capability >= 10 else None)
        if blocks:
            runs.insert(4, own(f"pentatron, {blocks[0]}, {free}", free, "mixed_precision.fp8=e4m3", "mixed_precision.fp8_recipe=" + blocks[1]))
        if capability >= 10:
            runs.insert(5, own("pentatron, NVFP4, " + free, free, "mixed_precision.fp4=e2m1"))
        runs.append(peer("PyTorch, compiled, cuDNN's attention", "compiled", "cudnn"))
    if importlib.util.find_spec("transformers") is not None:
        runs.append(peer("transformers, compiled", "compiled", "transformers"))
    return runs


def compare(part, name, dtype, steps, rounds):
    rows = part.results["figures"].setdefault("steps", {}).setdefault(f"{name}, {dtype}", {})
    tokens = SHAPES[name]["batch"] * SHAPES[name]["sequence"]
    for turn in range(rounds):
        for label, run in runs_of(part, name, dtype, steps):
            row = rows.setdefault(label, {"step_times_s": []})
            if "error" in row:
                continue
            if time.monotonic() > part.end:
                part.skip(f"{name}, {dtype}, {label}", "no time was left")
                continue
            try:
                got = run(turn)
            except (RuntimeError, ValueError, IndexError) as error:
                row["error"] = str(error)[-600:]
                part.write()
                continue
            row["step_times_s"] += got["step_times_s"]
            row.update({key: got[key] for key in ("memory_bytes", "mfu", "tflops") if got.get(key) is not None})
            row["median_s"] = statistics.median(row["step_times_s"])
            row["tokens_per_s"] = tokens / row["median_s"]
            part.write()
    if not rows.get("pentatron", {}).get("step_times_s") and "error" not in rows.get("pentatron", {}):
        return
    part.check(f"{name}, {dtype}", "error" not in rows["pentatron"], **({"error": rows["pentatron"]["error"]} if "error" in rows["pentatron"] else {}))


def main():
    part = Part()
    gpu = part.device == "cuda"
    part.attempt("limits of the machine", lambda: (limits(part), (True, {}))[1])
    part.attempt("operators", lambda: (operators(part), (True, {}))[1])
    for name, dtype in [("llama_1b", "bf16"), ("gpt2_124m", "bf16"), ("gpt2_124m", "fp32"), ("llama_3b", "bf16")] if gpu else \
            [("gpt2_tiny", "fp32"), ("llama_tiny", "bf16")]:
        compare(part, name, dtype, 20 if gpu else 5, 2)


main()
