/// Several datasets as one, by weights, in the order of megatron-core's BlendedDataset.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "pentatron/data/dataset.h"

namespace pentatron::data {

/// Prefixes of corpora and, unless empty, a weight for each.
struct Blend {
  std::vector<std::string> prefixes;
  std::vector<double> weights;
};

/// A list as Megatron takes it: weight, prefix, weight, prefix, ...; or prefixes alone, which is
/// what an odd number of words is, and words of which no first one is a number. Throws ConfigError
/// for a mixture, an empty list, or weights that are not positive. `key` is for messages.
Blend parse_blend(const std::vector<std::string>& words, const std::string& key);

/// "0.3 a 0.7 b", with commas too, in brackets or not; a word with a space or comma stands in
/// quotes.
std::vector<std::string> blend_words(std::string_view text);

/// Divided by their sum, added up in numpy's order, so that the quotients are numpy's.
std::vector<double> normalized(std::vector<double> weights);

/// What each dataset of a blend is asked for, of `size` samples in all.
/// surplus 0.005 is what is built, 0 what is drawn.
std::vector<int64_t> blend_sizes(std::span<const double> weights, int64_t size, double surplus);

/// Which dataset sample n of a blend comes from, and how many of that one come before it: each time
/// the dataset that is furthest behind its share, the first one if several are. With `limits`, a
/// dataset leaves once it has given so many.
class BlendOrder {
 public:
  struct Place {
    int32_t dataset = 0;
    int64_t sample = 0;
  };

  explicit BlendOrder(std::vector<double> weights, std::vector<int64_t> limits = {});
  /// Any number of threads at once. Found from the last place asked for nearby, so that memory does
  /// not grow with the samples but by a count of each dataset every 65536.
  Place operator()(int64_t n) const;

 private:
  static constexpr int64_t kBlock = 65536;
  struct Block {
    int64_t number = -1;
    std::vector<Place> places;
  };
  int32_t choose(int64_t n, const std::vector<int64_t>& taken) const;
  std::shared_ptr<const Block> make_block(int64_t number) const;

  std::vector<double> weights_;
  std::vector<int64_t> limits_;
  mutable std::mutex mutex_;
  mutable std::vector<std::vector<int64_t>> taken_;          // before each block
  mutable std::vector<std::shared_ptr<const Block>> recent_; // by number % size
};

/// The blend of `parts`, which have equal fields and streams. It never ends.
class BlendedSamples final : public Dataset {
 public:
  BlendedSamples(std::vector<std::shared_ptr<const Dataset>> parts, std::vector<double> weights)
      : parts_(std::move(parts)), order_(std::move(weights)) {}

  const std::vector<BatchStream>& streams() const override { return parts_[0]->streams(); }
  const std::vector<BatchField>& fields() const override { return parts_[0]->fields(); }
  int64_t samples_per_epoch() const override;
  void sample(int64_t n, const SampleView& view) const override {
    const BlendOrder::Place place = order_(n);
    parts_[static_cast<size_t>(place.dataset)]->sample(place.sample, view);
  }

 private:
  std::vector<std::shared_ptr<const Dataset>> parts_;
  BlendOrder order_;
};

/// The blend of `parts`, which must have equal sequence lengths.
class BlendedDataset final : public TokenDataset {
 public:
  /// `size`: none if it never ends.
  BlendedDataset(std::vector<std::shared_ptr<const TokenDataset>> parts,
                 std::vector<double> weights, std::optional<int64_t> size,
                 std::vector<int64_t> limits = {})
      : parts_(std::move(parts)), order_(std::move(weights), std::move(limits)), size_(size) {}

  int64_t sequence_length() const override { return parts_[0]->sequence_length(); }
  std::optional<int64_t> size() const override { return size_; }
  int64_t samples_per_epoch() const override;
  void sample(int64_t n, int64_t* tokens) const override;
  void sample_with_mask(int64_t n, int64_t* tokens, uint8_t* loss_mask) const override;

 private:
  std::vector<std::shared_ptr<const TokenDataset>> parts_;
  BlendOrder order_;
  std::optional<int64_t> size_;
};

} // namespace pentatron::data
