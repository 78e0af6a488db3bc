#include "pentatron/trainer/differences.h"

#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "pentatron/base/error.h"
#include "pentatron/comm/gather_text.h"
#include "pentatron/config/config.h"

namespace pentatron::trainer {

std::string differences(const Config& one, const Config& other,
                        const std::function<bool(const std::string& key)>& counts) {
  std::vector<std::string> texts;
  for (const config::Difference& d : config::diff(one, other)) {
    if (counts(d.path)) texts.push_back(fmt::format("{}={} and not {}", d.path, d.before, d.after));
  }
  return fmt::format("{}", fmt::join(texts, ", "));
}

bool is_data(const std::string& key) {
  return key == "seed" || key == "train.seq_length" || key.starts_with("dataset.") ||
         key.starts_with("tokenizer.");
}

bool is_model(const std::string& key) {
  return key.starts_with("model.") && key != "model.preset" && !key.ends_with("_dropout");
}

bool is_identity(const std::string& key) {
  return key == "dtype" || key == "optimizer.optimizer" || is_model(key);
}

Config equal_config(Config config, const comm::Group& world) {
  const std::vector<std::string> all = comm::gather_text(config::to_yaml(config), world);
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    Config theirs, first;
    config::Violations ignored;
    config::apply_yaml(theirs, all[rank], "", ignored);
    config::apply_yaml(first, all[0], "", ignored);
    raise<CommError>(
        "rank {} has another configuration than rank 0: {}\n  try: the same file, keys "
        "and program on all ranks",
        rank, differences(theirs, first, [](const std::string&) { return true; }));
  }
  return config;
}

} // namespace pentatron::trainer
