#include "pentatron/evaluation/tasks/parse_task.h"

#include <algorithm>

#include <fmt/ranges.h>

#include "pentatron/base/text.h"
#include "pentatron/evaluation/tasks/read_keys.h"

namespace pentatron::evaluation {

namespace {

constexpr std::string_view kPython = "it names a Python function";
constexpr std::string_view kFilterList =
    "filter_list: [{name: first, filter: [{function: take_first}]}]";

/// Keys of a task that a group may give its tasks.
constexpr std::string_view kTaskKeys[] = {
    "task_alias",       "dataset_path", "dataset_name",  "dataset_kwargs",   "training_split",
    "validation_split", "test_split",   "fewshot_split", "doc_to_text",      "doc_to_target",
    "doc_to_choice",    "description",  "gen_prefix",    "target_delimiter", "fewshot_delimiter",
    "fewshot_config",   "num_fewshot",  "metric_list",   "output_type",      "generation_kwargs",
    "repeats",          "filter_list",  "normalize_by",  "process_docs",     "process_results"};

struct KnownMetric {
  std::string_view name;
  OutputType type;
  Aggregation aggregation;
  bool higher_is_better;
};
constexpr std::array kMetrics = {
    KnownMetric{"acc", OutputType::kMultipleChoice, Aggregation::kMean, true},
    KnownMetric{"acc_norm", OutputType::kMultipleChoice, Aggregation::kMean, true},
    KnownMetric{"acc_bytes", OutputType::kMultipleChoice, Aggregation::kMean, true},
    KnownMetric{"acc_mutual_info", OutputType::kMultipleChoice, Aggregation::kMean, true},
    KnownMetric{"exact_match", OutputType::kMultipleChoice, Aggregation::kMean, true},
    KnownMetric{"f1", OutputType::kMultipleChoice, Aggregation::kF1, true},
    KnownMetric{"mcc", OutputType::kMultipleChoice, Aggregation::kMatthews, true},
    KnownMetric{"brier_score", OutputType::kMultipleChoice, Aggregation::kBrier, false},
    KnownMetric{"perplexity", OutputType::kLogLikelihood, Aggregation::kPerplexity, false},
    KnownMetric{"acc", OutputType::kLogLikelihood, Aggregation::kMean, true},
    KnownMetric{"word_perplexity", OutputType::kRolling, Aggregation::kWeightedPerplexity, false},
    KnownMetric{"byte_perplexity", OutputType::kRolling, Aggregation::kWeightedPerplexity, false},
    KnownMetric{"bits_per_byte", OutputType::kRolling, Aggregation::kBitsPerByte, false},
    KnownMetric{"exact_match", OutputType::kGenerate, Aggregation::kMean, true}};

/// What a task without metric_list counts.
std::vector<std::string> default_metrics(OutputType type) {
  if (type == OutputType::kMultipleChoice) return {"acc", "acc_norm"};
  if (type == OutputType::kLogLikelihood) return {"perplexity", "acc"};
  if (type == OutputType::kRolling) return {"word_perplexity", "byte_perplexity", "bits_per_byte"};
  return {"exact_match"};
}

const KnownMetric& known_metric(const KeyReader& keys, OutputType type, std::string_view name) {
  std::string known;
  for (const KnownMetric& metric : kMetrics) {
    if (metric.type != type) continue;
    if (metric.name == name) return metric;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", metric.name);
  }
  keys.fail(fmt::format("metric: {} is not supported with output_type: {}", name,
                        config::to_string(type)),
            "one of " + known);
}

/// Whether the values of a metric can be put together so.
bool fits(Aggregation own, Aggregation given) {
  const auto single = [](Aggregation a) {
    return a == Aggregation::kMean || a == Aggregation::kMedian || a == Aggregation::kPerplexity;
  };
  const auto weighted = [](Aggregation a) {
    return a == Aggregation::kWeightedPerplexity || a == Aggregation::kBitsPerByte;
  };
  return own == given || (single(own) && single(given)) || (weighted(own) && weighted(given));
}

MetricSpec metric_of(const Document& value, const std::string& where, OutputType type) {
  KeyReader keys(value, where + ": metric_list");
  const std::string name = keys.text("metric").value_or("");
  if (name.empty())
    keys.fail("an entry has no key metric", fmt::format("metric: {}", default_metrics(type)[0]));
  const KnownMetric& known = known_metric(keys, type, name);
  MetricSpec metric{.name = name, .aggregation = keys.one_of("aggregation", known.aggregation)};
  if (!fits(known.aggregation, metric.aggregation))
    keys.fail(fmt::format("aggregation: {} does not fit metric: {}",
                          config::to_string(metric.aggregation), name),
              fmt::format("aggregation: {}", config::to_string(known.aggregation)));
  metric.higher_is_better = keys.boolean("higher_is_better", known.higher_is_better);
  keys.refuse("hf_evaluate", "it loads code from the network", "a metric without hf_evaluate");
  if (type == OutputType::kGenerate) {
    metric.regexes_to_ignore = keys.texts("regexes_to_ignore");
    for (const std::string& pattern : metric.regexes_to_ignore)
      keys.check_regex("regexes_to_ignore", pattern);
    metric.ignore_case = keys.boolean("ignore_case", false);
    metric.ignore_punctuation = keys.boolean("ignore_punctuation", false);
    metric.ignore_numbers = keys.boolean("ignore_numbers", false);
  } else { // as in lm-eval, of texts only
    keys.ignore({"regexes_to_ignore", "ignore_case", "ignore_punctuation", "ignore_numbers"});
  }
  keys.finish();
  return metric;
}

/// mapping_dict and default_value. Numbers are compared as texts later.
void read_mapping(KeyReader& keys, FilterStep& step) {
  const auto text_of = [](const Document& value) {
    if (value.is_boolean()) return std::string(value.get<bool>() ? "True" : "False");
    return value.is_string() ? value.get<std::string>() : value.dump();
  };
  const Document mapping = keys.any("mapping_dict");
  if (!mapping.is_object())
    keys.fail(fmt::format("mapping_dict: {} is not a mapping", mapping.dump()),
              "mapping_dict: {A: \"0\", B: \"1\"}");
  for (const auto& [from, to] : mapping.items()) step.mapping[from] = text_of(to);
  if (const Document otherwise = keys.any("default_value"); !otherwise.is_null())
    step.default_value = text_of(otherwise);
}

/// Filters that choose among several answers to one question.
bool selects(std::string_view function) {
  return function == "take_first" || function == "take_first_k" || function == "majority_vote";
}

FilterStep step_of(const Document& value, const std::string& where) {
  KeyReader keys(value, where, "{function: take_first}");
  FilterStep step{.function = keys.text("function").value_or("")};
  constexpr std::array<std::string_view, 9> kKnown = {
      "regex", "multi_choice_regex", "take_first", "take_first_k",     "majority_vote",
      "map",   "lowercase",          "uppercase",  "remove_whitespace"};
  if (std::ranges::find(kKnown, step.function) == kKnown.end())
    keys.fail(fmt::format("function: {} is not supported", step.function),
              fmt::format("one of {}", fmt::join(kKnown, ", ")));
  if (step.function == "take_first_k" && keys.integer("k") != 1)
    keys.fail(fmt::format("take_first_k with k: {} is not supported: there is one answer to a "
                          "question",
                          keys.any("k").dump()),
              "k: 1");
  if (step.function == "map") read_mapping(keys, step);
  if (step.function == "multi_choice_regex") {
    step.ignore_case = keys.boolean("ignore_case", false);
    step.ignore_punctuation = keys.boolean("ignore_punctuation", false);
    step.regexes_to_ignore = keys.texts("regexes_to_ignore");
    for (const std::string& pattern : step.regexes_to_ignore)
      keys.check_regex("regexes_to_ignore", pattern);
  }
  if (step.function == "regex" || step.function == "multi_choice_regex") {
    step.regex_pattern = keys.text("regex_pattern").value_or(step.regex_pattern);
    keys.check_regex("regex_pattern", step.regex_pattern);
    step.group_select = keys.integer("group_select").value_or(0);
    step.fallback = keys.text("fallback").value_or(step.fallback);
  }
  keys.finish();
  return step;
}

FilterSpec filter_of(const Document& value, const std::string& where, OutputType type) {
  KeyReader keys(value, where + ": filter_list");
  FilterSpec filter{.name = keys.text("name").value_or("none"), .steps = {}};
  constexpr std::string_view kFirst = "filter: [{function: take_first}]";
  if (!keys.has("filter")) keys.fail("an entry has no key filter", kFirst);
  for (const Document& step : keys.maps("filter", kFirst))
    filter.steps.push_back(step_of(step, keys.where()));
  keys.finish();
  if (type == OutputType::kGenerate) return filter;
  // As in lm-eval: the answer is a likelihood, which take_first unwraps.
  for (const FilterStep& step : filter.steps)
    if (!selects(step.function))
      keys.fail(fmt::format("function: {} reads generated text, which output_type: {} does not "
                            "give",
                            step.function, config::to_string(type)),
                "function: take_first");
  const auto first = [](const FilterStep& step) { return step.function == "take_first"; };
  if (std::ranges::none_of(filter.steps, first))
    keys.fail(fmt::format("the filter {} does not take the first answer, which output_type: {} "
                          "needs",
                          filter.name, config::to_string(type)),
              kFirst);
  return filter;
}

void read_filters(KeyReader& keys, Task& task) {
  for (const Document& value : keys.maps("filter_list", kFilterList)) {
    FilterSpec filter = filter_of(value, keys.where(), task.output_type);
    for (const FilterSpec& other : task.filters)
      if (other.name == filter.name)
        keys.fail(fmt::format("filter_list: two filters have the name {}", filter.name),
                  fmt::format("name: {}_2 for one of them", filter.name));
    task.filters.push_back(std::move(filter));
  }
}

void read_metrics(KeyReader& keys, Task& task) {
  const std::string first = default_metrics(task.output_type)[0];
  const std::string remedy = fmt::format("metric_list: [{{metric: {}}}]", first);
  for (const Document& value : keys.maps("metric_list", remedy)) {
    MetricSpec metric = metric_of(value, keys.where(), task.output_type);
    if (task.has_metric(metric.name))
      keys.fail(fmt::format("metric_list: the metric {} is listed twice", metric.name),
                "only one of them");
    task.metrics.push_back(std::move(metric));
  }
  if (keys.has("metric_list") && task.metrics.empty()) keys.fail("metric_list is empty", remedy);
  if (task.metrics.empty())
    for (const std::string& name : default_metrics(task.output_type))
      task.metrics.push_back(metric_of({{"metric", name}}, keys.where(), task.output_type));
}

Generation generation_of(const Document& value, const std::string& where,
                         const std::string& fewshot_delimiter) {
  Generation generation{.until = {fewshot_delimiter}};
  if (value.is_null()) return generation;
  KeyReader keys(value, where + ": generation_kwargs", "generation_kwargs: {max_gen_toks: 256}");
  if (keys.has("until")) generation.until = keys.texts("until");
  std::erase(generation.until, "");
  std::optional<int64_t> most;
  for (const char* name : {"max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens"})
    if (const std::optional<int64_t> tokens = keys.integer(name); tokens && !most) most = tokens;
  generation.max_gen_toks = most.value_or(256);
  if (generation.max_gen_toks < 1)
    keys.fail(fmt::format("max_gen_toks: {} leaves no room for an answer", generation.max_gen_toks),
              "max_gen_toks: 256");
  constexpr std::string_view kGreedy = "answers to tasks are generated greedily";
  keys.refuse("do_sample", kGreedy, "do_sample: false");
  keys.ignore({"top_p", "top_k", "min_p", "typical_p"}); // of sampling
  if (const auto beams = keys.integer("num_beams"); beams && *beams != 1)
    keys.fail(fmt::format("num_beams: {} is not supported: {}", *beams, kGreedy), "num_beams: 1");
  const bool greedy = keys.any("do_sample") == false; // then lm-eval ignores the temperature
  if (const Document temperature = keys.any("temperature");
      !greedy && !temperature.is_null() && temperature != 0)
    keys.fail(fmt::format("temperature: {} is not supported: {}", temperature.dump(), kGreedy),
              "temperature: 0.0, or do_sample: false");
  keys.finish();
  return generation;
}

/// The files of a split.
std::vector<std::filesystem::path> paths_of(const KeyReader& keys, std::string_view key,
                                            std::string_view split, const Document& value) {
  std::vector<std::filesystem::path> paths;
  const std::string remedy = fmt::format("{}: {{{}: FILE}}", key, split);
  for (const Document& item : value.is_array() ? value : Document::array({value})) {
    if (!item.is_string() || item == "")
      keys.fail(fmt::format("{}: {} is not a path", key, item.dump()), remedy);
    const std::string path = item.get<std::string>();
    if (is_url(path))
      keys.fail(
          fmt::format("{}: {} is on the network, and pentatron does not download data", key, path),
          "the path of a downloaded file");
    paths.emplace_back(path);
  }
  if (paths.empty()) keys.fail(fmt::format("{}: {} names no file", key, split), remedy);
  return paths;
}

DataFormat format_of(KeyReader& task) {
  constexpr std::string_view kFormats =
      "dataset_path: json, csv or parquet, and dataset_kwargs: {data_files: {test: FILE.jsonl}}";
  const std::optional<std::string> path = task.text("dataset_path");
  if (!path) task.fail("dataset_path is missing", kFormats);
  if (*path == "json") return DataFormat::kJson;
  if (*path == "csv") return DataFormat::kCsv;
  if (*path == "parquet") return DataFormat::kParquet;
  task.fail(fmt::format("dataset_path: {} is not a file format, and pentatron does not download "
                        "data",
                        *path),
            kFormats);
}

DataFiles data_of(KeyReader& task) {
  constexpr std::string_view kFiles = "dataset_kwargs: {data_files: {test: FILE.jsonl}}";
  DataFiles data{.format = format_of(task)};
  const Document given = task.any("dataset_kwargs");
  if (given.is_null()) task.fail("dataset_kwargs, which names the data files, is missing", kFiles);
  KeyReader keys(given, task.where() + ": dataset_kwargs", kFiles);
  const Document files = keys.any("data_files"), labels = keys.any("label_files");
  if (data.format == DataFormat::kCsv) {
    data.column_names = keys.texts("column_names");
    data.delimiter = keys.text("delimiter").value_or(data.delimiter);
    data.cells_as_text = keys.boolean("cells_as_text", false);
    if (data.delimiter.size() != 1)
      keys.fail(fmt::format("delimiter: '{}' is not one character", data.delimiter),
                "delimiter: \",\"");
  }
  if (data.format == DataFormat::kJson) data.field = keys.text("field").value_or("");
  keys.ignore({"trust_remote_code", "data_dir"}); // the paths begin in data_dir already
  keys.finish();
  if (files.is_object()) {
    for (const auto& [split, value] : files.items())
      data.splits[split] = paths_of(keys, "data_files", split, value);
  } else if (!files.is_null()) {
    data.splits["train"] = paths_of(keys, "data_files", "train", files);
  }
  if (data.splits.empty()) keys.fail("data_files names no file", "data_files: {test: FILE.jsonl}");
  if (!labels.is_null() && !labels.is_object())
    keys.fail(fmt::format("label_files: {} does not name a split", labels.dump()),
              "label_files: {test: FILE}");
  if (labels.is_object())
    for (const auto& [split, value] : labels.items())
      data.labels[split] = paths_of(keys, "label_files", split, value)[0];
  return data;
}

void check_splits(const KeyReader& keys, const Task& task) {
  std::vector<std::string> known;
  for (const auto& [name, files] : task.data.splits) known.push_back(name);
  if (!task.test_split && !task.validation_split)
    keys.fail("test_split and validation_split are missing: there is nothing to evaluate",
              fmt::format("test_split: {}", known[0]));
  for (const auto& [key, split] :
       {std::pair{"training_split", task.training_split},
        std::pair{"validation_split", task.validation_split},
        std::pair{"test_split", task.test_split}, std::pair{"fewshot_split", task.fewshot.split}}) {
    if (!split || task.data.splits.contains(*split)) continue;
    keys.fail(fmt::format("{}: {} is not among the splits of data_files", key, *split),
              fmt::format("{}: {}", key, fmt::join(known, fmt::format(", or {}: ", key))));
  }
}

Fewshot fewshot_of(KeyReader& task, const Fields& fields) {
  Fewshot fewshot{.split = task.text("fewshot_split"), .samples = {}, .fields = fields};
  const Document given = task.any("fewshot_config");
  if (given.is_null()) return fewshot;
  KeyReader keys(given, task.where() + ": fewshot_config", "fewshot_config: {sampler: first_n}");
  const std::string sampler = keys.text("sampler").value_or("default");
  if (sampler != "first_n" && sampler != "default")
    keys.fail(fmt::format("sampler: {} is not supported", sampler), "sampler: first_n, or default");
  fewshot.first_n = sampler == "first_n";
  if (const auto split = keys.text("split")) fewshot.split = split;
  if (keys.has("samples")) {
    constexpr std::string_view kSamples = "samples: [{question: \"...\", answer: \"...\"}]";
    fewshot.samples = keys.maps("samples", kSamples);
    if (fewshot.samples.empty()) keys.fail("samples is an empty list", kSamples);
  }
  const Document indices = keys.any("fewshot_indices");
  for (const Document& index : indices.is_array() ? indices : Document::array({indices})) {
    if (indices.is_null()) break;
    if (!indices.is_array() || !index.is_number_integer() || index < 0)
      keys.fail(fmt::format("fewshot_indices: {} is not a list of numbers from 0",
                            excerpt(indices.dump())),
                "fewshot_indices: [0, 1]");
    fewshot.indices.push_back(index.get<size_t>());
  }
  keys.refuse("process_docs", kPython, "templates that do the same");
  const auto replace = [&](const char* key, Field& field) {
    if (keys.has(key)) field = keys.field(key);
  };
  replace("doc_to_text", fewshot.fields.text);
  replace("doc_to_choice", fewshot.fields.choice);
  replace("doc_to_target", fewshot.fields.target);
  replace("gen_prefix", fewshot.fields.prefix);
  if (const auto text = keys.text("target_delimiter")) fewshot.fields.target_delimiter = *text;
  if (const auto text = keys.text("fewshot_delimiter")) fewshot.fields.fewshot_delimiter = *text;
  keys.finish();
  return fewshot;
}

void refuse_code(KeyReader& keys) {
  constexpr std::string_view kTemplates = "templates that do the same";
  for (const char* key : {"process_docs", "process_results", "custom_dataset"})
    keys.refuse(key, kPython, kTemplates);
  keys.refuse("class", "it names a Python class", "a task of templates");
  keys.refuse("use_prompt", "it needs promptsource", "doc_to_text and doc_to_target");
  keys.refuse("unsafe_code", "tasks cannot run code", "unsafe_code: false");
  for (const char* key : {"doc_to_image", "doc_to_audio"})
    keys.refuse(key, "models only read text", "a task of text");
  if (const auto repeats = keys.integer("repeats"); repeats && *repeats != 1)
    keys.fail(fmt::format("repeats: {} is not supported: answers are generated greedily", *repeats),
              "repeats: 1");
}

void check_fields(const KeyReader& keys, const Task& task) {
  if (!task.fields.target.given())
    keys.fail("doc_to_target is missing", "doc_to_target: \"{{target}}\"");
  if (!task.fields.text.given()) keys.fail("doc_to_text is missing", "doc_to_text: \"{{text}}\"");
  if (task.output_type == OutputType::kMultipleChoice && !task.fields.choice.given())
    keys.fail("output_type: multiple_choice needs doc_to_choice",
              "doc_to_choice: [\"no\", \"yes\"]");
}

} // namespace

bool Task::has_metric(std::string_view metric) const {
  return std::ranges::any_of(metrics, [&](const MetricSpec& m) { return m.name == metric; });
}

Task parse_task(const Document& value, const std::filesystem::path& file) {
  KeyReader keys(value, file.string());
  Task task{.name = keys.text("task").value_or(file.stem().string()), .alias = {}, .file = file};
  task.alias = keys.text("task_alias").value_or(task.name);
  task.output_type = keys.one_of("output_type", OutputType::kGenerate);
  refuse_code(keys);
  task.data = data_of(keys);
  keys.ignore({"dataset_name", "tag", "metadata", "should_decontaminate",
               "doc_to_decontamination_query", "include"});
  task.training_split = keys.text("training_split");
  task.validation_split = keys.text("validation_split");
  task.test_split = keys.text("test_split");
  task.fields = {.text = keys.field("doc_to_text"),
                 .target = keys.field("doc_to_target"),
                 .choice = keys.field("doc_to_choice"),
                 .prefix = keys.field("gen_prefix")};
  if (const auto text = keys.text("target_delimiter")) task.fields.target_delimiter = *text;
  if (const auto text = keys.text("fewshot_delimiter")) task.fields.fewshot_delimiter = *text;
  if (const auto text = keys.text("description"); text && !text->empty())
    task.description = keys.field("description");
  task.normalize_by = keys.field("normalize_by");
  if (task.normalize_by.given() && task.output_type != OutputType::kRolling)
    keys.fail("normalize_by has no effect without output_type: loglikelihood_rolling",
              "remove normalize_by");
  task.fewshot = fewshot_of(keys, task.fields);
  task.num_fewshot = keys.integer("num_fewshot");
  if (task.num_fewshot.value_or(0) < 0)
    keys.fail(fmt::format("num_fewshot: {} is negative", *task.num_fewshot), "num_fewshot: 0");
  check_splits(keys, task);
  check_fields(keys, task);
  read_metrics(keys, task);
  read_filters(keys, task);
  const Document generation = keys.any("generation_kwargs");
  if (task.output_type == OutputType::kGenerate)
    task.generation = generation_of(generation, file.string(), task.fields.fewshot_delimiter);
  keys.finish();
  return task;
}

Group parse_group(const Document& value, const std::filesystem::path& file, Document& of_tasks) {
  Document keys_of_group = Document::object();
  for (const auto& [key, content] : value.items()) {
    const bool of_task = std::ranges::find(kTaskKeys, key) != std::end(kTaskKeys);
    (of_task ? of_tasks : keys_of_group)[key] = content;
  }
  KeyReader keys(keys_of_group, file.string());
  Group group{.name = keys.text("group").value_or(""), .alias = {}};
  group.alias = keys.text("group_alias").value_or(group.name);
  keys.ignore({"task", "metadata", "tag", "include"});
  if (Document& list = keys_of_group["aggregate_metric_list"]; list.is_object())
    list = Document::array({list});
  for (const Document& item :
       keys.maps("aggregate_metric_list", "aggregate_metric_list: [{metric: acc}]")) {
    KeyReader metric(item, keys.where() + ": aggregate_metric_list");
    const std::string name = metric.text("metric").value_or("acc");
    if (const auto how = metric.text("aggregation"); how && *how != "mean")
      metric.fail(fmt::format("aggregation: {} is not supported for groups", *how),
                  "aggregation: mean");
    const bool weighted = metric.boolean("weight_by_size", true);
    std::vector<std::string> filters = metric.texts("filter_list");
    if (filters.empty()) filters = {""};
    for (const std::string& filter : filters)
      group.metrics.push_back({.metric = name, .filter = filter, .weight_by_size = weighted});
    metric.finish();
  }
  keys.finish();
  return group;
}

bool is_url(std::string_view path) {
  return path.find("://") != std::string_view::npos;
}

} // namespace pentatron::evaluation
