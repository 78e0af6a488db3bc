#include "pentatron/trainer/model_tokenizer.h"

#include <filesystem>

#include <fmt/format.h>

#include "pentatron/base/error.h"
#include "pentatron/base/format.h"
#include "pentatron/base/hf_cache.h"
#include "pentatron/checkpoint/source_facts.h"
#include "pentatron/data/dataset.h"
#include "pentatron/data/objectives/special_tokens.h"
#include "pentatron/data/sft/chat_text.h"
#include "pentatron/data/tokenizer/byte_tokenizer_files.h"
#include "pentatron/data/tokenizer/open.h"
#include "pentatron/trainer/described_run.h"
#include "pentatron/trainer/stored_tokenizer.h"

namespace pentatron::trainer {

namespace fs = std::filesystem;

namespace {

/// The file or folder of a model that is not a checkpoint.
fs::path path_of(const std::string& foreign) {
  return resolve_model_path(after_hf_prefix(foreign).value_or(foreign));
}

bool names_tokenizer(const data::TokenizerConfig& tokenizer) {
  return !tokenizer.path.empty() || tokenizer.type != data::TokenizerType::kAuto;
}

/// Whether the files are where they were, and as they were: then they are named, because
/// checkpoints come and go.
bool is_still(const data::TokenizerConfig& tokenizer, const std::string& digest) {
  try {
    return !digest.empty() && stored_tokenizer(tokenizer).digest == digest;
  } catch (const Error&) {
    return false;
  }
}

/// What a checkpoint's run had, with its files in the checkpoint if they are there.
std::optional<data::TokenizerConfig> tokenizer_of_run(const CheckpointConfig& c) {
  const std::optional<DescribedRun> run = described_run(c);
  if (!run) return std::nullopt;
  const std::string& digest = run->manifest.tokenizer;
  data::TokenizerConfig tokenizer = run->config.tokenizer;
  if (!tokenizer.path.empty() && is_still(tokenizer, digest)) return tokenizer;
  const fs::path files = run->folder / checkpoint::kTokenizerFolder;
  if (checkpoint::has_tokenizer_files(files)) {
    tokenizer.path = files.string();
    return tokenizer;
  }
  // Of weights that were converted, `null` only says that nothing is known.
  if (!tokenizer.path.empty() || (run->trained && names_tokenizer(tokenizer))) return tokenizer;
  return std::nullopt;
}

/// Whether the path leads into a checkpoint that a run has removed since.
bool is_of_removed_checkpoint(const fs::path& path) {
  std::error_code error;
  return path.filename() == checkpoint::kTokenizerFolder &&
         !fs::exists(path.parent_path(), error) &&
         path.parent_path().filename().string().starts_with("step_");
}

} // namespace

std::optional<data::TokenizerConfig> tokenizer_of(const CheckpointConfig& c) {
  if (c.load.empty()) return std::nullopt;
  if (const std::optional<std::string> foreign = foreign_model(c)) {
    const fs::path path = path_of(*foreign);
    if (foreign->starts_with(kHfPrefix)
            ? checkpoint::has_tokenizer_files(path)
            : checkpoint::open_model(*foreign)->facts().tokenizer.kind !=
                  checkpoint::TokenizerPlace::Kind::kNone)
      return data::TokenizerConfig{.path = path.string()};
    return std::nullopt;
  }
  return tokenizer_of_run(c);
}

void adopt_model_tokenizer(Config& config) {
  if (is_of_removed_checkpoint(config.tokenizer.path)) config.tokenizer.path.clear();
  if (names_tokenizer(config.tokenizer)) return;
  std::optional<data::TokenizerConfig> found = tokenizer_of(config.checkpoint);
  if (!found) return;
  if (!config.tokenizer.eod.empty()) found->eod = config.tokenizer.eod;
  if (!config.tokenizer.pattern.empty()) found->pattern = config.tokenizer.pattern;
  try {
    data::make_tokenizer(*found);
  } catch (const Error& error) {
    if (!data::reads_text(config.dataset.type)) return;
    const std::string_view message = error.what();
    if (message.find("\n  try: ") != std::string_view::npos) throw;
    raise<DataError>(
        "{}\n  try: tokenizer.path=FILE_OR_FOLDER with another form of this tokenizer, or "
        "tokenizer.type=bytes",
        message);
  }
  config.tokenizer = *found;
}

std::optional<int64_t> tokenizer_vocabulary(const Config& config) {
  try {
    return data::needed_vocabulary(config.dataset, *data::make_tokenizer(config.tokenizer));
  } catch (const Error&) {
    return std::nullopt;
  }
}

void check_vocabulary(const Config& config, const data::Tokenizer& tokenizer) {
  const std::optional<std::string> foreign = foreign_model(config.checkpoint);
  if (!foreign || !data::reads_text(config.dataset.type) ||
      tokenizer.vocab_size() <= config.model.vocab_size)
    return;
  if (!names_tokenizer(config.tokenizer))
    raise<ConfigError>(
        "{} comes without a tokenizer, and its model.vocab_size={} is too small for bytes, which "
        "need {}\n  try: {}",
        *foreign, config.model.vocab_size, tokenizer.vocab_size(),
        download_or(path_of(*foreign),
                    "tokenizer.path=FILE_OR_FOLDER with its tokenizer, or a corpus of token ids "
                    "with dataset.type=indexed"));
  raise<ConfigError>("tokenizer.path={} has {} tokens, more than the model.vocab_size={} of {}\n  "
                     "try: tokenizer.path=FILE_OR_FOLDER with the tokenizer of that model",
                     config.tokenizer.path, tokenizer.vocab_size(), config.model.vocab_size,
                     *foreign);
}

std::string describe_tokenizer(const Config& config, const data::Tokenizer& tokenizer) {
  std::string text =
      fmt::format("tokenizer: {}, {}", tokenizer.name(), counted(tokenizer.vocab_size(), "token"));
  if (!config.tokenizer.path.empty()) return text + ", from " + config.tokenizer.path;
  if (!names_tokenizer(config.tokenizer)) {
    const std::optional<std::string> foreign = foreign_model(config.checkpoint);
    text += foreign ? fmt::format(", because {} comes without a tokenizer and tokenizer.path is "
                                  "empty",
                                  *foreign)
                    : ", because tokenizer.path is empty";
  }
  return text;
}

fs::path tokenizer_path(const checkpoint::ModelFacts& facts) {
  using Kind = checkpoint::TokenizerPlace::Kind;
  return facts.tokenizer.kind == Kind::kConfig ? fs::path(described_config(facts).tokenizer.path)
                                               : facts.tokenizer.path;
}

namespace {

/// Whether a run was trained on examples, whose messages are ChatML where no template is known.
bool wrote_messages(const std::string& saved_config) {
  return !saved_config.empty() &&
         stored_config(saved_config).dataset.type == data::DatasetType::kSft;
}

/// That of PEFT's folder.
std::optional<std::string> template_of_adapter(const checkpoint::ModelFacts& facts) {
  if (facts.adapter.folder.empty()) return std::nullopt;
  return data::tokenizer::find_chat_template(facts.adapter.folder);
}

} // namespace

std::optional<std::string> chat_template_of(const checkpoint::ModelFacts& facts) {
  if (auto own = template_of_adapter(facts)) return own;
  if (auto own = data::tokenizer::find_chat_template(tokenizer_path(facts))) return own;
  if (facts.tokenizer.kind == checkpoint::TokenizerPlace::Kind::kNone ||
      !(wrote_messages(facts.saved_config) || wrote_messages(facts.adapter.saved_config)))
    return std::nullopt;
  return data::kChatmlTemplate;
}

namespace {

std::map<std::string, std::string> byte_files(const checkpoint::ModelFacts& facts) {
  if (facts.tokenizer.kind != checkpoint::TokenizerPlace::Kind::kConfig) return {};
  const Config saved = described_config(facts);
  const data::TokenizerConfig& tokenizer = saved.tokenizer;
  const bool bytes = tokenizer.path.empty() && (tokenizer.type == data::TokenizerType::kAuto ||
                                                tokenizer.type == data::TokenizerType::kBytes);
  // A corpus may come from another tokenizer, of which the run was told nothing.
  constexpr int64_t kPaddedBytes = 512;
  const bool plausible = saved.dataset.type == data::DatasetType::kIndexed
                             ? facts.config.vocab_size <= kPaddedBytes
                             : data::reads_text(saved.dataset.type);
  if (!bytes || !plausible || facts.config.vocab_size < data::ByteTokenizer::kVocabSize) return {};
  data::ObjectiveTokens tokens = data::objective_tokens(saved.dataset, data::ByteTokenizer());
  return data::tokenizer::byte_tokenizer_files(
      {.names = std::move(tokens.added), .before = tokens.before, .behind = tokens.behind});
}

} // namespace

std::map<std::string, std::string> made_tokenizer_files(const checkpoint::ModelFacts& facts) {
  std::map<std::string, std::string> files = byte_files(facts);
  if (const auto own = template_of_adapter(facts))
    files[checkpoint::kChatTemplateFile] = *own;
  else if (chat_template_of(facts) == data::kChatmlTemplate)
    files[checkpoint::kChatTemplateFile] = data::kChatmlTemplate;
  return files;
}

} // namespace pentatron::trainer
