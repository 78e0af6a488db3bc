/// What every key of the configuration changes, or where that is tested.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace pentatron::trainer {

/// `with` holds for both runs, `change` for the second one alone. {} stands for the folder of the
/// test.
struct Effect {
  const char* change;
  std::vector<std::string> with = {};
};

struct Elsewhere {
  const char* why;
};

inline const std::vector<std::string> kSave = {"checkpoint.save={}/ck"};
inline const std::vector<std::string> kLlama3 = {
    "model.rope_scaling.type=llama3", "model.rope_scaling.factor=4",
    "model.rope_scaling.original_max_position_embeddings=64"};
inline const std::vector<std::string> kYarn = {
    "model.rope_scaling.type=yarn", "model.rope_scaling.factor=4",
    "model.rope_scaling.original_max_position_embeddings=64", "model.kv_channels=16"};
inline const std::vector<std::string> kSgd = {"optimizer.optimizer=sgd"};
inline const std::vector<std::string> kLion = {"optimizer.optimizer=lion"};
inline const std::vector<std::string> kSamples = {"train.train_samples=12"};
inline const std::vector<std::string> kWsd = {"scheduler.lr_decay_style=WSD",
                                              "scheduler.lr_wsd_decay_iters=2"};
inline const std::vector<std::string> kDecay = {"scheduler.weight_decay_incr_style=linear",
                                                "scheduler.start_weight_decay=0",
                                                "scheduler.end_weight_decay=1"};
inline const std::vector<std::string> kLearned = {"model.position_embedding_type=learned_absolute"};
inline const std::vector<std::string> kSaveOften = {
    "checkpoint.save={}/ck", "checkpoint.save_interval=1", "checkpoint.keep=1"};
inline const std::vector<std::string> kLoad = {"checkpoint.load={}/earlier"};
inline const std::vector<std::string> kOverflow = {"optimizer.lr=1e30", "optimizer.clip_grad=0",
                                                   "train.train_iters=6"};
inline const std::vector<std::string> kEvaluate = {"train.eval_interval=3", "dataset.split=50,50"};

inline const std::vector<std::string> kIndexed = {"dataset.type=indexed",
                                                  "dataset.path={}/data_text_document",
                                                  "train.eval_interval=3", "dataset.split=50,50"};
inline const std::vector<std::string> kMegatron = {
    "dataset.type=indexed",   "dataset.path={}/data_text_document",
    "dataset.order=megatron", "train.eval_interval=3",
    "dataset.split=50,50",    "train.eval_iters=1"};
inline const std::vector<std::string> kParts = {
    "dataset.type=indexed", "dataset.path=", "dataset.train_data_path={}/data_text_document",
    "train.eval_interval=3"};
inline const std::vector<std::string> kFim = {
    "model.vocab_size=300",         "dataset.fim_rate=0.5",         "dataset.fim_prefix_token=260",
    "dataset.fim_middle_token=261", "dataset.fim_suffix_token=262", "dataset.fim_pad_token=263"};

inline const std::vector<std::string> kBert = {"model.type=bert", "dataset.type=bert",
                                               "dataset.path={}/stories.jsonl"};
inline const std::vector<std::string> kT5 = {"model.type=t5", "dataset.type=t5",
                                             "dataset.path={}/stories.jsonl"};
inline const std::vector<std::string> kLabels = {"model.type=bert", "model.head=classification",
                                                 "dataset.type=classification",
                                                 "dataset.path={}/labels.jsonl"};

inline const std::vector<std::string> kExperts = {"model.num_moe_experts=4"};
inline const std::vector<std::string> kGroups = {
    "model.num_moe_experts=8", "model.moe_router_num_groups=4", "model.moe_router_group_topk=1"};
inline const std::vector<std::string> kShared = {"model.num_moe_experts=4",
                                                 "model.moe_shared_expert_intermediate_size=16"};

