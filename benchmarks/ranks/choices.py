#!/usr/bin/env python3
"""Choices beside each other: how experts lie on ranks and how tokens get to them, limits to their tokens (which change the
model), and what context-parallel ranks exchange.

    benchmarks/ranks/choices.py PROGRAM experts|context [--ranks 4] [--backend sockets] [--rounds 3] [--steps 6] [key=value ...]

Every contender of a group trains the same model on the same tokens. Contenders take turns, round after round, so that a
machine whose speed varies is fair to all; a contender's figure is the median of its rounds' medians, without the first two
steps. Bytes are those that a rank sends to others in a step, of the first one, counted by the communication layer; memory
is the peak of the rank that needs most, counted allocation by allocation.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

COMMON = ["dataset.type=mock", "logger.plot=false", "logger.tensorboard=false", "logger.peak_tflops=1", "profiling.trace=true", "profiling.trace_start=1", "profiling.trace_steps=1"]
EXPERTS = ["model.num_layers=2", "model.hidden_size=512", "model.num_attention_heads=8", "model.num_query_groups=4",
           "model.vocab_size=8000", "model.max_position_embeddings=512", "train.seq_length=512",
           "train.micro_batch_size=1", "model.moe_router_force_load_balancing=true"]
FEW = [*EXPERTS, "model.num_moe_experts=8", "model.moe_router_topk=2", "model.moe_ffn_hidden_size=1024"]
MANY = [*EXPERTS, "model.num_moe_experts=32", "model.moe_router_topk=8", "model.moe_ffn_hidden_size=256"]
CONTEXT = ["model.num_layers=4", "model.hidden_size=512", "model.num_attention_heads=8", "model.vocab_size=512",
           "model.max_position_embeddings=8192", "train.seq_length=8192", "train.micro_batch_size=1", "train.global_batch_size=1"]


def experts(ranks):
    ep, gather = f"parallel.expert_model_parallel_size={ranks}", "parallel.moe_token_dispatcher_type=allgather"
    half = f"parallel.expert_model_parallel_size={ranks // 2}"
    split = [half, "parallel.expert_tensor_parallel_size=2"]
    batch = f"train.global_batch_size={ranks}"
    for name, model in ("8 experts, 2 a token", FEW), ("32 experts, 8 a token", MANY):
        base = [*model, batch]
        yield name, {
            "whole experts on every rank": base,
            f"EP{ranks}, alltoall": [*base, ep],
            f"EP{ranks}, allgather": [*base, ep, gather],
            f"EP{ranks // 2} x ETP2, alltoall": [*base, *split],
            f"EP{ranks // 2} x ETP2, allgather": [*base, *split, gather],
        }
    base = [*FEW, batch, ep, "model.moe_router_force_load_balancing=false"]
    yield "8 experts, loads as they come", {
        "no limit": base,
        "capacity 1.25": [*base, "model.moe_expert_capacity_factor=1.25"],
        "capacity 1.25, padded": [*base, "model.moe_expert_capacity_factor=1.25", "model.moe_pad_expert_input_to_capacity=true"],
        "capacity 2, padded": [*base, "model.moe_expert_capacity_factor=2", "model.moe_pad_expert_input_to_capacity=true"],
    }


def context(ranks):
    for groups in 8, 2:
        base = [*CONTEXT, f"model.num_query_groups={groups}", f"parallel.context_parallel_size={ranks}"]
        kinds = {kind: [*base, f"parallel.cp_comm_type=[{kind}]"] for kind in ("p2p", "all_gather", "a2a")}
        if ranks > 2:
            kinds["a2a+p2p"] = [*base, "parallel.cp_comm_type=[a2a+p2p]",
                                f"parallel.hierarchical_context_parallel_sizes=[2,{ranks // 2}]"]
        if groups < ranks:
            del kinds["a2a"]
        yield f"8 heads, {groups} key-value heads", kinds


def run(args, keys):
    """Median step, bytes sent by the rank that sends most, and peak memory of the rank that needs most."""
    with tempfile.TemporaryDirectory() as folder:
        command = [args.program, "train", *COMMON, *keys, f"train.train_iters={args.steps}", *args.keys, f"logger.dir={folder}/run",
                   "--ranks", str(args.ranks), "--backend", args.backend]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{' '.join(command)}\n{done.stderr}")
        lines = [json.loads(line) for line in pathlib.Path(folder, "run", "metrics.jsonl").read_text().splitlines()]
        events = json.loads(pathlib.Path(folder, "run", "trace.json").read_text())["traceEvents"]
    times = [line["step_time_s"] for line in lines if "step_time_s" in line][2:]
    sent = {}
    for event in events:
        if "sent_bytes" in event.get("args", {}):
            sent[event["pid"]] = sent.get(event["pid"], 0) + event["args"]["sent_bytes"]
    memory = max(line["memory_bytes"] for line in lines if "memory_bytes" in line)
    return statistics.median(times), max(sent.values(), default=0), memory


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("what", choices=["experts", "context"])
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--backend", default="sockets")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("keys", nargs="*", help="key=value for all runs")
    args = parser.parse_args()
    if args.ranks % 2:
        parser.error(f"--ranks {args.ranks} is odd; try: --ranks {args.ranks + 1}")
    for title, contenders in (experts if args.what == "experts" else context)(args.ranks):
        results = {name: [] for name in contenders}
        for _ in range(args.rounds):
            for name, keys in contenders.items():
                results[name].append(run(args, keys))
        first = statistics.median(r[0] for r in next(iter(results.values())))
        print(f"\n{title}, {args.ranks} ranks\n\n| | step s | of the first | MB sent per rank and step | peak MiB |\n|---|---|---|---|---|")
        for name, rounds in results.items():
            seconds = statistics.median(r[0] for r in rounds)
            print(f"| {name} | {seconds:.3f} | {seconds / first:.2f} | {rounds[-1][1] / 1e6:.1f} | {rounds[-1][2] / 2**20:.0f} |", flush=True)


main()
