#include "pentatron/base/error.h"
#include "pentatron/base/sha256.h"
#include "pentatron/base/shared_objects.h"
#include "pentatron/config/config.h"
#include "pentatron/data/dataset.h"
#include "pentatron/data/tokenizer/null_tokenizer.h"
#include "pentatron/data/tokenizer/open.h"

namespace pentatron::data {

namespace {

/// Refuses keys that the type does not look at.
void check_keys(const TokenizerConfig& config) {
  const std::string_view type = config::to_string(config.type);
  const bool from_file = !config.path.empty();
  const bool auto_type = config.type == TokenizerType::kAuto;
  const bool needs_file =
      !auto_type && config.type != TokenizerType::kBytes && config.type != TokenizerType::kNull;
  if (needs_file && !from_file)
    raise<ConfigError>(
        "tokenizer.type={} needs a file, but tokenizer.path is empty\n  try: tokenizer.path=FILE",
        type);
  if (from_file && !needs_file && !auto_type)
    raise<ConfigError>("tokenizer.path={} has no effect with tokenizer.type={}\n  try: "
                       "tokenizer.type=auto",
                       config.path, type);
  if (!config.eod.empty() && !from_file)
    raise<ConfigError>("tokenizer.eod={} has no effect without tokenizer.path\n  try: "
                       "tokenizer.path=FILE_OR_FOLDER, or remove tokenizer.eod",
                       config.eod);
  if (!config.pattern.empty() &&
      !(from_file && (auto_type || config.type == TokenizerType::kTiktoken)))
    raise<ConfigError>("tokenizer.pattern={} has an effect only with tokenizer.type=tiktoken\n  "
                       "try: tokenizer.type=tiktoken with tokenizer.path=FILE, or remove "
                       "tokenizer.pattern",
                       config.pattern);
  if (config.type == TokenizerType::kNull && config.vocab_size == 0)
    throw ConfigError("tokenizer.type=null needs tokenizer.vocab_size, but it is 0\n  try: "
                      "tokenizer.vocab_size=50256");
  if (config.type != TokenizerType::kNull && config.vocab_size != 0)
    raise<ConfigError>(
        "tokenizer.vocab_size={} has an effect only with tokenizer.type=null\n  try: "
        "model.vocab_size={}, or remove tokenizer.vocab_size",
        config.vocab_size, config.vocab_size);
}

tokenizer::FileType file_type(TokenizerType type) {
  switch (type) {
  case TokenizerType::kHuggingFace:
    return tokenizer::FileType::kHuggingFace;
  case TokenizerType::kSentencePiece:
    return tokenizer::FileType::kSentencePiece;
  case TokenizerType::kTiktoken:
    return tokenizer::FileType::kTiktoken;
  case TokenizerType::kGpt2:
    return tokenizer::FileType::kGpt2;
  default:
    return tokenizer::FileType::kAuto;
  }
}

tokenizer::OpenOptions open_options(const TokenizerConfig& config) {
  return {.path = config.path,
          .type = file_type(config.type),
          .eod_token = config.eod,
          .pattern = config.pattern};
}

} // namespace

std::vector<TokenizerFile> tokenizer_files(const TokenizerConfig& config) {
  if (config.path.empty()) return {};
  return tokenizer::tokenizer_files(open_options(config));
}

std::vector<TokenizerFile> files_beside_tokenizer(const TokenizerConfig& config) {
  if (config.path.empty()) return {};
  return tokenizer::files_beside_tokenizer(open_options(config));
}

std::shared_ptr<const Tokenizer> make_tokenizer(const TokenizerConfig& config) {
  check_keys(config);
  if (config.type == TokenizerType::kNull)
    return std::make_shared<tokenizer::NullTokenizer>(config.vocab_size);
  if (config.path.empty()) return std::make_shared<ByteTokenizer>();
  auto result = tokenizer::open_tokenizer(open_options(config));
  if (result->eod() < 0)
    raise<ConfigError>(
        "{} does not say which token ends a document\n  try: tokenizer.eod=TOKEN, one of "
        "its special tokens",
        config.path);
  return result;
}

std::shared_ptr<const Tokenizer> shared_tokenizer(const TokenizerConfig& config) {
  static SharedObjects<Tokenizer> tokenizers;
  std::string key = config::to_yaml(config);
  try {
    for (const TokenizerFile& file : tokenizer_files(config))
      key += fmt::format("{} {}\n", file.name, sha256(file.content));
  } catch (const Error&) { // told by the tokenizer itself
  }
  return tokenizers.get(key, [&] { return make_tokenizer(config); });
}

} // namespace pentatron::data
