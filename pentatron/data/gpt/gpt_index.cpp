#include "pentatron/data/gpt/gpt_index.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <vector>

#include "pentatron/base/error.h"
#include "pentatron/base/format.h"
#include "pentatron/data/gpt/random_state.h"

namespace pentatron::data {

namespace {

constexpr int64_t kExtra = 1;  // the token after the last input, which is only a label
constexpr int64_t kAhead = 32; // lengths fetched into cache before they are needed

/// Epochs, samples, and whether the last epoch is shuffled apart; see build_gpt_index.
void count_samples(const GptIndexOptions& options, GptIndex& index) {
  const int64_t s = index.sequence_length = options.sequence_length;
  const int64_t tokens = index.tokens_per_epoch;
  index.samples_per_epoch = std::max<int64_t>(0, (tokens - kExtra) / s);
  index.num_epochs = 1;
  if (options.num_samples) {
    int64_t needed = 0;
    if (__builtin_mul_overflow(*options.num_samples, s, &needed) ||
        __builtin_add_overflow(needed, kExtra, &needed)) {
      raise<DataError>("{} samples of {} tokens are too many to count", *options.num_samples, s);
    }
    index.num_epochs = std::max<int64_t>(1, needed / tokens + (needed % tokens != 0 ? 1 : 0));
  }
  const int64_t usable = index.num_epochs * tokens - kExtra;
  index.num_samples = usable / s;
  if (!options.drop_last_partial_sequence && usable % s != 0) ++index.num_samples;
  if (index.num_epochs > 1) {
    const int64_t before_last = ((index.num_epochs - 1) * tokens - kExtra) / s;
    const int64_t of_last = *options.num_samples - before_last;
    index.separate_last_epoch =
        of_last < static_cast<int64_t>(0.80 * static_cast<double>(index.samples_per_epoch));
  }
}

/// Ids of the sequences, epoch after epoch, shuffled.
std::vector<int32_t> make_documents(int64_t first, int64_t count, RandomState& random,
                                    const GptIndex& index) {
  std::vector<int32_t> documents(static_cast<size_t>(count * index.num_epochs));
  for (int64_t epoch = 0; epoch < index.num_epochs; ++epoch) {
    const auto begin = documents.begin() + epoch * count;
    std::iota(begin, begin + count, static_cast<int32_t>(first));
  }
  const std::span<int32_t> all(documents);
  const size_t last = index.separate_last_epoch ? static_cast<size_t>(count) : 0;
  random.shuffle(all.first(all.size() - last));
  if (last > 0) random.shuffle(all.last(last));
  return documents;
}

/// Cuts the stream at every multiple of the sequence length.
template <class T>
void make_sample_begins(std::span<const int32_t> lengths, int64_t first, GptIndex& index) {
  std::vector<T> begins(static_cast<size_t>(2 * (index.num_samples + 1)));
  const std::span<const int32_t> documents = index.documents.span();
  T* out = begins.data() + 2; // sample 0 begins at (0, 0)
  T* const end = begins.data() + begins.size();
  const auto length_of = [&](int64_t d) -> const int32_t& {
    return lengths[static_cast<size_t>(documents[static_cast<size_t>(d)] - first)];
  };
  const auto count = static_cast<int64_t>(documents.size());
  int64_t to_cut = index.sequence_length; // tokens from the sequence's begin to the next cut
  for (int64_t d = 0; d < count && out != end; ++d) {
    if (d + kAhead < count) __builtin_prefetch(&length_of(d + kAhead));
    const int64_t length = length_of(d);
    for (; to_cut < length && out != end; to_cut += index.sequence_length) {
      out[0] = static_cast<T>(d);
      out[1] = static_cast<T>(to_cut);
      out += 2;
    }
    to_cut -= length;
  }
  if (out != end) { // the last sample is cut short: it ends before the very last token
    PT_DCHECK(end - out == 2);
    out[0] = static_cast<T>(count - 1);
    out[1] = static_cast<T>(length_of(count - 1) - kExtra);
  }
  index.sample_begin = SharedArray<T>(std::move(begins));
}

template <class T> void make_shuffle(RandomState& random, GptIndex& index) {
  std::vector<T> shuffle(static_cast<size_t>(index.num_samples));
  std::iota(shuffle.begin(), shuffle.end(), T{0});
  const std::span<T> all(shuffle);
  size_t before_last = all.size();
  if (index.separate_last_epoch) {
    before_last = static_cast<size_t>(((index.num_epochs - 1) * index.tokens_per_epoch - kExtra) /
                                      index.sequence_length);
  }
  random.shuffle(all.first(before_last));
  if (before_last < all.size()) random.shuffle(all.subspan(before_last));
  index.shuffle = SharedArray<T>(std::move(shuffle));
}

} // namespace

int64_t GptIndex::array_bytes() const {
  const auto bytes = [](const auto& array) {
    return std::visit(
        [](const auto& values) { return static_cast<int64_t>(values.span().size_bytes()); }, array);
  };
  return static_cast<int64_t>(documents.span().size_bytes()) + bytes(sample_begin) + bytes(shuffle);
}

GptIndex count_gpt_index(int64_t tokens, int64_t sequences, int64_t first_sequence,
                         const GptIndexOptions& options) {
  if (options.sequence_length < 1)
    raise<ConfigError>("sequence length {} is not positive", options.sequence_length);
  if (options.seed > std::numeric_limits<uint32_t>::max()) {
    raise<ConfigError>(
        "dataset.seed={} does not fit into 32 bits, the limit of dataset.order=megatron\n  "
        "try: dataset.seed=1234",
        options.seed);
  }
  GptIndex index;
  index.tokens_per_epoch = tokens;
  const bool has_sample =
      index.tokens_per_epoch >
      (options.drop_last_partial_sequence ? options.sequence_length : int64_t{1});
  // Several epochs may hold the samples that one does not.
  const bool may_repeat = options.num_samples && *options.num_samples > 0;
  if (index.tokens_per_epoch == 0 || (!has_sample && !may_repeat)) {
    raise<ConfigError>("{} has {}, but one sample needs {}\n  try: more data, another "
                       "dataset.split or a shorter sequence",
                       options.name, counted(index.tokens_per_epoch, "token"),
                       options.sequence_length + 1);
  }
  if (first_sequence + sequences > std::numeric_limits<int32_t>::max())
    raise<DataError>("{} has more than 2^31 sequences", options.name);
  count_samples(options, index);
  return index;
}

bool has_wide_places(const GptIndex& counted, int64_t sequences) {
  return sequences * counted.num_epochs > std::numeric_limits<int32_t>::max();
}

bool has_wide_shuffle(const GptIndex& counted) {
  return counted.num_samples >= int64_t{0xFFFFFFFE};
}

int64_t planned_array_bytes(const GptIndex& counted, int64_t sequences) {
  const int64_t place = has_wide_places(counted, sequences) ? 8 : 4;
  const int64_t number = has_wide_shuffle(counted) ? 8 : 4;
  return 4 * sequences * counted.num_epochs + 2 * place * (counted.num_samples + 1) +
         number * counted.num_samples;
}

GptIndex build_gpt_index(std::span<const int32_t> lengths, int64_t first_sequence,
                         const GptIndexOptions& options) {
  const auto count = static_cast<int64_t>(lengths.size());
  const int64_t tokens = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  GptIndex index = count_gpt_index(tokens, count, first_sequence, options);
  RandomState random(static_cast<uint32_t>(options.seed));
  index.documents = make_documents(first_sequence, count, random, index);
  if (has_wide_places(index, count)) {
    make_sample_begins<int64_t>(lengths, first_sequence, index);
  } else {
    make_sample_begins<int32_t>(lengths, first_sequence, index);
  }
  if (has_wide_shuffle(index)) {
    make_shuffle<int64_t>(random, index);
  } else {
    make_shuffle<uint32_t>(random, index);
  }
  return index;
}

} // namespace pentatron::data