inline std::vector<std::string> operator+(std::vector<std::string> a,
                                          const std::vector<std::string>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

inline const std::map<std::string, Effect> kEffects = {
    {"model.head",
     {"model.head=regression", kLabels + std::vector<std::string>{"train.train_iters=2"}}},
    {"model.num_labels", {"model.num_labels=3", kLabels}},
    {"model.classifier_dropout", {"model.classifier_dropout=0.5", kLabels}},
    {"model.binary_head", {"model.binary_head=false", kBert}},
    {"model.num_tokentypes", {"model.num_tokentypes=3", kBert}},
    {"model.padding_token", {"model.padding_token=101"}},
    {"model.position_offset", {"model.position_offset=2", kBert}},
    {"model.num_moe_experts", {"model.num_moe_experts=4"}},
    {"model.moe_layer_freq", {"model.moe_layer_freq=2", kExperts}},
    {"model.moe_ffn_hidden_size", {"model.moe_ffn_hidden_size=24", kExperts}},
    {"model.moe_router_topk", {"model.moe_router_topk=3", kExperts}},
    {"model.moe_router_logit_bias", {"model.moe_router_logit_bias=true", kExperts}},
    {"model.activation_func_clamp_value", {"model.activation_func_clamp_value=0.001"}},
    {"model.glu_linear_offset", {"model.glu_linear_offset=1"}},
    {"model.moe_router_score_function", {"model.moe_router_score_function=sigmoid", kExperts}},
    {"model.moe_router_pre_softmax", {"model.moe_router_pre_softmax=true", kExperts}},
    {"model.moe_router_norm_topk_prob",
     {"model.moe_router_norm_topk_prob=false",
      kExperts + std::vector<std::string>{"model.moe_router_score_function=sigmoid"}}},
    {"model.moe_router_topk_scaling_factor", {"model.moe_router_topk_scaling_factor=2", kExperts}},
    {"model.moe_router_num_groups", {"model.moe_router_num_groups=2", kGroups}},
    {"model.moe_router_group_topk", {"model.moe_router_group_topk=2", kGroups}},
    {"model.moe_router_group_score_topk", {"model.moe_router_group_score_topk=1", kGroups}},
    {"model.moe_router_enable_expert_bias",
     {"model.moe_router_enable_expert_bias=true", kExperts + kSave}},
    {"model.moe_router_bias_update_rate",
     {"model.moe_router_bias_update_rate=0.5",
      kExperts + std::vector<std::string>{"model.moe_router_enable_expert_bias=true"}}},
    {"model.moe_router_load_balancing_type",
     {"model.moe_router_load_balancing_type=seq_aux_loss",
      kExperts + std::vector<std::string>{"model.moe_aux_loss_coeff=1"}}},
    {"model.moe_aux_loss_coeff", {"model.moe_aux_loss_coeff=1", kExperts}},
    {"model.moe_z_loss_coeff", {"model.moe_z_loss_coeff=1", kExperts}},
    {"model.moe_input_jitter_eps", {"model.moe_input_jitter_eps=0.5", kExperts}},
    {"model.moe_router_force_load_balancing",
     {"model.moe_router_force_load_balancing=true", kExperts}},
    {"model.moe_expert_capacity_factor", {"model.moe_expert_capacity_factor=0.5", kExperts}},
    {"model.moe_token_drop_policy",
     {"model.moe_token_drop_policy=position",
      kExperts + std::vector<std::string>{"model.moe_expert_capacity_factor=0.5"}}},
    {"model.moe_shared_expert_intermediate_size",
     {"model.moe_shared_expert_intermediate_size=16", kExperts}},
    {"model.moe_shared_expert_gate", {"model.moe_shared_expert_gate=true", kShared}},
    {"model.num_decoder_layers", {"model.num_decoder_layers=1", kT5}},
    {"model.relative_attention_num_buckets", {"model.relative_attention_num_buckets=8", kT5}},
    {"model.relative_attention_max_distance",
     {"model.relative_attention_max_distance=10",
      kT5 + std::vector<std::string>{"model.relative_attention_num_buckets=8"}}},
    {"model.scale_decoder_outputs", {"model.scale_decoder_outputs=false", kT5}},
    {"model.decoder_start_token", {"model.decoder_start_token=7", kT5}},
    {"dataset.mask_prob", {"dataset.mask_prob=0.4", kBert}},
    {"dataset.short_seq_prob", {"dataset.short_seq_prob=0.9", kBert}},
    {"dataset.masking_max_ngram",
     {"dataset.masking_max_ngram=3", kBert + std::vector<std::string>{"dataset.mask_prob=0.5"}}},
    {"dataset.masking_do_full_word", {"dataset.masking_do_full_word=false", kBert}},
    {"dataset.bert_binary_head", {"dataset.bert_binary_head=sentence_order", kBert}},
    {"dataset.mean_noise_span_length",
     {"dataset.mean_noise_span_length=1",
      kT5 + std::vector<std::string>{"dataset.mask_prob=0.3", "dataset.decoder_seq_length=16"}}},
    {"dataset.decoder_seq_length", {"dataset.decoder_seq_length=12", kT5}},
    {"dataset.vocab_extra_ids", {"dataset.vocab_extra_ids=50", kT5}},
    {"dataset.text_pair_key", {"dataset.text_pair_key=other", kLabels}},
    {"dataset.label_key", {"dataset.label_key=mood", kLabels}},
    {"model.label_names",
     {"model.label_names=[sad, glad]",
      kLabels + std::vector<std::string>{"dataset.label_key=mood"}}},
    {"model.preset", {"model.preset=gpt2_124m"}},
    {"model.num_layers", {"model.num_layers=3"}},
    {"model.hidden_size", {"model.hidden_size=48"}},
    {"model.num_attention_heads", {"model.num_attention_heads=4"}},
    {"model.num_query_groups", {"model.num_query_groups=1"}},
    {"model.kv_channels", {"model.kv_channels=8"}},
    {"model.ffn_hidden_size", {"model.ffn_hidden_size=64"}},
    {"model.vocab_size", {"model.vocab_size=300"}},
    {"model.max_position_embeddings", {"model.max_position_embeddings=32", kLearned}},
    {"model.position_embedding_type", {"model.position_embedding_type=none"}},
    {"model.rotary_base", {"model.rotary_base=100"}},
    {"model.rotary_percent", {"model.rotary_percent=0.5"}},
    {"model.rotary_interleaved", {"model.rotary_interleaved=true"}},
    {"model.rope_scaling.type",
     {"model.rope_scaling.type=linear", {"model.rope_scaling.factor=2"}}},
    {"model.rope_scaling.factor",
     {"model.rope_scaling.factor=2", {"model.rope_scaling.type=linear"}}},
    {"model.rope_scaling.original_max_position_embeddings",
     {"model.rope_scaling.original_max_position_embeddings=16", kLlama3}},
    {"model.rope_scaling.low_freq_factor", {"model.rope_scaling.low_freq_factor=2", kLlama3}},
    {"model.rope_scaling.high_freq_factor", {"model.rope_scaling.high_freq_factor=16", kLlama3}},
    {"model.rope_scaling.beta_fast", {"model.rope_scaling.beta_fast=1.5", kYarn}},
    {"model.rope_scaling.beta_slow", {"model.rope_scaling.beta_slow=0.1", kYarn}},
    {"model.rope_scaling.truncate", {"model.rope_scaling.truncate=false", kYarn}},
    {"model.rope_scaling.attention_factor", {"model.rope_scaling.attention_factor=2", kYarn}},
    {"model.rope_scaling.mscale",
     {"model.rope_scaling.mscale=0.7",
      kYarn + std::vector<std::string>{"model.rope_scaling.mscale=1",
                                       "model.rope_scaling.mscale_all_dim=0.5"}}},
    {"model.rope_scaling.mscale_all_dim",
     {"model.rope_scaling.mscale_all_dim=0.7",
      kYarn + std::vector<std::string>{"model.rope_scaling.mscale=1",
                                       "model.rope_scaling.mscale_all_dim=0.5"}}},
    {"model.normalization", {"model.normalization=layernorm"}},
    {"model.layernorm_epsilon", {"model.layernorm_epsilon=0.01"}},
    {"model.layernorm_zero_centered_gamma", {"model.layernorm_zero_centered_gamma=true"}},
    {"model.activation_func", {"model.activation_func=geglu"}},
    {"model.add_qkv_bias", {"model.add_qkv_bias=true"}},
    {"model.add_attention_proj_bias", {"model.add_attention_proj_bias=true"}},
    {"model.add_mlp_bias", {"model.add_mlp_bias=true"}},
    {"model.norm_placement", {"model.norm_placement=output"}},
    {"model.qk_layernorm", {"model.qk_layernorm=true"}},
    {"model.qk_layernorm_scope",
     {"model.qk_layernorm_scope=projection", {"model.qk_layernorm=true"}}},
    {"model.attn_logit_softcapping", {"model.attn_logit_softcapping=0.1"}},
    {"model.final_logit_softcapping", {"model.final_logit_softcapping=1"}},
    {"model.embedding_multiplier", {"model.embedding_multiplier=3"}},
    {"model.rope_local_base_freq", {"model.rope_local_base_freq=100", {"model.window_size=8"}}},
    {"model.softmax_scale", {"model.softmax_scale=1"}},
    {"model.scale_attn_by_inverse_layer_idx", {"model.scale_attn_by_inverse_layer_idx=true"}},
    {"model.softmax_type", {"model.softmax_type=off_by_one"}},
    {"model.window_size", {"model.window_size=4"}},
    {"model.full_attention_layers", {"model.full_attention_layers=[0]", {"model.window_size=4"}}},
    {"model.attention_dropout", {"model.attention_dropout=0.1"}},
    {"model.hidden_dropout", {"model.hidden_dropout=0.1"}},
    {"model.embedding_dropout", {"model.embedding_dropout=0.1"}},
    {"model.untie_embeddings_and_output_weights",
     {"model.untie_embeddings_and_output_weights=true"}},
    {"model.init_method_std", {"model.init_method_std=0.2"}},
    {"model.embedding_init_method_std", {"model.embedding_init_method_std=0.3"}},
    {"model.use_scaled_init_method", {"model.use_scaled_init_method=false"}},
    {"train.train_iters", {"train.train_iters=4"}},
    {"train.train_samples", {"train.train_samples=16"}},
    {"train.seq_length", {"train.seq_length=8"}},
    {"train.global_batch_size", {"train.global_batch_size=6"}},
    {"train.step_batch_size_schedule", {"train.step_batch_size_schedule=0:2 64:4"}},
    {"train.rampup_batch_size", {"train.rampup_batch_size=[2, 2, 4]"}},
    {"train.recompute", {"train.recompute=full"}},
    {"train.remove_padding", {"train.remove_padding=true", kBert}},
    {"train.freeze", {"train.freeze=[\"embedding.*\"]"}},
    {"train.eval_interval", {"train.eval_interval=3", {"dataset.split=50,50"}}},
    {"train.eval_iters", {"train.eval_iters=2", kEvaluate}},
    {"train.on_nan", {"train.on_nan=skip", kOverflow}},
    {"train.max_skipped_iterations",
     {"train.max_skipped_iterations=2", kOverflow + std::vector<std::string>{"train.on_nan=skip"}}},
    {"train.exit_interval", {"train.exit_interval=2"}},
    {"train.exit_duration_in_mins", {"train.exit_duration_in_mins=1e-9"}},
    {"optimizer.optimizer", {"optimizer.optimizer=sgd"}},
    {"optimizer.lr", {"optimizer.lr=2e-2"}},
    {"optimizer.min_lr", {"optimizer.min_lr=2e-3"}},
    {"optimizer.weight_decay", {"optimizer.weight_decay=0.5"}},
    {"optimizer.adam_beta1", {"optimizer.adam_beta1=0.5"}},
    {"optimizer.adam_beta2", {"optimizer.adam_beta2=0.5"}},
    {"optimizer.adam_eps", {"optimizer.adam_eps=1e-3"}},
    {"optimizer.sgd_momentum", {"optimizer.sgd_momentum=0.5", kSgd}},
    {"optimizer.sgd_nesterov", {"optimizer.sgd_nesterov=true", kSgd}},
    {"optimizer.lion_beta1", {"optimizer.lion_beta1=0.5", kLion}},
    {"optimizer.lion_beta2", {"optimizer.lion_beta2=0.5", kLion}},
    {"optimizer.clip_grad", {"optimizer.clip_grad=0.1"}},
    {"scheduler.lr_decay_style", {"scheduler.lr_decay_style=linear"}},
    {"scheduler.lr_decay_iters", {"scheduler.lr_decay_iters=10"}},
    {"scheduler.lr_decay_samples", {"scheduler.lr_decay_samples=40", kSamples}},
    {"scheduler.lr_warmup_iters", {"scheduler.lr_warmup_iters=2"}},
    {"scheduler.lr_warmup_samples", {"scheduler.lr_warmup_samples=8", kSamples}},
    {"scheduler.lr_warmup_fraction", {"scheduler.lr_warmup_fraction=0.5"}},
    {"scheduler.lr_warmup_init",
     {"scheduler.lr_warmup_init=1e-3", {"scheduler.lr_warmup_iters=2"}}},
    {"scheduler.lr_wsd_decay_style", {"scheduler.lr_wsd_decay_style=linear", kWsd}},
    {"scheduler.lr_wsd_decay_iters", {"scheduler.lr_wsd_decay_iters=3", kWsd}},
    {"scheduler.lr_wsd_decay_samples",
     {"scheduler.lr_wsd_decay_samples=12",
      kSamples + std::vector<std::string>{"scheduler.lr_decay_style=WSD",
                                          "scheduler.lr_wsd_decay_samples=8"}}},
    {"scheduler.start_weight_decay", {"scheduler.start_weight_decay=0.5", kDecay}},
    {"scheduler.end_weight_decay", {"scheduler.end_weight_decay=0.5", kDecay}},
    {"scheduler.weight_decay_incr_style", {"scheduler.weight_decay_incr_style=cosine", kDecay}},
    {"dataset.type", {"dataset.type=mock"}},
    {"dataset.path", {"dataset.path={}/other.jsonl"}},
    {"dataset.train_data_path", {"dataset.train_data_path={}/other_text_document", kParts}},
    {"dataset.valid_data_path", {"dataset.valid_data_path={}/other_text_document", kParts}},
    {"dataset.per_split_data_args_path",
     {"dataset.per_split_data_args_path={}/other.json",
      {"dataset.type=indexed", "dataset.path=", "dataset.per_split_data_args_path={}/data.json"}}},
    {"dataset.multiple_validation_sets",
     {"dataset.multiple_validation_sets=true",
      kParts +
          std::vector<std::string>{
              "dataset.valid_data_path={}/data_text_document,{}/other_text_document"}}},
    {"dataset.full_validation", {"dataset.full_validation=true", kIndexed}},
    {"dataset.drop_last_partial_validation_sequence",
     {"dataset.drop_last_partial_validation_sequence=false",
      kMegatron + std::vector<std::string>{"dataset.full_validation=true"}}},
    {"dataset.order", {"dataset.order=megatron", kIndexed}},
    {"dataset.data_cache_path", {"dataset.data_cache_path={}/ck", kMegatron}},
    {"dataset.fim_rate", {"dataset.fim_rate=1", kFim}},
    {"dataset.fim_spm_rate", {"dataset.fim_spm_rate=1", kFim}},
    {"dataset.fim_prefix_token", {"dataset.fim_prefix_token=270", kFim}},
    {"dataset.fim_middle_token", {"dataset.fim_middle_token=270", kFim}},
    {"dataset.fim_suffix_token", {"dataset.fim_suffix_token=270", kFim}},
    {"dataset.text_key", {"dataset.text_key=other"}},
    {"dataset.split", {"dataset.split=50,50"}},
    {"dataset.seed", {"dataset.seed=5"}},
    {"dataset.on_bad_input", {"dataset.on_bad_input=skip", {"dataset.path={}/bad.jsonl"}}},
    {"dataset.max_line_bytes", {"dataset.max_line_bytes=40"}},
    {"dataset.eod_mask_loss", {"dataset.eod_mask_loss=true"}},
    {"dataset.reset_position_ids", {"dataset.reset_position_ids=true", kLearned}},
    {"dataset.reset_attention_mask", {"dataset.reset_attention_mask=true"}},
    {"checkpoint.save", {"checkpoint.save={}/ck"}},
    {"checkpoint.load", {"checkpoint.load={}/earlier"}},
    {"checkpoint.save_interval", {"checkpoint.save_interval=2", kSave}},
    {"checkpoint.keep",
     {"checkpoint.keep=1", kSave + std::vector<std::string>{"checkpoint.save_interval=1"}}},
    {"checkpoint.keep_every", {"checkpoint.keep_every=1", kSaveOften}},
    {"checkpoint.keep_best",
     {"checkpoint.keep_best=3",
      kSaveOften + std::vector<std::string>{"checkpoint.keep_best_metric=loss"}}},
    {"checkpoint.keep_best_metric",
     {"checkpoint.keep_best_metric=loss",
      kSaveOften + std::vector<std::string>{"checkpoint.keep_best=3", "dataset.split=50,50",
                                            "train.eval_interval=3"}}},
    {"checkpoint.finetune", {"checkpoint.finetune=true", kLoad}},
    {"checkpoint.load_optimizer", {"checkpoint.load_optimizer=false", kLoad}},
    {"logger.dir", {"logger.dir={}/elsewhere"}},
    {"logger.log_interval", {"logger.log_interval=1"}},
    {"logger.format", {"logger.format=megatron"}},
    {"logger.progress", {"logger.progress=on"}},
    {"logger.run_name", {"logger.run_name=another"}},
    {"logger.wandb_project", {"logger.wandb_project=tests"}},
    {"logger.mlflow_experiment", {"logger.mlflow_experiment=tests"}},
    {"logger.mlflow_dir", {"logger.mlflow_dir={}/elsewhere", {"logger.mlflow_experiment=tests"}}},
    {"logger.tensorboard", {"logger.tensorboard=true"}},
    {"logger.plot", {"logger.plot=true"}},
    {"logger.peak_tflops", {"logger.peak_tflops=2"}},
    {"profiling.trace", {"profiling.trace=true"}},
    {"profiling.trace_start", {"profiling.trace_start=2", {"profiling.trace=true"}}},
    {"profiling.trace_steps",
     {"profiling.trace_steps=1", {"profiling.trace=true", "profiling.trace_start=2"}}},
    {"dtype", {"dtype=fp64"}},
    {"kernels", {"kernels=auto"}},
    {"seed", {"seed=5"}},
};

/// What must change nothing but the time.
inline const std::map<std::string, Effect> kSpeedOnly = {
    {"dataset.num_workers", {"dataset.num_workers=4"}},
    {"dataset.prefetch", {"dataset.prefetch=1"}},
};

/// What shows on four ranks only: in which rank holds what, in the order of passes, or in numbers.
inline const std::vector<std::string> kPipeline = {"parallel.pipeline_model_parallel_size=2"};
inline const std::map<std::string, Effect> kLayoutEffects = {
    {"parallel.tensor_model_parallel_size", {"parallel.tensor_model_parallel_size=2"}},
    {"parallel.pipeline_model_parallel_size", {"parallel.pipeline_model_parallel_size=2"}},
    {"parallel.virtual_pipeline_model_parallel_size",
     {"parallel.virtual_pipeline_model_parallel_size=4",
      kPipeline + std::vector<std::string>{"parallel.pipeline_schedule=interleaved",
                                           "model.num_layers=8"}}},
    {"parallel.sequence_parallel",
     {"parallel.sequence_parallel=true", {"parallel.tensor_model_parallel_size=2"}}},
    {"parallel.pipeline_schedule", {"parallel.pipeline_schedule=zb_h1", kPipeline}},
    {"parallel.pipeline_balance", {"parallel.pipeline_balance=cost", kPipeline}},
    {"parallel.pipeline_model_parallel_layout",
     {"parallel.pipeline_model_parallel_layout=Ettt|tL", kPipeline}},
    {"parallel.num_layers_in_first_pipeline_stage",
     {"parallel.num_layers_in_first_pipeline_stage=1", kPipeline}},
    {"parallel.num_layers_in_last_pipeline_stage",
     {"parallel.num_layers_in_last_pipeline_stage=1", kPipeline}},
    {"parallel.account_for_embedding_in_pipeline_split",
     {"parallel.account_for_embedding_in_pipeline_split=true",
      kPipeline + std::vector<std::string>{"model.num_layers=5"}}},
    {"parallel.account_for_loss_in_pipeline_split",
     {"parallel.account_for_loss_in_pipeline_split=true",
      kPipeline + std::vector<std::string>{"model.num_layers=6"}}},
    {"parallel.use_tp_pp_dp_mapping", {"parallel.use_tp_pp_dp_mapping=true", kPipeline}},
    {"parallel.expert_model_parallel_size",
     {"parallel.expert_model_parallel_size=2", {"model.num_moe_experts=4"}}},
    {"parallel.expert_tensor_parallel_size",
     {"parallel.expert_tensor_parallel_size=2", {"model.num_moe_experts=4"}}},
    {"ddp.zero_stage", {"ddp.zero_stage=1"}},
    {"ddp.bucket_size", {"ddp.bucket_size=1000"}},
    {"ddp.grad_reduce_in_fp32", {"ddp.grad_reduce_in_fp32=false", {"dtype=bf16"}}},
    {"ddp.num_distributed_optimizer_instances",
     {"ddp.num_distributed_optimizer_instances=2", {"ddp.zero_stage=1"}}},
};

/// What is to come: any other value than 1 is refused by name.
inline const std::map<std::string, Effect> kRefused = {
    {"parallel.context_parallel_size", {"parallel.context_parallel_size=2"}},
};

inline const std::map<std::string, Elsewhere> kElsewhere = {
    {"model.moe_pad_expert_input_to_capacity",
     {"DroppedChoices.AreNotSentAndGiveNothingBack: rows of zeros, which change no number"}},
    {"ddp.overlap_grad_reduce",
     {"when sums begin: DataParallel.StartsOverlappedReductions... of parallel_ddp_test"}},
    {"ddp.overlap_param_gather",
     {"when values travel: DataParallel.GathersUpdatedValues... of parallel_ddp_test"}},
    {"comm_overlap.tp", {"the same numbers at another time: SequenceParallel and LayoutMatrix"}},
    {"dist.timeout_s", {"when ranks wait too long: ThreadWatch and Faults of comm_test"}},
    {"dist.heartbeat_s", {"when ranks are looked after: Faults of comm_test"}},
    {"train.micro_batch_size",
     {"same sums in another order: LayoutWork.AccumulationAndRecomputation..."}},
    {"train.sample_tokens", {"the program writes the sample: Program.Quickstart of cli_test"}},
    {"train.check_memory", {"needs a machine that is too small: MemoryPlans, Limits of cli_test"}},
    {"train.num_threads", {"set by the program: Runtime.SetsThreads below"}},
    {"checkpoint.async_save", {"the same bytes: AsyncSave"}},
    {"checkpoint.export_hf", {"a folder beside the same ones: ConvertVerb of cli_test"}},
    {"checkpoint.node_local", {"needs machines: NodeLocal"}},
    {"checkpoint.parity", {"files beside the same ones: AsyncSave.LostShards..."}},
    {"checkpoint.staging_limit", {"the same bytes: AsyncSave.WhatDoesNotFit..."}},
    {"checkpoint.on_error", {"needs a disk that is full: AsyncSave.AFullDisk..."}},
    {"checkpoint.strictness", {"needs a checkpoint that does not fit: Loading.EveryTensor..."}},
    {"checkpoint.check_tokenizer", {"needs files: Loading.TheTokenizerLies..."}},
    {"device", {"needs a GPU to differ: Runtime.ChoosesDevices below"}},
    {"dataset.test_data_path",
     {"training does not look at the test part: OpenIndexed of data_test"}},
    {"dataset.fim_pad_token", {"no byte is left over: FillInTheMiddle of data_test"}},
    {"dataset.cls_token", {"needs a tokenizer with names: OpenObjectives of data_test"}},
    {"dataset.sep_token", {"needs a tokenizer with names: OpenObjectives of data_test"}},
    {"dataset.mask_token", {"needs a tokenizer with names: OpenObjectives of data_test"}},
    {"dataset.pad_token", {"needs a tokenizer with names: OpenObjectives of data_test"}},
    {"dataset.eos_token", {"needs a tokenizer with names: OpenObjectives of data_test"}},
    {"model.type", {"goes with other data: LayoutMatrix"}},
    {"model.pooler", {"such a model is not trained: HfGolden"}},
    {"tokenizer.type", {"needs files: MakeTokenizer of data_test"}},
    {"tokenizer.path", {"needs files: MakeTokenizer of data_test"}},
    {"tokenizer.eod", {"needs files: MakeTokenizer of data_test"}},
    {"tokenizer.pattern", {"needs files: MakeTokenizer of data_test"}},
    {"tokenizer.vocab_size", {"of tokenizer.type=null: MakeTokenizer of data_test"}},
};

} // namespace pentatron::trainer
