/// A task of evaluation, as its YAML file describes it: which documents, which requests to the
/// model about each, and how the answers are counted.
///
/// The language is that of lm-evaluation-harness (EleutherAI), without Python: templates are Jinja
/// by the bounded interpreter of data/tokenizer/chat_template.h.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "pentatron/config/field.h"
#include "pentatron/evaluation/tasks/field.h"

namespace pentatron::evaluation {

enum class OutputType : uint8_t { kMultipleChoice, kLogLikelihood, kRolling, kGenerate };
constexpr auto enum_names(OutputType) {
  return std::array{config::name(OutputType::kMultipleChoice, "multiple_choice"),
                    config::name(OutputType::kLogLikelihood, "loglikelihood"),
                    config::name(OutputType::kRolling, "loglikelihood_rolling"),
                    config::name(OutputType::kGenerate, "generate_until")};
}

enum class Aggregation : uint8_t {
  kMean,
  kMedian,
  kPerplexity,
  kWeightedPerplexity,
  kBitsPerByte,
  kF1,
  kMatthews,
  kBrier
};
constexpr auto enum_names(Aggregation) {
  return std::array{config::name(Aggregation::kMean, "mean"),
                    config::name(Aggregation::kMedian, "median"),
                    config::name(Aggregation::kPerplexity, "perplexity"),
                    config::name(Aggregation::kWeightedPerplexity, "weighted_perplexity"),
                    config::name(Aggregation::kBitsPerByte, "bits_per_byte"),
                    config::name(Aggregation::kF1, "f1"),
                    config::name(Aggregation::kMatthews, "matthews_corrcoef"),
                    config::name(Aggregation::kBrier, "brier_score")};
}

struct MetricSpec {
  std::string name; ///< acc, acc_norm, perplexity, ...
  Aggregation aggregation = Aggregation::kMean;
  bool higher_is_better = true;
  // Of exact_match of generated text.
  std::vector<std::string> regexes_to_ignore;
  bool ignore_case = false, ignore_punctuation = false, ignore_numbers = false;
};

/// What is done with a generated text before it is compared.
struct FilterStep {
  std::string function; ///< regex, multi_choice_regex, map, lowercase, ...
  std::string regex_pattern = "#### (\\-?[0-9\\.\\,]+)";
  int64_t group_select = 0;
  std::string fallback = "[invalid]";
  // Of multi_choice_regex, for a choice in place of its letter.
  std::vector<std::string> regexes_to_ignore;
  bool ignore_case = false, ignore_punctuation = false;
  // Of map.
  std::map<std::string, std::string> mapping;
  std::optional<std::string> default_value; ///< for other texts
};
struct FilterSpec {
  std::string name = "none";
  std::vector<FilterStep> steps;
};

struct Generation {
  std::vector<std::string> until;
  int64_t max_gen_toks = 256;
};

enum class DataFormat : uint8_t { kJson, kCsv, kParquet };
struct DataFiles {
  DataFormat format = DataFormat::kJson;
  std::map<std::string, std::vector<std::filesystem::path>> splits;
  /// Files with a label on each line, which becomes the field `label` of the split's documents.
  std::map<std::string, std::filesystem::path> labels;
  std::vector<std::string> column_names; ///< of CSV; empty: the first line names them
  std::string delimiter = ",";
  bool cells_as_text = false; ///< of CSV; else numbers and the like are recognized
  std::string field;          ///< of JSON: the key of the list of documents; empty: the whole file
};

/// The texts of one document.
struct Fields {
  Field text, target, choice, prefix;
  std::string target_delimiter = " ", fewshot_delimiter = "\n\n";
};

struct Fewshot {
  std::optional<std::string> split;
  bool first_n = false;           ///< else drawn
  nlohmann::ordered_json samples; ///< null, or a list of documents
  std::vector<size_t> indices;    ///< of the split's documents; empty: all
  Fields fields;                  ///< of shown documents
};

struct Task {
  std::string name, alias;
  std::filesystem::path file;
  OutputType output_type = OutputType::kGenerate;
  DataFiles data;
  std::optional<std::string> training_split, validation_split, test_split;
  Fields fields;
  Field description, normalize_by;
  Fewshot fewshot;
  std::optional<int64_t> num_fewshot;
  std::vector<MetricSpec> metrics;
  std::vector<FilterSpec> filters; ///< none: the text as it is
  Generation generation;

  bool has_metric(std::string_view metric) const;
  /// What evaluation reads: the test split, else the validation split.
  const std::string& split() const { return test_split ? *test_split : *validation_split; }
};

/// Scores of a group are means of its tasks' scores.
struct GroupMetric {
  std::string metric, filter; ///< filter empty: those of the tasks
  bool weight_by_size = true;
};
struct Group {
  std::string name, alias;
  std::vector<std::string> members; ///< of tasks and groups
  std::vector<GroupMetric> metrics;
};

struct TaskList {
  std::vector<Task> tasks;   ///< each name once
  std::vector<Group> groups; ///< members before those that have them
};

} // namespace pentatron::evaluation
