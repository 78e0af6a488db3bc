/// The sections `dataset` and `tokenizer` of a configuration.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>

#include "pentatron/config/field.h"

namespace pentatron::data {

enum class DatasetType : uint8_t { kText, kBatches, kMock };
constexpr auto enum_names(DatasetType) {
  return std::array{config::name(DatasetType::kText, "text"),
                    config::name(DatasetType::kBatches, "batches"),
                    config::name(DatasetType::kMock, "mock")};
}

enum class OnBadInput : uint8_t { kError, kSkip };
constexpr auto enum_names(OnBadInput) {
  return std::array{config::name(OnBadInput::kError, "error"),
                    config::name(OnBadInput::kSkip, "skip")};
}

struct DatasetConfig {
  DatasetType type = DatasetType::kText;
  std::string path;
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

  static constexpr auto fields() {
    using C = DatasetConfig;
    return std::tuple{
        config::field("type", &C::type,
                      "text: files of text; batches: one Safetensors file with ready batches; "
                      "mock: random tokens"),
        config::field(
            "path", &C::path,
            "a file or folder, or several with commas between them (.txt, .md, .jsonl, .json, "
            "also .gz and .zst); empty: the text that comes with pentatron"),
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
                      "attention never crosses the end of a document")};
  }
};

enum class TokenizerType : uint8_t { kBytes };
constexpr auto enum_names(TokenizerType) {
  return std::array{config::name(TokenizerType::kBytes, "bytes")};
}

struct TokenizerConfig {
  TokenizerType type = TokenizerType::kBytes;

  static constexpr auto fields() {
    return std::tuple{config::field("type", &TokenizerConfig::type,
                                    "bytes: a token a byte, and one for the end of a document")};
  }
};

} // namespace pentatron::data
