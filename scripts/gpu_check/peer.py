"""A GPT-2 or a Llama in plain PyTorch, trained on random tokens in a process of its own. Prints one JSON line.

peer.py MODEL DTYPE DEVICE STEPS eager|compiled [transformers|cudnn]

A step is what pentatron's step is: forward with the mean next-token loss, backward, clipping to a global norm of 1, AdamW. The peer gets
its best settings: scaled_dot_product_attention, fused AdamW, foreach clipping, gradients set to None; bf16 is autocast over
fp32 weights, as pentatron keeps them. With `transformers` the model is that of Hugging Face, of the same shape; with `cudnn`,
attention is cuDNN's instead of the kernel that PyTorch chooses.
"""
import contextlib
import json
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from shapes import SHAPES


class Block(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.s = s
        h, head = s["hidden"], s["hidden"] // s["heads"]
        llama = s["kind"] == "llama"
        self.norms = nn.ModuleList([nn.RMSNorm(h, 1e-5) if llama else nn.LayerNorm(h) for _ in range(2)])
        self.qkv = nn.Linear(h, (s["heads"] + 2 * s["groups"]) * head, bias=not llama)
        self.out = nn.Linear(h, h, bias=not llama)
        self.up = nn.Linear(h, s["ffn"] * (2 if llama else 1), bias=not llama)
        self.down = nn.Linear(s["ffn"], h, bias=not llama)

    def forward(self, x, cos, sin):
        s, (batch, length, _) = self.s, x.shape
        head = s["hidden"] // s["heads"]
        q, k, v = self.qkv(self.norms[0](x)).view(batch, length, -1, head).transpose(1, 2).split(
            [s["heads"], s["groups"], s["groups"]], 1)
        if s["kind"] == "llama":
            q, k = (rotate(t, cos, sin) for t in (q, k))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=s["groups"] != s["heads"])
        x = x + self.out(a.transpose(1, 2).reshape(batch, length, -1))
        y = self.up(self.norms[1](x))
        if s["kind"] == "llama":
            gate, y = y.chunk(2, -1)
            return x + self.down(F.silu(gate) * y)
        return x + self.down(F.gelu(y, approximate="tanh"))


def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)


class Model(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.s = s
        self.embedding = nn.Embedding(s["vocab"], s["hidden"])
        self.positions = nn.Embedding(s["sequence"], s["hidden"]) if s["kind"] == "gpt2" else None
        self.blocks = nn.ModuleList([Block(s) for _ in range(s["layers"])])
        self.norm = nn.RMSNorm(s["hidden"], 1e-5) if s["kind"] == "llama" else nn.LayerNorm(s["hidden"])
        self.head = nn.Linear(s["hidden"], s["vocab"], bias=False)
        if s["kind"] == "gpt2":
            self.head.weight = self.embedding.weight
        half = s["hidden"] // s["heads"] // 2
        angle = torch.arange(s["sequence"])[:, None] / 500000.0 ** (torch.arange(half) / half)
        self.register_buffer("cos", angle.cos())
        self.register_buffer("sin", angle.sin())
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, tokens):
        x = self.embedding(tokens)
        if self.positions is not None:
            x = x + self.positions.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), tokens[:, 1:].flatten())


def attention():
    """The choice of kernels: PyTorch's own, or cuDNN's."""
    return sdpa_kernel(SDPBackend.CUDNN_ATTENTION) if "cudnn" in sys.argv[6:] else contextlib.nullcontext()


def of_transformers(s):
    import transformers
    if s["kind"] == "gpt2":
        config = transformers.GPT2Config(n_layer=s["layers"], n_embd=s["hidden"], n_head=s["heads"], n_inner=s["ffn"],
                                         vocab_size=s["vocab"], n_positions=s["sequence"], attn_implementation="sdpa",
                                         use_cache=False, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
        model = transformers.GPT2LMHeadModel(config)
    else:
        config = transformers.LlamaConfig(num_hidden_layers=s["layers"], hidden_size=s["hidden"], num_attention_heads=s["heads"],
                                          num_key_value_heads=s["groups"], intermediate_size=s["ffn"], vocab_size=s["vocab"],
                                          max_position_embeddings=s["sequence"], tie_word_embeddings=False,
                                          attn_implementation="sdpa", use_cache=False)
        model = transformers.LlamaForCausalLM(config)
    return model


def main():
    name, dtype, device, steps, mode = sys.argv[1:6]
    s = SHAPES[name]
    hugging_face = "transformers" in sys.argv[6:]
    torch.manual_seed(0)
    model = (of_transformers(s) if hugging_face else Model(s)).to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    step_model = torch.compile(model) if mode == "compiled" else model
    autocast = torch.autocast(device, dtype=torch.bfloat16) if dtype == "bf16" else contextlib.nullcontext()
    times = []
    warmup = 3
    for i in range(warmup + int(steps)):
        tokens = torch.randint(s["vocab"], (s["batch"], s["sequence"]), device=device)
        if device == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        with autocast, attention():
            loss = step_model(input_ids=tokens, labels=tokens).loss if hugging_face else step_model(tokens)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss.item()
        if i >= warmup:
            times.append(time.perf_counter() - start)
    memory = torch.cuda.max_memory_allocated() if device == "cuda" else None
    print(json.dumps({"step_times_s": times, "memory_bytes": memory, "loss": loss.item()}))


main()
