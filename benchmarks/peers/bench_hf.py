"""One contender: a Hugging Face model trained on random tokens, in a process of its own. Prints one JSON line.

A step is what pentatron's step is: forward with the mean next-token loss, backward, clipping to a global norm of 1, AdamW. The
peer gets its best settings: sdpa attention, fused AdamW, foreach clipping, gradients set to None, no dropout, no cache.

  bench_hf.py --model gpt2_124m --precision fp32|autocast|bf16 [--compile] [--checkpointing] [--ranks 2] [--steps 5] [--warmup 2]
              [--device cuda]

--ranks divides the batch among processes on CPUs under FSDP2, which shards parameters, gradients and optimizer state; its
autocast is FSDP2's own: fp32 shards, bf16 computation, fp32 sums of gradients. Rank 0 prints, with the largest peak.
"""
import argparse
import contextlib
import json
import os
import time

import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, MixtralConfig, MixtralForCausalLM


def gpt2_124m():
    config = GPT2Config(attn_implementation="sdpa", use_cache=False, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    return GPT2LMHeadModel(config), config.vocab_size, (1, 1024)


def llama_8x512():
    config = LlamaConfig(num_hidden_layers=8, hidden_size=512, num_attention_heads=8, num_key_value_heads=4,
                         intermediate_size=1408, vocab_size=32000, max_position_embeddings=1024,
                         tie_word_embeddings=False, attn_implementation="sdpa", use_cache=False)
    return LlamaForCausalLM(config), config.vocab_size, (2, 1024)


def mixtral_4x512():
    config = MixtralConfig(num_hidden_layers=4, hidden_size=512, num_attention_heads=8, num_key_value_heads=4, intermediate_size=1024,
                           num_local_experts=8, num_experts_per_tok=2, vocab_size=32000, max_position_embeddings=512,
                           tie_word_embeddings=False, attn_implementation="sdpa", use_cache=False)
    return MixtralForCausalLM(config), config.vocab_size, (4, 512)


MODELS = {"gpt2_124m": gpt2_124m, "llama_8x512": llama_8x512, "mixtral_4x512": mixtral_4x512}


def peak_rss_mb(reset=False):
    """Highest resident memory since the last reset."""
    if reset:
        with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
            file.write("5")
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) / 1024 for line in file if line.startswith("VmHWM"))


def sharded(model, precision, ranks):
    """The model under FSDP2: a unit for each layer, and one for the rest."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    policy = (MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32) if precision == "autocast"
              else MixedPrecisionPolicy())
    mesh = init_device_mesh("cpu", (ranks,))
    layers = model.transformer.h if hasattr(model, "transformer") else model.model.layers
    for layer in layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    return fully_shard(model, mesh=mesh, mp_policy=policy)


def train(rank, args):
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    if args.ranks > 1:
        os.environ.update(RANK=str(rank), WORLD_SIZE=str(args.ranks))
        torch.distributed.init_process_group("gloo")

    model, vocab, (batch, sequence) = MODELS[args.model]()
    batch //= args.ranks
    if args.precision == "bf16":
        model = model.to(torch.bfloat16)
    model = model.to(args.device).train()
    if args.checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    parameters = sum(p.numel() for p in model.parameters())
    if args.ranks > 1:
        model = sharded(model, args.precision, args.ranks)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    step_model = torch.compile(model) if args.compile else model
    autocast = (torch.autocast(args.device, dtype=torch.bfloat16) if args.precision == "autocast" and args.ranks == 1
                else contextlib.nullcontext())

    def synchronize():
        if args.device == "cuda":
            torch.cuda.synchronize()

    times, losses = [], []
    for i in range(args.warmup + args.steps):
        if i == args.warmup and args.device == "cpu":
            peak_rss_mb(reset=True)
        tokens = torch.randint(vocab, (batch, sequence), device=args.device)
        synchronize()
        start = time.perf_counter()
        with autocast:
            loss = step_model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
        synchronize()
        if i >= args.warmup:
            times.append(time.perf_counter() - start)
    peak = torch.cuda.max_memory_allocated() / 2**20 if args.device == "cuda" else peak_rss_mb()
    if args.ranks > 1:
        peaks = torch.tensor([peak])
        torch.distributed.all_reduce(peaks, torch.distributed.ReduceOp.MAX)
        peak = peaks.item()
        torch.distributed.destroy_process_group()
    if rank == 0:
        print(json.dumps({"step_times_s": times, "tokens": batch * args.ranks * sequence, "parameters": parameters, "peak_mb": peak,
                          "first_loss": losses[0], "last_loss": losses[-1], "torch": torch.__version__}))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=MODELS, required=True)
    parser.add_argument("--precision", choices=["fp32", "autocast", "bf16"], required=True)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    if args.ranks == 1:
        train(0, args)
        return
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29561")
    torch.multiprocessing.spawn(train, args=(args,), nprocs=args.ranks)


if __name__ == "__main__":
    main()
