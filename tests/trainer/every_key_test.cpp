// Every key of the configuration does something: a run of three steps with it differs from one
// without it. A key that is missing in the table fails.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <set>

#include <fmt/ranges.h>

#include "pentatron/base/crc32c.h"
#include "pentatron/data/preprocess/preprocess.h"
#include "pentatron/trainer/runtime.h"
#include "tests/trainer/layout_runs.h"
#include "tests/trainer/tiny_run.h"

namespace pentatron::trainer {
namespace {

namespace fs = std::filesystem;

/// `with` holds for both runs, `change` for the second one alone. {} stands for the folder of the
/// test.
struct Effect {
  const char* change;
  std::vector<std::string> with = {};
};

struct Elsewhere {
  const char* why;
};

const std::vector<std::string> kLlama3 = {"model.rope_scaling.type=llama3",
                                          "model.rope_scaling.factor=4",
                                          "model.rope_scaling.original_max_position_embeddings=64"};
const std::vector<std::string> kYarn = {
    "model.rope_scaling.type=yarn", "model.rope_scaling.factor=4",
    "model.rope_scaling.original_max_position_embeddings=64", "model.kv_channels=16"};
const std::vector<std::string> kSgd = {"optimizer.optimizer=sgd"};
const std::vector<std::string> kLion = {"optimizer.optimizer=lion"};
const std::vector<std::string> kSamples = {"train.train_samples=12"};
const std::vector<std::string> kWsd = {"scheduler.lr_decay_style=WSD",
                                       "scheduler.lr_wsd_decay_iters=2"};
const std::vector<std::string> kDecay = {"scheduler.weight_decay_incr_style=linear",
                                         "scheduler.start_weight_decay=0",
                                         "scheduler.end_weight_decay=1"};
const std::vector<std::string> kLearned = {"model.position_embedding_type=learned_absolute"};
const std::vector<std::string> kSave = {"checkpoint.save={}/ck"};
const std::vector<std::string> kSaveOften = {"checkpoint.save={}/ck", "checkpoint.save_interval=1",
                                             "checkpoint.keep=1"};
const std::vector<std::string> kLoad = {"checkpoint.load={}/earlier"};
const std::vector<std::string> kOverflow = {"optimizer.lr=1e30", "optimizer.clip_grad=0",
                                            "train.train_iters=6"};
const std::vector<std::string> kEvaluate = {"train.eval_interval=3", "dataset.split=50,50"};

const std::vector<std::string> kIndexed = {"dataset.type=indexed",
                                           "dataset.path={}/data_text_document",
                                           "train.eval_interval=3", "dataset.split=50,50"};
const std::vector<std::string> kMegatron = {
    "dataset.type=indexed",   "dataset.path={}/data_text_document",
    "dataset.order=megatron", "train.eval_interval=3",
    "dataset.split=50,50",    "train.eval_iters=1"};
const std::vector<std::string> kParts = {
    "dataset.type=indexed", "dataset.path=", "dataset.train_data_path={}/data_text_document",
    "train.eval_interval=3"};
const std::vector<std::string> kFim = {
    "model.vocab_size=300",         "dataset.fim_rate=0.5",         "dataset.fim_prefix_token=260",
    "dataset.fim_middle_token=261", "dataset.fim_suffix_token=262", "dataset.fim_pad_token=263"};

const std::vector<std::string> kBert = {"model.type=bert", "dataset.type=bert",
                                        "dataset.path={}/stories.jsonl"};
const std::vector<std::string> kT5 = {"model.type=t5", "dataset.type=t5",
                                      "dataset.path={}/stories.jsonl"};
const std::vector<std::string> kLabels = {"model.type=bert", "model.head=classification",
                                          "dataset.type=classification",
                                          "dataset.path={}/labels.jsonl"};

std::vector<std::string> operator+(std::vector<std::string> a, const std::vector<std::string>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

const std::map<std::string, Effect> kEffects = {
    {"model.head",
     {"model.head=regression", kLabels + std::vector<std::string>{"train.train_iters=2"}}},
    {"model.num_labels", {"model.num_labels=3", kLabels}},
    {"model.classifier_dropout", {"model.classifier_dropout=0.5", kLabels}},
    {"model.binary_head", {"model.binary_head=false", kBert}},
    {"model.num_tokentypes", {"model.num_tokentypes=3", kBert}},
    {"model.position_offset", {"model.position_offset=2", kBert}},
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
    {"dataset.label_names",
     {"dataset.label_names=[sad, glad]",
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
const std::map<std::string, Effect> kSpeedOnly = {
    {"dataset.num_workers", {"dataset.num_workers=4"}},
    {"dataset.prefetch", {"dataset.prefetch=1"}},
};

/// What shows on four ranks only: in which rank holds what, in the order of passes, or in numbers.
const std::vector<std::string> kPipeline = {"parallel.pipeline_model_parallel_size=2"};
const std::map<std::string, Effect> kLayoutEffects = {
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
    {"ddp.zero_stage", {"ddp.zero_stage=1"}},
    {"ddp.bucket_size", {"ddp.bucket_size=1000"}},
    {"ddp.grad_reduce_in_fp32", {"ddp.grad_reduce_in_fp32=false", {"dtype=bf16"}}},
    {"ddp.num_distributed_optimizer_instances",
     {"ddp.num_distributed_optimizer_instances=2", {"ddp.zero_stage=1"}}},
};

/// What is to come: any other value than 1 is refused by name.
const std::map<std::string, Effect> kRefused = {
    {"parallel.context_parallel_size", {"parallel.context_parallel_size=2"}},
    {"parallel.expert_model_parallel_size", {"parallel.expert_model_parallel_size=2"}},
    {"parallel.expert_tensor_parallel_size", {"parallel.expert_tensor_parallel_size=2"}},
};

const std::map<std::string, Elsewhere> kElsewhere = {
    {"ddp.overlap_grad_reduce",
     {"when sums begin: DataParallel.StartsOverlappedReductions... of parallel_ddp_test"}},
    {"ddp.overlap_param_gather",
     {"when values travel: DataParallel.GathersUpdatedValues... of parallel_ddp_test"}},
    {"comm_overlap.tp", {"the same numbers at another time: SequenceParallel and LayoutMatrix"}},
    {"dist.timeout_s", {"when ranks wait too long: RankThreads of comm_test, Faults"}},
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
    {"model.pooler", {"such a model is not trained: HfGolden and EvaluateHf"}},
    {"tokenizer.type", {"needs files: MakeTokenizer of data_test"}},
    {"tokenizer.path", {"needs files: MakeTokenizer of data_test"}},
    {"tokenizer.eod", {"needs files: MakeTokenizer of data_test"}},
    {"tokenizer.pattern", {"needs files: MakeTokenizer of data_test"}},
    {"tokenizer.vocab_size", {"of tokenizer.type=null: MakeTokenizer of data_test"}},
};

class EveryKey : public testing::Test {
 protected:
  EveryKey() {
    test::write_documents(scratch / "data.jsonl", 100);
    test::write_documents(scratch / "other.jsonl", 100, /*seed=*/2);
    test::write_documents(scratch / "bad.jsonl", 100);
    test::write_stories(scratch / "stories.jsonl", 100);
    std::ofstream labels(scratch / "labels.jsonl");
    for (int i = 0; i < 60; ++i)
      labels << Json{{"text", i % 3 == 0 ? "Go up" : "So it is"},
                     {"other", i % 2 == 0 ? "We" : "He"},
                     {"label", i % 3 == 0 ? 1 : 0},
                     {"mood", i % 2 == 0 ? "glad" : "sad"}}
             << '\n';
    labels.close();
    std::ofstream(scratch / "bad.jsonl", std::ios::app) << "{no json\n";
    for (const std::string name : {"data", "other"}) {
      data::preprocess({.inputs = {scratch / (name + ".jsonl")},
                        .tokenizer = data::make_tokenizer({}),
                        .output = scratch / name,
                        .append_eod = true});
      std::ofstream(scratch / (name + ".json"))
          << Json{{"train", Json::array({scratch / (name + "_text_document")})}};
    }
    test::run(test::tiny(scratch / "data.jsonl",
                         {"checkpoint.save=" + (scratch / "earlier"), "train.train_iters=1"}));
  }

  /// Everything about a run that somebody can see, but times.
  std::string fingerprint(std::vector<std::string> settings) {
    settings.insert(settings.begin(), "logger.dir={}/log");
    for (std::string& text : settings) {
      for (size_t at = 0; (at = text.find("{}")) != std::string::npos;)
        text.replace(at, 2, scratch.path.string());
    }
    for (const char* made : {"log", "ck", "elsewhere"}) fs::remove_all(scratch / made);
    std::string print;
    testing::internal::CaptureStderr();
    try {
      const Config config = test::tiny(scratch / "data.jsonl", settings);
      const test::Trace trace = test::run(config);
      for (const Json& step : trace.steps) {
        for (const char* key :
             {"loss", "grad_norm", "learning_rate", "consumed_samples", "global_batch_size"})
          print += step[key].dump() + " ";
        print +=
            fmt::format("{:.6g} {:.6g}\n", step["hfu"].get<double>() / step["mfu"].get<double>(),
                        step["tflops"].get<double>() / step["mfu"].get<double>());
      }
      for (const auto& [name, weight] : trace.weights) {
        const auto* bytes = static_cast<const std::byte*>(weight.data_ptr());
        print +=
            fmt::format("{} {} {:x}\n", name, weight.numel(), crc32c({bytes, weight.nbytes()}));
      }
      const Evaluation validation = trace.report.validation.value_or(Evaluation{});
      print += fmt::format("validation {} {}\n", validation.loss, validation.figures.size());
    } catch (const Error& error) {
      print += std::string("error: ") + error.what() + "\n";
    }
    const std::string console = testing::internal::GetCapturedStderr();
    for (const char* shown : {"/3 | loss ", "lm loss: ", "\r\033[K"})
      for (size_t at = 0; (at = console.find(shown, at)) != std::string::npos; ++at)
        print += fmt::format("{} on the console\n", shown);
    std::set<std::string> files;
    for (const auto& entry : fs::recursive_directory_iterator(scratch.path)) {
      const std::string name = fs::relative(entry.path(), scratch.path).string();
      if (name.find("mlruns/") != std::string::npos) continue; // with an id of every run
      if (entry.is_directory() || entry.path().extension() == ".svg") files.insert(name);
    }
    for (const std::string& file : files) print += file + "\n";
    if (const fs::path file = scratch.path / "log/run.json"; fs::exists(file))
      print += read_json(file).at("name").dump() + "\n";
    if (content_of(scratch.path / "log/kernels.json") != "{}\n") print += "measured kernels\n";
    if (const fs::path file = scratch.path / "log/trace.json"; fs::exists(file)) {
      const Json trace = read_json(file);
      for (const Json& event : trace.at("traceEvents"))
        if (event.value("cat", "") == "iteration") print += event.at("name").dump() + "\n";
    }
    return print;
  }

  test::Scratch scratch;
};

/// What four ranks hold and what they compute in one step.
std::string layout_print(const std::vector<std::string>& settings) {
  std::string keys = "train.train_iters=2 train.eval_interval=0";
  for (const std::string& setting : settings) keys += " " + setting;
  const test::Scratch scratch;
  test::write_documents(scratch / "documents.jsonl", 400);
  std::vector<std::string> prints(4);
  const Config config = test::layout_config("gpt2", keys, 4, scratch);
  test::run_ranks(4, [&](const comm::Group& world) {
    Trainer trainer(config, world);
    std::string& print = prints[static_cast<size_t>(world.rank())];
    print = trainer.describe() + "\n";
    print += fmt::format("loss {}\n", trainer.run().last_loss.value());
    for (const nn::Param& param : trainer.model().model.params())
      print += fmt::format("{} {} {}\n", param.name(), fmt::join(param.shape(), "x"),
                           static_cast<int>(param.spec().placement("tp").kind));
  });
  return fmt::format("{}", fmt::join(prints, "\n"));
}

TEST(EveryLayoutKey, HasAnEffectOnFourRanks) {
  std::map<std::vector<std::string>, std::string> without;
  for (const auto& [key, effect] : kLayoutEffects) {
    auto [entry, fresh] = without.try_emplace(effect.with);
    if (fresh) entry->second = layout_print(effect.with);
    EXPECT_NE(entry->second, layout_print(effect.with + std::vector<std::string>{effect.change}))
        << key << " changes nothing: " << effect.change << "\n"
        << entry->second;
  }
}

TEST(EveryLayoutKey, ThatIsToComeIsRefusedByName) {
  for (const auto& [key, effect] : kRefused)
    EXPECT_THAT(test::error_of([&] { layout_print({effect.change}); }), testing::HasSubstr(key));
}

TEST_F(EveryKey, IsInTheTableOnce) {
  std::set<std::string> known;
  for (const config::FieldInfo& field : config::list_fields<Config>()) {
    known.insert(field.path);
    EXPECT_EQ(kEffects.count(field.path) + kSpeedOnly.count(field.path) +
                  kElsewhere.count(field.path) + kLayoutEffects.count(field.path) +
                  kRefused.count(field.path),
              1u)
        << field.path << ": say in this file what it changes";
  }
  for (const auto& [key, effect] : kEffects) EXPECT_TRUE(known.contains(key)) << key;
  for (const auto& [key, effect] : kSpeedOnly) EXPECT_TRUE(known.contains(key)) << key;
  for (const auto& [key, reason] : kElsewhere) EXPECT_TRUE(known.contains(key)) << key;
  for (const auto& [key, effect] : kLayoutEffects) EXPECT_TRUE(known.contains(key)) << key;
  for (const auto& [key, effect] : kRefused) EXPECT_TRUE(known.contains(key)) << key;
}

TEST(EveryKeyAtItsLimits, IsAConfigurationOrAnError) {
  for (const config::FieldInfo& field : config::list_fields<Config>())
    for (const char* value : {"0", "-1", "9223372036854775807", "nan", "[]", "\"\""})
      for (const int ranks : {1, 8}) {
        SCOPED_TRACE(fmt::format("{}={}", field.path, value));
        try {
          load_config(std::nullopt, {fmt::format("{}={}", field.path, value)}, {}, ranks);
        } catch (const Error& error) {
          EXPECT_STRNE(error.what(), "");
        }
      }
}

TEST(EveryKeyAtItsLimits, ThatIsANumberIsFinite) {
  int numbers = 0;
  for (const config::FieldInfo& field : config::list_fields<Config>()) {
    if (field.type.find("number") == std::string::npos) continue;
    ++numbers;
    for (const char* value : {"inf", "-inf", ".inf", "nan"}) {
      const bool list = field.type.starts_with("list");
      EXPECT_NE(test::error_of([&] {
                  load_config(std::nullopt, {fmt::format("{}={}{}{}", field.path, list ? "[" : "",
                                                         value, list ? "]" : "")});
                }),
                "")
          << field.path << "=" << value;
    }
  }
  EXPECT_GT(numbers, 10);
  EXPECT_THAT(test::error_of([] { load_config(std::nullopt, {"optimizer.lr=inf"}); }),
              testing::HasSubstr("optimizer.lr=.inf is not allowed: it must be a finite number"));
  EXPECT_THAT(test::error_of([] {
                load_config(std::nullopt, {"train.global_batch_size=1000000000000000000"});
              }),
              testing::HasSubstr("train.global_batch_size=1000000000000000000 is not allowed"));
}

TEST(EveryKeyAtItsLimits, OfSizesIsTold) {
  const std::string told = test::error_of([] {
    load_config(std::nullopt, {"model.hidden_size=9223372036854775807", "model.num_layers=1048577"},
                {}, 1);
  });
  EXPECT_THAT(
      told,
      testing::HasSubstr(
          "model.hidden_size=9223372036854775807 is not allowed: it must be >= 1, <= 1073741824"));
  EXPECT_THAT(told, testing::HasSubstr("try: model.num_layers=1048576"));
  EXPECT_THAT(test::error_of([] {
                load_config(std::nullopt,
                            {"model.hidden_size=1073741824", "model.num_attention_heads=1024",
                             "model.num_layers=1048576", "train.micro_batch_size=1073741824",
                             "train.seq_length=1073741824"},
                            {}, 8);
              }),
              testing::HasSubstr("give a model with"));
}

TEST_F(EveryKey, HasAnEffect) {
  // Only these may end in an error, or turn one into a run.
  const std::set<std::string> may_fail = {"train.on_nan", "train.max_skipped_iterations",
                                          "dataset.on_bad_input", "dataset.max_line_bytes"};
  std::map<std::vector<std::string>, std::string> without;
  for (const auto& [key, effect] : kEffects) {
    auto [entry, fresh] = without.try_emplace(effect.with);
    if (fresh) {
      entry->second = fingerprint(effect.with);
      EXPECT_EQ(entry->second, fingerprint(effect.with)) << "a run repeats itself";
    }
    if (!may_fail.contains(key)) {
      EXPECT_EQ(entry->second.find("error: "), std::string::npos) << key << "\n" << entry->second;
    }
    const std::string with = fingerprint(effect.with + std::vector<std::string>{effect.change});
    EXPECT_NE(entry->second, with) << key << " changes nothing: " << effect.change;
    if (!may_fail.contains(key)) {
      EXPECT_EQ(with.find("error: "), std::string::npos) << key << "\n" << with;
    }
  }
}

TEST_F(EveryKey, OfSpeedAloneChangesNothing) {
  const std::string plain = fingerprint({});
  for (const auto& [key, effect] : kSpeedOnly)
    EXPECT_EQ(plain, fingerprint({effect.change})) << key;
}

TEST(Runtime, SetsThreads) {
  const int before = at::get_num_threads();
  set_compute_threads(1);
  EXPECT_EQ(at::get_num_threads(), 1);
  set_compute_threads(2);
  EXPECT_EQ(at::get_num_threads(), 2);
  set_compute_threads(before);
}

TEST(Runtime, ThreadsOfTheEnvironmentCount) {
  const int before = at::get_num_threads();
  const char* const old = std::getenv("OMP_NUM_THREADS");
  const std::optional<std::string> kept = old == nullptr ? std::nullopt : std::optional(old);
  const auto threads = [](const char* value, int64_t configured) {
    setenv("OMP_NUM_THREADS", value, 1);
    set_compute_threads(configured);
    return at::get_num_threads();
  };
  EXPECT_EQ(threads("3", 0), 3);
  EXPECT_EQ(threads("5,2", 0), 5) << "the first of nested levels";
  EXPECT_EQ(threads("3", 2), 2) << "train.num_threads comes first";
  for (const char* no_number : {"", "0", "-1", "many", "3x", "99999999999999999999"})
    EXPECT_EQ(threads(no_number, 0), threads("", 0)) << no_number;
  kept ? setenv("OMP_NUM_THREADS", kept->c_str(), 1) : unsetenv("OMP_NUM_THREADS");
  set_compute_threads(before);
}

TEST(Runtime, ThePeakNamesItsWinner) {
  const Peak peak = measure_gemm_peak(Precision::kFp64); // which LibTorch alone computes fast
  EXPECT_GT(peak.flops, 0);
  EXPECT_THAT(peak.source, testing::ContainsRegex("fp64 matrix product [0-9]+ x [0-9]+ x [0-9]+ by "
                                                  "LibTorch on [0-9]+ threads, the fastest of 3"));
}

TEST(Runtime, ChoosesDevices) {
  EXPECT_TRUE(choose_device(DeviceKind::kCpu).is_cpu());
  if (at::hasCUDA()) GTEST_SKIP() << "this build has CUDA";
  EXPECT_TRUE(choose_device(DeviceKind::kAuto).is_cpu());
  try {
    choose_device(DeviceKind::kCuda);
    ADD_FAILURE() << "device=cuda without CUDA";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("device=cuda"));
  }
}

} // namespace
} // namespace pentatron::trainer
