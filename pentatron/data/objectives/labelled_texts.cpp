#include "pentatron/data/objectives/labelled_texts.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <set>

#include <fmt/ranges.h>

#include "pentatron/base/error.h"
#include "pentatron/base/json.h"
#include "pentatron/data/document_reader.h"
#include "pentatron/data/json_line.h"
#include "pentatron/data/parallel_files.h"

namespace pentatron::data {

namespace {

constexpr int64_t kMostClasses = 1 << 30;

/// What files should have.
std::string json_lines(const DatasetConfig& config) {
  return fmt::format("JSON Lines ({{\"{}\": \"...\", \"{}\": 0}} on each line)", config.text_key,
                     config.label_key);
}

} // namespace

/// Reads one file.
class LabelledTexts::Reader {
 public:
  Reader(const DatasetConfig& config, const Options& options, ReadingProgress& progress, File& out)
      : config_(config), options_(options), progress_(progress), out_(out) {}

  void read(const InputFile& file) {
    if (file.format == FileFormat::kText) {
      raise<DataError>("{}{}{} is a text file, but dataset.type=classification reads JSON objects\n"
                       "  try: {} in a file that ends in .jsonl",
                       options_.option, options_.option.starts_with("--") ? " " : "=",
                       file.path.string(), json_lines(config_));
    }
    out_.report = InputReport(config_.on_bad_input);
    all_texts_ = file.format == FileFormat::kTsv;
    read_records(file,
                 {.keys = {config_.text_key},
                  .more = {config_.text_pair_key, config_.label_key},
                  .max_line_bytes = config_.max_line_bytes,
                  .on_read = [this](int64_t disk_bytes) { progress_.add(disk_bytes); }},
                 out_.report, [this](std::string_view record, const RecordPlace& place) {
                   take(record, place);
                 });
    out_.report.tokens = out_.tokens.size();
    out_.tokens.shrink_to_fit();
    out_.types.shrink_to_fit();
  }

 private:
  void take(std::string_view record, const RecordPlace& place) {
    if (std::optional<NoText> none = read_text(record, config_.text_key, text_)) {
      SkippedInput input = place.input(std::move(none->reason), std::move(none->key));
      input.remedy = example();
      return out_.report.bad(none->kind, std::move(input));
    }
    Json json;
    try {
      json = parse_json(record, "the object");
    } catch (const DataError& error) {
      return out_.report.bad(BadInput::kBadJson,
                             place.input(fmt::format("cannot be read: {}", error.what())));
    }
    const auto second = json.find(config_.text_pair_key);
    const bool is_pair = second != json.end() && !second->is_null();
    if (is_pair && !second->is_string())
      return out_.report.bad(
          BadInput::kMissingKey,
          place.input(fmt::format("has no string under the key \"{}\"", config_.text_pair_key)));
    const auto label = json.find(config_.label_key);
    if (label == json.end()) return without_label(record, json, place);
    if (all_texts_) *label = number_of(*label);
    if (!label->is_number() && !label->is_string()) {
      SkippedInput input = place.input(
          fmt::format("has neither a number nor a string under the key \"{}\"", config_.label_key));
      input.remedy =
          fmt::format("\"{0}\": 0, or \"{0}\": \"the name of a class\"", config_.label_key);
      return out_.report.bad(BadInput::kMissingKey, std::move(input));
    }
    const double number =
        label->is_string() ? named(label->get<std::string>(), place) : numbered(*label, place);
    std::optional<std::string_view> pair;
    if (is_pair) pair = second->get_ref<const std::string&>();
    add(pair, number, place);
  }

  /// Of a cell: the number that it is, unless it is the name of a class.
  Json number_of(const Json& cell) const {
    const auto text = cell.get<std::string>();
    const std::vector<std::string>& known = options_.class_names;
    if (std::ranges::find(known, text) != known.end()) return cell;
    double number = 0;
    const char* const end = text.data() + text.size();
    const auto [read_to, error] = std::from_chars(text.data(), end, number);
    if (error != std::errc() || read_to != end || !std::isfinite(number)) return cell;
    return number == std::floor(number) && std::fabs(number) < kMostClasses
               ? Json(static_cast<int64_t>(number))
               : Json(number);
  }

