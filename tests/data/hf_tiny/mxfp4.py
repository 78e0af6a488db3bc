"""MXFP4 in NumPy, apart from transformers': 4-bit numbers (e2m1) and for each 32 of them in a row an exponent (e8m0)."""
import json, os
import numpy as np
from safetensors.numpy import load_file, save_file

MAGNITUDES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])

def encode(x):
    """[..., 32 n] -> codes of the same shape, exponents [..., n]; the largest magnitude of a block is at most 6 x 2^exponent."""
    blocks = x.astype(np.float64).reshape(*x.shape[:-1], -1, 32)
    largest = np.abs(blocks).max(-1)
    exponents = np.where(largest > 0, np.ceil(np.log2(np.maximum(largest, 1e-30) / 6)), -127).astype(int)
    scaled = blocks / np.exp2(exponents.astype(np.float64))[..., None]
    codes = np.abs(np.abs(scaled)[..., None] - MAGNITUDES).argmin(-1) + 8 * (scaled < 0)
    return codes, exponents

def decode(codes, exponents):
    values = np.where(codes >= 8, -1.0, 1.0) * MAGNITUDES[codes % 8] * np.exp2(exponents.astype(np.float64))[..., None]
    return values.reshape(*values.shape[:-2], -1)

def nearest(x):
    return decode(*encode(x)).astype(np.float32)

def pack_folder(folder):
    """Replaces the matrices of experts in model.safetensors, which have an exact MXFP4 form, by blocks and scales."""
    file = os.path.join(folder, "model.safetensors")
    tensors = load_file(file)
    for name in [n for n in tensors if n.endswith("experts.gate_up_proj") or n.endswith("experts.down_proj")]:
        x = tensors.pop(name).transpose(0, 2, 1)
        codes, exponents = encode(x)
        assert np.array_equal(decode(codes, exponents), x)
        tensors[name + "_blocks"] = np.ascontiguousarray(codes[..., 0::2] + 16 * codes[..., 1::2], np.uint8)
        tensors[name + "_scales"] = np.ascontiguousarray(exponents + 127, np.uint8)
    save_file(tensors, file, {"format": "pt"})
    path = os.path.join(folder, "config.json")
    config = json.load(open(path))
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]}
    json.dump(config, open(path, "w"), indent=2, sort_keys=True)
