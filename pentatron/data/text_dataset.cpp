#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <string_view>

#include "pentatron/base/error.h"
#include "pentatron/base/format.h"
#include "pentatron/data/dataset.h"
#include "pentatron/data/permutation.h"

namespace pentatron::data {

namespace {

std::array<double, 3> parse_shares(const std::string& split) {
  std::array<double, 3> shares{};
  const char* p = split.data();
  const char* end = p + split.size();
  size_t count = 0;
  bool good = true;
  while (good && count < shares.size()) {
    while (p < end && *p == ' ') ++p;
    const auto [next, error] = std::from_chars(p, end, shares[count]);
    good = error == std::errc() && std::isfinite(shares[count]) && shares[count] >= 0;
    p = next;
    ++count;
    while (p < end && *p == ' ') ++p;
    if (p == end || *p != ',') break;
    ++p;
  }
  constexpr double kMaxShare = 1e12; // their sum is a number
  const double largest = std::ranges::max(shares);
  if (!good || p != end || largest == 0 || largest > kMaxShare)
    raise<ConfigError>("dataset.split={} {}\n  try: dataset.split=95,5", split,
                       !good || p != end ? "is not up to three shares of 0 or more, such as 95,5,0"
                       : largest == 0    ? "leaves no data: one share must be more than 0"
                                         : "has a share of more than 1e12");
  return shares;
}

/// The position of document boundary nearest to `cut`.
int64_t nearest_boundary(const TokenStream& corpus, int64_t cut) {
  int64_t low = 0;
  int64_t high = corpus.num_documents();
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    (corpus.document_begin(middle) <= cut ? low : high) = middle;
  }
  const int64_t before = corpus.document_begin(low);
  const int64_t after = corpus.document_begin(high);
  return cut - before <= after - cut ? before : after;
}

/// Cuts `total` by the shares in `split`; `move(cut, smaller)` may move a cut between two parts, of
/// which the smaller one has so many.
template <class F> Split cut(int64_t total, const std::string& split, const F& move) {
  const std::array<double, 3> shares = parse_shares(split);
  const double sum = shares[0] + shares[1] + shares[2];
  std::array<int64_t, 4> cuts{0, 0, 0, total};
  double share = 0;
  for (size_t i = 1; i <= 2; ++i) {
    share += shares[i - 1];
    const int64_t at =
        share >= sum ? total : std::llround(static_cast<double>(total) * (share / sum));
    const double smaller = std::min(shares[i - 1], shares[i]) / sum * static_cast<double>(total);
    cuts[i] = std::max(move(at, smaller), cuts[i - 1]);
  }
  return {{cuts[0], cuts[1]}, {cuts[1], cuts[2]}, {cuts[2], cuts[3]}};
}

} // namespace

Split split_corpus(const TokenStream& corpus, const std::string& split) {
  return cut(corpus.size_tokens(), split, [&](int64_t at, double smaller) {
    const int64_t boundary = nearest_boundary(corpus, at);
    const bool near = static_cast<double>(std::abs(boundary - at)) <= 0.1 * smaller;
    return near ? boundary : at;
  });
}

Split split_samples(int64_t count, const std::string& split) {
  return cut(count, split, [](int64_t at, double) { return at; });
}

PartSize size_of_part(const TokenStream& corpus, StreamRange range) {
  const auto documents_before = [&](int64_t place) {
    int64_t low = 0, high = corpus.num_documents();
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      if (corpus.document_begin(middle) < place)
        low = middle + 1;
      else
        high = middle;
    }
    return low;
  };
  const int64_t end =
      range.end == corpus.size_tokens() ? corpus.num_documents() : documents_before(range.end);
  return {.documents = std::max<int64_t>(0, end - documents_before(range.begin)),
          .tokens = range.size()};
}

void TokenDataset::sample_with_mask(int64_t n, int64_t* tokens, uint8_t* loss_mask) const {
  sample(n, tokens);
  std::fill(loss_mask, loss_mask + sequence_length(), uint8_t{1});
}

TextDataset::TextDataset(std::shared_ptr<const TokenStream> corpus, StreamRange range,
                         const Options& options)
    : corpus_(std::move(corpus)), range_(range), options_(options) {
  if (options_.sequence_length < 1)
    raise<ConfigError>("sequence length {} is not positive", options_.sequence_length);
  windows_ = (range_.size() - 1) / options_.sequence_length;
  if (range_.size() < 1 || windows_ < 1) {
    raise<ConfigError>(
        "the {} part of dataset.path has {}, but one sample needs {}\n  try: {}more "
        "text, or another dataset.split",
        options_.name, counted(range_.size(), "token"), options_.sequence_length + 1,
        range_.size() > 1 ? fmt::format("train.seq_length={}, or ", range_.size() - 1) : "");
  }
}

int64_t TextDataset::sample_begin(int64_t n) const {
  PT_DCHECK(n >= 0);
  const Permutation order(options_.seed, "sample order " + options_.name,
                          static_cast<uint64_t>(n / windows_), static_cast<uint64_t>(windows_));
  const auto window = static_cast<int64_t>(order(static_cast<uint64_t>(n % windows_)));
  return range_.begin + window * options_.sequence_length;
}

void TextDataset::sample(int64_t n, int64_t* tokens) const {
  corpus_->copy(sample_begin(n), options_.sequence_length + 1, tokens);
}

void MockDataset::sample(int64_t n, int64_t* tokens) const {
  for (int64_t i = 0; i <= sequence_length_; ++i) {
    tokens[i] = static_cast<int64_t>(stream_.below(
        static_cast<uint64_t>(vocab_size_), static_cast<uint64_t>(n), static_cast<uint64_t>(i)));
  }
}

} // namespace pentatron::data