  /// What a sample looks like, for a `try:`.
  std::string example() const {
    return fmt::format("objects like {{\"{}\": \"...\", \"{}\": 0}}", config_.text_key,
                       config_.label_key);
  }

  void without_label(std::string_view record, const Json& json, const RecordPlace& place) {
    SkippedInput input = place.input(missing_key_text(object_keys(record), config_.label_key));
    input.option = "label_key";
    input.remedy = example();
    for (const auto& [key, value] : json.items()) {
      const bool other = key != config_.text_key && key != config_.text_pair_key;
      if (other && (value.is_number() || value.is_string()) && input.key.empty()) input.key = key;
    }
    out_.report.bad(BadInput::kMissingKey, std::move(input));
  }

  void add(std::optional<std::string_view> pair, double label, const RecordPlace& place) {
    EncodedPair encoded;
    try {
      encoded = options_.encode(text_, pair);
    } catch (const DataError& error) {
      raise<DataError>("{}: {}", place.to_string(), error.what());
    }
    out_.tokens.append(encoded.tokens);
    out_.types.append(encoded.types);
    out_.begins.push_back(out_.tokens.size());
    out_.labels.push_back(label);
    ++out_.report.documents;
    out_.report.text_bytes += std::ssize(text_) + (pair ? std::ssize(*pair) : 0);
  }

  /// "a.jsonl: line 3 has label=5".
  std::string said(const RecordPlace& place, const Json& label) const {
    return fmt::format("{} has {}={}", place.to_string(), config_.label_key, dump_json(label));
  }

  std::string classes_text() const {
    return options_.num_classes == 0 ? "0 and more"
                                     : fmt::format("0 to {}", options_.num_classes - 1);
  }

  double numbered(const Json& label, const RecordPlace& place) {
    const auto value = label.get<double>();
    if (options_.label_type == FieldType::kFloat64) return value;
    if (value != std::floor(value)) {
      raise<DataError>("{}, which is a fraction, but the model predicts a class\n  try: the number "
                       "({}) or the name of a class under \"{}\", or model.head=regression",
                       said(place, label), classes_text(), config_.label_key);
    }
    if (!options_.names_from.empty()) {
      raise<DataError>(
          "{}, but the labels of {} are names: {}\n  try: only names, or only numbers, in all "
          "files",
          said(place, label), options_.names_from, fmt::join(options_.class_names, ", "));
    }
    const auto most =
        static_cast<double>(options_.num_classes == 0 ? kMostClasses : options_.num_classes);
    if (value < 0 || value >= most)
      raise<DataError>("{}, but the classes of the model are {}\n  try: labels from {}{}",
                       said(place, label), classes_text(), classes_text(),
                       value < 0 || options_.num_classes == 0
                           ? ""
                           : fmt::format(", or a new head with model.num_labels={} and "
                                         "checkpoint.strictness=log_all",
                                         value + 1));
    if (out_.first_number.empty()) out_.first_number = said(place, label);
    return value;
  }

  double named(const std::string& name, const RecordPlace& place) {
    if (options_.label_type == FieldType::kFloat64)
      raise<DataError>("{}, which is a string, but the model predicts a number\n  try: numbers "
                       "under \"{}\", or model.head=classification",
                       said(place, name), config_.label_key);
    if (const std::vector<std::string>& known = options_.class_names; !known.empty()) {
      const auto found = std::ranges::find(known, name);
      if (found == known.end()) refuse_name(name, place);
      return static_cast<double>(found - known.begin());
    }
    if (out_.first_name.empty()) out_.first_name = said(place, name);
    const auto [entry, is_new] = numbers_.try_emplace(name, out_.names.size());
    if (is_new) out_.names.push_back(name);
    return static_cast<double>(entry->second);
  }

  /// A class more, where the model has one that has no name yet.
  [[noreturn]] void refuse_name(const std::string& name, const RecordPlace& place) const {
    const std::vector<std::string>& known = options_.class_names;
    const bool room = options_.num_classes == 0 || std::ssize(known) < options_.num_classes;
    raise<DataError>(
        "{}, which is not one of the classes of {}: {}\n  try: {}", said(place, name),
        options_.names_from.empty() ? "the model" : options_.names_from, fmt::join(known, ", "),
        room ? fmt::format("model.label_names=[{},{}]", fmt::join(known, ","), name)
             : fmt::format("data without this label, or a new head with model.num_labels={} and "
                           "checkpoint.strictness=log_all",
                           known.size() + 1));
  }

