#include "pentatron/evaluation/tasks/requests.h"

#include <fmt/ranges.h>

#include "pentatron/base/error.h"
#include "pentatron/base/log.h"
#include "pentatron/base/nearest.h"
#include "pentatron/base/text.h"
#include "pentatron/base/white_space.h"
#include "pentatron/evaluation/tasks/python_random.h"

namespace pentatron::evaluation {

std::string to_text(const Document& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_boolean()) return value.get<bool>() ? "True" : "False";
  return value.is_null() ? "None" : value.dump();
}

namespace {

bool ends_in_space(std::string_view text) {
  return without_trailing_space(text).size() < text.size();
}
bool begins_with_space(std::string_view text) {
  return without_leading_space(text).size() < text.size();
}

bool is_number(const Document& value) {
  return value.is_number_integer() || value.is_boolean();
}

int64_t number_of(const Document& value) {
  return value.is_boolean() ? (value.get<bool>() ? 1 : 0) : value.get<int64_t>();
}

/// With a space between, unless there is white space already.
std::string delimited(const std::string& prefix, const std::string& suffix,
                      const std::string& delimiter) {
  if (prefix.empty() || suffix.empty()) return prefix + suffix;
  const bool blank = ends_in_space(prefix) || begins_with_space(suffix);
  return prefix + (blank ? "" : delimiter) + suffix;
}

std::string prefix_of(const Fields& fields, const Document& document) {
  return fields.prefix.given() ? to_text(fields.prefix.text(document, false)) : "";
}

std::vector<std::string> columns_of(const Document& document) {
  std::vector<std::string> names;
  for (const auto& [name, value] : document.items()) names.push_back(name);
  return names;
}

/// What a model can read: as in lm-eval, neither nothing nor a list.
std::string text_of(std::string_view key, const Field& field, const Document& value) {
  if (!value.is_null() && !value.is_structured()) return to_text(value);
  const std::string example = fmt::format("{{{{{} {}}}}}", field.word().value_or("column"),
                                          value.is_null() ? "or ''" : "| join(' ')");
  raise<DataError>(
      "{} gives {}, which is not a text\n  try: {}: a template that gives a text, such "
      "as \"{}\"",
      key, excerpt(value.dump()), key, example);
}

/// A name that is no column is a text, the same for every document: hardly what was meant.
void check_words(const Task& task, const Document& document) {
  std::vector<std::pair<const char*, const Field*>> fields = {{"doc_to_text", &task.fields.text}};
  if (task.output_type != OutputType::kMultipleChoice)
    fields.emplace_back("doc_to_target", &task.fields.target);
  for (const auto& [key, field] : fields) {
    const std::optional<std::string> word = field->word();
    if (!word || document.contains(*word)) continue;
    const std::vector<std::string> columns = columns_of(document);
    const std::string near = nearest(*word, columns);
    log::shared_warning(
        "task {}: {}: {} is not a column, so it is the same text for every document\n  "
        "try: {}: {}",
        task.name, key, *word, key,
        near.empty() ? fmt::format("one of {}", fmt::join(columns, ", ")) : near);
  }
}

class ItemMaker {
 public:
  /// `first`: a document of the task, with all columns.
  ItemMaker(const Task& task, const RequestOptions& options, const Document& first)
      : task_(task), shots_(shown_examples(task, options)), random_(options.seed),
        numbers_(task.fields.choice.given()), first_(first) {
    if (shots_ > 0) examples_ = read_examples();
  }

  Item make(const Document& document) {
    Item item{.document = document, .requests = {}, .choices = {}, .target = {}};
    const Fields& fields = task_.fields;
    if (numbers_) item.choices = fields.choice.choices(document);
    const Document text = fields.text.text(document, numbers_);
    item.target = fields.target.target(document, numbers_);
    if (task_.output_type == OutputType::kRolling) {
      item.requests.push_back(
          {.kind = Request::Kind::kRolling,
           .context = {},
           .continuation = text_of("doc_to_target", fields.target, item.target)});
      measure(item);
      return item;
    }
    const bool several = numbers_ && is_number(text); // each choice is a context
    const std::string shown =
        several ? before(document)
                : before(document) + question(document, text_of("doc_to_text", fields.text, text),
                                              fields.target_delimiter);
    if (task_.output_type == OutputType::kGenerate) {
      item.requests.push_back(
          {.kind = Request::Kind::kGenerate, .context = shown, .continuation = {}});
    } else if (task_.output_type == OutputType::kLogLikelihood) {
      item.requests.push_back(
          {.context = shown, .continuation = text_of("doc_to_target", fields.target, item.target)});
    } else {
      add_choices(item, shown, several);
      if (several) item.target = number_of(text);
    }
    return item;
  }

