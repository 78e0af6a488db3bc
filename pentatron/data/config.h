/// The sections `dataset` and `tokenizer` of a configuration.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>

#include "pentatron/config/field.h"
#include "pentatron/config/violations.h"

namespace pentatron::data {

enum class DatasetType : uint8_t { kText, kIndexed, kBatches, kMock };
constexpr auto enum_names(DatasetType) {
  return std::array{
      config::name(DatasetType::kText, "text"), config::name(DatasetType::kIndexed, "indexed"),
      config::name(DatasetType::kBatches, "batches"), config::name(DatasetType::kMock, "mock")};
}

enum class SampleOrder : uint8_t { kStable, kMegatron };
constexpr auto enum_names(SampleOrder) {
  return std::array{config::name(SampleOrder::kStable, "stable"),
                    config::name(SampleOrder::kMegatron, "megatron")};
}

enum class OnBadInput : uint8_t { kError, kSkip };
constexpr auto enum_names(OnBadInput) {
  return std::array{config::name(OnBadInput::kError, "error"),
                    config::name(OnBadInput::kSkip, "skip")};
}

struct DatasetConfig {
  DatasetType type = DatasetType::kText;
  std::string path;
  std::string train_data_path;
  std::string valid_data_path;
  std::string test_data_path;
  std::string per_split_data_args_path;
  bool multiple_validation_sets = false;
  bool full_validation = false;
  bool drop_last_partial_validation_sequence = true;
  SampleOrder order = SampleOrder::kStable;
  std::string data_cache_path;
  std::string text_key = "text";
  std::string split = "95,5,0";
  uint64_t seed = 1234;
  OnBadInput on_bad_input = OnBadInput::kError;
  int64_t max_line_bytes = int64_t{256} << 20;
  int64_t num_workers = 2;
  int64_t prefetch = 2;
  bool eod_mask_loss = false;
  bool reset_position_ids = false;
  bool reset_attention_mask = false;
  double fim_rate = 0;
  double fim_spm_rate = 0.5;
  int64_t fim_prefix_token = -1;
  int64_t fim_middle_token = -1;
  int64_t fim_suffix_token = -1;
  int64_t fim_pad_token = -1;

  void validate(config::Violations& violations, std::string_view path) const;

