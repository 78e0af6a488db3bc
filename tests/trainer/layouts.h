/// The layouts whose training must give the numbers of one rank, as data.
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
  static const std::string llama =
      "model.num_layers=5 model.hidden_size=32 model.num_attention_heads=4 "
      "model.num_query_groups=2 "
      "model.activation_func=swiglu model.qk_layernorm=true model.softmax_type=learnable "
      "model.untie_embeddings_and_output_weights=true model.hidden_dropout=0.1 "
      "model.attention_dropout=0.1 model.ffn_hidden_size=64 model.padding_token=101 "
      "dataset.reset_attention_mask=true "
      "dataset.reset_position_ids=true dataset.eod_mask_loss=true optimizer.clip_grad=1.0";
  static const std::string moe =
      "model.num_layers=4 model.hidden_size=32 model.num_attention_heads=4 "
      "model.num_query_groups=2 model.ffn_hidden_size=64 model.hidden_dropout=0.1 "
      "model.add_mlp_bias=true model.num_moe_experts=8 model.moe_router_topk=3 "
      "model.moe_ffn_hidden_size=24 model.moe_layer_freq=[0]+[1]*3 "
      "model.moe_router_score_function=sigmoid model.moe_router_num_groups=4 "
      "model.moe_router_group_topk=2 model.moe_router_topk_scaling_factor=1.5 "
      "model.moe_router_enable_expert_bias=true model.moe_router_bias_update_rate=0.02 "
      "model.moe_router_logit_bias=true "
      "model.moe_router_load_balancing_type=seq_aux_loss model.moe_aux_loss_coeff=0.05 "
      "model.moe_z_loss_coeff=0.02 "
      "dataset.reset_attention_mask=true dataset.eod_mask_loss=true optimizer.clip_grad=0.5";
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
      // Updates of whole matrices: fused, of experts, of latents; and by signs.
      {"muon", llama + " optimizer.optimizer=muon"},
      {"muon_moe", moe + " optimizer.optimizer=muon optimizer.muon_nesterov=false"},
      {"muon_latents", latents_moe + " optimizer.optimizer=muon optimizer.muon_momentum=0.8"},
      {"lion", llama + " optimizer.optimizer=lion optimizer.lr=1e-3"},
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
      // A batch size that grows.
      {"ramp", "model.num_layers=4 model.hidden_size=32 model.num_attention_heads=4 "
               "model.ffn_hidden_size=64 model.untie_embeddings_and_output_weights=false "
               "train.rampup_batch_size=[4,4,40]"},
  };
  static const std::vector<Work> works = joined(all, adapter_works(gpt2, bert, t5));
  return works;
}

