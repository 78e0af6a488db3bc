#include "pentatron/config/common_names.h"

namespace pentatron::config {

namespace {

constexpr std::string_view kRanks =
    "--ranks RANKS; data parallelism is what the other kinds of parallelism leave of the ranks";

constexpr CommonName kCommonNames[] = {
    {"", "activation", "model.activation_func"},
    {"", "activation_checkpointing", "train.recompute"},
    {"", "activation_function", "model.activation_func"},
    {"", "adapter", "peft.load"},
    {"", "batch_size", "train.global_batch_size"},
    {"", "betas", "optimizer.adam_beta1=BETA1 and optimizer.adam_beta2=BETA2"},
    {"optimizer", "betas", "optimizer.adam_beta1=BETA1 and optimizer.adam_beta2=BETA2"},
    {"", "block_size", "train.seq_length"},
    {"", "checkpoint_dir", "checkpoint.save"},
    {"", "context_length", "train.seq_length"},
    {"", "cp", "parallel.context_parallel_size"},
    {"", "cp_size", "parallel.context_parallel_size"},
    {"", "d_ff", "model.ffn_hidden_size"},
    {"", "d_model", "model.hidden_size"},
    {"", "data_parallel", kRanks},
    {"", "data_parallel_size", kRanks},
    {"scheduler", "decay_steps", "scheduler.lr_decay_iters"},
    {"model", "depth", "model.num_layers"},
    {"", "dim", "model.hidden_size"},
    {"checkpoint", "dir", "checkpoint.save"},
    {"", "dp", kRanks},
    {"", "dp_size", kRanks},
    {"mixed_precision", "dtype", "dtype"},
    {"", "emb_dim", "model.hidden_size"},
    {"", "embed_dim", "model.hidden_size"},
    {"", "ep", "parallel.expert_model_parallel_size"},
    {"", "ep_size", "parallel.expert_model_parallel_size"},
    {"", "epochs", "train.train_iters"},
    {"optimizer", "eps", "optimizer.adam_eps"},
    {"", "etp", "parallel.expert_tensor_parallel_size"},
    {"", "eval_every", "train.eval_interval"},
    {"", "eval_steps", "train.eval_interval"},
    {"checkpoint", "every", "checkpoint.save_interval"},
    {"", "expert_parallel_size", "parallel.expert_model_parallel_size"},
    {"", "ffn_dim", "model.ffn_hidden_size"},
    {"dataset", "file", "dataset.path"},
    {"tokenizer", "file", "tokenizer.path"},
    {"dataset", "files", "dataset.path"},
    {"checkpoint", "folder", "checkpoint.save"},
    {"", "fsdp", "ddp.zero_stage=3"},
    {"", "gpus", kRanks},
    {"", "grad_accum_steps", "train.global_batch_size"},
    {"", "grad_clip", "optimizer.clip_grad"},
    {"", "gradient_accumulation_steps", "train.global_batch_size"},
    {"", "gradient_checkpointing", "train.recompute"},
    {"", "head_dim", "model.kv_channels"},
    {"", "heads", "model.num_attention_heads"},
    {"", "hidden_act", "model.activation_func"},
    {"", "hidden_dim", "model.hidden_size"},
    {"", "initializer_range", "model.init_method_std"},
    {"", "intermediate_size", "model.ffn_hidden_size"},
    {"checkpoint", "interval", "checkpoint.save_interval"},
    {"", "iterations", "train.train_iters"},
    {"", "kv_heads", "model.num_query_groups"},
    {"", "layer_norm_eps", "model.layernorm_epsilon"},
    {"", "layer_norm_epsilon", "model.layernorm_epsilon"},
    {"model", "layers", "model.num_layers"},
    {"", "learning_rate", "optimizer.lr"},
    {"", "log_dir", "logger.dir"},
    {"", "log_every", "logger.log_interval"},
    {"", "logging_dir", "logger.dir"},
    {"", "logging_steps", "logger.log_interval"},
    {"", "lora", "peft.type=lora"},
    {"", "lora_alpha", "peft.alpha"},
    {"", "lora_dropout", "peft.dropout"},
    {"", "lora_r", "peft.r"},
    {"", "lora_rank", "peft.r"},
    {"", "lora_target_modules", "peft.target_modules"},
    {"scheduler", "lr", "optimizer.lr"},
    {"", "lr_scheduler", "scheduler.lr_decay_style"},
    {"", "lr_scheduler_type", "scheduler.lr_decay_style"},
    {"", "lr_warmup", "scheduler.lr_warmup_iters"},
    {"", "max_grad_norm", "optimizer.clip_grad"},
    {"", "max_iters", "train.train_iters"},
    {"", "max_length", "train.seq_length"},
    {"", "max_lr", "optimizer.lr"},
    {"", "max_seq_len", "model.max_position_embeddings"},
    {"", "max_seq_length", "train.seq_length"},
    {"", "max_steps", "train.train_iters"},
    {"scheduler", "min_lr", "optimizer.min_lr"},
    {"", "model_name", "checkpoint.load"},
    {"", "model_name_or_path", "checkpoint.load"},
    {"", "model_path", "checkpoint.load"},
    {"optimizer", "momentum", "optimizer.sgd_momentum"},
    {"", "n_embd", "model.hidden_size"},
    {"", "n_experts", "model.num_moe_experts"},
    {"", "n_head", "model.num_attention_heads"},
    {"", "n_heads", "model.num_attention_heads"},
    {"", "n_kv_heads", "model.num_query_groups"},
    {"", "n_layer", "model.num_layers"},
    {"", "n_layers", "model.num_layers"},
    {"dataset", "name", "dataset.path"},
    {"model", "name", "model.preset"},
    {"optimizer", "name", "optimizer.optimizer"},
    {"peft", "name", "peft.type"},
    {"scheduler", "name", "scheduler.lr_decay_style"},
    {"tokenizer", "name", "tokenizer.path"},
    {"", "norm_eps", "model.layernorm_epsilon"},
    {"", "nproc", kRanks},
    {"", "nproc_per_node", kRanks},
    {"", "num_experts_per_tok", "model.moe_router_topk"},
    {"", "num_gpus", kRanks},
    {"", "num_heads", "model.num_attention_heads"},
    {"", "num_hidden_layers", "model.num_layers"},
    {"", "num_key_value_heads", "model.num_query_groups"},
    {"", "num_kv_heads", "model.num_query_groups"},
    {"", "num_local_experts", "model.num_moe_experts"},
    {"", "num_steps", "train.train_iters"},
    {"", "num_train_epochs", "train.train_iters"},
    {"", "optim", "optimizer.optimizer"},
    {"", "out_dir", "checkpoint.save"},
    {"", "output_dir", "checkpoint.save"},
    {"", "packing", "dataset.pack"},
    {"checkpoint", "path", "checkpoint.save"},
    {"model", "path", "checkpoint.load"},
    {"", "per_device_train_batch_size", "train.micro_batch_size"},
    {"parallel", "pipeline", "parallel.pipeline_model_parallel_size"},
    {"", "pipeline_parallel_size", "parallel.pipeline_model_parallel_size"},
    {"", "pp", "parallel.pipeline_model_parallel_size"},
    {"", "pp_size", "parallel.pipeline_model_parallel_size"},
    {"", "precision", "dtype"},
    {"", "pretrained_model_name_or_path", "checkpoint.load"},
    {"peft", "rank", "peft.r"},
    {"", "resume", "checkpoint.load"},
    {"checkpoint", "resume", "checkpoint.load"},
    {"", "resume_from", "checkpoint.load"},
    {"", "resume_from_checkpoint", "checkpoint.load"},
    {"", "rms_norm_eps", "model.layernorm_epsilon"},
    {"", "rope_theta", "model.rotary_base"},
    {"", "run_name", "logger.run_name"},
    {"", "save_dir", "checkpoint.save"},
    {"", "save_every", "checkpoint.save_interval"},
    {"", "save_steps", "checkpoint.save_interval"},
    {"", "save_total_limit", "checkpoint.keep"},
    {"", "seq_len", "train.seq_length"},
    {"model", "seq_length", "train.seq_length"},
    {"", "sequence_length", "train.seq_length"},
    {"", "sliding_window", "model.window_size"},
    {"", "steps", "train.train_iters"},
    {"parallel", "tensor", "parallel.tensor_model_parallel_size"},
    {"", "tensor_parallel_size", "parallel.tensor_model_parallel_size"},
    {"", "text_column", "dataset.text_key"},
    {"", "tie_embeddings", "model.untie_embeddings_and_output_weights"},
    {"", "tie_word_embeddings", "model.untie_embeddings_and_output_weights"},
    {"", "tokenizer_name", "tokenizer.path"},
    {"", "tokenizer_path", "tokenizer.path"},
    {"", "torch_dtype", "dtype"},
    {"", "tp", "parallel.tensor_model_parallel_size"},
    {"", "tp_size", "parallel.tensor_model_parallel_size"},
    {"", "train_file", "dataset.path"},
    {"", "training_data", "dataset.path"},
    {"device", "type", "device"},
    {"mixed_precision", "type", "dtype"},
    {"optimizer", "type", "optimizer.optimizer"},
    {"scheduler", "type", "scheduler.lr_decay_style"},
    {"", "use_lora", "peft.type=lora"},
    {"", "validation_file", "dataset.valid_data_path"},
    {"", "vocabulary_size", "model.vocab_size"},
    {"", "vpp", "parallel.virtual_pipeline_model_parallel_size"},
    {"scheduler", "warmup", "scheduler.lr_warmup_iters"},
    {"", "warmup_iterations", "scheduler.lr_warmup_iters"},
    {"", "warmup_iters", "scheduler.lr_warmup_iters"},
    {"", "warmup_ratio", "scheduler.lr_warmup_fraction"},
    {"", "warmup_steps", "scheduler.lr_warmup_iters"},
    {"model", "width", "model.hidden_size"},
    {"", "world_size", kRanks},
    {"", "zero", "ddp.zero_stage"},
};

/// Values that other programs know, and what says the same here.
struct CommonValue {
  std::string_view path, value, settings;
};

constexpr std::string_view kDecoder = "--hf DIR for a Hugging Face model, or model.type=gpt";

constexpr CommonValue kCommonValues[] = {
    {"model.type", "decoder", kDecoder},
    {"model.type", "deepseek_v3", kDecoder},
    {"model.type", "gemma", kDecoder},
    {"model.type", "gemma2", kDecoder},
    {"model.type", "gemma3", kDecoder},
    {"model.type", "gemma3_text", kDecoder},
    {"model.type", "glm4", kDecoder},
    {"model.type", "gpt2", kDecoder},
    {"model.type", "gpt_oss", kDecoder},
    {"model.type", "llama", kDecoder},
    {"model.type", "mistral", kDecoder},
    {"model.type", "mixtral", kDecoder},
    {"model.type", "olmo2", kDecoder},
    {"model.type", "olmoe", kDecoder},
    {"model.type", "phi3", kDecoder},
    {"model.type", "qwen2", kDecoder},
    {"model.type", "qwen2_moe", kDecoder},
    {"model.type", "qwen3", kDecoder},
    {"model.type", "qwen3_moe", kDecoder},
    {"model.type", "encoder", "model.type=bert, or --hf DIR for a Hugging Face model"},
    {"model.type", "roberta",
     "model.type=bert model.num_tokentypes=1 model.position_offset=2 model.binary_head=false "
     "dataset.bert_binary_head=none, or --hf DIR for a Hugging Face model"},
    {"model.type", "flan-t5", "model.type=t5, or --hf DIR for a Hugging Face model"},
    {"mixed_precision.fp4", "nvfp4", "mixed_precision.fp4=e2m1"},
    {"mixed_precision.fp4", "true", "mixed_precision.fp4=e2m1"},
    {"mixed_precision.fp8", "true", "mixed_precision.fp8=hybrid"},
    {"mixed_precision.fp8_recipe", "current", "mixed_precision.fp8_recipe=tensorwise"},
    {"mixed_precision.fp8_recipe", "subchannel", "mixed_precision.fp8_recipe=blockwise"},
    {"mixed_precision.recipe", "16-mixed", "mixed_precision.recipe=fp16_mixed"}, // Lightning
    {"optimizer.muon_scale_mode", "shape_scaling", "optimizer.muon_scale_mode=original"},
};

std::string_view listed(std::string_view section, std::string_view name) {
  for (const CommonName& known : kCommonNames)
    if (known.section == section && known.name == name) return known.setting;
  return {};
}

} // namespace

std::span<const CommonName> common_names() {
  return kCommonNames;
}

std::string_view settings_of_common_value(std::string_view path, std::string_view value) {
  for (const CommonValue& known : kCommonValues)
    if (known.path == path && known.value == value) return known.settings;
  return {};
}

std::string_view setting_of_common_name(std::string_view typed) {
  typed = typed.substr(0, typed.find('='));
  const size_t dot = typed.rfind('.');
  const std::string_view name = typed.substr(dot + 1); // npos + 1 is 0
  if (dot != std::string_view::npos)
    if (const std::string_view own = listed(typed.substr(0, dot), name); !own.empty()) return own;
  return listed("", name);
}

} // namespace pentatron::config
