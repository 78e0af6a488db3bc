#include "pentatron/evaluation/tasks/scores.h"

#include <algorithm>
#include <cmath>
#include <set>

#include <fmt/ranges.h>

#include "pentatron/base/error.h"
#include "pentatron/base/log.h"
#include "pentatron/base/nearest.h"
#include "pentatron/base/text.h"
#include "pentatron/base/white_space.h"
#include "pentatron/data/regex.h"
#include "pentatron/data/tokenizer/unicode.h"
#include "pentatron/evaluation/tasks/requests.h"

namespace pentatron::evaluation {

namespace {

constexpr std::string_view kPunctuation = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~";
constexpr std::string_view kDigits = "0123456789";
constexpr int64_t kNoChoice = -100; ///< a label that is none of the choices

using Values = std::map<std::string, MetricValue>; ///< of a document, by metric

int64_t characters(std::string_view text) {
  return std::ranges::count_if(
      text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

/// The place of the first largest value.
int64_t best(const std::vector<double>& values) {
  return std::ranges::max_element(values) - values.begin();
}

/// The number of a label; kNoChoice if it is none of the choices.
int64_t choice_number(const Document& label, const std::vector<std::string>& choices) {
  if (label.is_string()) {
    const auto found = std::ranges::find(choices, label.get<std::string>());
    return found == choices.end() ? kNoChoice : found - choices.begin();
  }
  int64_t number = kNoChoice;
  if (label.is_boolean()) number = label.get<bool>() ? 1 : 0;
  if (label.is_number_integer()) number = label.get<int64_t>();
  return number < static_cast<int64_t>(choices.size()) ? number : kNoChoice;
}

/// The square of the distance between the choices' probabilities and the label's, and the number of
/// choices.
MetricValue brier_score(const std::vector<int64_t>& labels,
                        const std::vector<double>& likelihoods) {
  if (labels.size() != 1 || labels[0] < 0)
    raise<DataError>("metric: brier_score needs one label, but doc_to_target gives {}\n  try: "
                     "metric: acc",
                     labels.size() == 1 ? "none of the choices" : "several");
  const double most = std::ranges::max(likelihoods);
  double total = 0, sum = 0;
  for (const double l : likelihoods) total += std::exp(l - most);
  for (size_t i = 0; i < likelihoods.size(); ++i) {
    const double right = static_cast<int64_t>(i) == labels[0] ? 1 : 0;
    const double off = std::exp(likelihoods[i] - most) / total - right;
    sum += off * off;
  }
  return {.value = sum, .second = static_cast<double>(likelihoods.size())};
}

Values choice_values(const Item& item, const std::vector<Answer>& answers, bool wants_brier) {
  const size_t n = item.choices.size();
  std::vector<double> likelihoods, by_characters, by_bytes, gain;
  for (size_t i = 0; i < n; ++i) {
    const double l = answers[i].loglikelihood;
    likelihoods.push_back(l);
    by_characters.push_back(l / static_cast<double>(characters(item.choices[i])));
    by_bytes.push_back(l / static_cast<double>(item.choices[i].size()));
    if (answers.size() == 2 * n) gain.push_back(l - answers[n + i].loglikelihood);
  }
  std::vector<int64_t> labels;
  for (const Document& label :
       item.target.is_array() ? item.target : Document::array({item.target}))
    labels.push_back(choice_number(label, item.choices));
  const auto right = [&](int64_t predicted) -> MetricValue {
    return {.value = std::ranges::find(labels, predicted) != labels.end() ? 1.0 : 0.0};
  };
  const bool exact = std::ranges::any_of(labels, [&](int64_t label) {
    return label >= 0 && answers[static_cast<size_t>(label)].greedy;
  });
  const MetricValue pair{.value = static_cast<double>(labels.empty() ? kNoChoice : labels[0]),
                         .second = static_cast<double>(best(likelihoods))};
  Values values = {{"acc", right(best(likelihoods))},
                   {"acc_norm", right(best(by_characters))},
                   {"acc_bytes", right(best(by_bytes))},
                   {"exact_match", {.value = exact ? 1.0 : 0.0}},
                   {"f1", pair},
                   {"mcc", pair}};
  if (wants_brier) values["brier_score"] = brier_score(labels, likelihoods);
  if (!gain.empty()) values["acc_mutual_info"] = right(best(gain));
  return values;
}

std::string plain(std::string text, const MetricSpec& metric,
                  const std::vector<data::Regex>& ignored) {
  for (const data::Regex& regex : ignored) text = regex.replace(text, "");
  if (metric.ignore_case) text = data::tokenizer::to_lower(text);
  const auto drop = [&](std::string_view set) {
    std::erase_if(text, [&](char c) { return set.find(c) != std::string_view::npos; });
  };
  if (metric.ignore_punctuation) drop(kPunctuation);
  if (metric.ignore_numbers) drop(kDigits);
  return text;
}

/// The texts that count as right.
std::vector<std::string> right_texts(const Item& item) {
  const auto text_of = [&](const Document& target) {
    if (!item.choices.empty()) {
      const int64_t number = choice_number(target, item.choices);
      if (number < 0)
        raise<DataError>("doc_to_target gives {}, which is not one of the {} choices\n  try: the "
                         "text of a choice, or its number from 0 to {}",
                         target.dump(), item.choices.size(), item.choices.size() - 1);
      return item.choices[static_cast<size_t>(number)];
    }
    return to_text(target);
  };
  std::vector<std::string> texts;
  for (const Document& target :
       item.target.is_array() ? item.target : Document::array({item.target}))
    texts.push_back(text_of(target));
  return texts;
}

/// exact_match of each metric of a task, which differ in what they ignore.
class TextComparison {
 public:
  explicit TextComparison(const Task& task) : task_(task) {
    for (const MetricSpec& metric : task.metrics) {
      ignored_.emplace_back();
      for (const std::string& pattern : metric.regexes_to_ignore)
        ignored_.back().emplace_back(pattern);
    }
  }
  Values values(const Item& item, const std::string& text) const {
    Values values;
    for (size_t i = 0; i < task_.metrics.size(); ++i) {
      const MetricSpec& metric = task_.metrics[i];
      const std::string said = plain(text, metric, ignored_[i]);
      const bool same = std::ranges::any_of(right_texts(item), [&](const std::string& right) {
        return plain(right, metric, ignored_[i]) == said;
      });
      values[metric.name] = {.value = same ? 1.0 : 0.0};
    }
    return values;
  }

 private:
  const Task& task_;
  std::vector<std::vector<data::Regex>> ignored_; ///< by metric
};

Values rolling_values(const Item& item, double loglikelihood) {
  const auto words = static_cast<double>(item.words), bytes = static_cast<double>(item.bytes);
  return {{"word_perplexity", {loglikelihood, words}},
          {"byte_perplexity", {loglikelihood, bytes}},
          {"bits_per_byte", {loglikelihood, bytes}}};
}

/// What a document's line in the results says beside its metrics.
Document described(const Task& task, const Item& item, const std::vector<Answer>& answers) {
  Document line = Document::object();
  if (task.output_type == OutputType::kMultipleChoice) {
    line = {{"loglikelihood", Document::array()},
            {"greedy", Document::array()},
            {"continuation_ids", Document::array()}};
    for (const Answer& answer : answers) {
      line["loglikelihood"].push_back(answer.loglikelihood);
      line["greedy"].push_back(answer.greedy);
      line["continuation_ids"].push_back(answer.tokens);
    }
    line["target"] = item.target;
    return line;
  }
  const Answer& answer = answers[0];
  if (task.output_type == OutputType::kGenerate) {
    line["text"] = answer.text;
    line["target"] = item.target;
    return line;
  }
  line["loglikelihood"] = answer.loglikelihood;
  if (task.output_type == OutputType::kLogLikelihood) {
    line["greedy"] = answer.greedy;
    line["continuation_ids"] = answer.tokens;
  } else {
    line["ids"] = answer.tokens;
    line["words"] = item.words;
    line["bytes"] = item.bytes;
  }
  return line;
}

void add_metrics(const Task& task, const Values& values, const std::string& suffix,
                 Document& line) {
  for (const MetricSpec& metric : task.metrics) {
    const bool pair = metric.name == "f1" || metric.name == "mcc";
    if (task.output_type == OutputType::kRolling) continue;
    const MetricValue& v = values.at(metric.name);
    line[metric.name + suffix] = pair ? Document::array({v.value, v.second}) : Document(v.value);
  }
}

std::string suffix_of(const std::string& filter) {
  return filter == "none" ? "" : "," + filter;
}

} // namespace

std::string Score::name() const {
  return metric + suffix_of(filter);
}
std::string Score::stderr_name() const {
  return metric + "_stderr" + suffix_of(filter);
}

namespace {

/// Like scikit-learn, which lm-eval asks: there is no F1 of more than two classes, nor one of two
/// without class 1.
void check_classes(const Task& task, const std::set<int64_t>& classes) {
  if (classes.size() <= 1 || (classes.size() == 2 && classes.contains(1))) return;
  raise<DataError>("task {}: metric: f1 is for the classes 0 and 1, but labels and predictions are "
                   "{}\n  try: metric: acc, or metric: mcc",
                   task.name, fmt::join(classes, ", "));
}

double combined(const Task& task, const MetricSpec& metric,
                const std::vector<MetricValue>& values) {
  if (metric.aggregation == Aggregation::kF1) {
    std::set<int64_t> classes;
    for (const MetricValue& v : values)
      for (const double one : {v.value, v.second}) classes.insert(static_cast<int64_t>(one));
    check_classes(task, classes);
  }
  if (metric.aggregation == Aggregation::kBrier &&
      std::ranges::any_of(values,
                          [&](const MetricValue& v) { return v.second != values[0].second; }))
    raise<DataError>("task {}: metric: brier_score needs as many choices in every document\n  try: "
                     "metric: acc",
                     task.name);
  return aggregate(metric.aggregation, values);
}

} // namespace

TaskScores score_items(const Task& task, const std::vector<Item>& items,
                       const std::vector<std::vector<Answer>>& answers, int64_t bootstrap_iters) {
  TaskScores result{.task = task.name,
                    .alias = task.alias,
                    .samples = static_cast<int64_t>(items.size()),
                    .scores = {}};
  std::vector<FilterSpec> filters = task.filters;
  if (filters.empty()) filters.emplace_back();
  std::map<std::pair<std::string, std::string>, std::vector<MetricValue>> all;
  const TextComparison comparison(task);
  for (size_t i = 0; i < items.size(); ++i) {
    Document line = described(task, items[i], answers[i]);
    for (const FilterSpec& filter : filters) {
      Values values;
      if (task.output_type == OutputType::kMultipleChoice) {
        values = choice_values(items[i], answers[i], task.has_metric("brier_score"));
      } else if (task.output_type == OutputType::kRolling) {
        values = rolling_values(items[i], answers[i][0].loglikelihood);
      } else if (task.output_type == OutputType::kLogLikelihood) {
        values = {{"perplexity", {answers[i][0].loglikelihood}},
                  {"acc", {answers[i][0].greedy ? 1.0 : 0.0}}};
      } else {
        const std::string text = filtered(filter, answers[i][0].text, items[i].document);
        if (filter.name != "none") line["filtered," + filter.name] = text;
        values = comparison.values(items[i], text);
      }
      for (const MetricSpec& metric : task.metrics)
        all[{metric.name, filter.name}].push_back(values.at(metric.name));
      add_metrics(task, values, suffix_of(filter.name), line);
    }
    result.items.push_back(std::move(line));
  }
  for (const FilterSpec& filter : filters) {
    for (const MetricSpec& metric : task.metrics) {
      const std::vector<MetricValue>& values = all[{metric.name, filter.name}];
      result.scores.push_back(
          {.metric = metric.name,
           .filter = filter.name,
           .value = combined(task, metric, values),
           .stderr_ = standard_error(metric.aggregation, values, bootstrap_iters),
           .higher_is_better = metric.higher_is_better});
    }
  }
  return result;
}

void check_targets(const Task& task, const std::vector<Item>& items) {
  if (task.output_type != OutputType::kMultipleChoice || items.empty()) return;
  const auto has_target = [](const Item& item) {
    const Document targets = item.target.is_array() ? item.target : Document::array({item.target});
    return std::ranges::any_of(
        targets, [&](const Document& target) { return choice_number(target, item.choices) >= 0; });
  };
  if (task.has_metric("f1")) {
    std::set<int64_t> classes;
    for (const Item& item : items)
      if (!item.target.is_array()) classes.insert(choice_number(item.target, item.choices));
    if (classes.size() > 2) check_classes(task, classes);
  }
  for (size_t i = 0; i < items.size(); ++i)
    if (items[i].target.is_null())
      raise<DataError>("document {} of task {}: doc_to_target gives null\n  try: documents that "
                       "each have a target",
                       i, task.name);
  if (std::ranges::any_of(items, has_target)) return;
  const Item& first = items[0];
  const std::optional<std::string> word = task.fields.target.word();
  std::vector<std::string> columns;
  for (const auto& [name, value] : first.document.items()) columns.push_back(name);
  if (word && !first.document.contains(*word)) {
    const std::string near = nearest(*word, columns);
    raise<DataError>("task {}: doc_to_target: {} is neither a column nor a choice\n  try: "
                     "doc_to_target: {}",
                     task.name, *word,
                     near.empty() ? fmt::format("one of {}", fmt::join(columns, ", ")) : near);
  }
  raise<DataError>("task {}: the target of the first document is {}, and no document has a target "
                   "that is one of its choices\n  try: the text of a choice, or its number from 0 "
                   "to {}",
                   task.name, excerpt(first.target.dump()), first.choices.size() - 1);
}

namespace {

/// The metrics of a group; one without a filter stands for each filter of its tasks.
std::vector<GroupMetric> metrics_of(const Group& group,
                                    const std::vector<const TaskScores*>& tasks) {
  std::vector<GroupMetric> all;
  for (const GroupMetric& metric : group.metrics) {
    std::vector<std::string> filters;
    for (const TaskScores* task : tasks)
      for (const Score& score : task->scores)
        if (score.metric == metric.metric &&
            (metric.filter.empty() || metric.filter == score.filter) &&
            std::ranges::find(filters, score.filter) == filters.end())
          filters.push_back(score.filter);
    if (filters.empty())
      log::shared_warning("group {}: none of its tasks has {}{}{}", group.name, metric.metric,
                          metric.filter.empty() ? "" : " with the filter ", metric.filter);
    for (const std::string& filter : filters) {
      all.push_back(metric);
      all.back().filter = filter;
    }
  }
  return all;
}

} // namespace

std::vector<TaskScores> score_groups(const std::vector<Group>& groups,
                                     const std::vector<TaskScores>& tasks) {
  std::map<std::string, std::vector<const TaskScores*>> leaves; // of tasks and groups
  for (const TaskScores& task : tasks) leaves[task.task] = {&task};
  std::vector<TaskScores> results;
  for (const Group& group : groups) {
    std::vector<const TaskScores*>& own = leaves[group.name];
    for (const std::string& member : group.members)
      own.insert(own.end(), leaves[member].begin(), leaves[member].end());
    TaskScores result{.task = group.name, .alias = group.alias, .scores = {}, .is_group = true};
    for (const TaskScores* task : own) result.samples += task->samples;
    for (const GroupMetric& metric : metrics_of(group, own)) {
      double sum = 0, weights = 0, pooled = 0, plain = 0, samples = 0, count = 0;
      bool known = true, higher = true;
      for (const TaskScores* task : own) {
        const auto found = std::ranges::find_if(task->scores, [&](const Score& s) {
          return s.metric == metric.metric && s.filter == metric.filter;
        });
        if (found == task->scores.end()) continue;
        const auto n = static_cast<double>(task->samples);
        const double weight = metric.weight_by_size ? n : 1;
        ++count;
        higher = found->higher_is_better;
        sum += weight * found->value;
        weights += weight;
        samples += n;
        known = known && found->stderr_.has_value();
        const double error = found->stderr_.value_or(0);
        pooled += (n - 1) * error * error * n;
        plain += error * error;
      }
      if (count == 0) continue;
      const double error = metric.weight_by_size ? std::sqrt(pooled / (samples - count) / samples)
                                                 : std::sqrt(plain) / count;
      result.scores.push_back(
          {.metric = metric.metric,
           .filter = metric.filter,
           .value = sum / weights,
           .stderr_ = known && std::isfinite(error) ? std::optional(error) : std::nullopt,
           .higher_is_better = higher});
    }
    results.push_back(std::move(result));
  }
  return results;
}

} // namespace pentatron::evaluation
