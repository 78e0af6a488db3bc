#include "pentatron/cli/files/objective_samples.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <tuple>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "pentatron/base/error.h"
#include "pentatron/base/format.h"
#include "pentatron/base/json.h"
#include "pentatron/base/log.h"
#include "pentatron/base/nearest.h"
#include "pentatron/cli/files/command_table.h"
#include "pentatron/cli/files/terminal.h"
#include "pentatron/config/common_names.h"
#include "pentatron/config/config.h"
#include "pentatron/config/megatron_names.h"
#include "pentatron/data/batch.h"
#include "pentatron/data/check_fields.h"
#include "pentatron/data/objectives/objective_tokenizer.h"

namespace pentatron::cli {

namespace {

using Tokens = std::vector<int64_t>;

/// The part of a run's configuration that decides its samples.
struct DataSettings {
  struct Train {
    int64_t seq_length = 256;
    static constexpr auto fields() {
      return std::tuple{
          config::field("seq_length", &Train::seq_length, "number of tokens in each sample")
              .size()};
    }
  };
  data::DatasetConfig dataset;
  data::TokenizerConfig tokenizer;
  Train train;

  static constexpr auto fields() {
    using C = DataSettings;
    return std::tuple{config::field("dataset", &C::dataset, "the data"),
                      config::field("tokenizer", &C::tokenizer, "the tokenizer"),
                      config::field("train", &C::train, "the length of samples")};
  }
};

/// Whether a problem is about the data, and not about another part of a run's settings.
bool is_of_data(const std::string& path) {
  return path.empty() || std::ranges::any_of(config::list_fields<DataSettings>(),
                                             [&](const config::FieldInfo& own) {
                                               return (path + ".").starts_with(own.path + ".") ||
                                                      own.path.starts_with(path + ".");
                                             });
}

/// The keys of a run, of which this program knows only those of the data; empty if the table of
/// commands cannot be read.
std::vector<std::string> keys_of_run() {
  std::vector<std::string> keys;
  try {
    const Json table = read_json(command_table_file());
    for (const Json& key : table.at("keys")) keys.push_back(key.at("name"));
  } catch (const std::exception&) {
    keys.clear();
  }
  return keys;
}

/// Whether `path` is one of the keys, a section of keys, or below a key that takes a mapping.
/// `whole`: a value is given for it itself, which a section does not take.
bool is_of_run(const std::string& path, const std::vector<std::string>& keys, bool whole) {
  if (keys.empty()) return true;
  if (whole && std::ranges::find(keys, path) == keys.end()) return false;
  return std::ranges::any_of(keys, [&](const std::string& key) {
    return key == path || key.starts_with(path + ".") || path.starts_with(key + ".");
  });
}

/// What stands in `keys` for an unknown key, as in a run: what other programs call so, or the
/// nearest; for an unknown section the nearest section.
std::string nearest_key(const std::string& path, const std::vector<std::string>& keys) {
  for (const std::string_view setting :
       {config::setting_of_common_name(path), config::setting_of_megatron(path)}) {
    const std::string key(setting.substr(0, setting.find_first_of("= ")));
    if (std::ranges::find(keys, key) != keys.end()) return std::string(setting);
  }
  std::vector<std::string> names = keys;
  if (path.find('.') == std::string::npos)
    for (const std::string& key : keys)
      if (const std::string section = key.substr(0, key.find('.'));
          std::ranges::find(names, section) == names.end())
        names.push_back(section);
  return nearest(path, names);
}

DataSettings read_settings(const std::vector<std::string>& all) {
  const std::vector<std::string> keys = keys_of_run();
  DataSettings settings;
  config::Violations problems;
  for (const std::string& setting : all) {
    config::Violations of_run;
    if (setting.find('=') != std::string::npos)
      config::apply_override(settings, setting, of_run);
    else
      config::apply_file(settings, setting, of_run);
    for (const config::Violation& v : of_run.list())
      if (is_of_data(v.path))
        problems.add_at(v.where, v.path, v.cause, v.suggestion);
      else if (!is_of_run(v.path, keys,
                          setting.starts_with(v.path + "=") && setting[v.path.size() + 1] != '{'))
        problems.add_at(v.where, v.path, v.cause, nearest_key(v.path, keys));
  }
  problems.throw_if_any();
  if (const std::string& path = settings.tokenizer.path; path == "bytes") {
    settings.tokenizer.path.clear(); // as in a run
    settings.tokenizer.type = data::TokenizerType::kBytes;
  }
  config::validate(settings, problems);
  problems.throw_if_any();
  return settings;
}

/// Text of tokens in pieces: each is what it adds to the text before it, because tokenizers write
/// the first token of a text in another way.
class Pieces {
 public:
  Pieces(const data::Tokenizer& tokenizer, Tokens tokens)
      : tokenizer_(tokenizer), tokens_(std::move(tokens)) {}
  std::string operator()(size_t begin, size_t end) const {
    const std::string before = decode(0, begin), all = decode(0, end);
    return all.starts_with(before) ? all.substr(before.size()) : decode(begin, end);
  }

