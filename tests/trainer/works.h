/// The models and trainings of the layout matrix, as data.
#pragma once

#include <string>
#include <vector>

#include "tests/trainer/adapter_layouts.h"

namespace pentatron::test {

inline const std::vector<Work>& works() {
  static const std::string gpt2 =
      "model.num_layers=4 model.hidden_size=32 model.num_attention_heads=4 "
      "model.num_query_groups=2 "
      "model.position_embedding_type=learned_absolute model.normalization=layernorm "
      "model.activation_func=gelu_tanh model.add_qkv_bias=true model.add_attention_proj_bias=true "
      "model.add_mlp_bias=true model.untie_embeddings_and_output_weights=false "
      "model.hidden_dropout=0.1 model.attention_dropout=0.1 model.ffn_hidden_size=64 "
      "optimizer.clip_grad=0.5";
  static const std::string bert =
      "model.type=bert dataset.type=bert model.vocab_size=263 model.num_layers=4 "
      "model.hidden_size=32 model.num_attention_heads=4 model.ffn_hidden_size=64 "
      "model.max_position_embeddings=16 model.hidden_dropout=0.1 model.attention_dropout=0.1 "
      "dataset.bert_binary_head=sentence_order dataset.short_seq_prob=0.4 dataset.mask_prob=0.1 "
      "optimizer.clip_grad=0.5";
  static const std::string labelled =
      "model.type=bert dataset.type=classification model.vocab_size=263 model.num_layers=4 "
      "model.hidden_size=32 model.num_attention_heads=4 model.ffn_hidden_size=64 "
      "model.max_position_embeddings=16 model.hidden_dropout=0.1 model.classifier_dropout=0.1 "
      "optimizer.clip_grad=0.5 ";
  static const std::string t5_model =
      "model.type=t5 model.vocab_size=270 model.embedding_init_method_std=0.1 "
      "model.num_layers=3 model.num_decoder_layers=3 model.hidden_size=32 "
      "model.num_attention_heads=4 model.ffn_hidden_size=64 model.hidden_dropout=0.1 "
      "model.attention_dropout=0.1 model.relative_attention_num_buckets=8 "
      "model.relative_attention_max_distance=12 optimizer.clip_grad=0.5 ";
  static const std::string t5 = t5_model +
                                "dataset.type=t5 dataset.vocab_extra_ids=8 dataset.mask_prob=0.3 "
                                "dataset.decoder_seq_length=12";
  static const std::string answers =
      "model.num_layers=5 model.hidden_size=32 model.num_attention_heads=4 "
      "model.num_query_groups=2 "
      "model.activation_func=swiglu model.qk_layernorm=true model.softmax_type=learnable "
      "model.untie_embeddings_and_output_weights=true model.hidden_dropout=0.1 "
      "model.attention_dropout=0.1 model.ffn_hidden_size=64 model.padding_token=101 "
      "optimizer.clip_grad=1.0";
  static const std::string llama = answers +
                                   " dataset.reset_attention_mask=true "
                                   "dataset.reset_position_ids=true dataset.eod_mask_loss=true";
  static const std::string experts =
      "model.num_layers=4 model.hidden_size=32 model.num_attention_heads=4 "
      "model.num_query_groups=2 model.ffn_hidden_size=64 model.hidden_dropout=0.1 "
      "model.add_mlp_bias=true model.num_moe_experts=8 model.moe_router_topk=3 "
      "model.moe_ffn_hidden_size=24 model.moe_layer_freq=[0]+[1]*3 "
      "model.moe_router_score_function=sigmoid model.moe_router_num_groups=4 "
      "model.moe_router_group_topk=2 model.moe_router_topk_scaling_factor=1.5 "
      "model.moe_router_enable_expert_bias=true model.moe_router_bias_update_rate=0.02 "
      "model.moe_router_logit_bias=true "
      "model.moe_router_load_balancing_type=seq_aux_loss model.moe_aux_loss_coeff=0.05 "
      "model.moe_z_loss_coeff=0.02 optimizer.clip_grad=0.5";
  static const std::string moe =
      experts + " dataset.reset_attention_mask=true dataset.eod_mask_loss=true";
  static const std::string latents_moe =
      "model.num_layers=4 model.hidden_size=32 model.num_attention_heads=4 "
      "model.ffn_hidden_size=64 model.multi_latent_attention=true model.kv_lora_rank=16 "
      "model.qk_head_dim=8 model.qk_pos_emb_head_dim=4 model.v_head_dim=8 "
      "model.softmax_type=learnable model.num_moe_experts=8 model.moe_router_topk=2 "
      "model.moe_ffn_hidden_size=16 model.moe_layer_freq=[0]+[1]*3 "
      "model.moe_router_score_function=sigmoid model.moe_router_num_groups=4 "
      "model.moe_router_group_topk=2 model.moe_router_group_score_topk=2 "
      "model.moe_shared_expert_intermediate_size=16 model.moe_router_enable_expert_bias=true "
      "model.moe_router_bias_update_rate=0.02";
  static const std::vector<Work> all = {
      // Tied, learned positions, layer norm, biases, dropout everywhere, active clipping.
      {"gpt2", gpt2},
      // The same with a frozen tied table, a frozen layer, and weights whose biases train.
      {"gpt2_frozen", gpt2 + " train.freeze=[\"embedding.word.weight\",\"layers.1.*\","
                             "\"layers.*.mlp.fc1.weight\",\"layers.2.*norm.*\"]"},
      // Untied, rotary, RMSNorm, q/k norms, gated, learnable sinks, a token that trains no row of
      // the embedding, packed documents whose ends reset attention and are no targets: label masks
      // that differ from rank to rank.
      {"llama", llama},
      // Texts to fine-tune on, several in a sample that they do not fill, or one.
      {"sft", answers + " dataset.type=sft train.seq_length=48", "stories.jsonl"},
      {"sft_moe", experts + " dataset.type=sft train.seq_length=48", "stories.jsonl"},
      {"sft_single", answers + " dataset.type=sft train.seq_length=48 dataset.pack=false",
       "stories.jsonl"},
      // Norms of outputs, and of all heads of a token together.
      {"olmo2", "model.num_layers=4 model.hidden_size=32 model.num_attention_heads=4 "
                "model.num_query_groups=2 model.ffn_hidden_size=64 model.hidden_dropout=0.1 "
                "model.norm_placement=output model.qk_layernorm=true "
                "model.qk_layernorm_scope=projection"},
      // Caps of scores and logits, scaled embeddings, two kinds of rotary positions.
      {"gemma", "model.num_layers=4 model.hidden_size=32 model.num_attention_heads=4 "
                "model.num_query_groups=2 model.ffn_hidden_size=64 model.hidden_dropout=0.1 "
                "model.attention_dropout=0.1 model.norm_placement=pre_and_output "
                "model.layernorm_zero_centered_gamma=true model.qk_layernorm=true "
                "model.attn_logit_softcapping=2 model.final_logit_softcapping=5 "
                "model.embedding_multiplier=5.65685 model.window_size=8 "
                "model.full_attention_layers=[1,3] model.rope_local_base_freq=100"},
      // Padded pairs of texts, two loss terms, post-norm, tied with a bias; many microbatches have
      // no masked token.
      {"bert", bert, "stories.jsonl"},
      // The same with frozen tables and lower layers, as in fine-tuning; the masked head's table is
      // one of them.
      {"bert_frozen", bert + " train.freeze=[\"embedding.*\",\"layers.[01].*\"]", "stories.jsonl"},
      // Pre-norm, rotary, grouped queries, untied, one loss term, no token types.
      {"bert_pre",
       "model.type=bert dataset.type=bert model.vocab_size=263 model.num_layers=4 "
       "model.hidden_size=32 model.num_attention_heads=4 model.num_query_groups=2 "
       "model.ffn_hidden_size=64 model.max_position_embeddings=16 model.norm_placement=pre "
       "model.position_embedding_type=rope model.num_tokentypes=0 model.binary_head=false "
       "model.untie_embeddings_and_output_weights=true model.hidden_dropout=0.1 "
       "dataset.bert_binary_head=none dataset.short_seq_prob=0.4 dataset.masking_max_ngram=3",
       "stories.jsonl"},
      // Classes and numbers of padded texts: losses and figures of whole samples.
      {"classes", labelled + "model.head=classification model.num_labels=3", "classes.jsonl"},
      {"numbers", labelled + "model.head=regression", "numbers.jsonl"},
      // Gated, tied and scaled, shared biases, dropout everywhere, padded targets.
      {"t5", t5, "stories.jsonl"},
      // The same with frozen tables that several stages share.
      {"t5_frozen",
       t5 + " train.freeze=[\"embedding.*\",\"*.relative_bias.*\",\"encoder.layers.0.*\"]",
       "stories.jsonl"},
      // As T5 1.0 but untied, with more layers in the decoder.
      {"t5_untied",
       "model.type=t5 dataset.type=t5 model.vocab_size=270 dataset.vocab_extra_ids=8 "
       "model.embedding_init_method_std=0.1 "
       "model.num_layers=2 model.num_decoder_layers=4 model.hidden_size=32 "
       "model.num_attention_heads=4 model.ffn_hidden_size=64 model.activation_func=gelu "
       "model.untie_embeddings_and_output_weights=true model.scale_decoder_outputs=false "
       "model.relative_attention_num_buckets=8 model.relative_attention_max_distance=12 "
       "dataset.mask_prob=0.2",
       "stories.jsonl"},
      // The same model on pairs of texts, each of another length.
      {"t5_pairs", t5_model + "dataset.type=batches", "pairs.safetensors"},
      // Experts behind a dense layer, biases, groups of experts; packed documents. Balanced by the
      // expert bias and a loss for each sample.
      {"moe", moe},
      // Experts in every other layer, shared ones with a gate, few tokens for each: on many ranks
      // some experts have none. Balanced by the loads of the step before.
      {"moe_shared",
       "model.num_layers=4 model.hidden_size=32 model.num_attention_heads=4 "
       "model.ffn_hidden_size=64 model.hidden_dropout=0.1 model.num_moe_experts=16 "
       "model.moe_router_topk=2 model.moe_ffn_hidden_size=16 model.moe_layer_freq=2 "
       "model.moe_router_pre_softmax=true model.moe_shared_expert_intermediate_size=32 "
       "model.moe_shared_expert_gate=true model.activation_func=quick_geglu "
       "model.glu_linear_offset=1 "
       "model.moe_aux_loss_coeff=0.05 model.moe_input_jitter_eps=0.1"},
      // Latent attention with a latent of queries, YaRN, dropout of attention, packed documents.
      {"latents",
       "model.num_layers=4 model.hidden_size=32 model.num_attention_heads=4 "
       "model.ffn_hidden_size=64 model.multi_latent_attention=true model.q_lora_rank=20 "
       "model.kv_lora_rank=12 model.qk_head_dim=6 model.qk_pos_emb_head_dim=4 model.v_head_dim=10 "
       "model.rotary_interleaved=true model.rope_scaling.type=yarn model.rope_scaling.factor=4 "
       "model.rope_scaling.original_max_position_embeddings=8 "
       "model.rope_scaling.mscale_all_dim=0.8 model.add_qkv_bias=true model.hidden_dropout=0.1 "
       "model.attention_dropout=0.1 dataset.reset_attention_mask=true "
       "dataset.reset_position_ids=true dataset.eod_mask_loss=true optimizer.clip_grad=0.5"},
      // DeepSeek's block: queries without a latent, experts behind a dense layer.
      {"latents_moe", latents_moe},
      // Two depths of multi-token prediction: tied, learned positions, dropout everywhere.
      {"mtp", gpt2 + " model.mtp_num_layers=2 model.mtp_loss_scaling_factor=0.3"},
      // The depths alone train, behind a frozen model.
      {"mtp_frozen", gpt2 + " model.mtp_num_layers=2 model.mtp_loss_scaling_factor=4 "
                            "model.untie_embeddings_and_output_weights=true "
                            "train.freeze=[\"embedding.*\",\"layers.*\",\"final_norm.*\","
                            "\"output.*\"]"},
      // The same, untied, rotary, packed documents whose ends no depth looks beyond.
      {"mtp_packed",
       "model.num_layers=3 model.hidden_size=32 model.num_attention_heads=4 "
       "model.num_query_groups=2 model.untie_embeddings_and_output_weights=true "
       "model.hidden_dropout=0.1 model.attention_dropout=0.1 model.ffn_hidden_size=64 "
       "model.padding_token=101 model.mtp_num_layers=2 model.mtp_loss_scaling_factor=0.5 "
       "dataset.reset_attention_mask=true dataset.reset_position_ids=true "
       "dataset.eod_mask_loss=true optimizer.clip_grad=1.0"},
      // A depth with latent attention and experts, which all balance their load.
      {"mtp_moe", "model.num_layers=3 model.hidden_size=32 model.num_attention_heads=4 "
                  "model.ffn_hidden_size=64 model.multi_latent_attention=true "
                  "model.kv_lora_rank=16 model.qk_head_dim=8 model.qk_pos_emb_head_dim=4 "
                  "model.v_head_dim=8 model.num_moe_experts=8 model.moe_router_topk=2 "
                  "model.moe_ffn_hidden_size=16 model.moe_layer_freq=[0]+[1]*2 "
                  "model.moe_router_score_function=sigmoid "
                  "model.moe_shared_expert_intermediate_size=16 "
                  "model.moe_router_enable_expert_bias=true "
                  "model.moe_router_bias_update_rate=0.02 model.moe_aux_loss_coeff=0.05 "
                  "model.untie_embeddings_and_output_weights=true model.mtp_num_layers=1"},
      // Products in FP8, whose blocks no cut of tokens or features divides.
      {"mxfp8",
       "model.num_layers=4 model.hidden_size=64 model.num_attention_heads=2 "
       "model.ffn_hidden_size=64 model.hidden_dropout=0.1 train.train_iters=8 "
       "train.eval_interval=8 "
       "train.seq_length=32 model.max_position_embeddings=32 train.global_batch_size=4 "
       "mixed_precision.fp8=e4m3 mixed_precision.fp8_recipe=mxfp8 "
       "mixed_precision.first_last_layers_bf16=true mixed_precision.num_layers_at_end_in_bf16=0 "
       "optimizer.clip_grad=0.5",
       Work().data, true},
      {"fp8_blocks",
       "model.num_layers=2 model.hidden_size=256 model.num_attention_heads=2 "
       "model.ffn_hidden_size=256 model.hidden_dropout=0.1 model.position_embedding_type="
       "learned_absolute train.seq_length=128 model.max_position_embeddings=128 "
       "train.train_iters=8 train.eval_interval=8 "
       "train.global_batch_size=4 model.init_method_std=0.05 mixed_precision.fp8=e4m3 "
       "mixed_precision.fp8_recipe=blockwise optimizer.clip_grad=0.5",
       Work().data, true},
      // Scales from the steps before, of all ranks; also of experts, which lie on other ranks then.
      {"fp8_delayed",
       gpt2 + " train.train_iters=10 train.eval_interval=10 mixed_precision.fp8=hybrid "
              "mixed_precision.fp8_recipe=delayed mixed_precision.fp8_amax_history_len=3 "
              "mixed_precision.fp8_amax_compute_algo=max mixed_precision.fp8_margin=1",
       Work().data, true},
      {"fp8_delayed_moe",
       moe + " train.train_iters=8 train.eval_interval=8 mixed_precision.fp8=e4m3 "
             "mixed_precision.fp8_recipe=delayed",
       Work().data, true},
      // NVFP4 with one sample in a microbatch, so that tensors have the same scales in layouts that
      // do not split features; gradients are rounded by the numbers of their tokens.
      {"nvfp4",
       "model.num_layers=4 model.hidden_size=64 model.num_attention_heads=2 "
       "model.ffn_hidden_size=64 model.hidden_dropout=0.1 train.train_iters=8 "
       "train.eval_interval=8 train.global_batch_size=4 mixed_precision.fp4=e2m1 "
       "mixed_precision.first_last_layers_bf16=true mixed_precision.num_layers_at_start_in_bf16=0 "
       "optimizer.clip_grad=0.5",
       Work().data, true},
      // Experts in a latent, with biases and gated shared experts of the whole width.
      {"moe_latent",
       "model.num_layers=4 model.hidden_size=32 model.num_attention_heads=4 "
       "model.num_query_groups=2 model.ffn_hidden_size=64 model.hidden_dropout=0.1 "
       "model.add_mlp_bias=true model.num_moe_experts=8 model.moe_router_topk=3 "
       "model.moe_ffn_hidden_size=24 model.moe_latent_size=20 model.moe_layer_freq=[0]+[1]*3 "
       "model.moe_router_score_function=sigmoid model.moe_shared_expert_intermediate_size=32 "
       "model.moe_shared_expert_gate=true "
       "model.moe_router_load_balancing_type=[seq_aux_loss,global_aux_loss] "
       "model.moe_aux_loss_coeff=[0.05,0.03] dataset.reset_attention_mask=true "
       "dataset.eod_mask_loss=true optimizer.clip_grad=0.5"},
      // Windows of 3 tokens, packed documents, shared heads, sinks and dropout of attention.
      {"windows", "model.num_layers=3 model.hidden_size=32 model.num_attention_heads=4 "
                  "model.num_query_groups=2 model.ffn_hidden_size=64 model.window_size=3 "
                  "model.softmax_type=learnable model.attention_dropout=0.1 "
                  "dataset.reset_attention_mask=true optimizer.clip_grad=0.5"},
      // Updates of whole matrices: fused, of experts, of latents; and by signs.
      {"muon", llama + " optimizer.optimizer=muon"},
      {"muon_moe", moe + " optimizer.optimizer=muon optimizer.muon_nesterov=false"},
      {"muon_latents", latents_moe + " optimizer.optimizer=muon optimizer.muon_momentum=0.8"},
      {"lion", llama + " optimizer.optimizer=lion optimizer.lr=1e-3"},
      {"adaptive_muon", llama + " optimizer.optimizer=adaptive_muon optimizer.lr=1e-3"},
      {"normuon", moe + " optimizer.optimizer=adaptive_muon "
                        "optimizer.adaptive_muon_moment2_method=normuon"},
      // Sums over the rows and columns of fused, stacked and vocabulary weights.
      {"adafactor", llama + " optimizer.optimizer=adafactor optimizer.lr=0.02"},
      {"adafactor_moe", moe + " optimizer.optimizer=adafactor optimizer.lr=0.02 "
                              "optimizer.adafactor_beta1=0.9 optimizer.weight_decay=0.01"},
      // Evaluated with the running mean of the weights.
      {"ema", llama + " optimizer.ema_decay=0.8 train.eval_weights=ema"},
      // Means in 8 and 16 bits, whose scales follow the gradients of all ranks.
      {"narrow_means", llama + " optimizer.exp_avg_dtype=fp8 optimizer.exp_avg_sq_dtype=fp16",
       Work().data, true},
      // Means that decay too slowly for their type, rounded by chance.
      {"slow_means",
       llama + " optimizer.exp_avg_dtype=fp8 optimizer.exp_avg_sq_dtype=fp8 "
               "optimizer.adam_beta1=0.95 optimizer.adam_beta2=0.999",
       Work().data, true},
      {"l2", llama + " optimizer.decoupled_weight_decay=false optimizer.weight_decay=0.1"},
      {"nesterov",
       gpt2 + " optimizer.optimizer=sgd optimizer.sgd_nesterov=true optimizer.lr=0.1 "
              "optimizer.exp_avg_dtype=fp16",
       Work().data, true},
      // Scaled losses, whose gradients are divided again: a power of two changes nothing.
      {"scaled", gpt2 + " mixed_precision.loss_scale=1024"},
      {"scaled_moe", moe + " mixed_precision.loss_scale=65536 optimizer.optimizer=sgd "
                           "optimizer.lr=0.1"},
      // Queries and keys made smaller: with biases and shared key heads; of latents; behind sinks
      // and windows, by Muon with a mean of the weights; of padded samples, and of a memory.
      {"clipped", gpt2 + " optimizer.qk_clip=true optimizer.qk_clip_threshold=1.2"},
      {"clipped_latents", latents_moe + " optimizer.qk_clip=true optimizer.qk_clip_threshold=0.8 "
                                        "optimizer.qk_clip_alpha=0.3"},
      {"clipped_windows",
       "model.num_layers=3 model.hidden_size=32 model.num_attention_heads=4 "
       "model.num_query_groups=2 model.ffn_hidden_size=64 model.window_size=3 "
       "model.softmax_type=learnable optimizer.clip_grad=0.5 optimizer.optimizer=muon "
       "optimizer.ema_decay=0.8 train.eval_weights=ema optimizer.qk_clip=true "
       "optimizer.qk_clip_threshold=1.5 logger.log_max_attention_logit=true"},
      {"clipped_t5", t5 + " optimizer.qk_clip=true optimizer.qk_clip_threshold=5", "stories.jsonl"},
      // A batch size that grows.
      {"ramp", "model.num_layers=4 model.hidden_size=32 model.num_attention_heads=4 "
               "model.ffn_hidden_size=64 model.untie_embeddings_and_output_weights=false "
               "train.rampup_batch_size=[4,4,40]"},
  };
  static const std::vector<Work> works = joined(all, adapter_works(gpt2, bert, t5));
  return works;
}

/// Lion takes the sign of a mean: rounding decides where that is near zero, sooner or later.
inline bool takes_signs(const std::string& work) {
  return work == "lion";
}

inline const Work& work_of(const std::string& name) {
  for (const Work& work : works())
    if (work.name == name) return work;
  throw Error("no work " + name);
}

} // namespace pentatron::test
