#include "pentatron/data/shifted_fields.h"

#include "pentatron/data/remove_padding.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

namespace pentatron::data {
namespace {

using ::testing::ElementsAre;

/// Tokens 10, 11, ... with labels 1 further on; sample 0 has documents of 3, 1 and 4 tokens, sample
/// 1 padding at both ends, sample 2 positions that begin anew.
class ShiftedSamples final : public Dataset {
 public:
  const std::vector<BatchStream>& streams() const override { return streams_; }
  const std::vector<BatchField>& fields() const override { return fields_; }
  void sample(int64_t n, const SampleView& view) const override {
    std::iota(view.ints(0).begin(), view.ints(0).end(), 10 * (n + 1));
    std::iota(view.ints(1).begin(), view.ints(1).end(), 10 * (n + 1) + 1);
    if (n == 0) {
      view.begin_document(0, 3);
      view.begin_document(0, 4);
    } else if (n == 1) {
      view.set_real(0, {2, 6});
      for (const size_t i : {0, 1, 6, 7}) view.ints(1)[i] = -100;
      view.ints(1)[4] = -100;
    } else {
      std::iota(view.position_ids(0).begin() + 5, view.position_ids(0).end(), 0);
    }
  }

 private:
  std::vector<BatchStream> streams_ = {{"tokens", 8}};
  std::vector<BatchField> fields_ = next_token_fields();
};

const std::vector<ShiftedField> kShifted = {
    {.name = "ids_1", .source = "input_ids", .places = 1},
    {.name = "ids_2", .source = "input_ids", .places = 2},
    {.name = "labels_2", .source = "labels", .places = 2},
    {.name = "places_1", .source = "", .places = 1},
};

Batch batch_of(int64_t sample) {
  const std::vector<int64_t> ids = {sample};
  Batch batch = make_batch(ShiftedSamples(), ids);
  add_shifted_fields(batch, kShifted);
  return batch;
}

TEST(ShiftedFields, EndWithTheirDocument) {
  const Batch batch = batch_of(0);
  EXPECT_THAT(batch.ints("ids_1"), ElementsAre(11, 12, 0, 0, 15, 16, 17, 0));
  EXPECT_THAT(batch.ints("ids_2"), ElementsAre(12, 0, 0, 0, 16, 17, 0, 0));
  EXPECT_THAT(batch.ints("labels_2"), ElementsAre(13, -100, -100, -100, 17, 18, -100, -100));
  EXPECT_THAT(batch.ints("places_1"), ElementsAre(1, 2, 0, 0, 5, 6, 7, 0));
  EXPECT_EQ(batch.num_targets.at("labels_2"), 3);
  EXPECT_FALSE(batch.num_targets.contains("ids_1"));
}

TEST(ShiftedFields, HaveNothingFromPaddingOrForIt) {
  const Batch batch = batch_of(1);
  EXPECT_THAT(batch.ints("ids_1"), ElementsAre(0, 0, 23, 24, 25, 0, 0, 0));
  // The label of token 4 is none, and stays none for the one before it.
  EXPECT_THAT(batch.ints("labels_2"), ElementsAre(-100, -100, -100, 26, -100, -100, -100, -100));
}

TEST(ShiftedFields, EndWherePositionsBeginAnew) {
  const Batch batch = batch_of(2);
  EXPECT_THAT(batch.ints("ids_2"), ElementsAre(32, 33, 34, 0, 0, 37, 0, 0));
  EXPECT_THAT(batch.ints("places_1"), ElementsAre(1, 2, 3, 4, 0, 1, 2, 0));
}

TEST(ShiftedFields, OfSeveralSamplesAreThoseOfEach) {
  const std::vector<int64_t> ids = {2, -1, 0, 1};
  Batch all = make_batch(ShiftedSamples(), ids);
  add_shifted_fields(all, kShifted);
  for (const ShiftedField& field : kShifted) {
    std::vector<int64_t> rows;
    for (const int64_t id : ids) {
      const std::vector<int64_t> row =
          id < 0 ? std::vector<int64_t>(8, field.source == "labels" ? -100 : 0)
                 : batch_of(id).ints(field.name);
      rows.insert(rows.end(), row.begin(), row.end());
    }
    if (field.source.empty()) std::iota(rows.begin() + 8, rows.begin() + 15, 1);
    EXPECT_EQ(all.ints(field.name), rows) << field.name;
  }
  const int64_t targets = all.num_targets.at("labels_2");
  remove_padding(all, 1);
  EXPECT_EQ(std::ssize(all.ints("labels_2")) - std::ranges::count(all.ints("labels_2"), -100),
            targets);
}

} // namespace
} // namespace pentatron::data