 private:
  void measure(Item& item) const {
    const std::string text = task_.normalize_by.given()
                                 ? to_text(task_.normalize_by.text(item.document, false))
                                 : item.requests[0].continuation;
    item.words = count_spaces(text) + 1; // as re.split
    item.bytes = static_cast<int64_t>(text.size());
  }

  void add_choices(Item& item, const std::string& shown, bool several) const {
    const std::string& delimiter = task_.fields.target_delimiter;
    for (const std::string& choice : item.choices) {
      if (several)
        item.requests.push_back({.context = shown + question(item.document, choice, ""),
                                 .continuation = delimiter + to_text(item.target)});
      else
        item.requests.push_back({.context = shown, .continuation = delimiter + choice});
    }
    if (!task_.has_metric("acc_mutual_info")) return;
    for (const std::string& choice : item.choices)
      item.requests.push_back(
          {.context = {}, .continuation = delimiter + choice, .unconditional = true});
  }

  /// The question of the document itself, with what its answer begins with.
  std::string question(const Document& document, const std::string& text,
                       const std::string& delimiter) const {
    const std::string prefix = prefix_of(task_.fields, document);
    if (prefix.empty()) return text;
    const bool needs = !text.empty() && !ends_in_space(text) && !begins_with_space(prefix);
    return text + (needs ? delimiter : "") + prefix;
  }

  /// The description and the shown examples.
  std::string before(const Document& document) {
    std::string text;
    if (task_.description.given()) text = to_text(task_.description.text(document, false));
    for (const Document* example : chosen(document)) text += shown(*example);
    return text;
  }

  std::string shown(const Document& example) const {
    const Fields& fields = task_.fewshot.fields;
    Document text = fields.text.text(example, numbers_);
    const Document target = fields.target.target(example, numbers_);
    std::vector<std::string> choices;
    if (fields.choice.given()) choices = fields.choice.choices(example);
    const auto choice = [&](const Document& number) {
      const int64_t i = number_of(number);
      if (i < 0 || i >= static_cast<int64_t>(choices.size()))
        raise<DataError>("task {}: the target of an example is choice {}, but it has {} choices, "
                         "counted from 0\n  try: a target from 0 to {}",
                         task_.name, i, choices.size(), choices.size() - 1);
      return choices[static_cast<size_t>(i)];
    };
    const bool several = numbers_ && is_number(text);
    const std::string asked =
        several ? choice(text) : text_of("doc_to_text of an example", fields.text, text);
    std::string answer;
    if (is_number(target) && !several && !choices.empty())
      answer = choice(target);
    else if (!target.is_null()) // which is no answer, as in lm-eval
      answer = to_text(target.is_array() && !target.empty() ? target[0] : target);
    const std::string prefix = prefix_of(fields, example);
    if (answer.empty() && prefix.empty()) return asked; // as in lm-eval: no delimiters either
    const bool needs =
        prefix.empty() || (!asked.empty() && !ends_in_space(asked) && !begins_with_space(prefix));
    return asked + (needs ? fields.target_delimiter : "") + delimited(prefix, answer, " ") +
           fields.fewshot_delimiter;
  }

  /// The examples in the task file, which need the columns that the documents have.
  Documents read_samples() const {
    const Fields& fields = task_.fewshot.fields;
    Documents samples(task_.fewshot.samples.begin(), task_.fewshot.samples.end());
    for (const Field* field : {&fields.text, &fields.target, &fields.choice, &fields.prefix}) {
      const std::optional<std::string> column = field->word();
      if (!column || !first_.contains(*column)) continue;
      for (const Document& sample : samples)
        if (!sample.contains(*column))
          raise<DataError>("task {}: the sample {} of fewshot_config does not have the key {}\n  "
                           "try: the key {} in each sample",
                           task_.name, excerpt(sample.dump()), *column, *column);
    }
    return samples;
  }

