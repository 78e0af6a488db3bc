"""Random Hugging Face models of every supported family and option, through transformers in fp64 and through `pentatron evaluate`.

  hf_models.py PROGRAM [NAME ...]     no NAME: all; prints a line each; status 1 if one is outside its bounds
"""
import json
import os
import subprocess
import sys
import tempfile
import zlib

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "data", "hf_tiny"))
import pure64  # noqa: F401  before transformers: makes its fp64 models fp64 throughout
import torch
import transformers as tf
from safetensors.torch import load_file, save_file

tf.utils.logging.disable_progress_bar()

# relative to the value, to the largest element of the tensor, or of the logits
BOUNDS = {"loss": 1e-10, "logits": 2e-6, "gradients": 1e-8, "hidden": 1e-9, "fp32 logits": 2e-5, "fp32 loss": 1e-6}

GPT2 = dict(n_layer=2, n_embd=48, n_head=4, vocab_size=131, n_positions=128, initializer_range=0.05, resid_pdrop=0.0,
            embd_pdrop=0.0, attn_pdrop=0.0)
LLAMA = dict(hidden_size=48, num_hidden_layers=3, num_attention_heads=4, vocab_size=131, max_position_embeddings=256,
             intermediate_size=112, num_key_value_heads=2, rms_norm_eps=1e-5, initializer_range=0.05)


def gpt2(**keys):
    return tf.GPT2Config, {**GPT2, **keys}


def llama(**keys):
    return tf.LlamaConfig, {**LLAMA, **keys}


def mistral(**keys):
    return tf.MistralConfig, {**LLAMA, **keys}


def qwen2(**keys):
    return tf.Qwen2Config, {**LLAMA, **keys}


def qwen3(**keys):
    return tf.Qwen3Config, {**LLAMA, "head_dim": 16, **keys}


def phi3(**keys):
    return tf.Phi3Config, {**LLAMA, "pad_token_id": None, **keys}


def olmo2(**keys):
    return tf.Olmo2Config, {**LLAMA, "pad_token_id": None, **keys}


def glm4(**keys):
    return tf.Glm4Config, {**LLAMA, "head_dim": 16, "pad_token_id": None, **keys}


GEMMA = {"head_dim": 16, "pad_token_id": None, "query_pre_attn_scalar": 24, "sliding_window": 9}


def gemma2(**keys):
    return tf.Gemma2Config, {**LLAMA, **GEMMA, **keys}


def gemma3(**keys):
    return tf.Gemma3TextConfig, {**LLAMA, **GEMMA, **keys}


DEEPSEEK = dict(hidden_size=32, intermediate_size=40, moe_intermediate_size=16, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=4,
                n_routed_experts=8, num_experts_per_tok=3, n_group=2, topk_group=1, first_k_dense_replace=1, kv_lora_rank=12, q_lora_rank=20,
                qk_rope_head_dim=6, qk_nope_head_dim=10, v_head_dim=14, vocab_size=131, max_position_embeddings=64, initializer_range=0.15)


def deepseek_v3(**keys):
    return tf.DeepseekV3Config, {**DEEPSEEK, **keys}


ENCODER = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=40, vocab_size=67,
               max_position_embeddings=48, initializer_range=0.1, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)


EXPERTS = {**LLAMA, "num_hidden_layers": 2, "initializer_range": 0.1, "pad_token_id": None, "num_experts_per_tok": 2}


def mixtral(**keys):
    return tf.MixtralConfig, {**EXPERTS, "intermediate_size": 40, "num_local_experts": 4, **keys}


def olmoe(**keys):
    return tf.OlmoeConfig, {**EXPERTS, "intermediate_size": 24, "num_experts": 6, **keys}


def qwen2_moe(**keys):
    return tf.Qwen2MoeConfig, {**EXPERTS, "moe_intermediate_size": 24, "shared_expert_intermediate_size": 40, "num_experts": 6, **keys}


def qwen3_moe(**keys):
    return tf.Qwen3MoeConfig, {**EXPERTS, "head_dim": 12, "moe_intermediate_size": 24, "num_experts": 7, **keys}


GPT_OSS = {"head_dim": 16, "intermediate_size": 24, "num_local_experts": 5, "num_experts_per_tok": 2, "sliding_window": 9, "swiglu_limit": 0.1}


def gpt_oss(**keys):
    return tf.GptOssConfig, {**LLAMA, **GPT_OSS, **keys}


def bert(task, **keys):
    return tf.BertConfig, {**ENCODER, **keys}, getattr(tf, f"BertFor{task}")