 private:
  std::string decode(size_t begin, size_t end) const {
    return tokenizer_.decode_with_special(std::span(tokens_).subspan(begin, end - begin));
  }
  const data::Tokenizer& tokenizer_;
  Tokens tokens_;
};

std::string green(const std::string& text) {
  return fmt::format("\x1b[1;32m{}\x1b[0m", for_terminal(text));
}

/// Calls `take(begin, end)` for the longest runs of places that are all marked, or all not.
template <class Take> void for_each_run(const std::vector<uint8_t>& marked, Take take) {
  for (size_t begin = 0; begin < marked.size();) {
    size_t end = begin;
    while (end < marked.size() && marked[end] == marked[begin]) ++end;
    take(begin, end);
    begin = end;
  }
}

/// Sample `field` without what stands for padding.
Tokens real_tokens(const data::Batch& batch, const std::string& stream, const std::string& field) {
  const Tokens& all = batch.ints(field);
  const auto& real = batch.stream(stream).real;
  const data::StreamRange range =
      real.empty() ? data::StreamRange{0, std::ssize(all)} : real.front();
  return {all.begin() + range.begin, all.begin() + range.end};
}

/// What stands at the places of a BERT sample that are learned, behind what the model reads there:
/// "the [MASK]{loss} falls"; on a terminal in green.
std::string marked_text(const data::Tokenizer& tokenizer, const Tokens& tokens,
                        const Tokens& labels, const std::vector<uint8_t>& learned, bool colors) {
  Tokens whole = tokens;
  for (size_t i = 0; i < whole.size(); ++i)
    if (learned[i] != 0) whole[i] = labels[i];
  const Pieces reads(tokenizer, tokens), stood(tokenizer, whole);
  std::string text;
  for_each_run(learned, [&](size_t begin, size_t end) {
    const std::string piece = reads(begin, end);
    text += colors ? for_terminal(piece) : piece;
    if (learned[begin] == 0) return;
    const std::string target = fmt::format("{{{}}}", stood(begin, end));
    text += colors ? green(target) : target;
  });
  return text;
}

/// The name of the second label of a BERT sample.
std::string_view pair_name(data::BinaryHead head, bool odd) {
  if (head == data::BinaryHead::kSentenceOrder) return odd ? "swapped" : "in order";
  return odd ? "another text" : "next text";
}

void print_bert(int64_t index, const data::Batch& batch, const data::DatasetConfig& dataset,
                const data::Tokenizer& tokenizer, bool text) {
  const Tokens tokens = real_tokens(batch, "tokens", "input_ids"),
               labels = real_tokens(batch, "tokens", "labels"),
               types = real_tokens(batch, "tokens", "token_type_ids");
  std::vector<uint8_t> learned;
  Tokens targets;
  for (const int64_t label : labels) {
    learned.push_back(label >= 0 ? 1 : 0);
    if (label >= 0) targets.push_back(label);
  }
  const auto pair = batch.fields.find("next_sentence_label");
  const bool pairs = pair != batch.fields.end();
  const bool odd = pairs && pair->second.ints.front() == 1;
  if (text && on_terminal()) {
    fmt::print("{}{}\n", marked_text(tokenizer, tokens, labels, learned, true),
               pairs ? fmt::format(" ({})", pair_name(dataset.bert_binary_head, odd)) : "");
    return;
  }
  fmt::print("{{\"index\":{},\"tokens\":[{}],\"token_types\":[{}],\"learned\":[{}],"
             "\"targets\":[{}]",
             index, fmt::join(tokens, ","), fmt::join(types, ","), fmt::join(learned, ","),
             fmt::join(targets, ","));
  if (pairs)
    fmt::print(",\"next_sentence_label\":{},\"pair\":\"{}\"", odd ? 1 : 0,
               pair_name(dataset.bert_binary_head, odd));
  if (text)
    fmt::print(",\"text\":{},\"marked_text\":{}", dump_json(tokenizer.decode_with_special(tokens)),
               dump_json(marked_text(tokenizer, tokens, labels, learned, false)));
  fmt::print("}}\n");
}

/// The input with its sentinels in green.
std::string colored_input(const data::Tokenizer& tokenizer, const Tokens& tokens) {
  std::vector<uint8_t> sentinels;
  for (const int64_t token : tokens)
    sentinels.push_back(tokenizer.token_name(token).starts_with("<extra_id_") ? 1 : 0);
  const Pieces pieces(tokenizer, tokens);
  std::string text;
  for_each_run(sentinels, [&](size_t begin, size_t end) {
    const std::string piece = pieces(begin, end);
    text += sentinels[begin] != 0 ? green(piece) : for_terminal(piece);
  });
  return text;
}

void print_t5(int64_t index, const data::Batch& batch, const data::Tokenizer& tokenizer,
              bool text) {
  const Tokens input = real_tokens(batch, "encoder", "input_ids"),
               target = real_tokens(batch, "decoder", "labels");
  if (text && on_terminal()) {
    fmt::print("input:  {}\ntarget: {}\n", colored_input(tokenizer, input),
               green(tokenizer.decode_with_special(target)));
    return;
  }
  fmt::print("{{\"index\":{},\"input\":[{}],\"target\":[{}]", index, fmt::join(input, ","),
             fmt::join(target, ","));
  if (text)
    fmt::print(",\"input_text\":{},\"target_text\":{}",
               dump_json(tokenizer.decode_with_special(input)),
               dump_json(tokenizer.decode_with_special(target)));
  fmt::print("}}\n");
}

} // namespace

void print_objective_samples(const ObjectiveSamples& a) {
  const DataSettings settings = read_settings(a.settings);
  const data::DatasetConfig& dataset = settings.dataset;
  const bool bert = dataset.type == data::DatasetType::kBert;
  if (!bert && dataset.type != data::DatasetType::kT5)
    raise<ConfigError>("inspect samples does not read settings with dataset.type={}\n  try: "
                       "dataset.type=bert or dataset.type=t5, --prefix PREFIX for a corpus, or "
                       "--sft FILE for fine-tuning",
                       config::to_string(dataset.type));
  const auto base = data::make_tokenizer(settings.tokenizer);
  const auto tokenizer = data::with_objective_tokens(base, dataset);
  data::Datasets sets = data::open_datasets(dataset, {.sequence_length = settings.train.seq_length,
                                                      .vocab_size = tokenizer->vocab_size(),
                                                      .fields = data::given_fields(dataset, {}),
                                                      .tokenizer = base,
                                                      .writes_nothing = true});
  const std::shared_ptr<const data::Dataset> samples = sets[a.part];
  if (samples == nullptr)
    raise<ConfigError>("the {} part of the data has no sample\n  try: --part train, or another "
                       "dataset.split than {}",
                       data::name_of(a.part), dataset.split);
  log::info("{}", sets.summary);
  for (const int64_t index : a.indices) {
    const data::Batch batch = data::make_batch(*samples, std::span(&index, 1));
    if (bert)
      print_bert(index, batch, dataset, *tokenizer, a.text);
    else
      print_t5(index, batch, *tokenizer, a.text);
  }
}

} // namespace pentatron::cli
