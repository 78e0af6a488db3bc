"""Writes python.gguf with the Python package gguf (0.19.0): metadata of every type, and per type of tensor blocks of random bytes
with ordinary and extreme scales ("<type>") beside what gguf.quants makes of them ("<type>.values"); and floats ("plain")
beside what gguf.quants makes of them ("plain.<type>"). Also the seeds of the fuzz targets.

    pip install gguf==0.19.0; python make.py
"""

import numpy as np
from gguf import GGML_QUANT_SIZES, ExpertGatingFuncType, GGMLQuantizationType as T, GGUFWriter, GGUFValueType as V, RopeScalingType
from gguf.quants import dequantize, quantize

random = np.random.default_rng(7)
# Where the fp16 numbers of a block lie.
HALVES = {T.Q8_0: [0], T.Q4_0: [0], T.Q4_1: [0, 2], T.Q4_K: [0, 2], T.Q6_K: [208]}
READ_ONLY = {T.Q5_0: [0], T.Q5_1: [0, 2], T.Q2_K: [80, 82], T.Q3_K: [108], T.Q5_K: [0, 2], T.IQ4_NL: [0], T.IQ4_XS: [0]}
EXTREMES = np.array([0, 0x8000, 1, 0x83FF, 0x0400, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7E00, 0x3C00, 0xBC00], np.uint16)


def blocks(kind, rows, per_row, random=random):
    size = GGML_QUANT_SIZES[kind][1]
    data = random.integers(0, 256, (rows * per_row, size), dtype=np.uint8)
    for at in (HALVES | READ_ONLY)[kind]:
        scale = random.normal(0, 0.02, len(data)).astype(np.float16).view(np.uint16)
        scale[: len(EXTREMES)] = random.permutation(EXTREMES)
        data[:, at : at + 2] = scale[:, None].view(np.uint8)
    return data.reshape(rows, per_row * size)


def keys(writer):
    writer.add_uint8("a.u8", 255)
    writer.add_int8("a.i8", -128)
    writer.add_uint16("a.u16", 65535)
    writer.add_int16("a.i16", -32768)
    writer.add_uint32("a.u32", 4294967295)
    writer.add_int32("a.i32", -2147483648)
    writer.add_uint64("a.u64", 18446744073709551615)
    writer.add_int64("a.i64", -9223372036854775808)
    writer.add_float32("a.f32", 0.1)
    writer.add_float64("a.f64", 0.1)
    writer.add_bool("a.bool", True)
    writer.add_string("a.text", "zwölf\n")
    writer.add_array("a.texts", ["", "b", "ü"])
    writer.add_array("a.integers", [1, -2, 3])
    writer.add_array("a.numbers", [0.5, -1.5])
    writer.add_array("a.bools", [True, False])
    writer.add_key_value("a.nested", [[1, 2], [3]], V.ARRAY, sub_type=V.ARRAY)


