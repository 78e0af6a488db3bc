#include "pentatron/trainer/stored_tokenizer.h"

#include <algorithm>

#include <fmt/format.h>

#include "pentatron/base/log.h"
#include "pentatron/base/mapped_file.h"
#include "pentatron/base/sha256.h"
#include "pentatron/checkpoint/sharded/attachments.h"
#include "pentatron/data/dataset.h"

namespace pentatron::trainer {

namespace fs = std::filesystem;

namespace {

/// What others keep with a tokenizer and read again.
constexpr const char* kBeside[] = {"tokenizer_config.json", "special_tokens_map.json",
                                   "added_tokens.json", "chat_template.jinja"};

std::string text_of_file(const fs::path& path) {
  return std::string(MappedFile(path, MappedFile::Access::kSequential).text());
}

} // namespace

StoredTokenizer stored_tokenizer(const data::TokenizerConfig& config) {
  if (config.path.empty())
    return {.digest = config.vocab_size > 0 ? fmt::format("null:{}", config.vocab_size) : "bytes",
            .files = {}};
  std::vector<data::TokenizerFile> files = data::tokenizer_files(config);
  StoredTokenizer stored;
  std::string identity = fmt::format("{}\n{}\n", config.eod, config.pattern);
  for (const data::TokenizerFile& file : files) identity += sha256(file.content);
  stored.digest = fmt::format("sha256:{}", sha256(identity));
  uint64_t bytes = 0;
  const fs::path folder = files[0].path.parent_path();
  for (const char* name : kBeside) {
    if (std::error_code error; fs::is_regular_file(folder / name, error))
      files.push_back({folder / name, text_of_file(folder / name)});
  }
  for (auto& [path, text] : files) {
    const std::string name = fmt::format("tokenizer/{}", path.filename().string());
    bytes += text.size();
    if (bytes > checkpoint::kMaxAttachmentBytes || !checkpoint::is_attachment_name(name)) {
      log::shared_warning("checkpoints will not contain the tokenizer: {} {}", path.string(),
                          checkpoint::is_attachment_name(name) ? "is too large"
                                                               : "has an unsupported name");
      stored.files.clear();
      break;
    }
    stored.files[name] = std::move(text);
  }
  return stored;
}

} // namespace pentatron::trainer
