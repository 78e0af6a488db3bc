#include "pentatron/data/indexed/corpus_tools.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <limits>

#include <fmt/ranges.h>

#include "pentatron/base/crc32c.h"
#include "pentatron/base/error.h"
#include "pentatron/data/indexed/indexed_writer.h"

namespace pentatron::data {

namespace {

constexpr int64_t kChunkTokens = int64_t{1} << 18;

/// Appends documents [begin, end) to `writer`.
void append_documents(const IndexedDataset& corpus, int64_t begin, int64_t end,
                      IndexedWriter& writer, const std::function<void(int64_t)>& done) {
  const int64_t width = item_bytes(corpus.dtype());
  std::vector<std::byte> items;
  int64_t bounds[2];
  for (int64_t d = begin; d < end; ++d) {
    corpus.read_document_indices(d, bounds);
    for (int64_t s = bounds[0]; s < bounds[1]; ++s) {
      const IndexedDataset::Sequence sequence = corpus.sequence(s);
      items.resize(static_cast<size_t>(sequence.length * width));
      corpus.read_items(sequence.first_token, items);
      writer.add_items(items, corpus.has_modes() ? corpus.mode(s) : int8_t{0});
      done(sequence.length);
    }
    writer.end_document();
  }
}

/// Tells `progress` every million tokens.
class Teller {
 public:
  Teller(const TokenProgress& progress, int64_t total) : progress_(progress), total_(total) {}
  void operator()(int64_t tokens) {
    done_ += tokens;
    if (!progress_ || done_ - told_ < (int64_t{1} << 20)) return;
    told_ = done_;
    progress_(done_, total_);
  }