def write(path, fill, architecture="test"):
    writer = GGUFWriter(path, architecture)
    fill(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def golden(writer):
    keys(writer)
    for kind in HALVES:
        per_row = 512 // GGML_QUANT_SIZES[kind][0]
        data = blocks(kind, 3 if per_row > 2 else 8, per_row)
        writer.add_tensor(kind.name, data, raw_dtype=kind)
        with np.errstate(all="ignore"):
            writer.add_tensor(kind.name + ".values", dequantize(data, kind).astype(np.float32))
    half = random.integers(0, 65536, (4, 96)).astype(np.uint16)
    half[0, : len(EXTREMES)] = EXTREMES
    writer.add_tensor("F16", half.view(np.float16))
    writer.add_tensor("F16.values", half.view(np.float16).astype(np.float32))
    writer.add_tensor("BF16", half.view(np.uint8), raw_dtype=T.BF16)
    writer.add_tensor("BF16.values", dequantize(half.view(np.uint8), T.BF16))
    plain = (random.normal(0, 1, (8, 64)) * 10.0 ** random.integers(-9, 4, (8, 64))).astype(np.float32)
    plain[0] = 0
    plain[1, :32] = 1e-41  # subnormal
    plain[2, :16] = np.arange(16) + 0.5  # ties
    plain[2, 16:32] = 127
    plain[3] = np.array([0x3F808000, 0x3F818000, 0x387FE000, 0x33000000, 0x33000001, 0x38000FFF, 0x477FEFFF, 0xC7000000] * 8, np.uint32).view(
        np.float32
    )
    writer.add_tensor("plain", plain)
    for kind in (T.F16, T.BF16, T.Q8_0):
        with np.errstate(all="ignore"):
            data = quantize(plain, kind)
        writer.add_tensor("plain." + kind.name, data, raw_dtype=kind)
    writer.add_tensor("vector", np.arange(5, dtype=np.float32))
    writer.add_tensor("cube", np.arange(24, dtype=np.float32).reshape(2, 3, 4))
    writer.add_tensor("integers", np.arange(4, dtype=np.int32))
    data = np.random.default_rng(8).integers(0, 256, (4, 8 * 17), dtype=np.uint8) # any exponent
    data[0, ::17] = [0, 1, 2, 126, 127, 128, 254, 255]
    writer.add_tensor("MXFP4", data, raw_dtype=T.MXFP4)
    with np.errstate(all="ignore"):
        writer.add_tensor("MXFP4.values", dequantize(data, T.MXFP4).astype(np.float32))
    others = np.random.default_rng(9)
    for kind in READ_ONLY:
        per_row = 512 // GGML_QUANT_SIZES[kind][0]
        data = blocks(kind, 3 if per_row > 2 else 8, per_row, others)
        writer.add_tensor(kind.name, data, raw_dtype=kind)
        with np.errstate(all="ignore"):
            writer.add_tensor(kind.name + ".values", dequantize(data, kind).astype(np.float32))


def seed(writer):
    keys(writer)
    tiny(writer)


def tiny(writer):
    writer.add_array("b.texts", ["x", "y"])
    writer.add_tensor("v", np.arange(3, dtype=np.float32))
    writer.add_tensor("q", np.zeros((1, 34), np.uint8), raw_dtype=T.Q8_0)


def llama(writer):
    """A model of one layer with Llama 3's frequencies, and everything in it small."""
    writer.add_block_count(1)
    writer.add_context_length(16)
    writer.add_embedding_length(4)
    writer.add_feed_forward_length(3)
    writer.add_head_count(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_tensor("rope_freqs.weight", np.array([1, 8], np.float32))
    writer.add_tensor("token_embd.weight", np.ones((5, 4), np.float32))
    writer.add_tensor("output_norm.weight", np.ones(4, np.float32))
    shapes = {"attn_norm": 4, "attn_q": (4, 4), "attn_k": (4, 4), "attn_v": (4, 4), "attn_output": (4, 4), "ffn_norm": 4,
              "ffn_gate": (3, 4), "ffn_up": (3, 4), "ffn_down": (4, 3)}
    for name, shape in shapes.items():
        writer.add_tensor(f"blk.0.{name}.weight", np.ones(shape, np.float16 if name == "attn_k" else np.float32))


def decoder(writer, shapes, norms, qk_norm=0, without=()):
    """One layer of an architecture of its own: 2 heads of 2, hidden size 4, MLP 3."""
    writer.add_block_count(1)
    writer.add_context_length(16)
    writer.add_embedding_length(4)
    writer.add_feed_forward_length(3)
    writer.add_head_count(2)
    writer.add_key_length(2)
    writer.add_value_length(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_tensor("token_embd.weight", np.ones((5, 4), np.float32))
    writer.add_tensor("output_norm.weight", np.ones(4, np.float32))
    shapes = {"attn_output": (4, 4), "ffn_down": (4, 3), **shapes, **{name: 4 for name in norms}}
    if qk_norm:
        shapes |= {"attn_q_norm": qk_norm, "attn_k_norm": qk_norm}
    for name, shape in shapes.items():
        if name not in without:
            writer.add_tensor(f"blk.0.{name}.weight", np.ones(shape, np.float32))


QKV = {"attn_q": (4, 4), "attn_k": (4, 4), "attn_v": (4, 4)}
GATED = {"ffn_gate": (3, 4), "ffn_up": (3, 4)}
SANDWICH = ["attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"]


def olmo2(writer):
    decoder(writer, {**QKV, **GATED}, ["post_attention_norm", "post_ffw_norm"], qk_norm=4)
    writer.add_tensor("output.weight", np.ones((5, 4), np.float32))


def phi3(writer):
    decoder(writer, {"attn_qkv": (12, 4), "ffn_up": (6, 4)}, ["attn_norm", "ffn_norm"])
    writer.add_sliding_window(0)
    writer.add_rope_dimension_count(2)


def gemma2(writer):
    decoder(writer, {**QKV, **GATED}, SANDWICH)
    writer.add_attn_logit_softcapping(50.0)
    writer.add_final_logit_softcapping(30.0)
    writer.add_sliding_window(8)


def gemma3(writer):
    decoder(writer, {**QKV, **GATED}, SANDWICH, qk_norm=2)
    writer.add_sliding_window(8)
    writer.add_sliding_window_pattern(2)
    writer.add_rope_freq_base_swa(10000.0)


def glm4(writer):
    decoder(writer, {**QKV, "ffn_up": (6, 4)}, SANDWICH)
    writer.add_rope_dimension_count(2)


def experts(writer, names, biases=()):
    """Two experts of hidden size 3."""
    decoder(writer, {**QKV, "ffn_gate_inp": (2, 4), "ffn_gate_exps": (2, 3, 4), "ffn_up_exps": (2, 3, 4), "ffn_down_exps": (2, 4, 3), **names},
            ["attn_norm"], without=["ffn_down"])
    for name, shape in biases:
        writer.add_tensor(f"blk.0.{name}.bias", np.ones(shape, np.float32))
    writer.add_expert_count(2)
    writer.add_expert_used_count(1)
    writer.add_expert_feed_forward_length(3)


def qwen2moe(writer):
    experts(writer, {"ffn_norm": 4, "ffn_gate_inp_shexp": 4, "ffn_gate_shexp": (5, 4), "ffn_up_shexp": (5, 4), "ffn_down_shexp": (4, 5)},
            [("attn_q", 4), ("attn_k", 4), ("attn_v", 4)])
    writer.add_expert_shared_feed_forward_length(5)


def gpt_oss(writer):
    experts(writer, {"post_attention_norm": 4, "attn_sinks": 2},
            [("attn_q", 4), ("attn_k", 4), ("attn_v", 4), ("attn_output", 4), ("ffn_gate_inp", 2), ("ffn_gate_exps", (2, 3)), ("ffn_up_exps", (2, 3)),
             ("ffn_down_exps", (2, 4))])
    writer.add_tensor("output.weight", np.ones((5, 4), np.float32))
    writer.add_sliding_window(8)


def deepseek(writer, split):
    """A dense layer and one with experts: 2 heads of 3 + 2 keys and 2 values; kv_b_proj counts up, whole or as keys, transposed, and values."""
    keys, rotary, values, rank = 3, 2, 2, 4
    writer.add_block_count(2)
    writer.add_context_length(64)
    writer.add_embedding_length(4)
    writer.add_feed_forward_length(3)
    writer.add_head_count(2)
    writer.add_head_count_kv(1 if split else 2)
    writer.add_kv_lora_rank(rank)
    writer.add_key_length(rank + rotary if split else keys + rotary)
    writer.add_value_length(rank if split else values)
    if split:
        writer.add_key_length_mla(keys + rotary)
        writer.add_value_length_mla(values)
    writer.add_rope_dimension_count(rotary)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_scaling_type(RopeScalingType.YARN)
    writer.add_rope_scaling_factor(4.0)
    writer.add_rope_scaling_orig_ctx_len(16)
    writer.add_rope_scaling_yarn_log_mul(0.1 * 0.707)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_leading_dense_block_count(1)
    writer.add_expert_count(2)
    writer.add_expert_used_count(1)
    writer.add_expert_shared_count(1)
    writer.add_expert_feed_forward_length(3)
    writer.add_expert_weights_scale(2.5)
    writer.add_expert_weights_norm(True)
    writer.add_expert_gating_func(ExpertGatingFuncType.SIGMOID)
    shapes = {"attn_norm": 4, "attn_q": (10, 4), "attn_kv_a_mqa": (6, 4), "attn_kv_a_norm": 4, "attn_output": (4, 4), "ffn_norm": 4}
    dense = {"ffn_gate": (3, 4), "ffn_up": (3, 4), "ffn_down": (4, 3)}
    experts = {"ffn_gate_inp": (2, 4), "ffn_gate_exps": (2, 3, 4), "ffn_up_exps": (2, 3, 4), "ffn_down_exps": (2, 4, 3),
               "ffn_gate_shexp": (3, 4), "ffn_up_shexp": (3, 4), "ffn_down_shexp": (4, 3)}
    kv_b = np.arange(40, dtype=np.float32).reshape(2, keys + values, rank)
    for i in range(2):
        for name, shape in {**shapes, **(experts if i else dense)}.items():
            writer.add_tensor(f"blk.{i}.{name}.weight", np.ones(shape, np.float32))
        if split:
            writer.add_tensor(f"blk.{i}.attn_k_b.weight", np.ascontiguousarray(kv_b[:, :keys].transpose(0, 2, 1)))
            writer.add_tensor(f"blk.{i}.attn_v_b.weight", np.ascontiguousarray(kv_b[:, keys:]))
        else:
            writer.add_tensor(f"blk.{i}.attn_kv_b.weight", kv_b.reshape(10, rank))
    writer.add_tensor("blk.1.exp_probs_b.bias", np.ones(2, np.float32))
    writer.add_tensor("token_embd.weight", np.ones((5, 4), np.float32))
    writer.add_tensor("output_norm.weight", np.ones(4, np.float32))
    writer.add_tensor("output.weight", np.ones((5, 4), np.float32))


def gpt2(writer):
    writer.add_block_count(1)
    writer.add_context_length(2)
    writer.add_embedding_length(2)
    writer.add_head_count(1)
    writer.add_layer_norm_eps(1e-5)
    writer.add_tensor("token_embd.weight", np.ones((3, 2), np.float32))
    writer.add_tensor("position_embd.weight", np.ones((2, 2), np.float32))
    shapes = {"attn_norm": (2,), "attn_qkv": (6, 2), "attn_output": (2, 2), "ffn_norm": (2,), "ffn_up": (8, 2), "ffn_down": (2, 8)}
    for name, shape in shapes.items():
        writer.add_tensor(f"blk.0.{name}.weight", np.ones(shape, np.float32))
        writer.add_tensor(f"blk.0.{name}.bias", np.ones(shape[0], np.float32))
    writer.add_tensor("output_norm.weight", np.ones(2, np.float32))
    writer.add_tensor("output_norm.bias", np.ones(2, np.float32))


def bytes_tokenizer(writer):
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("llama-bpe")
    writer.add_token_list(["<|end|>", "a", "b", "ab", "<think>", "[PAD5]"])
    writer.add_token_types([3, 1, 1, 1, 4, 5])
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    writer.add_chat_template("{{ bos_token }}")


def pieces_tokenizer(writer):
    writer.add_tokenizer_model("llama")
    writer.add_token_list(["<unk>", "<s>", "<0x41>", "\u2581", "a", "b", "ab", "\u2581ab"])
    writer.add_token_types([2, 3, 6, 1, 1, 1, 1, 1])
    writer.add_token_scores([0, 0, 0, -3, -4, -5, -1, -2])
    writer.add_bos_token_id(1)
    writer.add_add_space_prefix(True)


write("python.gguf", golden)
write("../fuzz/gguf_fuzz/python", seed)
write("../fuzz/gguf_fuzz/tiny", tiny)
write("../fuzz/gguf_model_fuzz/llama", llama, "llama")
write("../fuzz/gguf_model_fuzz/gpt2", gpt2, "gpt2")
for fill in (olmo2, phi3, gemma2, gemma3, glm4, qwen2moe, gpt_oss):
    write("../fuzz/gguf_model_fuzz/" + fill.__name__, fill, fill.__name__.replace("_", "-"))
write("../fuzz/gguf_model_fuzz/deepseek2", lambda writer: deepseek(writer, True), "deepseek2")
write("../fuzz/gguf_model_fuzz/deepseek2_unsplit", lambda writer: deepseek(writer, False), "deepseek2") # of before 2025
write("../fuzz/gguf_tokenizer_fuzz/bytes", bytes_tokenizer)
write("../fuzz/gguf_tokenizer_fuzz/pieces", pieces_tokenizer)