def roberta(task, **keys):
    return tf.RobertaConfig, {**ENCODER, "type_vocab_size": 1, **keys}, getattr(tf, f"RobertaFor{task}")


T5 = dict(d_model=32, d_kv=12, d_ff=40, num_layers=2, num_decoder_layers=3, num_heads=4, vocab_size=67, dropout_rate=0.0,
          decoder_start_token_id=0, initializer_factor=0.5, relative_attention_num_buckets=8,
          relative_attention_max_distance=20)


def t5(**keys):
    return tf.T5Config, {**T5, **keys}, tf.T5ForConditionalGeneration


def rope(kind, **keys):
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10000.0, **keys}}


YARN = dict(factor=4.0, original_max_position_embeddings=64)
MODELS = {
    **{f"gpt2_{name}": gpt2(activation_function=name)
       for name in ("relu", "gelu", "gelu_pytorch_tanh", "silu", "quick_gelu", "relu2", "gelu_python", "gelu_fast")},
    "gpt2_inner": gpt2(n_inner=80),
    "gpt2_no_scale": gpt2(scale_attn_weights=False),
    "gpt2_inverse_layer": gpt2(scale_attn_by_inverse_layer_idx=True, reorder_and_upcast_attn=True),
    "gpt2_untied": gpt2(tie_word_embeddings=False),
    "gpt2_epsilon": gpt2(layer_norm_epsilon=1e-3),
    "gpt2_dropout": gpt2(resid_pdrop=0.1, embd_pdrop=0.1, attn_pdrop=0.1),
    "llama_mha": llama(num_key_value_heads=4),
    "llama_mqa": llama(num_key_value_heads=1),
    "llama_biases": llama(attention_bias=True, mlp_bias=True),
    "llama_head_size": llama(head_dim=20),
    "llama_gelu": llama(hidden_act="gelu"),
    "llama_gelu_tanh": llama(hidden_act="gelu_pytorch_tanh"),
    "llama_theta": llama(**rope("default", rope_theta=1e6)),
    "llama_partial": llama(**rope("default", partial_rotary_factor=0.5)),
    "llama_linear": llama(**rope("linear", factor=2.0)),
    "llama_llama3": llama(**rope("llama3", rope_theta=5e5, factor=32.0, low_freq_factor=1.0, high_freq_factor=4.0,
                                 original_max_position_embeddings=64)),
    "llama_dynamic": llama(max_position_embeddings=24, **rope("dynamic", factor=3.0)),
    "llama_yarn": llama(**rope("yarn", **YARN)),
    "llama_yarn_factors": llama(**rope("yarn", **YARN, beta_fast=16.0, beta_slow=2.0, attention_factor=1.3,
                                       truncate=False)),
    "llama_yarn_mscale": llama(**rope("yarn", **{**YARN, "factor": 40.0}, mscale=1.0, mscale_all_dim=0.8)),
    "llama_one_token": llama(vocab_size=1),
    "llama_odd_width": llama(vocab_size=257, hidden_size=60, head_dim=16),
    "llama_sharded": llama(),
    "llama_bf16": llama(),
    "llama_fp16": llama(),
    "llama_padding": llama(pad_token_id=5),
    "llama_padding_from_the_end": llama(pad_token_id=-2),
    "mistral_no_window": mistral(sliding_window=None),
    "mistral_window_of_one": mistral(sliding_window=1),
    "mistral_head_size": mistral(sliding_window=7, head_dim=24, tie_word_embeddings=True),
    "qwen2_window": qwen2(use_sliding_window=True, sliding_window=9, max_window_layers=1),
    "qwen2_window_everywhere": qwen2(use_sliding_window=True, sliding_window=9, max_window_layers=0),
    "qwen2_window_off": qwen2(use_sliding_window=False, sliding_window=9),
    "qwen2_untied": qwen2(tie_word_embeddings=False),
    "qwen2_yarn": qwen2(**rope("yarn", **YARN)),
    "qwen3_bias": qwen3(attention_bias=True),
    "qwen3_window": qwen3(use_sliding_window=True, sliding_window=5, max_window_layers=2),
    "qwen3_layer_types": qwen3(use_sliding_window=True, sliding_window=5,
                               layer_types=["sliding_attention", "full_attention", "sliding_attention"]),
    "qwen3_untied": qwen3(head_dim=12, tie_word_embeddings=False),
    "phi3": phi3(),
    "phi3_tied": phi3(tie_word_embeddings=True, num_key_value_heads=4),
    "phi3_partial": phi3(**rope("default", partial_rotary_factor=0.5)),
    "phi3_longrope": phi3(original_max_position_embeddings=32, tie_word_embeddings=True, **rope(
        "longrope", partial_rotary_factor=0.5, short_factor=[1.0, 1.1, 2.5], long_factor=[1.0, 3.0, 20.0])),
    "phi3_window": phi3(sliding_window=7, num_key_value_heads=1, **rope("default", partial_rotary_factor=0.34)),
    "phi3_head_size": phi3(head_dim=24),
    "olmo2": olmo2(),
    "olmo2_mha": olmo2(num_key_value_heads=4, tie_word_embeddings=True),
    "olmo2_biases": olmo2(attention_bias=True, num_key_value_heads=1),
    "olmo2_head_size": olmo2(head_dim=20),
    "olmo2_yarn": olmo2(**rope("yarn", **YARN)),
    "glm4": glm4(),
    "glm4_no_bias": glm4(attention_bias=False, tie_word_embeddings=True),
    "glm4_full_rotary": glm4(num_key_value_heads=1, **rope("default", partial_rotary_factor=1.0)),
    "glm4_head_size": glm4(head_dim=24, hidden_act="gelu"),
    "gemma2": gemma2(),
    "gemma2_low_caps": gemma2(attn_logit_softcapping=0.5, final_logit_softcapping=0.3, tie_word_embeddings=False),
    "gemma2_no_caps": gemma2(attn_logit_softcapping=None, final_logit_softcapping=None, num_key_value_heads=1),
    "gemma2_biases": gemma2(attention_bias=True, num_key_value_heads=4, hidden_activation="silu"),
    "gemma3": gemma3(num_hidden_layers=7),
    "gemma3_layer_types": gemma3(layer_types=["full_attention", "sliding_attention", "sliding_attention"]),
    "gemma3_rope": gemma3(layer_types=["full_attention", "sliding_attention", "full_attention"],
                          rope_parameters={"full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 5e5},
                                           "sliding_attention": {"rope_type": "default", "rope_theta": 3e3}}),
    "gemma3_window_scaling": gemma3(layer_types=["full_attention", "sliding_attention", "full_attention"],
                                    rope_parameters={"full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 5e5},
                                                     "sliding_attention": {"rope_type": "llama3", "rope_theta": 3e3, "factor": 4.0, "low_freq_factor": 1.0,
                                                                           "high_freq_factor": 4.0, "original_max_position_embeddings": 32}}),
    "gemma3_yarn": gemma3(layer_types=["full_attention", "sliding_attention", "full_attention"],
                          rope_parameters={"full_attention": {"rope_type": "yarn", "rope_theta": 1e4, **YARN, "truncate": False},
                                           "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}),
    "gemma3_yarn_whole": gemma3(layer_types=["full_attention", "sliding_attention", "full_attention"],
                                rope_parameters={"full_attention": {"rope_type": "yarn", "rope_theta": 1e4, **YARN},
                                                 "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}, "truncate": False}),
    "gemma3_padding": gemma3(pad_token_id=0),
    "gemma3_all_full": gemma3(layer_types=["full_attention"] * 3),
    "qwen3_mqa_linear": qwen3(num_key_value_heads=1, **rope("linear", factor=3.0)),
    "deepseek": deepseek_v3(),
    "deepseek_queries": deepseek_v3(q_lora_rank=None),
    "deepseek_biases": deepseek_v3(q_lora_rank=None, attention_bias=True, rope_interleave=False, rms_norm_eps=1e-3),
    "deepseek_yarn": deepseek_v3(**rope("yarn", factor=4.0, original_max_position_embeddings=16, mscale=1.0, mscale_all_dim=1.0)),
    "deepseek_yarn_mscale": deepseek_v3(**rope("yarn", factor=3.0, original_max_position_embeddings=16, mscale=0.7,
                                               mscale_all_dim=1.3), rms_norm_eps=1e-2),
    "deepseek_yarn_plain": deepseek_v3(**rope("yarn", factor=4.0, original_max_position_embeddings=16)),
    "deepseek_no_groups": deepseek_v3(n_group=1, topk_group=1, first_k_dense_replace=0, n_shared_experts=2, norm_topk_prob=False,
                                      routed_scaling_factor=1.7),
    "deepseek_dense": deepseek_v3(first_k_dense_replace=3, tie_word_embeddings=True),
    "deepseek_all_groups": deepseek_v3(n_group=4, topk_group=4, num_attention_heads=2, num_key_value_heads=2, v_head_dim=4,
                                       qk_nope_head_dim=2, qk_rope_head_dim=2, pad_token_id=7),
    "deepseek_linear": deepseek_v3(v_head_dim=40, **rope("linear", factor=2.0)),
    "deepseek_odd": deepseek_v3(num_attention_heads=3, num_key_value_heads=3, num_hidden_layers=4, n_routed_experts=9, n_group=3, topk_group=2,
                                num_experts_per_tok=5, first_k_dense_replace=2, n_shared_experts=3, q_lora_rank=None, kv_lora_rank=7, v_head_dim=5,
                                qk_nope_head_dim=3, qk_rope_head_dim=4, routed_scaling_factor=0.6, norm_topk_prob=False,
                                **rope("yarn", factor=6.0, original_max_position_embeddings=10, mscale=0.9, mscale_all_dim=0.5, beta_fast=8.0, beta_slow=2.0)),
    "deepseek_whole_groups": deepseek_v3(n_routed_experts=12, n_group=6, topk_group=2, num_experts_per_tok=4, q_lora_rank=5, v_head_dim=22,
                                         first_k_dense_replace=1, n_shared_experts=2, attention_bias=True, rope_interleave=False),
    "deepseek_all_experts": deepseek_v3(n_routed_experts=5, n_group=1, topk_group=1, num_experts_per_tok=5, first_k_dense_replace=0,
                                        routed_scaling_factor=3.0, tie_word_embeddings=True),
    "mixtral": mixtral(),
    "mixtral_all_experts": mixtral(num_local_experts=7, num_experts_per_tok=7, head_dim=10, num_key_value_heads=4, tie_word_embeddings=True,
                                   **rope("yarn", **YARN)),
    "mixtral_one_expert": mixtral(sliding_window=7, num_local_experts=3, num_experts_per_tok=1, num_key_value_heads=1),
    "olmoe": olmoe(num_experts_per_tok=3),
    "olmoe_normalised": olmoe(norm_topk_prob=True, attention_bias=True, num_key_value_heads=4),
    "olmoe_all_experts": olmoe(num_experts=9, num_experts_per_tok=9, num_key_value_heads=1, tie_word_embeddings=True, **rope("linear", factor=3.0)),
    "qwen2_moe": qwen2_moe(),
    "qwen2_moe_all_experts": qwen2_moe(num_experts=5, num_experts_per_tok=5, shared_expert_intermediate_size=17, mlp_only_layers=[1], num_hidden_layers=3,
                                       num_key_value_heads=4, moe_intermediate_size=11, tie_word_embeddings=True, **rope("yarn", **YARN)),
    "qwen2_moe_layers": qwen2_moe(num_hidden_layers=4, decoder_sparse_step=2, norm_topk_prob=True, qkv_bias=False,
                                  use_sliding_window=True, sliding_window=9, max_window_layers=2),
    "qwen3_moe": qwen3_moe(norm_topk_prob=True),
    "qwen3_moe_dense_layer": qwen3_moe(mlp_only_layers=[0], attention_bias=True, tie_word_embeddings=True),
    "qwen3_moe_odd": qwen3_moe(num_experts=11, num_experts_per_tok=7, decoder_sparse_step=2, num_hidden_layers=5, mlp_only_layers=[3], head_dim=6,
                               num_key_value_heads=1, use_sliding_window=True, sliding_window=5, norm_topk_prob=False),
    "gpt_oss": gpt_oss(**rope("yarn", **YARN, truncate=False)),
    "gpt_oss_odd": gpt_oss(num_hidden_layers=5, num_local_experts=7, num_experts_per_tok=6, sliding_window=3, head_dim=10, num_attention_heads=6,
                           num_key_value_heads=3, intermediate_size=13, swiglu_limit=0.4, layer_types=["sliding_attention"] * 3 + ["full_attention"] * 2,
                           **rope("yarn", **YARN, beta_fast=20.0, beta_slow=1.5, truncate=True)),
    "gpt_oss_defaults": gpt_oss(num_local_experts=3, num_experts_per_tok=3, swiglu_limit=7.0),
    "gpt_oss_layer_types": gpt_oss(attention_bias=False, num_key_value_heads=4, num_experts_per_tok=1, tie_word_embeddings=True,
                                   layer_types=["full_attention", "full_attention", "sliding_attention"], **rope("default")),
    "gpt_oss_no_window": gpt_oss(layer_types=["full_attention"] * 3, num_experts_per_tok=1, num_key_value_heads=1),
    "gpt_oss_no_bias": gpt_oss(attention_bias=False, tie_word_embeddings=True, swiglu_limit=7.0, hidden_size=36, head_dim=12),
    "gpt_oss_window_of_one": gpt_oss(sliding_window=1, num_experts_per_tok=5, **rope("linear", factor=2.0)),
    "bert": bert("PreTraining"),
    "bert_types": bert("PreTraining", hidden_act="silu", type_vocab_size=5, hidden_size=36, num_attention_heads=6),
    "bert_untied": bert("PreTraining", tie_word_embeddings=False, hidden_act="gelu_pytorch_tanh", num_attention_heads=1),
    "bert_masked": bert("MaskedLM", type_vocab_size=1, pad_token_id=7, layer_norm_eps=1e-5),
    "bert_classes": bert("SequenceClassification", num_labels=5, hidden_act="relu"),
    "bert_two_classes": bert("SequenceClassification", num_labels=2, problem_type="single_label_classification"),
    "bert_number": bert("SequenceClassification", num_labels=1),
    "roberta": roberta("MaskedLM"),
    "roberta_untied": roberta("MaskedLM", tie_word_embeddings=False, type_vocab_size=2),
    "roberta_classes": roberta("SequenceClassification", num_labels=4, hidden_act="relu", type_vocab_size=2, pad_token_id=0),
    "roberta_number": roberta("SequenceClassification", num_labels=1, pad_token_id=5),
    "t5": t5(),
    "t5_long": t5(relative_attention_num_buckets=12, relative_attention_max_distance=33),
    "t5_four_buckets": t5(relative_attention_num_buckets=4, relative_attention_max_distance=7),
    "t5_near_distance": t5(relative_attention_num_buckets=32, relative_attention_max_distance=17),
    "t5_gated": t5(feed_forward_proj="gated-gelu", scale_decoder_outputs=True, tie_word_embeddings=False, d_kv=7, num_heads=3),
    "t5_gated_silu": t5(feed_forward_proj="gated-silu", num_decoder_layers=1),
    "t5_gated_relu": t5(feed_forward_proj="gated-relu"),
    "t5_odd_buckets": t5(relative_attention_num_buckets=9, relative_attention_max_distance=31),
    "t5_pad": t5(decoder_start_token_id=3, pad_token_id=6),
    "t5_silu": t5(feed_forward_proj="silu", tie_word_embeddings=False),
    "t5_gelu": t5(feed_forward_proj="gelu", layer_norm_epsilon=1e-3),
    "t5_unscaled": t5(scale_decoder_outputs=False),
    "t5_start": t5(decoder_start_token_id=3, pad_token_id=3),
    "t5_decoder_inputs": t5(),
    "t5_head": t5(feed_forward_proj="gated-gelu"),
    "t5_head_unscaled": t5(tie_word_embeddings=False),
    # Batches of other kinds, by the end of the name.
    "gpt2_padded": gpt2(),
    "llama_padded": llama(),
    "mistral_padded": mistral(sliding_window=7),
    "gemma3_padded": gemma3(),
    "gpt_oss_padded": gpt_oss(),
    "mixtral_padded": mixtral(),
    "deepseek_padded": deepseek_v3(),
    "gpt2_positions": gpt2(),
    "llama_positions": llama(max_position_embeddings=90),  # some lie behind
    "llama_dynamic_positions": llama(max_position_embeddings=40, **rope("dynamic", factor=3.0)),
    "deepseek_positions": deepseek_v3(),
    "bert_positions": bert("MaskedLM"),
    "roberta_positions": roberta("MaskedLM"),
    "gpt2_alone": gpt2(),
    "qwen2_moe_alone": qwen2_moe(),
    "roberta_alone": roberta("MaskedLM"),
    "t5_alone": t5(),
    "gpt2_short": gpt2(),
    "llama_short": llama(),
    "gpt_oss_short": gpt_oss(),
    "bert_short": bert("MaskedLM"),
    "t5_short": t5(),
    # Files without what is the default of its class.
    "gpt2_left_out": gpt2(),
    "llama_left_out": llama(num_key_value_heads=4),
    "mistral_left_out": mistral(hidden_size=64, num_attention_heads=16, num_key_value_heads=8),
    "qwen2_left_out": qwen2(hidden_size=64, num_attention_heads=32, num_key_value_heads=32),
    "qwen3_left_out": qwen3(num_attention_heads=32, num_key_value_heads=32, head_dim=128),
    "phi3_left_out": phi3(num_key_value_heads=4),
    "olmo2_left_out": olmo2(num_key_value_heads=4),
    "glm4_left_out": glm4(head_dim=128),
    "gemma2_left_out": gemma2(num_attention_heads=8, num_key_value_heads=4, head_dim=256, query_pre_attn_scalar=256),
    "gemma3_left_out": gemma3(num_attention_heads=8, num_key_value_heads=4, head_dim=256, query_pre_attn_scalar=256),
    "mixtral_left_out": mixtral(hidden_size=64, num_attention_heads=16, num_key_value_heads=8, num_local_experts=8),
    "olmoe_left_out": olmoe(num_key_value_heads=4, num_experts=64, num_experts_per_tok=8, intermediate_size=5),
    "qwen2_moe_left_out": qwen2_moe(hidden_size=64, num_attention_heads=16, num_key_value_heads=16, num_experts=60, num_experts_per_tok=4, moe_intermediate_size=5),
    "qwen3_moe_left_out": qwen3_moe(num_attention_heads=8, num_key_value_heads=4, num_experts=128, num_experts_per_tok=8, moe_intermediate_size=5),
    "gpt_oss_left_out": gpt_oss(num_attention_heads=16, num_key_value_heads=8, head_dim=64, num_local_experts=128, num_experts_per_tok=4,
                                         intermediate_size=3),
    "deepseek_left_out": deepseek_v3(num_hidden_layers=4, n_routed_experts=256, num_experts_per_tok=8, n_group=8, topk_group=4, moe_intermediate_size=5,
                                     first_k_dense_replace=3, kv_lora_rank=512),
    "bert_left_out": bert("PreTraining"),
    "roberta_left_out": roberta("MaskedLM", type_vocab_size=2),
    "t5_left_out": t5(relative_attention_num_buckets=32, relative_attention_max_distance=128, num_decoder_layers=2),
}
# Models without an output layer: their last hidden states are compared.
BODIES = {
    f"{name}_body": (config, keys, getattr(tf, config.__name__.replace("Config", "Model")))
    for name, (config, keys, *_) in {
        "gpt2": gpt2(), "llama": llama(), "qwen3": qwen3(), "gemma2": gemma2(), "gemma3": gemma3(), "mixtral": mixtral(), "qwen2_moe": qwen2_moe(),
        "deepseek": deepseek_v3(), "gpt_oss": gpt_oss(), "bert": bert("MaskedLM"), "roberta": roberta("MaskedLM"), "t5": t5()}.items()}
ALL = {**MODELS, **BODIES}
ENCODERS = ("bert", "roberta", "t5")  # and no decoders alone


def draw(mask, likely, of):
    """Of each token, a label with that probability; none where the mask has a 0."""
    return torch.where((torch.rand(mask.shape) < likely) & (mask == 1), torch.randint(0, of, mask.shape), -100)


def lengths(name, rows, length):
    """Rows and tokens of a batch: one row if the name ends with _alone, one token if it ends with _short."""
    return 1 if name.endswith("_alone") else rows, 1 if name.endswith("_short") else length


def decoder_batch(model, name):
    """Tokens alone, or with labels that are not all of them: in rows padded at both ends, or at positions that jump."""
    words = model.config.vocab_size
    batch = {"input_ids": torch.randint(0, words, lengths(name, 3, 50))}
    if not name.endswith(("_padded", "_positions")):
        return batch
    batch["attention_mask"] = mask = torch.ones_like(batch["input_ids"])
    targets = mask.clone()
    if name.endswith("_padded"):
        mask[1, 30:] = mask[2, :7] = mask[2, 49:] = 0
        targets[1, 30:] = targets[2, :8] = targets[2, 49:] = 0  # eager attention of padding means nothing
    else:
        batch["position_ids"] = torch.randint(0, 120, mask.shape)
    batch["labels"] = draw(targets, 0.6, words)
    return batch


def encoder_batch(model, name):
    """Samples of several lengths. Padding inside of a text has no gradient in transformers, so there is none."""
    config, pairs = model.config, isinstance(model, tf.BertForPreTraining)
    judges = type(model).__name__.endswith("SequenceClassification")
    pad = config.pad_token_id or 0
    ids = torch.randint(0, config.vocab_size, lengths(name, 4, 33))
    ids[ids == pad] = config.vocab_size - 1
    mask = torch.ones_like(ids)
    if min(ids.shape) > 1:
        mask[1, 15:] = mask[3, 1:] = 0
        if not pairs and not judges and name not in BODIES:  # those heads read the first token, which would be padding
            mask[0, :6] = 0
    ids[mask == 0] = pad
    batch = {"input_ids": ids, "attention_mask": mask, "token_type_ids": torch.randint(0, config.type_vocab_size, ids.shape)}
    if not judges:
        batch["labels"] = draw(mask, 0.3 if ids.shape[1] > 1 else 1, config.vocab_size)
    elif config.num_labels == 1:
        batch["labels"] = torch.randn(4, dtype=torch.float64)
    else:
        batch["labels"] = torch.randint(0, config.num_labels, (4,))
    if name.endswith("_positions"):  # rows of the table, to the last
        batch["position_ids"] = torch.randint(0, config.max_position_embeddings, ids.shape)
        batch["position_ids"][2, 3] = config.max_position_embeddings - 1
    if pairs:
        batch["next_sentence_label"] = torch.randint(0, 2, (4,))
    return batch


def t5_batch(model, name):
    """Texts padded at both ends; the decoder's inputs follow from the labels, or are given."""
    words = model.config.vocab_size
    ids = torch.randint(1, words, lengths(name, 3, 60))
    mask = torch.ones_like(ids)
    labels = torch.randint(1, words, lengths(name, 3, 46))
    if min(ids.shape) > 1:
        mask[1, 30:] = mask[2, :3] = 0
        labels[0, 41:] = labels[1, :2] = -100
    batch = {"input_ids": ids, "attention_mask": mask, "labels": labels}
    if name == "t5_decoder_inputs":
        batch["decoder_input_ids"] = torch.randint(1, words, labels.shape)
        batch["decoder_attention_mask"] = torch.ones_like(labels)
        batch["decoder_attention_mask"][2, 40:] = 0
        labels[2, 40:] = -100
    return batch


def batch_of(model, name=""):
    """Arguments of the model's forward pass."""
    kind = model.config.model_type
    if kind == "t5":
        batch = t5_batch(model, name)
    else:
        batch = (encoder_batch if kind in ENCODERS else decoder_batch)(model, name)
    labels = batch.pop("labels", None) if name in BODIES else None
    if labels is not None and kind == "t5":
        batch["decoder_input_ids"] = labels.clamp_min(0)
    return batch


def causal_loss(logits, labels):
    """None without a target. transformers' own is in fp32."""
    logits, labels = logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
    return torch.nn.functional.cross_entropy(logits, labels) if (labels >= 0).any() else None


def forward(model, batch):
    """Loss, or None, and logits."""
    if model.config.model_type in ENCODERS:
        output = model(**batch)
        return output.loss, output.logits if "logits" in output else output.prediction_logits
    if model.dtype == torch.float64:  # numbers that come from lengths, too: the base of dynamic positions
        torch.set_default_dtype(torch.float64)
    logits = model(**{key: tensor for key, tensor in batch.items() if key != "labels"}, use_cache=False).logits
    torch.set_default_dtype(torch.float32)
    return causal_loss(logits, batch.get("labels", batch["input_ids"])), logits


def hidden_states(model, batch):
    """What a model without an output layer gives, under the names of transformers."""
    with torch.no_grad():
        output = model(**batch)
    return {key: output[key] for key in ("last_hidden_state", "encoder_last_hidden_state", "pooler_output") if key in output}


def leave_out(folder, keys, kind):
    """Of config.json, keeps the given keys that are not the default of their class, and those that pentatron needs."""
    needed = ("model_type", "architectures", "num_attention_heads")
    usual = json.loads(kind().to_json_string(use_diff=False))
    with open(f"{folder}/config.json", encoding="utf-8") as file:
        config = json.load(file)
    config = {key: value for key, value in config.items()
              if key in needed or key in keys and (key not in usual or usual[key] != value)}
    with open(f"{folder}/config.json", "w", encoding="utf-8") as file:
        json.dump(config, file)


def change(name, folder):
    """What save_pretrained() does not write, if the name says so."""
    config, keys, *_ = ALL[name]
    if name.endswith("_left_out"):
        leave_out(folder, keys, config)
    if name.startswith("t5_head"):
        tensors = load_file(f"{folder}/model.safetensors")
        tensors["lm_head.weight"] = 0.3 * torch.randn(tensors["shared.weight"].shape)
        save_file(tensors, f"{folder}/model.safetensors", {"format": "pt"})


def make(name, folder):
    """Writes the model and its batch; returns transformers' fp64 model after backward, its batch, loss and logits."""
    config, keys, *kind = ALL[name]
    torch.manual_seed(zlib.crc32(name.encode()))
    make_model = kind[0]._from_config if kind else tf.AutoModelForCausalLM.from_config
    model = make_model(config(**keys), attn_implementation="eager").float()
    with torch.no_grad():  # constant initial values would hide exchanged biases and norms
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.1 * torch.randn(parameter.shape))
        for key, buffer in model.named_buffers():
            if key.endswith("e_score_correction_bias"):
                buffer.normal_(0, 0.2)
    model = model.to({"llama_bf16": torch.bfloat16, "llama_fp16": torch.float16}.get(name, torch.float32))
    model.save_pretrained(folder, max_shard_size="60KB" if name == "llama_sharded" else "1GB")
    change(name, folder)
    experts = {} if model.config.model_type in ENCODERS else {"experts_implementation": "eager"}
    model = type(model).from_pretrained(folder, dtype=torch.float64, attn_implementation="eager", **experts).eval()
    batch = batch_of(model, name)
    save_file(batch, f"{folder}/batch.safetensors")
    if name in BODIES:
        return model, batch, None, None
    loss, logits = forward(model, batch)
    if loss is not None:
        loss.backward()
    return model, batch, None if loss is None else loss.item(), logits.detach()


def evaluate(program, folder, dtype, *options):
    command = [program, "evaluate", "--hf", folder, "--batches", f"{folder}/batch.safetensors", "--overwrite", *options, f"dtype={dtype}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip())
    return json.loads(done.stdout)["loss"] if done.stdout.strip() else None


def results(program, folder, dtype, *options):
    loss = evaluate(program, folder, dtype, "--logits-out", f"{folder}/logits.safetensors", *options)
    return loss, load_file(f"{folder}/logits.safetensors")["logits"].double()


def relative(a, b):
    """Of numbers or tensors, to the largest element of b; gradients that vanish but for rounding count as 1e-6."""
    a, b = torch.as_tensor(a, dtype=torch.float64), torch.as_tensor(b, dtype=torch.float64)
    return float((a - b).abs().max() / b.abs().max().clamp(min=1e-6))


def compare_body(program, model, batch, folder):
    evaluate(program, folder, "fp64", "--hidden-out", f"{folder}/hidden.safetensors")
    found, expected = load_file(f"{folder}/hidden.safetensors"), hidden_states(model, batch)
    if set(found) != set(expected):
        raise RuntimeError(f"other results: {sorted(set(found) ^ set(expected))}")
    if "attention_mask" in batch:  # rows of padding mean nothing
        where = batch.get("decoder_attention_mask", batch["attention_mask"]) == 1
        for states in (found, expected):
            for key in states:
                if key != "pooler_output" and states[key].shape[:2] == where.shape:
                    states[key] = states[key][where]
    return {"hidden": max(relative(found[key], expected[key]) for key in expected)}


def compare(program, name, folder):
    model, batch, loss, logits = make(name, folder)
    if name in BODIES:
        return compare_body(program, model, batch, folder)
    gradients = ["--grads-out", f"{folder}/grads.safetensors"] if loss is not None else []
    fp64, logits64 = results(program, folder, "fp64", *gradients)
    fp32, logits32 = results(program, folder, "fp32")
    if name.endswith("_padded"):
        logits, logits64, logits32 = (values[batch["attention_mask"] == 1] for values in (logits, logits64, logits32))
    found = {"logits": relative(logits64, logits), "fp32 logits": relative(logits32, logits)}
    if loss is None:
        if fp64 is not None:
            raise RuntimeError(f"a loss of {fp64} without a target")
        return found
    grads = load_file(f"{folder}/grads.safetensors")
    # transformers does not use the bias of an untied head.
    expected = {key: p.grad for key, p in model.named_parameters() if p.grad is not None}
    if set(grads) != set(expected):
        raise RuntimeError(f"gradients of other names: {sorted(set(grads) ^ set(expected))[:5]}")
    return {**found, "loss": relative(fp64, loss), "gradients": max(relative(grads[key], expected[key]) for key in expected),
            "fp32 loss": relative(fp32, loss)}


def main(program, *names):
    failed = 0
    for name in names or ALL:
        with tempfile.TemporaryDirectory() as folder:
            try:
                found = compare(program, name, folder)
            except RuntimeError as problem:
                found = None
                print(f"{name:24s} FAILED {problem}")
        if found is None or any(value > BOUNDS[key] for key, value in found.items()):
            failed += 1
        if found:
            print(f"{name:24s} " + "  ".join(f"{key} {value:.1e}{' OUTSIDE' if value > BOUNDS[key] else ''}"
                                              for key, value in found.items()), flush=True)
    print(f"{len(names or ALL) - failed} of {len(names or ALL)} models agree with transformers {tf.__version__}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
