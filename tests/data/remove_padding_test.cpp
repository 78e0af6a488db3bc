#include "pentatron/data/remove_padding.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pentatron/data/loader.h"

namespace pentatron::data {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;

constexpr int64_t kNone = -100;

/// Tokens 10 n + place in two streams of 6 and 4; sample n has real(n) tokens, and a target at each
/// of its `targets`.
class Padded final : public Dataset {
 public:
  explicit Padded(std::vector<StreamRange> real, std::vector<int64_t> targets = {})
      : real_(std::move(real)), targets_(std::move(targets)) {}
  const std::vector<BatchStream>& streams() const override { return streams_; }
  const std::vector<BatchField>& fields() const override { return fields_; }
  std::optional<int64_t> size() const override { return std::ssize(real_); }
  int64_t samples_per_epoch() const override { return *size(); }
  void sample(int64_t n, const SampleView& view) const override {
    for (int64_t place = 0; place < 6; ++place) view.ints(0)[place] = 10 * n + place;
    for (const int64_t place : targets_) view.ints(1)[place] = 1000 + 10 * n + place;
    view.ints(2)[0] = n;
    for (int64_t place = 0; place < 4; ++place) view.floats(3)[place] = 0.5 + place;
    if (n < std::ssize(real_)) view.set_real(0, real_[static_cast<size_t>(n)]);
    if (documents) view.begin_document(0, 2);
    if (documents) view.begin_document(0, 4);
  }
  bool documents = false;