  const DatasetConfig& config_;
  const Options& options_;
  ReadingProgress& progress_;
  File& out_;
  bool all_texts_ = false; ///< labels of numbers too
  std::string text_;
  std::map<std::string, size_t> numbers_; // of out_.names
};

LabelledTexts::LabelledTexts(const std::vector<std::string>& paths, const DatasetConfig& config,
                             const Options& options)
    : class_names_(options.class_names) {
  const InputFiles input = find_input_files(paths, options.option);
  for (const InputFile& file : input.files) {
    files_.push_back(file.path);
    read_.emplace_back(options.vocab_size);
  }
  ReadingProgress progress("reading labelled texts", input.files, options.reading);
  for_each_file(read_.size(), config.num_workers, [&](size_t i) {
    Reader(config, options, progress, read_[i]).read(input.files[i]);
  });
  report_ = InputReport(config.on_bad_input);
  report_.ignored_files = input.ignored;
  for (const File& file : read_) {
    report_.merge(file.report);
    file_begins_.push_back(file_begins_.back() + std::ssize(file.labels));
  }
  if (size() == 0)
    throw no_documents(report_, fmt::format("{}={}", options.option, fmt::join(paths, ",")),
                       json_lines(config));
  name_classes(options);
}

/// Numbers the names of all files by their order.
void LabelledTexts::name_classes(const Options& options) {
  if (!class_names_.empty()) return;
  std::string first_number, first_name;
  std::set<std::string> all;
  for (const File& file : read_) {
    if (first_number.empty()) first_number = file.first_number;
    if (first_name.empty()) first_name = file.first_name;
    all.insert(file.names.begin(), file.names.end());
  }
  if (!first_number.empty() && !first_name.empty())
    raise<DataError>(
        "{}, but {}: labels are either all numbers or all names\n  try: only names, or "
        "only numbers, in all files",
        first_number, first_name);
  class_names_.assign(all.begin(), all.end());
  if (options.num_classes > 0 && std::ssize(class_names_) > options.num_classes)
    raise<DataError>("{} has the labels {}, which are {}, but the model has {} classes\n  try: "
                     "model.num_labels={}",
                     options.option, fmt::join(class_names_, ", "), class_names_.size(),
                     options.num_classes, class_names_.size());
  for (File& file : read_) {
    if (file.names.empty()) continue;
    for (double& label : file.labels) {
      const std::string& name = file.names[static_cast<size_t>(label)];
      label =
          static_cast<double>(std::ranges::lower_bound(class_names_, name) - class_names_.begin());
    }
  }
}

LabelledTexts::Place LabelledTexts::find(int64_t i) const {
  PT_DCHECK(i >= 0 && i < size());
  const auto after = std::ranges::upper_bound(file_begins_, i);
  const auto file = static_cast<size_t>(after - file_begins_.begin()) - 1;
  return {&read_[file], static_cast<size_t>(i - file_begins_[file])};
}

int64_t LabelledTexts::length(int64_t i) const {
  const auto [file, sample] = find(i);
  return file->begins[sample + 1] - file->begins[sample];
}

void LabelledTexts::copy(int64_t i, int64_t* tokens, int64_t* types) const {
  const auto [file, sample] = find(i);
  const int64_t begin = file->begins[sample], count = file->begins[sample + 1] - begin;
  file->tokens.copy(begin, count, tokens);
  file->types.copy(begin, count, types);
}

double LabelledTexts::label(int64_t i) const {
  const auto [file, sample] = find(i);
  return file->labels[sample];
}

int64_t LabelledTexts::num_tokens(int64_t begin, int64_t end) const {
  int64_t tokens = 0;
  for (size_t f = 0; f < read_.size(); ++f) {
    const std::vector<int64_t>& begins = read_[f].begins;
    const auto place = [&](int64_t i) {
      const int64_t sample = std::clamp<int64_t>(i - file_begins_[f], 0, std::ssize(begins) - 1);
      return begins[static_cast<size_t>(sample)];
    };
    tokens += place(end) - place(begin);
  }
  return tokens;
}

} // namespace pentatron::data