  static constexpr auto fields() {
    using C = DatasetConfig;
    return std::tuple{
        config::field(
            "type", &C::type,
            "text: files of text; indexed: corpora of `pentatron preprocess` or Megatron; "
            "batches: one Safetensors file with ready batches; mock: random tokens"),
        config::field(
            "path", &C::path,
            "a file or folder, or several with commas between them (.txt, .md, .jsonl, .json, "
            "also .gz and .zst); empty: the text that comes with pentatron. Of type indexed: the "
            "prefix of PREFIX.bin and PREFIX.idx, several for a blend, each with its weight before "
            "it (0.3 a 0.7 b) or none, or a file with such a list (.json, .yaml: also an object "
            "with train, valid and test)"),
        config::field("train_data_path", &C::train_data_path,
                      "of type indexed: the corpora of training alone, written like path"),
        config::field("valid_data_path", &C::valid_data_path, "those of validation alone"),
        config::field("test_data_path", &C::test_data_path, "those of the test alone"),
        config::field("per_split_data_args_path", &C::per_split_data_args_path,
                      "a JSON or YAML file with all three: an object with train, valid and test"),
        config::field("multiple_validation_sets", &C::multiple_validation_sets,
                      "each corpus of valid_data_path is a validation set with a loss of its own"),
        config::field("full_validation", &C::full_validation,
                      "each evaluation goes once through all validation data, instead of "
                      "train.eval_iters batches"),
        config::field("drop_last_partial_validation_sequence",
                      &C::drop_last_partial_validation_sequence,
                      "with order=megatron: leave out the end of the validation data that does not "
                      "fill a sample; else it is filled up, without a loss"),
        config::field(
            "order", &C::order,
            "stable: a sample's number says what it is, so that a longer run begins with "
            "the samples of a shorter one; megatron: the order of Megatron, which depends "
            "on the number of samples of the run (type indexed)"),
        config::field(
            "data_cache_path", &C::data_cache_path,
            "a folder of this machine for the sample order of order=megatron, which its processes "
            "share; empty: each process makes its own at each start"),
        config::field("text_key", &C::text_key, "the member of each JSON line that holds the text")
            .not_empty(),
        config::field("split", &C::split,
                      "shares of training, validation and test, in the order of the documents")
            .not_empty(),
        config::field("seed", &C::seed, "key of the order of the samples"),
        config::field("on_bad_input", &C::on_bad_input,
                      "error: stop at bad UTF-8, empty files, missing keys, long lines and damaged "
                      "archives; skip: "
                      "leave them out and count them"),
        config::field("max_line_bytes", &C::max_line_bytes, "longest JSON line that is read")
            .min(1)
            .unit("bytes"),
        config::field("num_workers", &C::num_workers, "threads that read and tokenize files")
            .range(1, 256),
        config::field("prefetch", &C::prefetch,
                      "global batches prepared ahead of the training step")
            .range(1, 1024),
        config::field("eod_mask_loss", &C::eod_mask_loss,
                      "no loss where the input is the end of a document"),
        config::field("reset_position_ids", &C::reset_position_ids,
                      "positions start again after the end of a document"),
        config::field("reset_attention_mask", &C::reset_attention_mask,
                      "attention never crosses the end of a document"),
        config::field("fim_rate", &C::fim_rate,
                      "share of documents that are rearranged to fill in the middle")
            .range(0, 1),
        config::field("fim_spm_rate", &C::fim_spm_rate,
                      "share of those that have the suffix first, then prefix and middle")
            .range(0, 1),
        config::field("fim_prefix_token", &C::fim_prefix_token, "number of the mark of a prefix")
            .min(-1),
        config::field("fim_middle_token", &C::fim_middle_token, "that of a middle").min(-1),
        config::field("fim_suffix_token", &C::fim_suffix_token, "that of a suffix").min(-1),
        config::field("fim_pad_token", &C::fim_pad_token,
                      "number of the token that fills what rearranging leaves free")
            .min(-1)};
  }
};

enum class TokenizerType : uint8_t {
  kAuto,
  kBytes,
  kNull,
  kHuggingFace,
  kSentencePiece,
  kTiktoken,
  kGpt2
};
constexpr auto enum_names(TokenizerType) {
  return std::array{config::name(TokenizerType::kAuto, "auto"),
                    config::name(TokenizerType::kBytes, "bytes"),
                    config::name(TokenizerType::kNull, "null"),
                    config::name(TokenizerType::kHuggingFace, "huggingface"),
                    config::name(TokenizerType::kSentencePiece, "sentencepiece"),
                    config::name(TokenizerType::kTiktoken, "tiktoken"),
                    config::name(TokenizerType::kGpt2, "gpt2")};
}

struct TokenizerConfig {
  TokenizerType type = TokenizerType::kAuto;
  std::string path;
  std::string eod;
  std::string pattern;
  int64_t vocab_size = 0;

  static constexpr auto fields() {
    using C = TokenizerConfig;
    return std::tuple{
        config::field("type", &C::type,
                      "auto: by the files at tokenizer.path, without one bytes; bytes: a token a "
                      "byte, and one for the end of a document; null: the text is numbers; "
                      "huggingface: tokenizer.json; sentencepiece: a .model file; tiktoken: a file "
                      "of ranks; gpt2: vocab.json and merges.txt"),
        config::field("path", &C::path, "the tokenizer's file, or the folder that holds its files"),
        config::field("eod", &C::eod,
                      "the token put after every document; empty: eos_token of "
                      "tokenizer_config.json, or the tokenizer's own"),
        config::field("pattern", &C::pattern,
                      "how a tiktoken tokenizer cuts text into words: gpt2, cl100k, llama3, qwen2, "
                      "o200k or a regular expression; empty: by the file's name and size"),
        config::field("vocab_size", &C::vocab_size, "of type null: numbers are below this")
            .range(0, 1 << 24)};
  }
};

} // namespace pentatron::data
