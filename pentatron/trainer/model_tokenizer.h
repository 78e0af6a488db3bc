/// The tokenizer that comes with a model.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "pentatron/checkpoint/model_source.h"
#include "pentatron/data/tokenizer.h"
#include "pentatron/trainer/config.h"

namespace pentatron::trainer {

/// The section `tokenizer` of the model in `checkpoint`: the files of a Hugging Face folder, those
/// inside a GGUF file, or the tokenizer of the run that wrote a checkpoint, as it keeps them. None
/// if nothing is loaded or the model comes without one.
std::optional<data::TokenizerConfig> tokenizer_of(const CheckpointConfig& checkpoint);

/// Where `config` names no tokenizer: the one of the model that it loads. A tokenizer that cannot
/// be opened is taken only for data that needs it, so that the error names its file.
void adopt_model_tokenizer(Config& config);

/// The vocabulary that a model needs for the tokenizer that `config` names and the special tokens
/// of its data; none if it cannot be opened, which is an error when it is used.
std::optional<int64_t> tokenizer_vocabulary(const Config& config);

/// Throws ConfigError if the model that is loaded has fewer tokens than the tokenizer, whose sizes
/// cannot be changed then.
void check_vocabulary(const Config& config, const data::Tokenizer& tokenizer);

/// For the log: "tokenizer: huggingface, 49152 tokens, from qwen/tokenizer.json".
std::string describe_tokenizer(const Config& config, const data::Tokenizer& tokenizer);

/// Where the files of the model's tokenizer are; empty: it has none.
std::filesystem::path tokenizer_path(const checkpoint::ModelFacts& facts);

/// Returns the chat template that PEFT's folder of a merged adapter has, else that of the model's
/// tokenizer. Without one, returns ChatML if the model or the adapter was trained on examples
/// (dataset.type=sft), because training used it, and otherwise nothing.
std::optional<std::string> chat_template_of(const checkpoint::ModelFacts& facts);

/// The files that other programs need and the model's folder does not have, by name: tokenizer.json
/// and tokenizer_config.json of a model that was trained on bytes, and chat_template.jinja of one
/// whose messages were written as ChatML, or by the template of a merged adapter.
std::map<std::string, std::string> made_tokenizer_files(const checkpoint::ModelFacts& facts);

} // namespace pentatron::trainer
