#include "pentatron/data/config.h"

#include <set>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace pentatron::data {

void DatasetConfig::validate(config::Violations& violations, std::string_view path) const {
  const auto key = [&](std::string_view name) {
    return path.empty() ? std::string(name) : fmt::format("{}.{}", path, name);
  };
  const auto needs = [&](bool asked, std::string_view name, std::string_view value,
                         std::string_view condition, const std::string& attempt) {
    if (!asked) return;
    violations.add(key(name),
                   fmt::format("{}={} has no effect without {}", key(name), value, condition),
                   attempt);
  };
  const bool indexed = type == DatasetType::kIndexed;
  const bool megatron = order == SampleOrder::kMegatron;
  const bool documents = indexed || type == DatasetType::kText;
  const std::string use_indexed = key("type") + "=indexed";
  const std::string with_indexed = use_indexed;
  needs(megatron && !indexed, "order", "megatron", with_indexed, use_indexed);
  const bool parts =
      !train_data_path.empty() || !valid_data_path.empty() || !test_data_path.empty();
  needs(parts && !indexed, "train_data_path", train_data_path + valid_data_path + test_data_path,
        with_indexed, use_indexed);
  needs(!per_split_data_args_path.empty() && !indexed, "per_split_data_args_path",
        per_split_data_args_path, with_indexed, use_indexed);
  const int ways =
      (this->path.empty() ? 0 : 1) + (parts ? 1 : 0) + (per_split_data_args_path.empty() ? 0 : 1);
  if (indexed && ways != 1) {
    std::vector<std::string> remedy;
    if (ways == 0) remedy.push_back(key("path") + "=PREFIX");
    const auto remove = [&](std::string_view name, bool given) {
      if (ways > 1 && given) remedy.push_back(fmt::format("{}=\"\"", key(name)));
    };
    remove("path", !this->path.empty());
    remove("per_split_data_args_path", parts && !per_split_data_args_path.empty());
    violations.add(key("path"),
                   fmt::format("{}=indexed takes exactly one of {}, {} (with valid_data_path and "
                               "test_data_path) and {}, but {} given",
                               key("type"), key("path"), key("train_data_path"),
                               key("per_split_data_args_path"), ways == 0 ? "none is" : "more are"),
                   fmt::format("{}", fmt::join(remedy, " and ")));
  }
  needs(multiple_validation_sets && valid_data_path.empty() && per_split_data_args_path.empty(),
        "multiple_validation_sets", "true", key("valid_data_path"),
        key("multiple_validation_sets") + "=false");
  needs(!data_cache_path.empty() && !megatron, "data_cache_path", data_cache_path,
        key("order") + "=megatron", key("data_cache_path") + "=\"\"");
  needs(!drop_last_partial_validation_sequence && !(megatron && full_validation),
        "drop_last_partial_validation_sequence", "false",
        fmt::format("{}=megatron and {}=true", key("order"), key("full_validation")),
        key("drop_last_partial_validation_sequence") + "=true");
  if (fim_rate > 0) {
    needs(!documents, "fim_rate", fmt::to_string(fim_rate), "documents of " + key("type") + "=text",
          key("fim_rate") + "=0");
    const std::set<int64_t> marks{fim_prefix_token, fim_middle_token, fim_suffix_token,
                                  fim_pad_token};
    if (marks.size() != 4 || *marks.begin() < 0) {
      violations.add(
          key("fim_rate"),
          fmt::format("{}={} needs four different tokens, but {}={}, {}={}, {}={}, {}={}",
                      key("fim_rate"), fim_rate, key("fim_prefix_token"), fim_prefix_token,
                      key("fim_middle_token"), fim_middle_token, key("fim_suffix_token"),
                      fim_suffix_token, key("fim_pad_token"), fim_pad_token),
          "the numbers of the tokenizer's special tokens");
    }
  }
}

} // namespace pentatron::data