  Documents read_examples() const {
    const Fewshot& fewshot = task_.fewshot;
    Documents examples;
    if (fewshot.split)
      examples = read_documents(task_, *fewshot.split);
    else if (!fewshot.samples.is_null())
      examples = read_samples();
    else if (task_.training_split)
      examples = read_documents(task_, *task_.training_split);
    else if (task_.validation_split)
      examples = read_documents(task_, *task_.validation_split);
    else {
      log::shared_warning(
          "task {}: its examples come from the split that is scored, and may be the question "
          "itself with its answer\n  try: fewshot_split: {}, which leaves that out",
          task_.name, *task_.test_split);
      examples = read_documents(task_, *task_.test_split);
    }
    if (fewshot.indices.empty()) return examples;
    Documents some;
    for (const size_t i : fewshot.indices) {
      if (i >= examples.size())
        raise<DataError>("task {}: fewshot_indices has {}, counted from 0, but there are {} "
                         "examples\n  try: indices from 0 to {}",
                         task_.name, i, examples.size(), examples.size() - 1);
      some.push_back(examples[i]);
    }
    return some;
  }

  /// Never the document itself, where it could be among them.
  std::vector<const Document*> chosen(const Document& document) {
    std::vector<const Document*> all;
    if (shots_ == 0) return all;
    const bool excludes = task_.fewshot.split == task_.test_split;
    const auto count = static_cast<size_t>(shots_);
    if (task_.fewshot.first_n) {
      for (const Document& example : examples_)
        if (all.size() < count && !(excludes && example == document)) all.push_back(&example);
      return enough(std::move(all));
    }
    const size_t drawn = excludes ? count + 1 : count;
    if (drawn > examples_.size())
      raise<DataError>("task {} shows {} examples before each question, but there are only {} "
                       "examples\n  try: eval.num_fewshot={}",
                       task_.name, shots_, examples_.size(), examples_.size() - (excludes ? 1 : 0));
    for (const size_t i : random_.sample(examples_.size(), drawn))
      if (all.size() < count && !(excludes && examples_[i] == document))
        all.push_back(&examples_[i]);
    if (all.size() == count) return all;
    // Copies of the document were drawn.
    std::vector<const Document*> others;
    for (const Document& example : examples_)
      if (example != document) others.push_back(&example);
    all.clear();
    if (others.size() < count) return enough(std::move(others));
    for (const size_t i : random_.sample(others.size(), count)) all.push_back(others[i]);
    return all;
  }

  std::vector<const Document*> enough(std::vector<const Document*> examples) const {
    if (static_cast<int64_t>(examples.size()) < shots_)
      raise<DataError>("task {} shows {} examples before each question, but there are only {}\n  "
                       "try: eval.num_fewshot={}",
                       task_.name, shots_, examples.size(), examples.size());
    return examples;
  }

  const Task& task_;
  int64_t shots_;
  PythonRandom random_;
  bool numbers_;
  const Document& first_;
  Documents examples_;
};

} // namespace

int64_t shown_examples(const Task& task, const RequestOptions& options) {
  const bool fixed = task.num_fewshot == 0;
  return fixed ? 0 : options.num_fewshot.value_or(task.num_fewshot.value_or(0));
}

std::vector<Item> make_items(const Task& task, const RequestOptions& options) {
  const Documents documents = read_documents(task, task.split());
  check_words(task, documents[0]);
  ItemMaker maker(task, options, documents[0]);
  std::vector<Item> items;
  for (const Document& document : documents) {
    if (options.limit > 0 && static_cast<int64_t>(items.size()) == options.limit) break;
    try {
      items.push_back(maker.make(document));
    } catch (const DataError& error) {
      raise<DataError>("document {} of task {}: {}", items.size(), task.name, error.what());
    }
  }
  return items;
}

} // namespace pentatron::evaluation
