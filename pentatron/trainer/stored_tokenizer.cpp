#include "pentatron/trainer/stored_tokenizer.h"

#include <fmt/format.h>

#include "pentatron/base/format.h"
#include "pentatron/base/log.h"
#include "pentatron/base/sha256.h"
#include "pentatron/checkpoint/sharded/attachments.h"
#include "pentatron/checkpoint/source_facts.h"
#include "pentatron/data/dataset.h"

namespace pentatron::trainer {

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
  for (data::TokenizerFile& file : data::files_beside_tokenizer(config))
    files.push_back(std::move(file));
  for (auto& [name, text] : files) {
    bytes += text.size();
    stored.files[fmt::format("{}/{}", checkpoint::kTokenizerFolder, name)] = std::move(text);
  }
  if (bytes > checkpoint::kMaxAttachmentBytes) {
    log::shared_warning("checkpoints will not contain the tokenizer, because its files have {}, "
                        "more than the limit of {}: {} must stay where it is",
                        format_bytes(static_cast<double>(bytes)),
                        format_bytes(static_cast<double>(checkpoint::kMaxAttachmentBytes)),
                        config.path);
    stored.files.clear();
  }
  return stored;
}

} // namespace pentatron::trainer