 private:
  std::vector<StreamRange> real_;
  std::vector<int64_t> targets_;
  std::vector<BatchStream> streams_ = {{"tokens", 6}, {"others", 4}};
  std::vector<BatchField> fields_ = {
      {.name = "input_ids"},
      label_field("tokens"),
      label_field("", "judgement"),
      {.name = "weights", .stream = "others", .type = FieldType::kFloat64}};
};

Batch batch_of(const Dataset& dataset, std::vector<int64_t> ids, int64_t multiple = 1) {
  Batch batch = make_batch(dataset, ids);
  remove_padding(batch, multiple);
  return batch;
}

TEST(RemovePadding, LaysTheRealTokensOfAllSamplesEndToEnd) {
  const Padded dataset({{0, 3}, {0, 6}, {0, 1}}, {0});
  const Batch batch = batch_of(dataset, {0, 1, 2});
  EXPECT_EQ(batch.batch_size, 3);
  EXPECT_THAT(batch.ints("input_ids"), ElementsAre(0, 1, 2, 10, 11, 12, 13, 14, 15, 20));
  EXPECT_THAT(batch.ints("labels"),
              ElementsAre(1000, kNone, kNone, 1010, kNone, kNone, kNone, kNone, kNone, 1020));
  const StreamShape& shape = batch.stream("tokens");
  EXPECT_THAT(shape.sample_starts, ElementsAre(0, 3, 9, 10));
  EXPECT_THAT(shape.cu_seqlens, ElementsAre(0, 3, 9, 10));
  EXPECT_THAT(shape.position_ids, ElementsAre(0, 1, 2, 0, 1, 2, 3, 4, 5, 0));
  EXPECT_TRUE(shape.real.empty()) << "no padding is left";
  EXPECT_EQ(shape.sequence_length, 6);
  EXPECT_EQ(shape.max_seqlen, 6);
  EXPECT_EQ(shape.real_tokens, 10);
  EXPECT_EQ(shape.squared_lengths, 9 + 36 + 1);
  EXPECT_FALSE(shape.packed);
  EXPECT_EQ(batch.num_targets.at("labels"), 3);
  EXPECT_THAT(batch.ints("judgement"), ElementsAre(0, 1, 2));
  EXPECT_THAT(batch.stream("others").sample_starts, ElementsAre(0, 4, 8, 12)) << "not padded";
  EXPECT_EQ(batch.floats("weights").size(), 12u);
}

TEST(RemovePadding, LeavesABatchWithoutPaddingAsItIs) {
  const Padded dataset({{0, 6}, {0, 6}});
  const std::vector<int64_t> ids{0, 1};
  const Batch plain = make_batch(dataset, ids), cut = batch_of(dataset, ids, 5);
  EXPECT_EQ(plain.streams, cut.streams);
  EXPECT_EQ(plain.ints("input_ids"), cut.ints("input_ids"));
}

TEST(RemovePadding, KeepsWhatIsBeforeRealTokensAndWhatHasATarget) {
  // The last target of each sample is at place 3.
  const Batch batch = batch_of(Padded({{2, 5}, {0, 1}, {1, 3}}, {0, 3}), {0, 1, 2});
  EXPECT_THAT(batch.stream("tokens").sample_starts, ElementsAre(0, 5, 9, 13));
  EXPECT_THAT(batch.stream("tokens").real,
              ElementsAre(StreamRange{2, 5}, StreamRange{0, 1}, StreamRange{1, 3}));
  EXPECT_EQ(batch.stream("tokens").real_tokens, 3 + 1 + 2);
  EXPECT_EQ(batch.num_targets.at("labels"), 6);
}

TEST(RemovePadding, LeavesAMultipleOfTokens) {
  const Padded dataset({{0, 5}, {0, 2}, {0, 4}});
  for (const auto& [multiple, starts] : std::map<int64_t, std::vector<int64_t>>{
           {1, {0, 5, 7, 11}}, {2, {0, 6, 8, 12}}, {3, {0, 6, 8, 12}}, {9, {0, 6, 12, 18}}}) {
    const Batch batch = batch_of(dataset, {0, 1, 2}, multiple);
    const StreamShape& shape = batch.stream("tokens");
    EXPECT_THAT(shape.sample_starts, ElementsAreArray(starts)) << multiple;
    EXPECT_EQ(shape.tokens() % multiple, 0) << multiple;
    EXPECT_EQ(shape.real.empty(), multiple == 1) << multiple;
    EXPECT_EQ(shape.real_tokens, 11);
    EXPECT_EQ(std::ssize(batch.ints("input_ids")), shape.tokens());
  }
}

TEST(RemovePadding, LeavesAMultipleOfTokensInEachSample) {
  Batch batch = make_batch(Padded({{0, 3}, {0, 6}, {0, 1}}), std::vector<int64_t>{0, 1, 2});
  remove_padding(batch, 1, 4);
  EXPECT_THAT(batch.stream("tokens").sample_starts, ElementsAre(0, 4, 10, 14));
  EXPECT_EQ(batch.stream("tokens").real_tokens, 10);
}

TEST(RemovePadding, CutsDocumentsAndDropsThoseWithoutTokens) {
  Padded dataset({{0, 3}, {0, 5}, {0, 2}});
  dataset.documents = true; // at places 0, 2 and 4
  const Batch batch = batch_of(dataset, {0, 1, 2});
  EXPECT_THAT(batch.stream("tokens").cu_seqlens, ElementsAre(0, 2, 3, 5, 7, 8, 10));
  EXPECT_TRUE(batch.stream("tokens").packed);
  EXPECT_EQ(batch.stream("tokens").max_seqlen, 2);
}

TEST(RemovePadding, TheLoaderDoesItAndCountsWhatIsLeft) {
  const auto dataset = std::make_shared<Padded>(
      std::vector<StreamRange>{{0, 5}, {0, 2}, {0, 4}, {0, 6}}, std::vector<int64_t>{0});
  const auto step = [&](bool remove) {
    Loader loader(dataset, {.global_batch_size = 4,
                            .micro_batch_size = 2,
                            .remove_padding = remove,
                            .token_multiple = 4});
    return loader.next();
  };
  const StepData plain = step(false), cut = step(true);
  EXPECT_EQ(plain.totals.at("tokens").tokens, 24);
  EXPECT_EQ(cut.totals.at("tokens").tokens, 8 + 12);
  for (const StepData* data : {&plain, &cut}) {
    EXPECT_EQ(data->totals.at("tokens").real_tokens, 17);
    EXPECT_EQ(data->totals.at("tokens").squared_lengths, 25 + 4 + 16 + 36);
    DocumentLengths lengths;
    for (const int64_t length : {5, 2, 4, 6}) lengths.add(length);
    EXPECT_EQ(data->totals.at("tokens").lengths, lengths);
    EXPECT_EQ(data->totals.at("others").tokens, 16);
    EXPECT_EQ(data->num_targets.at("labels"), 4);
  }
  EXPECT_EQ(cut.microbatches[0].stream("tokens").tokens(), 8);
}

} // namespace
} // namespace pentatron::data