inline const std::vector<Layout>& layouts() {
  static const std::string tp = " parallel.tensor_model_parallel_size=",
                           pp = " parallel.pipeline_model_parallel_size=",
                           vp = " parallel.virtual_pipeline_model_parallel_size=",
                           sp = " parallel.sequence_parallel=true",
                           schedule = " parallel.pipeline_schedule=", zero = " ddp.zero_stage=",
                           micro = " train.micro_batch_size=", recompute = " train.recompute=full",
                           selective = " train.recompute=selective",
                           small = " ddp.bucket_size=1000",
                           short_rows = " train.remove_padding=true",
                           late = " ddp.overlap_grad_reduce=false ddp.overlap_param_gather=false",
                           chunks = " comm_overlap.tp=true",
                           ep = " parallel.expert_model_parallel_size=",
                           etp = " parallel.expert_tensor_parallel_size=",
                           everywhere = " parallel.moe_token_dispatcher_type=allgather",
                           beside = " comm_overlap.moe_shared_expert=true",
                           v_shape = " parallel.pipeline_model_parallel_layout=",
                           cp = " parallel.context_parallel_size=",
                           gathers = " parallel.cp_comm_type=[all_gather]",
                           heads = " parallel.cp_comm_type=[a2a]",
                           both = " parallel.cp_comm_type=[a2a+p2p] "
                                  "parallel.hierarchical_context_parallel_sizes=[2,2]";
  static const std::vector<Layout> all = {
      {"tp2", "gpt2", 2, tp + "2", true},
      {"tp2_sp", "gpt2", 2, tp + "2" + sp, true},
      {"tp4_sp_shared_heads", "llama", 4, tp + "4" + sp, true},
      {"tp4_shared_heads", "llama", 4, tp + "4", true},
      {"tp2_sp_chunks", "gpt2", 2, tp + "2" + sp + chunks + " train.micro_batch_size=8", true},
      {"dp2", "llama", 2, "", true},
      {"dp4_micro2", "gpt2", 4, micro + "2", true},
      {"dp2_micro4", "llama", 2, micro + "4", false},
      {"zero1", "gpt2", 2, zero + "1" + small, true},
      {"zero2", "llama", 4, zero + "2" + small, true},
      {"zero3", "gpt2", 4, zero + "3", true},
      {"zero3_hybrid", "llama", 4, zero + "3 ddp.num_distributed_optimizer_instances=2", true},
      {"zero3_recompute", "llama", 2, zero + "3" + recompute, true},
      {"pp2_gpipe", "llama", 2, pp + "2" + schedule + "gpipe", true},
      {"pp2_1f1b", "gpt2", 2, pp + "2" + schedule + "1f1b", true},
      {"pp3_1f1b_5_layers", "llama", 3, pp + "3" + schedule + "1f1b", true},
      {"pp2_interleaved", "gpt2", 2, pp + "2" + vp + "2" + schedule + "interleaved", true},
      {"pp4_zb_h1", "llama", 4, pp + "4" + schedule + "zb_h1", true},
      {"pp2_zb_h2", "gpt2", 2, pp + "2" + schedule + "zb_h2", true},
      {"pp2_zb_v", "gpt2", 2, pp + "2" + schedule + "zb_v", true},
      {"pp2_dualpipe_v", "llama", 2, pp + "2" + schedule + "dualpipe_v", true},
      {"tp2_pp2_dp2", "gpt2", 8, tp + "2" + pp + "2" + zero + "1" + sp, true},
      {"tp2_pp2_dp2_zb_v_zero2", "llama", 8,
       tp + "2" + sp + pp + "2" + zero + "2" + schedule + "zb_v", true},
      {"ramp_dp2_pp2", "ramp", 4, pp + "2", true},
      {"tp2_sp_output_norms", "olmo2", 2, tp + "2" + sp, true},
      {"tp4_output_norms", "olmo2", 4, tp + "4", true},
      {"tp2_pp2_sp_caps", "gemma", 4, tp + "2" + sp + pp + "2" + schedule + "1f1b", true},
      {"tp2_frozen", "gpt2_frozen", 2, tp + "2", true},
      {"tp2_sp_pp2_zb_h1_frozen", "gpt2_frozen", 4, tp + "2" + sp + pp + "2" + schedule + "zb_h1",
       true},
      {"pp2_frozen", "gpt2_frozen", 2, pp + "2" + recompute, true},
      {"zero1_frozen", "gpt2_frozen", 2, zero + "1" + small, true},
      {"zero2_frozen", "gpt2_frozen", 2, zero + "2" + small, true},
      {"zero3_frozen", "gpt2_frozen", 2, zero + "3", true},
      {"cp2_ring", "gpt2", 2, cp + "2", true},
      {"cp3_ring_uneven", "llama", 3, cp + "3", true},
      {"cp2_all_gather", "llama", 2, cp + "2" + gathers, true},
      {"cp2_heads", "gemma", 2, cp + "2" + heads, true},
      {"cp4_heads_and_ring", "olmo2", 4, cp + "4" + both + micro + "2", true},
      {"tp2_sp_cp2_pp2_ring", "llama", 8, tp + "2" + sp + cp + "2" + pp + "2" + recompute, true},
      {"moe_cp2_ep4_zero2", "moe", 4, cp + "2" + ep + "4" + zero + "2", true},
      {"bert_tp2_sp", "bert", 2, tp + "2" + sp, true},
      {"bert_zero3_pp2", "bert", 4, zero + "3" + pp + "2", true},
      {"bert_tp2_sp_pp2_dp2", "bert", 8, tp + "2" + sp + pp + "2" + zero + "1" + recompute, true},
      {"classes_tp2_sp_pp2_dp2", "classes", 8, tp + "2" + sp + pp + "2" + zero + "1", true},
      {"numbers_tp2_pp2_zb_h1", "numbers", 4, tp + "2" + pp + "2" + schedule + "zb_h1", true},
      {"bert_pre_pp4_zb_h1", "bert_pre", 4, pp + "4" + schedule + "zb_h1", true},
      {"t5_tp2_sp", "t5", 2, tp + "2" + sp, true},
      {"t5_pp4_1f1b", "t5", 4, pp + "4" + schedule + "1f1b", true},
      {"t5_zero2_pp2_zb_v", "t5", 4, zero + "2" + pp + "2" + schedule + "zb_v", true},
      {"t5_tp2_pp2_dp2", "t5", 8, tp + "2" + sp + pp + "2" + zero + "3" + recompute, true},
      {"t5_tp2_pp2_selective", "t5", 4, tp + "2" + pp + "2" + schedule + "zb_h1" + selective, true},
      {"t5_untied_pp2_interleaved", "t5_untied", 2, pp + "2" + vp + "2" + schedule + "interleaved",
       true},
      {"bert_tp2_sp_pp2_frozen", "bert_frozen", 4, tp + "2" + sp + pp + "2", true},
      {"t5_pp4_frozen", "t5_frozen", 4, pp + "4" + schedule + "1f1b" + recompute, true},
      {"moe_ep2", "moe", 2, ep + "2", true},
      {"moe_tp2_sp_ep2_etp2", "moe", 4, tp + "2" + sp + ep + "2", true},
      {"moe_tp2_ep4_etp1_zero3", "moe_shared", 4, tp + "2" + ep + "4" + etp + "1" + zero + "3",
       true},
      {"moe_tp2_sp_pp2_ep2_etp1_zb_h1", "moe", 8,
       tp + "2" + sp + pp + "2" + ep + "2" + etp + "1" + zero + "1" + schedule + "zb_h1", true},
      {"moe_pp2_interleaved_ep2", "moe_shared", 4,
       pp + "2" + vp + "2" + ep + "2" + schedule + "interleaved", true},
      {"latents_tp2", "latents", 2, tp + "2", true},
      {"latents_tp4_sp_pp2_zb_h1", "latents", 8, tp + "4" + sp + pp + "2" + schedule + "zb_h1",
       true},
      {"latents_moe_tp2_sp_ep2_etp1_zero3", "latents_moe", 4,
       tp + "2" + sp + ep + "2" + etp + "1" + zero + "3" + recompute, true},
      {"mxfp8_tp2_sp_pp2_zb_h1", "mxfp8", 4, tp + "2" + sp + pp + "2" + schedule + "zb_h1", true},
      {"mxfp8_zero3_recompute", "mxfp8", 2, zero + "3" + small + recompute, true},
      {"mxfp8_tp2_chunks_dp2_zero2", "mxfp8", 4, tp + "2" + sp + chunks + zero + "2" + small,
       false},
      {"mxfp8_pp2_interleaved", "mxfp8", 2, pp + "2" + vp + "2" + schedule + "interleaved", false},
      {"mxfp8_micro2_dp2_zero1", "mxfp8", 2, zero + "1" + micro + "2", false},
      {"fp8_blocks_tp2_sp", "fp8_blocks", 2, tp + "2" + sp, false},
      {"fp8_blocks_pp2_dp2_zero1", "fp8_blocks", 4, pp + "2" + zero + "1", false},
      {"mtp_tp2_sp", "mtp", 2, tp + "2" + sp, true},
      {"mtp_pp2_interleaved", "mtp", 2, pp + "2" + vp + "2" + schedule + "interleaved", true},
      {"mtp_pp3_apart", "mtp", 3, pp + "3" + v_shape + "Ettt|tm|mL" + schedule + "zb_h1", true},
      {"mtp_packed_cp2_ring", "mtp_packed", 2, cp + "2", true},
      {"mtp_packed_zero3_recompute", "mtp_packed", 2, zero + "3" + small + recompute, true},
      {"mtp_packed_pp2_dualpipe_v", "mtp_packed", 2,
       pp + "2" + schedule + "dualpipe_v" + v_shape + "Et|t|tm|mL", true},
      {"mtp_tp2_sp_pp2_frozen", "mtp_frozen", 4, tp + "2" + sp + pp + "2" + schedule + "zb_h1",
       true},
      {"mtp_moe_tp2_sp_pp2_ep2_etp1", "mtp_moe", 4,
       tp + "2" + sp + pp + "2" + ep + "2" + etp + "1" + schedule + "1f1b", true},
      // Padded rows on one rank, none here.
      {"bert_short_tp2_sp", "bert", 2, tp + "2" + sp + micro + "4" + short_rows, true},
      {"t5_short_pp2_zb_v", "t5_pairs", 2, pp + "2" + schedule + "zb_v" + micro + "4" + short_rows,
       true},
      {"t5_short_tp2_sp_zero3", "t5_pairs", 4,
       tp + "2" + sp + zero + "3" + micro + "2" + recompute + short_rows, true},
      {"classes_short_tp2_sp_pp2", "classes", 4,
       tp + "2" + sp + pp + "2" + micro + "8" + selective + short_rows, true},
      {"muon_tp2_sp_pp2_zero1", "muon", 8, tp + "2" + sp + pp + "2" + zero + "1" + small, true},
      {"muon_tp4_shared_heads_zero2", "muon", 8, tp + "4" + zero + "2" + small, true},
      {"muon_zero3", "muon", 2, zero + "3" + small, true},
      {"muon_cp2_zero1", "muon", 2, cp + "2" + zero + "1", true},
      {"muon_moe_tp2_ep2_etp2_zero1", "muon_moe", 4, tp + "2" + ep + "2" + zero + "1", true},
      {"muon_latents_tp2", "muon_latents", 2, tp + "2", true},
      {"lion_tp2_pp2_zero2", "lion", 8, tp + "2" + sp + pp + "2" + zero + "2" + small, true},
      {"lion_zero3_cp2", "lion", 4, zero + "3" + cp + "2" + small, true},
      {"lion_tp4_pp2_zb_v", "lion", 8, tp + "4" + pp + "2" + schedule + "zb_v", true},
      // The rest of the full matrix.
      {"muon_dp4_micro2", "muon", 4, micro + "2", false},
      {"muon_pp2_zb_v_zero2", "muon", 4, pp + "2" + schedule + "zb_v" + zero + "2", false},
      {"muon_zero3_hybrid_tp2", "muon", 8,
       tp + "2" + zero + "3 ddp.num_distributed_optimizer_instances=2", false},
      {"muon_tp2_cp2_pp2_zb_h1", "muon", 8,
       tp + "2" + sp + cp + "2" + pp + "2" + schedule + "zb_h1" + zero + "1", false},
      {"muon_moe_ep4_pp2_zero3", "muon_moe", 8, ep + "4" + pp + "2" + zero + "3", false},
      {"muon_moe_tp2_sp_ep2_etp1_zero2", "muon_moe", 4,
       tp + "2" + sp + ep + "2" + etp + "1" + zero + "2" + small, false},
      {"muon_latents_tp2_sp_pp2_ep2", "muon_latents", 8,
       tp + "2" + sp + pp + "2" + ep + "2" + zero + "1", false},
      {"lion_dp4_micro2_late", "lion", 4, micro + "2" + late + small, false},
      {"lion_tp2_sp", "lion", 2, tp + "2" + sp, false},
      {"lion_zero1", "lion", 4, zero + "1" + small, false},
      {"lion_zero2_late", "lion", 4, zero + "2" + late, false},
      {"lion_zero3_hybrid", "lion", 4, zero + "3 ddp.num_distributed_optimizer_instances=2", false},
      {"lion_pp2_interleaved", "lion", 2,
       pp + "2" + vp + "2" + schedule + "interleaved" + v_shape + "Et|t|tt|tL", false},
      {"lion_cp2_pp2", "lion", 4, cp + "2" + pp + "2", false},
      {"mtp_tp4_dp2_zero2", "mtp", 8, tp + "4" + zero + "2" + small, false},
      {"mtp_pp4_head_alone", "mtp", 4, pp + "4" + v_shape + "Ett|tt|mm|L", false},
      {"mtp_pp2_zb_v", "mtp", 2, pp + "2" + schedule + "zb_v", false},
      {"mtp_zero1_pp2_recompute", "mtp", 4, zero + "1" + small + pp + "2" + recompute, false},
      {"mtp_cp2_heads", "mtp", 2, cp + "2" + heads, false},
      {"mtp_cp4_heads_and_ring_pp2", "mtp", 8, cp + "4" + both + pp + "2" + micro + "2", false},
      {"mtp_packed_cp3_all_gather", "mtp_packed", 3, cp + "3" + gathers, false},
      {"mtp_packed_tp2_sp_cp2_pp2_zb_h1", "mtp_packed", 8,
       tp + "2" + sp + cp + "2" + pp + "2" + schedule + "zb_h1", false},
      {"mtp_packed_dp4_micro2_zero2", "mtp_packed", 4, zero + "2" + micro + "2", false},
      {"mtp_zero3_pp3_apart_frozen", "mtp_frozen", 6,
       zero + "3" + pp + "3" + v_shape + "Ettt|tm|mL" + recompute, false},
      {"mtp_moe_ep4_zero2", "mtp_moe", 4, ep + "4" + zero + "2", false},
      {"mtp_moe_cp2_ep2_pp2_interleaved", "mtp_moe", 4,
       cp + "2" + ep + "2" + pp + "2" + vp + "2" + schedule + "interleaved" + v_shape + "Et|t|t|mL",
       false},
      {"bert_short_dp2_zero2", "bert", 2, zero + "2" + small + micro + "2" + short_rows, false},
      {"bert_short_zero1_pp2_interleaved", "bert", 4,
       zero + "1" + pp + "2" + vp + "2" + schedule + "interleaved" + short_rows, false},
      {"bert_short_tp4_sp_recompute", "bert", 4,
       tp + "4" + sp + micro + "8" + recompute + short_rows, false},
      {"bert_short_tp2_pp2_frozen", "bert_frozen", 4,
       tp + "2" + pp + "2" + schedule + "zb_h1" + micro + "2" + short_rows, false},
      {"bert_pre_short_tp2_sp_chunks", "bert_pre", 2,
       tp + "2" + sp + chunks + micro + "8" + short_rows, false},
      {"bert_pre_short_pp4_gpipe", "bert_pre", 4,
       pp + "4" + schedule + "gpipe" + micro + "4" + short_rows, false},
      {"numbers_short_tp2_sp_dp2", "numbers", 4, tp + "2" + sp + micro + "4" + short_rows, false},
      {"t5_short_dp4_late", "t5_pairs", 4, micro + "2" + late + short_rows, false},
      {"t5_short_pp2_dualpipe_v", "t5_pairs", 2,
       pp + "2" + schedule + "dualpipe_v" + micro + "2" + short_rows, false},
      {"t5_short_pp3_zb_h2", "t5_pairs", 3, pp + "3" + schedule + "zb_h2" + selective + short_rows,
       false},
      {"t5_short_tp2_sp_pp2_1f1b", "t5_pairs", 8,
       tp + "2" + sp + pp + "2" + schedule + "1f1b" + zero + "1" + micro + "2" + recompute +
           short_rows,
       false},
      {"t5_short_frozen_zero3_pp2", "t5_frozen", 4,
       zero + "3" + pp + "2" + micro + "4" + short_rows, false},
      {"bert_zero3_frozen", "bert_frozen", 2, zero + "3" + recompute, false},
      {"t5_tp2_zero3_pp2_frozen", "t5_frozen", 8, tp + "2" + sp + zero + "3" + pp + "2", false},
      {"zero3_pp2_frozen", "gpt2_frozen", 8,
       zero + "3" + pp + "2" + recompute + " ddp.num_distributed_optimizer_instances=2", false},
      {"tp2_pp2_dp2_zb_v_frozen", "gpt2_frozen", 8,
       tp + "2" + sp + pp + "2" + zero + "2" + schedule + "zb_v", false},
      {"dp4_late_frozen", "gpt2_frozen", 4, late + small, false},
      {"classes_zero3_pp2", "classes", 4, zero + "3" + pp + "2" + recompute, false},
      {"numbers_tp4_sp", "numbers", 4, tp + "4" + sp, false},
      {"bert_tp4", "bert", 4, tp + "4", false},
      {"bert_dp2", "bert", 2, "", false},
      {"bert_dp4_micro2", "bert", 4, micro + "2", false},
      {"bert_zero2", "bert", 4, zero + "2" + small, false},
      {"bert_zero3_late", "bert", 4, zero + "3" + late + recompute, false},
      {"bert_pp2_gpipe", "bert", 2, pp + "2" + schedule + "gpipe", false},
      {"bert_pp3_head_alone", "bert", 3, pp + "3" + v_shape + "Ett|tt|L", false},
      {"bert_pp2_interleaved", "bert", 2, pp + "2" + vp + "2" + schedule + "interleaved", false},
      {"bert_pp2_zb_h2", "bert", 2, pp + "2" + schedule + "zb_h2", false},
      {"bert_pp2_zb_v", "bert", 2, pp + "2" + schedule + "zb_v", false},
      {"bert_pp2_dualpipe_v", "bert", 2, pp + "2" + schedule + "dualpipe_v", false},
      {"bert_pre_tp4_sp_shared_heads", "bert_pre", 4, tp + "4" + sp, false},
      {"bert_pre_zero3_tp2", "bert_pre", 4, zero + "3" + tp + "2" + recompute, false},
      {"bert_pre_tp2_pp2", "bert_pre", 8, tp + "2" + sp + pp + "2" + zero + "2", false},
      {"t5_tp4", "t5", 4, tp + "4" + recompute, false},
      {"t5_dp2", "t5", 2, "", false},
      {"t5_dp4_micro2_zero1", "t5", 4, micro + "2" + zero + "1", false},
      {"t5_zero3_late", "t5", 4, zero + "3" + late, false},
      {"t5_pp2_gpipe", "t5", 2, pp + "2" + schedule + "gpipe", false},
      {"t5_pp2_encoder_and_decoder", "t5", 2, pp + "2" + v_shape + "EtttN|DtttL", false},
      {"t5_pp3_both_on_a_stage", "t5", 3, pp + "3" + v_shape + "Ett|tNDt|ttL", false},
      {"t5_pp4_ends_alone", "t5", 4, pp + "4" + v_shape + "E|tttND|ttt|L", false},
      {"t5_pp2_interleaved", "t5", 2, pp + "2" + vp + "2" + schedule + "interleaved", false},
      {"t5_pp4_zb_h1", "t5", 4, pp + "4" + schedule + "zb_h1", false},
      {"t5_pp2_zb_h2_recompute", "t5", 2, pp + "2" + schedule + "zb_h2" + recompute, false},
      {"t5_pp2_dualpipe_v", "t5", 2, pp + "2" + schedule + "dualpipe_v", false},
      {"t5_untied_tp2_pp2_zb_v", "t5_untied", 4, tp + "2" + sp + pp + "2" + schedule + "zb_v",
       false},
      {"t5_untied_zero3_pp3", "t5_untied", 6, zero + "3" + pp + "3", false},
      {"t5_untied_by_cost", "t5_untied", 3, pp + "3 parallel.pipeline_balance=cost", false},
      {"tp4_caps", "gemma", 4, tp + "4" + recompute, false},
      {"zero3_pp2_zb_v_caps", "gemma", 4, zero + "3" + pp + "2" + schedule + "zb_v", false},
      {"zero3_tp2_output_norms", "olmo2", 4, zero + "3" + tp + "2" + recompute, false},
      {"tp4_pp2_output_norms", "olmo2", 8, tp + "4" + sp + pp + "2" + schedule + "zb_v", false},
      {"tp2_chunks", "llama", 2, tp + "2" + chunks + " train.micro_batch_size=8", false},
      {"tp4", "gpt2", 4, tp + "4", false},
      {"tp2_sp_recompute", "llama", 2, tp + "2" + sp + recompute, false},
      {"zero3_tp2_sp_selective", "llama", 4, zero + "3" + tp + "2" + sp + selective, false},
      {"bert_pp2_zb_v_selective", "bert", 2, pp + "2" + schedule + "zb_v" + selective, false},
      {"tp2_dp2", "llama", 4, tp + "2", false},
      {"tp2_dp4_sp", "gpt2", 8, tp + "2" + sp, false},
      {"tp4_dp2_sp", "gpt2", 8, tp + "4" + sp, false},
      {"tp4_dp4_zero1", "llama", 16, tp + "4" + zero + "1", false},
      {"tp2_order", "gpt2", 8, tp + "2" + pp + "2 parallel.use_tp_pp_dp_mapping=true", false},
      {"dp8", "gpt2", 8, "", false},
      {"dp8_micro1_zero1", "llama", 8, zero + "1", false},
      {"dp2_late", "gpt2", 2, late + small, true},
      {"zero1_late", "llama", 4, zero + "1" + late + small, false},
      {"zero2_late", "gpt2", 4, zero + "2" + late, false},
      {"zero3_late", "llama", 4, zero + "3" + late, true},
      {"zero1_dp8", "gpt2", 8, zero + "1" + small, false},
      {"zero2_dp8", "gpt2", 8, zero + "2" + small, false},
      {"zero3_dp8", "llama", 8, zero + "3" + small, false},
      {"zero1_hybrid", "gpt2", 8, zero + "1 ddp.num_distributed_optimizer_instances=2", false},
      {"zero3_tp2", "gpt2", 4, zero + "3" + tp + "2" + sp, false},
      {"zero2_tp4_shared_heads", "llama", 8, zero + "2" + tp + "4", false},
      {"zero3_pp2", "gpt2", 4, zero + "3" + pp + "2", false},
      {"zero3_pp2_interleaved", "llama", 4,
       zero + "3" + pp + "2" + vp + "2" + schedule + "interleaved", false},
      {"zero2_pp2_zb_h1", "gpt2", 4, zero + "2" + pp + "2" + schedule + "zb_h1", false},
      {"zero3_pp2_dualpipe_v", "gpt2", 4, zero + "3" + pp + "2" + schedule + "dualpipe_v", false},
      {"pp4_gpipe", "gpt2", 4, pp + "4" + schedule + "gpipe", false},
      {"pp4_1f1b", "gpt2", 4, pp + "4" + schedule + "1f1b", false},
      {"pp4_1f1b_recompute", "llama", 4, pp + "4" + schedule + "1f1b" + recompute, false},
      {"pp2_interleaved_5_layers", "llama", 2, pp + "2" + vp + "2" + schedule + "interleaved",
       false},
      {"pp2_interleaved_odd_microbatches", "ramp", 2,
       pp + "2" + vp + "2" + schedule + "interleaved train.micro_batch_size=4", false},
      {"pp4_zb_h2", "llama", 4, pp + "4" + schedule + "zb_h2", false},
      {"pp2_zb_h1_recompute", "gpt2", 2, pp + "2" + schedule + "zb_h1" + recompute, false},
      {"pp2_zb_v_recompute", "llama", 2, pp + "2" + schedule + "zb_v" + recompute, false},
      {"pp2_dualpipe_v_tied", "gpt2", 2, pp + "2" + schedule + "dualpipe_v", false},
      {"pp4_fewer_microbatches", "gpt2", 4, pp + "4 train.micro_batch_size=4", false},
      {"pp4_zb_h1_fewer_microbatches", "llama", 4,
       pp + "4" + schedule + "zb_h1 train.micro_batch_size=4", false},
      {"pp3_empty_stage", "gpt2", 3, pp + "3" + v_shape + "Ett||ttL", false},
      {"pp3_head_alone", "gpt2", 3, pp + "3" + v_shape + "Ett|tt|L", false},
      {"pp2_first_3", "gpt2", 2, pp + "2 parallel.num_layers_in_first_pipeline_stage=3", false},
      {"pp3_by_cost", "llama", 3, pp + "3 parallel.pipeline_balance=cost", false},
      {"pp2_count_ends", "gpt2", 2,
       pp + "2 parallel.account_for_embedding_in_pipeline_split=true "
            "parallel.account_for_loss_in_pipeline_split=true",
       false},
      {"tp2_pp2", "llama", 4, tp + "2" + pp + "2", false},
      {"tp2_sp_pp2_zb_h1", "gpt2", 4, tp + "2" + sp + pp + "2" + schedule + "zb_h1", false},
      {"tp4_pp2_shared_heads_zb_v", "llama", 8, tp + "4" + sp + pp + "2" + schedule + "zb_v",
       false},
      {"tp2_pp2_dp2_zero3", "gpt2", 8, tp + "2" + sp + pp + "2" + zero + "3", false},
      {"tp2_pp4_dp2", "gpt2", 16, tp + "2" + pp + "4" + zero + "1", false},
      {"tp4_pp2_dp2_zero2", "llama", 16, tp + "4" + sp + pp + "2" + zero + "2", false},
      {"ramp_dp2_zero1", "ramp", 2, zero + "1", false},
      {"ramp_pp4_zb_h1", "ramp", 4, pp + "4" + schedule + "zb_h1", false},
      {"ramp_tp2_pp2_interleaved", "ramp", 4,
       tp + "2" + sp + pp + "2" + vp + "2" + schedule + "interleaved", false},
      {"cp3_all_gather_uneven", "gpt2", 3, cp + "3" + gathers, false},
      {"cp8_ring", "gpt2", 8, cp + "8", false},
      {"cp4_ring_windows", "gemma", 4, cp + "4" + micro + "2", false},
      {"cp2_all_gather_windows", "gemma", 2, cp + "2" + gathers + recompute, false},
      {"cp2_heads_sinks", "llama", 2, cp + "2" + heads + micro + "4", false},
      {"cp4_heads_and_ring_sinks", "llama", 4, cp + "4" + both + recompute, false},
      {"cp2_each_kind", "gpt2", 2, cp + "2 parallel.cp_comm_type=[a2a,p2p,all_gather,p2p]", false},
      {"cp2_ring_selective", "gpt2", 2, cp + "2" + selective + micro + "4", false},
      {"cp2_ring_frozen", "gpt2_frozen", 2, cp + "2" + recompute, false},
      {"tp2_cp2_all_gather", "gpt2", 4, tp + "2" + cp + "2" + gathers, false},
      {"tp4_cp2_shared_heads", "llama", 8, tp + "4" + sp + cp + "2", false},
      {"tp2_sp_chunks_cp2", "gpt2", 4, tp + "2" + sp + chunks + cp + "2" + micro + "8", false},
      {"tp2_sp_cp2_output_norms", "olmo2", 4, tp + "2" + sp + cp + "2" + gathers, false},
      {"cp2_dp2", "llama", 4, cp + "2" + micro + "2", false},
      {"cp2_dp2_zero1", "gpt2", 4, cp + "2" + zero + "1" + small, false},
      {"cp4_zero2", "llama", 4, cp + "4" + zero + "2" + small, false},
      {"cp2_dp2_zero3", "gpt2", 4, cp + "2" + zero + "3" + recompute, false},
      {"cp2_dp2_zero3_hybrid", "llama", 4,
       cp + "2" + zero + "3 ddp.num_distributed_optimizer_instances=2", false},
      {"cp2_zero1_late", "llama", 2, cp + "2" + zero + "1" + late + small, false},
      {"cp2_pp2_gpipe", "gpt2", 4, cp + "2" + pp + "2" + schedule + "gpipe" + gathers, false},
      {"cp2_pp2_interleaved", "llama", 4, cp + "2" + pp + "2" + vp + "2" + schedule + "interleaved",
       false},
      {"cp2_pp4_zb_h1", "gpt2", 8, cp + "2" + pp + "4" + schedule + "zb_h1", false},
      {"cp2_pp2_zb_h2_heads", "llama", 4, cp + "2" + pp + "2" + schedule + "zb_h2" + heads, false},
      {"cp3_pp2_zb_v", "llama", 6, cp + "3" + pp + "2" + schedule + "zb_v", false},
      {"cp2_pp2_dualpipe_v", "gpt2", 4, cp + "2" + pp + "2" + schedule + "dualpipe_v", false},
      {"tp2_cp2_pp2_dp2_zero3", "gpt2", 16, tp + "2" + sp + cp + "2" + pp + "2" + zero + "3",
       false},
      {"cp2_pp2_order", "gpt2", 8, cp + "2" + pp + "2 parallel.use_tp_pp_dp_mapping=true", false},
      {"ramp_cp2_dp2", "ramp", 4, cp + "2", false},
      {"bert_pre_cp2_ring", "bert_pre", 2, cp + "2", false},
      {"bert_pre_cp3_all_gather_zero2", "bert_pre", 3, cp + "3" + gathers + zero + "2", false},
      {"bert_pre_cp2_heads_pp2", "bert_pre", 4, cp + "2" + heads + pp + "2" + micro + "4", false},
      {"moe_cp2", "moe", 2, cp + "2", false},
      {"moe_cp4_all_gather_ep2", "moe_shared", 4, cp + "4" + ep + "2" + gathers, false},
      {"moe_tp2_sp_cp2_ep2_etp1", "moe", 4, tp + "2" + sp + cp + "2" + ep + "2" + etp + "1", false},
      {"moe_tp2_cp2_etp2_ep2_recompute", "moe_shared", 4,
       tp + "2" + cp + "2" + ep + "2" + recompute, false},
      {"moe_cp2_pp2_ep4_zb_v_zero3", "moe", 8,
       cp + "2" + pp + "2" + ep + "4" + schedule + "zb_v" + zero + "3", false},
      {"moe_cp4_heads_and_ring_ep8", "moe_shared", 8, cp + "4" + both + ep + "8" + zero + "1",
       false},
      {"latents_cp2_ring", "latents", 2, cp + "2", true},
      {"latents_tp2_cp2_ring", "latents", 4, tp + "2" + cp + "2", true},
      {"latents_moe_cp3_ring_everywhere", "latents_moe", 3, cp + "3" + everywhere + recompute,
       false},
      {"windows_cp4_straight", "windows", 4, cp + "4", true},
      {"windows_cp2_straight_recompute", "windows", 2, cp + "2" + recompute + micro + "4", false},
      {"windows_cp4_heads_and_straight", "windows", 4, cp + "4" + both, false},
      {"windows_cp4_tp2_sp_straight_zero2", "windows", 8,
       cp + "4" + tp + "2" + sp + zero + "2" + micro + "2", false},
      {"windows_cp8_straight", "windows", 8, cp + "8", false},
      {"latents_cp4_all_gather", "latents", 4, cp + "4" + gathers, false},
      {"latents_moe_tp2_cp2_heads_ep2", "latents_moe", 4, tp + "2" + cp + "2" + heads + ep + "2",
       false},
      {"latents_moe_cp2_pp2_sp", "latents_moe", 8,
       tp + "2" + sp + cp + "2" + pp + "2" + ep + "4" + etp + "1" + schedule + "zb_h1", false},
      {"latents_dp2_zero2", "latents", 2, zero + "2" + small, false},
      {"latents_cp3_all_gather", "latents", 3, cp + "3" + gathers + recompute, false},
      {"latents_cp2_heads_tp2_sp", "latents", 4, cp + "2" + heads + tp + "2" + sp, false},
      {"latents_moe_cp4_heads_and_ring_ep4", "latents_moe", 4, cp + "4" + both + ep + "4", false},
      {"latents_moe_tp2_cp2_pp2_zb_h1_zero2", "latents_moe", 8,
       tp + "2" + sp + cp + "2" + pp + "2" + ep + "2" + etp + "1" + schedule + "zb_h1" + zero + "2",
       false},
      {"latents_tp2_sp_chunks", "latents", 2, tp + "2" + sp + chunks + micro + "8", false},
      {"latents_pp2_zb_v_selective", "latents", 2, pp + "2" + schedule + "zb_v" + selective, false},
      {"latents_zero3_tp4", "latents", 8, zero + "3" + tp + "4", false},
      {"latents_moe_ep4", "latents_moe", 4, ep + "4", false},
      {"latents_moe_tp2_pp2_interleaved", "latents_moe", 8,
       tp + "2" + pp + "2" + vp + "2" + ep + "2" + schedule + "interleaved", false},
      {"latents_moe_tp2_sp_pp2_ep2_zb_h2", "latents_moe", 8,
       tp + "2" + sp + pp + "2" + ep + "2" + zero + "1" + schedule + "zb_h2", false},
      {"latent_experts_tp2_ep2_etp1", "moe_latent", 2, tp + "2" + ep + "2" + etp + "1", true},
      {"latent_experts_everywhere_beside", "moe_latent", 2, ep + "2" + everywhere + beside, true},
      {"latent_experts_ep4_zero2", "moe_latent", 4, ep + "4" + zero + "2" + small + beside, false},
      {"latent_experts_etp2_sp_recompute", "moe_latent", 4,
       tp + "2" + sp + ep + "2" + etp + "2" + recompute, false},
      {"latent_experts_cp2_everywhere", "moe_latent", 4, cp + "2" + ep + "4" + everywhere, false},
      {"latent_experts_pp2_zb_v_zero3", "moe_latent", 8,
       pp + "2" + tp + "2" + sp + ep + "4" + etp + "1" + schedule + "zb_v" + zero + "3", false},
      {"latent_experts_dualpipe_v", "moe_latent", 4,
       pp + "2" + ep + "2" + schedule + "dualpipe_v" + beside, false},
      {"moe_everywhere_ep2_etp2", "moe", 4, ep + "2" + etp + "2" + everywhere, false},
      {"moe_everywhere_cp3", "moe_shared", 3, cp + "3" + etp + "1" + everywhere + beside, false},
      {"moe_everywhere_tp4_etp1", "moe", 4, tp + "4" + etp + "1" + ep + "4" + everywhere, false},
      {"moe_beside_tp2_sp_ep2", "moe_shared", 4, tp + "2" + sp + ep + "2" + beside + zero + "1",
       false},
      {"moe_beside_pp2_zb_h2_recompute", "moe_shared", 4,
       pp + "2" + ep + "2" + schedule + "zb_h2" + recompute + beside, false},
      {"moe_tp2", "moe", 2, tp + "2", false},
      {"moe_tp4_sp_etp1", "moe", 4, tp + "4" + sp + etp + "1", false},
      {"moe_dp4_micro2", "moe_shared", 4, micro + "2", false},
      {"moe_etp2_dp2", "moe", 2, etp + "2", false},
      {"moe_ep8", "moe_shared", 8, ep + "8", false},
      {"moe_ep4_zero2", "moe_shared", 8, ep + "4" + zero + "2" + small, false},
      {"moe_ep2_zero1_late", "moe", 4, ep + "2" + zero + "1" + small + late, false},
      {"moe_ep2_zero3_hybrid", "moe_shared", 8,
       ep + "2" + zero + "3 ddp.num_distributed_optimizer_instances=2", false},
      {"moe_tp2_ep2_recompute", "moe", 4, tp + "2" + ep + "2" + recompute, false},
      {"moe_tp2_sp_chunks_ep2", "moe_shared", 4, tp + "2" + sp + chunks + ep + "2", false},
      {"moe_pp2_gpipe_ep2", "moe", 4, pp + "2" + ep + "2" + schedule + "gpipe", false},
      {"moe_pp2_zb_v_ep2", "moe", 4, pp + "2" + ep + "2" + schedule + "zb_v", false},
      {"moe_pp2_dualpipe_v_tp2_ep2", "moe_shared", 8,
       pp + "2" + tp + "2" + ep + "2" + schedule + "dualpipe_v", false},
      {"moe_pp4_zb_h2", "moe", 4, pp + "4" + schedule + "zb_h2", false},
      {"moe_tp2_sp_pp2_dp2_ep4_etp1", "moe", 8,
       tp + "2" + sp + pp + "2" + ep + "4" + etp + "1" + zero + "2", false},
      {"moe_16_ranks", "moe", 16,
       tp + "2" + sp + pp + "2" + ep + "4" + etp + "2" + zero + "3" + recompute, false},
  };
  static const std::vector<Layout> layouts = joined(all, adapter_layouts());
  return layouts;
}

} // namespace pentatron::test