 private:
  const TokenProgress& progress_;
  int64_t total_;
  int64_t done_ = 0;
  int64_t told_ = 0;
};

void refuse_to_overwrite_itself(const std::string& prefix, const std::string& output) {
  std::error_code error;
  if (std::filesystem::equivalent(prefix + ".bin", output + ".bin", error))
    raise<ConfigError>("{} is both an input and the output\n  try: another name for the output",
                       prefix);
}

} // namespace

void merge_corpora(const std::vector<std::string>& prefixes, const std::string& output,
                   const TokenProgress& progress, bool replace) {
  if (prefixes.empty()) throw ConfigError("no corpus to merge is given");
  int64_t total = 0;
  const IndexedDataset first(prefixes[0]);
  for (const std::string& prefix : prefixes) {
    refuse_to_overwrite_itself(prefix, output);
    const IndexedDataset corpus(prefix);
    if (corpus.dtype() != first.dtype()) {
      raise<DataError>(
          "{}.idx has the dtype {}, but {} has {}, so they cannot be merged\n  try: only "
          "corpora made with one tokenizer",
          prefix, name_of(corpus.dtype()), prefixes[0], name_of(first.dtype()));
    }
    if (corpus.has_modes() != first.has_modes()) {
      raise<DataError>("{}.idx has {} sequence_modes, but {} has {}, so they cannot be merged\n  "
                       "try: corpora that all have sequence_modes, or that all have none",
                       prefix, corpus.has_modes() ? "some" : "no", prefixes[0],
                       first.has_modes() ? "some" : "none");
    }
    total += corpus.num_tokens();
  }
  IndexedWriter writer(output,
                       {.dtype = first.dtype(), .modes = first.has_modes(), .replace = replace});
  Teller tell(progress, total);
  for (const std::string& prefix : prefixes) {
    const IndexedDataset corpus(prefix);
    append_documents(corpus, 0, corpus.num_documents(), writer, std::ref(tell));
  }
  writer.commit();
}

std::vector<std::string> names_of_parts(const std::string& output, size_t parts) {
  corpus_files(output); // throws if that is no name
  std::vector<std::string> names;
  for (size_t i = 0; i < parts; ++i) names.push_back(fmt::format("{}_{}", output, i));
  return names;
}

namespace {

/// Where each part begins, and at last where the last one ends.
std::vector<int64_t> part_bounds(int64_t documents, const std::vector<double>& shares) {
  double sum = 0;
  for (const double share : shares) {
    if (!(share > 0) || !std::isfinite(share))
      raise<ConfigError>("the share {} is not a number above 0", share);
    sum += share;
  }
  std::vector<int64_t> bounds = {0};
  double until = 0;
  for (const double share : shares) {
    until += share;
    bounds.push_back(std::clamp<int64_t>(std::llround(static_cast<double>(documents) * until / sum),
                                         bounds.back(), documents));
  }
  bounds.back() = documents;
  return bounds;
}

} // namespace

void split_corpus_files(const std::string& prefix, const std::vector<double>& shares,
                        const std::vector<std::string>& parts, const TokenProgress& progress,
                        bool replace) {
  const IndexedDataset corpus(prefix);
  const std::vector<int64_t> bounds = part_bounds(corpus.num_documents(), shares);
  for (size_t i = 0; i < parts.size(); ++i)
    if (bounds[i] == bounds[i + 1])
      raise<ConfigError>("the share {} of {} leaves part {} without documents: {} has {}\n  try: "
                         "a larger share for it, or fewer parts",
                         shares[i], fmt::join(shares, ","), i, prefix, corpus.num_documents());
  for (const std::string& part : parts) refuse_to_overwrite_itself(prefix, part);
  Teller tell(progress, corpus.num_tokens());
  std::vector<std::unique_ptr<IndexedWriter>> writers;
  for (size_t i = 0; i < parts.size(); ++i) {
    writers.push_back(std::make_unique<IndexedWriter>(
        parts[i], IndexedWriter::Options{
                      .dtype = corpus.dtype(), .modes = corpus.has_modes(), .replace = replace}));
    append_documents(corpus, bounds[i], bounds[i + 1], *writers[i], std::ref(tell));
    writers[i]->prepare();
  }
  for (const auto& writer : writers) writer->commit();
}

CorpusSummary summarize_corpus(const IndexedDataset& corpus) {
  CorpusSummary summary{.dtype = corpus.dtype(),
                        .documents = corpus.num_documents(),
                        .sequences = corpus.num_sequences(),
                        .tokens = corpus.num_tokens(),
                        .modes = corpus.has_modes(),
                        .data_bytes = static_cast<int64_t>(corpus.data_file().size()),
                        .index_bytes = static_cast<int64_t>(corpus.index_file().size())};
  std::vector<int32_t> lengths(4096);
  summary.shortest = corpus.num_sequences() > 0 ? std::numeric_limits<int32_t>::max() : 0;
  for (int64_t i = 0; i < corpus.num_sequences();) {
    const auto n = std::min<int64_t>(4096, corpus.num_sequences() - i);
    corpus.read_lengths(i, std::span(lengths).first(static_cast<size_t>(n)));
    for (int64_t k = 0; k < n; ++k) {
      summary.shortest = std::min<int64_t>(summary.shortest, lengths[static_cast<size_t>(k)]);
      summary.longest = std::max<int64_t>(summary.longest, lengths[static_cast<size_t>(k)]);
    }
    i += n;
  }
  std::vector<int64_t> documents(4097);
  for (int64_t i = 0; i < corpus.num_documents();) {
    const auto n = std::min<int64_t>(4096, corpus.num_documents() - i);
    corpus.read_document_indices(i, std::span(documents).first(static_cast<size_t>(n + 1)));
    for (size_t k = 0; k < static_cast<size_t>(n); ++k)
      summary.empty_documents += documents[k] == documents[k + 1];
    i += n;
  }
  return summary;
}

CorpusCheck verify_corpus(const IndexedDataset& corpus, int64_t vocab_size,
                          const TokenProgress& progress) {
  CorpusCheck check;
  const int64_t width = item_bytes(corpus.dtype());
  const bool numbers = is_integer(corpus.dtype());
  check.lowest_token = numbers && corpus.num_tokens() > 0 ? std::numeric_limits<int64_t>::max() : 0;
  std::vector<std::byte> items;
  std::vector<int64_t> tokens;
  Teller tell(progress, corpus.num_tokens());
  for (int64_t at = 0; at < corpus.num_tokens(); at += kChunkTokens) {
    const int64_t n = std::min(kChunkTokens, corpus.num_tokens() - at);
    items.resize(static_cast<size_t>(n * width));
    corpus.read_items(at, items);
    check.data_crc32c = crc32c(items, check.data_crc32c);
    if (numbers) {
      tokens.resize(static_cast<size_t>(n));
      corpus.read_tokens(at, n, tokens.data());
      const auto [low, high] = std::minmax_element(tokens.begin(), tokens.end());
      check.lowest_token = std::min(check.lowest_token, *low);
      check.highest_token = std::max(check.highest_token, *high);
      if (vocab_size > 0 && (*low < 0 || *high >= vocab_size)) {
        const auto bad = std::find_if(tokens.begin(), tokens.end(),
                                      [&](int64_t id) { return id < 0 || id >= vocab_size; });
        raise<DataError>(
            "{}: token number {} is {}, outside the vocabulary of {}\n  try: --vocab-size "
            "N with the vocabulary size of the tokenizer that made the corpus",
            corpus.data_file().path().string(), at + (bad - tokens.begin()), *bad, vocab_size);
      }
    }
    tell(n);
  }
  const RandomAccessFile& index = corpus.index_file();
  for (uint64_t at = 0; at < index.size(); at += uint64_t{1} << 20) {
    items.resize(static_cast<size_t>(std::min<uint64_t>(uint64_t{1} << 20, index.size() - at)));
    index.read(at, std::span<std::byte>(items), "the index");
    check.index_crc32c = crc32c(items, check.index_crc32c);
  }
  return check;
}

} // namespace pentatron::data
