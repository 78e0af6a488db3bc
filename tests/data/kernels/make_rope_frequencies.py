"""Writes rope_frequencies.json: what Hugging Face transformers computes for rotary frequencies, in fp64.

Runs the functions of transformers' modeling_rope_utils.py themselves, with numpy's fp64 arrays in place of torch, so that their
casts to fp32 have no effect and torch is not needed.
    pip install transformers==5.23.0 numpy && python make_rope_frequencies.py
"""
import json
import pathlib
import types

import numpy as np
import transformers.modeling_rope_utils as rope_utils


class Array(np.ndarray):
    def to(self, *args, **kwargs):
        return self

    def float(self):
        return self


def array(x):
    return np.asarray(x, dtype=np.float64).view(Array)


rope_utils.torch = types.SimpleNamespace(
    arange=lambda *a, dtype=None, device=None: array(np.arange(*a)),
    tensor=lambda x, dtype=None, device=None: array(x),
    clamp=lambda x, low, high: array(np.clip(x, low, high)),
    where=lambda c, a, b: array(np.where(c, a, b)),
    float=None, float32=None, int64=None, Tensor=np.ndarray,
)


class Config:
    def __init__(self, head_dim, positions, **rope):
        self.hidden_size, self.num_attention_heads, self.head_dim = 4 * head_dim, 4, head_dim
        self.max_position_embeddings = positions
        self.rope_parameters = rope

    def standardize_rope_params(self):
        pass


def case(head_dim, type="default", theta=10000.0, positions=131072, sequence=None, **rope):
    config = Config(head_dim, positions, rope_theta=theta, **rope)
    if type == "default":  # the models' own compute_default_rope_parameters: linear scaling by 1
        config.rope_parameters["factor"] = 1.0
    kernel = rope_utils.ROPE_INIT_FUNCTIONS["linear" if type == "default" else type]
    inv_freq, attention_factor = kernel(config, device=None, seq_len=sequence)
    rotary_dim = int(head_dim * rope.get("partial_rotary_factor", 1.0))
    options = {"rotary_dim": rotary_dim, "type": type, "theta": theta, **rope}
    if type == "dynamic": options["original_max_position_embeddings"] = positions
    if sequence: options["sequence"] = sequence
    if options.get("factor", 1) is None: options["factor"] = positions / rope["original_max_position_embeddings"]
    return {"options": options, "inv_freq": [float(x) for x in inv_freq], "attention_factor": float(attention_factor)}


LLAMA3 = dict(low_freq_factor=1.0, high_freq_factor=4.0)
DIVISORS = dict(short_factor=[1.0, 1.05, 1.25, 2.5], long_factor=[1.02, 1.9, 7.5, 31.0])
CASES = [
    case(64),
    case(128, theta=500000.0),
    case(80, partial_rotary_factor=0.25),
    case(64, "linear", factor=4.0),
    case(128, "llama3", 500000.0, factor=8.0, original_max_position_embeddings=8192, **LLAMA3),
    case(64, "llama3", 500000.0, factor=32.0, original_max_position_embeddings=8192, **LLAMA3),
    case(16, "llama3", 500000.0, factor=8.0, original_max_position_embeddings=32, **LLAMA3),
    case(128, "yarn", 1000000.0, factor=4.0, original_max_position_embeddings=32768),
    case(64, "yarn", factor=40.0, original_max_position_embeddings=4096, beta_fast=32, beta_slow=1, mscale=1.0, mscale_all_dim=1.0),
    case(64, "yarn", factor=40.0, original_max_position_embeddings=4096, mscale=0.707, mscale_all_dim=1.0),
    case(64, "yarn", 150000.0, factor=32.0, original_max_position_embeddings=4096, truncate=False),
    case(64, "yarn", factor=16.0, original_max_position_embeddings=4096, attention_factor=1.25, beta_fast=64, beta_slow=2),
    case(8, "yarn", factor=2.0, original_max_position_embeddings=64),
    case(16, "dynamic", factor=4.0, positions=16, sequence=33),
    case(16, "dynamic", 500000.0, factor=2.0, positions=33, sequence=33),
    case(12, "dynamic", factor=2.5, positions=20, sequence=33, partial_rotary_factor=0.5),
    case(8, "longrope", positions=128, factor=None, original_max_position_embeddings=32, sequence=33, **DIVISORS),
    case(8, "longrope", factor=8.0, original_max_position_embeddings=64, sequence=33, **DIVISORS),
    case(8, "longrope", 500000.0, factor=2.0, original_max_position_embeddings=32, sequence=33, attention_factor=1.19, **DIVISORS),
]
path = pathlib.Path(__file__).with_name("rope_frequencies.json")
path.write_text("[\n" + ",\n".join(json.dumps(c) for c in CASES) + "\n]\n")
