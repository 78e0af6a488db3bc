#include "pentatron/data/sft/sft_dataset.h"

#include <algorithm>
#include <bit>
#include <filesystem>
#include <functional>
#include <system_error>
#include <utility>

#include <fmt/ranges.h>

#include "pentatron/base/error.h"
#include "pentatron/base/format.h"
#include "pentatron/base/log.h"
#include "pentatron/data/batch.h"
#include "pentatron/data/byte_source.h"
#include "pentatron/data/input_files.h"
#include "pentatron/data/objectives/t5_dataset.h"
#include "pentatron/data/permutation.h"
#include "pentatron/data/record_reader.h"

namespace pentatron::data {

namespace {

void check_vocabulary(const TaughtText& text, int64_t vocab_size) {
  for (const int32_t token : text.tokens)
    if (token >= vocab_size)
      raise<DataError>("token {} is outside model.vocab_size={}", token, vocab_size);
}

std::optional<int64_t> size_of(const LengthOrder& order) {
  return order.ends() ? std::optional(order.samples()) : std::nullopt;
}

} // namespace

TaughtTexts::TaughtTexts(const std::vector<std::string>& paths, const DatasetConfig& config,
                         const Tokenizer& tokenizer, const Options& options)
    : sequence_length_(options.sequence_length), target_length_(options.target_length),
      report_(config.on_bad_input) {
  const auto named = [&](std::string_view value) {
    return fmt::format("{}{}{}", options.option, options.option.starts_with("--") ? " " : "=",
                       value);
  };
  for (const std::string& path : paths)
    if (std::error_code error;
        !std::filesystem::exists(path, error) && !std::filesystem::exists(path + ".idx", error))
      raise<DataError>("{} does not exist\n  try: a .jsonl, .json or .parquet file, or a folder "
                       "that contains such files",
                       named(path));
  const std::vector<InputFile> files = find_input_files(paths, options.option).files;
  ReadingProgress progress("reading examples", files, options.reading);
  for (const InputFile& file : files) {
    if (file.format == FileFormat::kText)
      raise<DataError>("{} is a text file, but dataset.type=sft reads JSON objects\n  try: JSON "
                       "Lines ({{\"messages\": [...]}} on each line) in a file that ends in .jsonl",
                       named(file.path.string()));
    files_.push_back(file.path);
    try {
      read(file, config, tokenizer, options, progress);
    } catch (const MalformedArray& error) { // the elements before the error stay
      report_.bad(BadInput::kBrokenFile, damaged_file(file.path, error.what()));
    }
    ++report_.files;
  }
  if (tools_left_out_ > 0 && options.warns)
    log::shared_warning(
        "{} tools or tool calls, which {}, so the model does not learn them\n  try: "
        "tokenizer.path=DIR with a chat template that contains tools",
        tools_left_out_ == 1 ? "one example has" : fmt::format("{} examples have", tools_left_out_),
        options.render ? "the chat template leaves out" : "ChatML cannot contain");
  report_.tokens = static_cast<int64_t>(tokens_.size());
  if (size() == 0) refuse_empty(named(fmt::format("{}", fmt::join(paths, ","))), options);
}

void TaughtTexts::refuse_empty(const std::string& paths, const Options& options) const {
  if (late_ > 0) {
    const std::string key =
        options.option.starts_with("--") ? "--sequence-length " : "train.seq_length=";
    raise<ConfigError>("the first answer in {} begins after {}{} tokens\n  try: {}{}", paths, key,
                       options.sequence_length, key, needed_);
  }
  if (unweighted_ > 0)
    raise<DataError>(
        "no example of {} has an answer to learn: {} only answers of \"weight\": "
        "0\n  try: \"weight\": 1 for the answers to learn",
        paths, unweighted_ == 1 ? "one example has" : fmt::format("{} examples have", unweighted_));
  if (unanswered_ > 0)
    raise<DataError>("no example of {} has an answer to learn\n  try: texts that are not empty, or "
                     "messages of which one has \"role\": \"assistant\"",
                     paths);
  raise<DataError>("{}\n  try: objects with {}",
                   report_.with_skips(paths + " contains no training example"),
                   options.target_length ? kPairMembers : kTaughtMembers);
}

std::vector<std::string> TaughtTexts::incomplete() const {
  std::vector<std::string> counts;
  const auto count = [&](int64_t examples, const std::string& what) {
    if (examples > 0) counts.push_back(fmt::format("{} {}", counted(examples, "example"), what));
  };
  count(cut_, fmt::format("cut to {}",
                          target_length_
                              ? fmt::format("{} and {} tokens", sequence_length_, *target_length_)
                              : counted(sequence_length_ + 1, "token")));
  count(late_, fmt::format("left out, because no answer begins in the first {}",
                           counted(sequence_length_, "token")));
  count(unanswered_, "left out, without an answer to learn");
  return counts;
}

void TaughtTexts::read(const InputFile& input, const DatasetConfig& config,
                       const Tokenizer& tokenizer, const Options& options,
                       ReadingProgress& progress) {
  const std::filesystem::path& file = input.path;
  const auto source = open_input(input, {}, taught_members(config.text_key));
  RecordReader records(*source, config.max_line_bytes, file.string());
  std::string_view record;
  int64_t told = 0;
  for (auto status = records.next(record); status != RecordReader::Status::kEnd;
       status = records.next(record)) {
    const int64_t consumed = source->consumed_bytes();
    progress.add(consumed - std::exchange(told, consumed));
    const auto bad = [&](BadInput kind, std::string reason, std::string remedy = {}) {
      report_.bad(kind, {.file = file.string(),
                         .number = records.number(),
                         .element = records.is_array(),
                         .reason = std::move(reason),
                         .remedy = std::move(remedy)});
    };
    if (status == RecordReader::Status::kTooLong) {
      bad(BadInput::kLongLine,
          fmt::format("has {} bytes, more than dataset.max_line_bytes={}", records.record_bytes(),
                      config.max_line_bytes),
          fmt::format("dataset.max_line_bytes={}",
                      std::bit_ceil(static_cast<uint64_t>(records.record_bytes()))));
      continue;
    }
    if (record.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    try {
      if (options.target_length)
        add_pair(teach_pair(record, tokenizer, options.end_token), options);
      else {
        TaughtText taught = teach_record(record, options.render, tokenizer, config.text_key);
        tools_left_out_ += taught.without_tools;
        add(std::move(taught), options);
      }
      ++report_.documents;
      report_.text_bytes += static_cast<int64_t>(record.size());
    } catch (const DataError& error) {
      const auto [sentence, remedy] = parts_of(error.what());
      bad(BadInput::kBadJson, fmt::format("is not a training example: {}", sentence),
          remedy.empty() ? "dataset.on_bad_input=skip to leave such input out"
                         : std::string(remedy));
    }
  }
  progress.add(source->consumed_bytes() - told);
}

void TaughtTexts::add(TaughtText text, const Options& options) {
  check_vocabulary(text, options.vocab_size);
  // The first token is never a label, and the last one is a label alone.
  const auto begin = text.taught.begin() + (text.taught.empty() ? 0 : 1);
  const auto first = std::find(begin, text.taught.end(), 1);
  if (first == text.taught.end()) {
    ++unanswered_;
    unweighted_ += text.without_weight ? 1 : 0;
    return;
  }
  if (const int64_t reach = first - text.taught.begin(); reach > options.sequence_length) {
    ++late_;
    needed_ = needed_ == 0 ? reach : std::min(needed_, reach);
    return;
  }
  const auto room = static_cast<size_t>(options.sequence_length) + 1;
  if (text.tokens.size() > room) {
    ++cut_;
    text.tokens.resize(room);
    text.taught.resize(room);
  }
  append(text);
}

void TaughtTexts::add_pair(TaughtText text, const Options& options) {
  check_vocabulary(text, options.vocab_size);
  const auto answer = std::ranges::find(text.taught, 1) - text.taught.begin();
  const int64_t source = answer, target = std::ssize(text.tokens) - answer;
  if (source > options.sequence_length || target > *options.target_length) ++cut_;
  TaughtText cut;
  const auto keep = [&](int64_t begin, int64_t length, uint8_t taught) {
    cut.tokens.insert(cut.tokens.end(), text.tokens.begin() + begin,
                      text.tokens.begin() + begin + length);
    cut.taught.resize(cut.tokens.size(), taught);
  };
  keep(0, std::min(source, options.sequence_length), 0);
  cut.tokens.back() = options.end_token; // of a prompt that is cut too
  keep(answer, std::min(target, *options.target_length), 1);
  append(cut);
}

void TaughtTexts::append(const TaughtText& text) {
  num_taught_ += std::count(text.taught.begin() + 1, text.taught.end(), 1);
  tokens_.insert(tokens_.end(), text.tokens.begin(), text.tokens.end());
  taught_.insert(taught_.end(), text.taught.begin(), text.taught.end());
  begins_.push_back(static_cast<int64_t>(tokens_.size()));
}

LengthOrder::LengthOrder(std::vector<int64_t> lengths, const Options& options)
    : lengths_(std::move(lengths)), options_(options) {}

size_t LengthOrder::at(int64_t n) const {
  const auto count = static_cast<uint64_t>(samples()), number = static_cast<uint64_t>(n);
  if (n < 0 || (options_.ends && number >= count))
    raise<DataError>("the {} data has {} samples, so sample {} does not exist", options_.name,
                     count, n + 1);
  const Permutation order(options_.seed, "taught texts " + options_.name, number / count, count);
  const uint64_t place = number % count;
  if (!options_.grouped) return static_cast<size_t>(order(place));
  const uint64_t begin = place / kBlock * kBlock;
  std::vector<size_t> block(std::min<uint64_t>(kBlock, count - begin));
  for (size_t i = 0; i < block.size(); ++i) block[i] = static_cast<size_t>(order(begin + i));
  std::ranges::stable_sort(block, std::greater(), [&](size_t i) { return lengths_[i]; });
  return block[place - begin];
}

SftDataset::SftDataset(std::shared_ptr<const TaughtTexts> texts, StreamRange range,
                       const Options& options)
    : texts_(std::move(texts)), options_(options),
      order_(pack(range), options.order), streams_{{"tokens", options.sequence_length}},
      fields_(next_token_fields()) {
  fields_[0].fill = static_cast<double>(options.pad_token);
}

std::vector<int64_t> SftDataset::pack(StreamRange range) {
  PT_DCHECK(range.size() > 0);
  std::vector<int64_t> lengths;
  for (int64_t i = range.begin; i < range.end; ++i) {
    const int64_t places = texts_->length(i) - 1; // its last token is a label alone
    if (lengths.empty() || !options_.pack || lengths.back() + places > options_.sequence_length) {
      firsts_.push_back(i);
      lengths.push_back(0);
    }
    lengths.back() += places;
  }
  firsts_.push_back(range.end);
  return lengths;
}

std::optional<int64_t> SftDataset::size() const {
  return size_of(order_);
}

void SftDataset::sample(int64_t n, const SampleView& view) const {
  const size_t pack = order_.at(n);
  const std::span<int64_t> ids = view.ints(0), labels = view.ints(1);
  const std::span<int64_t> positions = view.position_ids(0);
  int64_t place = 0;
  const auto begin = [&] {
    if (place > 0) view.begin_document(0, place);
  };
  for (int64_t i = firsts_[pack]; i < firsts_[pack + 1]; ++i) {
    begin();
    const int64_t places = texts_->length(i) - 1;
    const int32_t* const tokens = texts_->tokens(i);
    const uint8_t* const taught = texts_->taught(i);
    for (int64_t k = 0; k < places; ++k) {
      const auto at = static_cast<size_t>(place + k);
      ids[at] = tokens[k];
      labels[at] = taught[k + 1] != 0 ? tokens[k + 1] : -100;
      positions[at] = k;
    }
    place += places;
  }
  if (place == options_.sequence_length) return;
  view.set_real(0, {0, place});
  begin(); // so that no place of the padding is beyond those of a document
  for (int64_t k = 0; place + k < options_.sequence_length; ++k)
    positions[static_cast<size_t>(place + k)] = k;
}

TaughtPairs::TaughtPairs(std::shared_ptr<const TaughtTexts> texts, StreamRange range,
                         const Options& options)
    : texts_(std::move(texts)), options_(options), first_(range.begin),
      order_(
          [&] {
            std::vector<int64_t> lengths;
            for (int64_t i = range.begin; i < range.end; ++i) lengths.push_back(texts_->length(i));
            return lengths;
          }(),
          options.order),
      streams_{{"encoder", options.input_length}, {"decoder", options.target_length}},
      fields_(T5Dataset::fields_with(static_cast<double>(options.pad_token))) {}

std::optional<int64_t> TaughtPairs::size() const {
  return size_of(order_);
}

void TaughtPairs::sample(int64_t n, const SampleView& view) const {
  const int64_t i = first_ + static_cast<int64_t>(order_.at(n));
  const std::span tokens(texts_->tokens(i), static_cast<size_t>(texts_->length(i)));
  const uint8_t* const taught = texts_->taught(i);
  const auto source = static_cast<size_t>(std::find(taught, taught + tokens.size(), 1) - taught);
  T5Dataset::write(tokens.first(source), tokens.subspan(source), options_.start_token, view);
}

} // namespace pentatron::data
