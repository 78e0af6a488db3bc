/// Keys that others need to do something, as lists of key=value: an optimizer, a dataset, a model.
#pragma once

#include <string>
#include <vector>

namespace pentatron::trainer {

inline const std::vector<std::string> kSave = {"checkpoint.save={}/ck"};
inline const std::vector<std::string> kLlama3 = {
    "model.rope_scaling.type=llama3", "model.rope_scaling.factor=4",
    "model.rope_scaling.original_max_position_embeddings=64"};
inline const std::vector<std::string> kYarn = {
    "model.rope_scaling.type=yarn", "model.rope_scaling.factor=4",
    "model.rope_scaling.original_max_position_embeddings=64", "model.kv_channels=16"};
inline const std::vector<std::string> kLongRope = {
    "model.rope_scaling.type=longrope", "model.rope_scaling.short_factor=[1,1,1,1]",
    "model.rope_scaling.long_factor=[1,1,1,1]", "model.kv_channels=8"};
inline const std::vector<std::string> kLora = {"peft.type=lora"};
inline const std::vector<std::string> kSgd = {"optimizer.optimizer=sgd"};
inline const std::vector<std::string> kLion = {"optimizer.optimizer=lion"};
inline const std::vector<std::string> kFp8 = {"mixed_precision.fp8=e4m3"};
inline const std::vector<std::string> kFp8Delayed = {
    "mixed_precision.fp8=e4m3", "mixed_precision.fp8_recipe=delayed",
    "mixed_precision.fp8_amax_history_len=8", "mixed_precision.fp8_amax_compute_algo=max",
    "train.train_iters=6"};
inline const std::vector<std::string> kFp8Inside = {"mixed_precision.fp8=e4m3",
                                                    "mixed_precision.first_last_layers_bf16=true"};
inline const std::vector<std::string> kFp16 = {"dtype=fp16"};
/// Whose first steps overflow.
inline const std::vector<std::string> kFp16Large = {
    "dtype=fp16", "mixed_precision.initial_loss_scale=16777216", "train.train_iters=10"};
inline const std::vector<std::string> kMuon = {"optimizer.optimizer=muon"};
inline const std::vector<std::string> kAdaptiveMuon = {"optimizer.optimizer=adaptive_muon"};
inline const std::vector<std::string> kAdafactor = {"optimizer.optimizer=adafactor",
                                                    "optimizer.lr=0.02"};
inline const std::vector<std::string> kQkClip = {
    "optimizer.qk_clip=true", "optimizer.qk_clip_threshold=0.2", "optimizer.lr=1e-2"};
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
inline const std::vector<std::string> kSft = {"dataset.type=sft", "dataset.path={}/chat.jsonl",
                                              "train.seq_length=160",
                                              "model.max_position_embeddings=160"};
inline const std::vector<std::string> kLabels = {"model.type=bert", "model.head=classification",
                                                 "dataset.type=classification",
                                                 "dataset.path={}/labels.jsonl"};

inline const std::vector<std::string> kLatent = {
    "model.multi_latent_attention=true", "model.kv_lora_rank=16", "model.qk_head_dim=8",
    "model.qk_pos_emb_head_dim=8", "model.v_head_dim=8"};
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

inline const std::vector<std::string> kLocal = {
    "model.window_size=8", "model.rope_local_base_freq=100", "model.kv_channels=16"};
inline const std::vector<std::string> kLocalLlama3 =
    kLocal + std::vector<std::string>{
                 "model.rope_local_scaling.type=llama3", "model.rope_local_scaling.factor=4",
                 "model.rope_local_scaling.original_max_position_embeddings=64"};
inline const std::vector<std::string> kLocalYarn =
    kLocal + std::vector<std::string>{
                 "model.rope_local_scaling.type=yarn", "model.rope_local_scaling.factor=4",
                 "model.rope_local_scaling.original_max_position_embeddings=64"};
inline const std::vector<std::string> kLocalLongRope = {
    "model.window_size=8",
    "model.rope_local_base_freq=100",
    "model.kv_channels=8",
    "model.rope_local_scaling.type=longrope",
    "model.rope_local_scaling.short_factor=[1,1,1,1]",
    "model.rope_local_scaling.long_factor=[1,1,1,1]"};

} // namespace pentatron::trainer
