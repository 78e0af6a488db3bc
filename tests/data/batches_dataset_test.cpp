#include <cstring>
#include <limits>
#include <list>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pentatron/data/batches_dataset.h"
#include "tests/data/data_files.h"

namespace pentatron::data {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

/// Tensors by name, written to a file.
class Batches : public ::testing::Test {
 protected:
  template <class T>
  void put(const std::string& name, std::vector<int64_t> shape, std::vector<T> values,
           SafeDtype dtype = SafeDtype::kI64) {
    std::vector<std::byte> bytes(values.size() * sizeof(T));
    std::memcpy(bytes.data(), values.data(), bytes.size());
    kept_.push_back(std::move(bytes));
    tensors_[name] = {.dtype = dtype, .shape = std::move(shape), .data = kept_.back()};
  }
  void ints(const std::string& name, std::vector<int64_t> shape, std::vector<int64_t> values) {
    put(name, std::move(shape), std::move(values));
  }
  std::string write() {
    const std::filesystem::path path = folder_.path() / "batches.safetensors";
    write_safetensors(path, tensors_);
    return path.string();
  }
  Batch batch(const std::vector<BatchField>& fields) { return read_batch(write(), fields); }
  std::string error(const std::vector<BatchField>& fields) {
    return error_of<DataError>([&] { batch(fields); });
  }
  TemporaryFolder folder_;
  std::list<std::vector<std::byte>> kept_;
  SafeTensors tensors_;
};

std::vector<BatchField> bert_fields() {
  return {{.name = "input_ids", .limit = 100},
          {.name = "token_type_ids", .limit = 2, .absent = 0},
          {.name = "labels", .fill = -100, .none = -100, .limit = 100},
          label_field("", "next_sentence_label")};
}

std::vector<BatchField> t5_fields() {
  return {{.name = "input_ids", .stream = "encoder"},
          label_field("decoder"),
          {.name = "decoder_input_ids", .stream = "decoder", .fill = 9, .start_token = 8}};
}

// transformers' GPT-2 adds embeddings of token types, for example.
TEST_F(Batches, InputsThatTheModelDoesNotReadAreRefused) {
  ints("input_ids", {1, 2}, {1, 2});
  ints("logits", {1, 2}, {0, 0}); // an output
  EXPECT_NO_THROW(batch({{.name = "input_ids", .limit = 100}}));
  ints("token_type_ids", {1, 2}, {0, 1});
  EXPECT_THAT(error({{.name = "input_ids", .limit = 100}}),
              AllOf(HasSubstr("has a tensor token_type_ids, which the model does not read"),
                    HasSubstr("try: a file without token_type_ids")));
}

TEST_F(Batches, HoldWhatTransformersForwardTakes) {
  ints("input_ids", {2, 3, 4},
       {1, 2, 3, 4, 5, 6, 7, 0, 8, 9, 0, 0, 0, 0, 10, 11, 1, 1, 1, 1, 2, 2, 2, 2});
  ints("attention_mask", {2, 3, 4},
       {1, 1, 1, 1, 1, 1, 1, 0, 1, 1, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1});
  std::vector<int64_t> labels(24, -100);
  labels[2] = 50;
  labels[15] = 51;
  ints("labels", {2, 3, 4}, labels);
  ints("next_sentence_label", {2, 3}, {0, 1, 0, 1, -100, 1});
  ints("unused", {1}, {1});
  const BatchesDataset dataset(write(), bert_fields());
  EXPECT_EQ(dataset.size(), 6);
  EXPECT_EQ(dataset.batch_size(), 3);
  EXPECT_THAT(dataset.streams(), ElementsAre(BatchStream{"tokens", 4}));
  const std::vector<int64_t> rows{1, 3, 4};
  const Batch batch = make_batch(dataset, rows);
  EXPECT_THAT(batch.ints("input_ids"), ElementsAre(5, 6, 7, 0, 0, 0, 10, 11, 1, 1, 1, 1));
  EXPECT_THAT(batch.ints("token_type_ids"), ElementsAreArray(std::vector<int64_t>(12, 0)));
  EXPECT_THAT(batch.ints("labels"),
              ElementsAre(-100, -100, -100, -100, -100, -100, -100, 51, -100, -100, -100, -100));
  EXPECT_THAT(batch.ints("next_sentence_label"), ElementsAre(1, 1, -100));
  EXPECT_EQ(batch.num_targets.at("labels"), 1);
  EXPECT_EQ(batch.num_targets.at("next_sentence_label"), 2);
  const StreamShape& shape = batch.stream("tokens");
  EXPECT_THAT(shape.real, ElementsAre(StreamRange{0, 3}, StreamRange{2, 4}, StreamRange{0, 4}));
  EXPECT_THAT(shape.position_ids, ElementsAre(0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3));
  EXPECT_EQ(shape.squared_lengths, 9 + 4 + 16);
  EXPECT_FALSE(shape.packed);
}

TEST_F(Batches, LabelsOfT5MoveIntoTheDecoder) {
  ints("input_ids", {2, 3}, {1, 2, 3, 4, 5, 6});
  ints("labels", {2, 4}, {11, -100, 12, 13, 14, 15, -100, -100});
  const Batch derived = batch(t5_fields());
  EXPECT_THAT(derived.ints("decoder_input_ids"), ElementsAre(8, 11, 9, 12, 8, 14, 15, 9));
  EXPECT_EQ(derived.stream("encoder").sequence_length, 3);
  EXPECT_EQ(derived.stream("decoder").sequence_length, 4);
  EXPECT_TRUE(derived.stream("encoder").real.empty());
  ints("decoder_input_ids", {2, 4}, {1, 1, 1, 1, 2, 2, 2, 2});
  ints("decoder_attention_mask", {2, 4}, {1, 1, 1, 1, 1, 1, 0, 0});
  const Batch given = batch(t5_fields());
  EXPECT_THAT(given.ints("decoder_input_ids"), ElementsAre(1, 1, 1, 1, 2, 2, 2, 2));
  EXPECT_THAT(given.stream("decoder").real, ElementsAre(StreamRange{0, 4}, StreamRange{0, 2}));
}

TEST_F(Batches, LabelsOfTheNextTokenAreThoseOfTransformers) {
  ints("input_ids", {1, 4}, {1, 2, 3, 4});
  ints("position_ids", {1, 4}, {0, 1, 0, 1});
  const Batch derived = batch(next_token_fields(10));
  EXPECT_THAT(derived.ints("labels"), ElementsAre(2, 3, 4, -100));
  EXPECT_THAT(derived.stream("tokens").position_ids, ElementsAre(0, 1, 0, 1));
  ints("labels", {1, 4}, {1, -100, 3, 5});
  EXPECT_THAT(batch(next_token_fields(10)).ints("labels"), ElementsAre(-100, 3, 5, -100));
  tensors_.clear();
  ints("tokens", {1, 4}, {1, 2, 3, 4});
  const Batch tokens = batch(next_token_fields(10));
  EXPECT_THAT(tokens.ints("input_ids"), ElementsAre(1, 2, 3));
  EXPECT_THAT(tokens.ints("labels"), ElementsAre(2, 3, 4));
}

TEST_F(Batches, TypesMayBeNarrowerAndNumbers) {
  put<int32_t>("input_ids", {1, 2}, {1, 2}, SafeDtype::kI32);
  put<uint8_t>("attention_mask", {1, 2}, {0, 1}, SafeDtype::kBool);
  put<float>("labels", {1}, {0.5f}, SafeDtype::kF32);
  const double none = std::numeric_limits<double>::quiet_NaN();
  const std::vector<BatchField> fields{
      {.name = "input_ids"},
      {.name = "labels", .stream = "", .type = FieldType::kFloat64, .fill = none, .none = none}};
  const Batch read = batch(fields);
  EXPECT_THAT(read.ints("input_ids"), ElementsAre(1, 2));
  EXPECT_THAT(read.floats("labels"), ElementsAre(0.5));
  EXPECT_EQ(read.num_targets.at("labels"), 1);
  EXPECT_THAT(read.stream("tokens").real, ElementsAre(StreamRange{1, 2}));
  const std::vector<int64_t> ids{0, -1};
  const BatchesDataset dataset(write(), fields, BatchesDataset::Form::kOneBatch);
  EXPECT_EQ(make_batch(dataset, ids).num_targets.at("labels"), 1); // NaN is no target
}

// Such as rows that fill up the last batch.
TEST_F(Batches, RowsOfPaddingAloneNeedLabelsThatDoNotCount) {
  ints("input_ids", {1, 2, 3}, {1, 2, 3, 4, 5, 6});
  ints("attention_mask", {1, 2, 3}, {1, 1, 1, 0, 0, 0});
  ints("labels", {1, 2, 3}, {7, -100, -100, -100, -100, -100});
  ints("next_sentence_label", {1, 2}, {0, -100});
  const std::vector<int64_t> rows{0, 1};
  const Batch read = make_batch(BatchesDataset(write(), bert_fields()), rows);
  EXPECT_THAT(read.stream("tokens").real, ElementsAre(StreamRange{0, 3}, StreamRange{0, 1}));
  EXPECT_EQ(read.num_targets.at("labels"), 1);
  const auto refusal = [&] {
    return error_of<DataError>([&] { BatchesDataset(write(), bert_fields()); });
  };
  ints("next_sentence_label", {1, 2}, {-100, 1});
  EXPECT_THAT(refusal(), HasSubstr("row 1 of step 0 of attention_mask has only zeros, but "
                                   "next_sentence_label of that row count in the loss\n  try: "
                                   "next_sentence_label of -100 in that row"));
  ints("next_sentence_label", {1, 2}, {-100, -100});
  ints("labels", {1, 2, 3}, {7, -100, -100, -100, -100, 9});
  EXPECT_THAT(refusal(), HasSubstr("try: labels of -100 in that row"));
}

// Tables of rotary positions are as long as samples.
TEST_F(Batches, PositionsOfTrainingLieInTheSamples) {
  ints("input_ids", {1, 1, 4}, {1, 2, 3, 4});
  ints("position_ids", {1, 1, 4}, {0, 1, 0, 3});
  EXPECT_NO_THROW(BatchesDataset(write(), next_token_fields(10)));
  ints("position_ids", {1, 1, 4}, {0, 1, 0, 4});
  EXPECT_THAT(error_of<DataError>([&] { BatchesDataset(write(), next_token_fields(10)); }),
              AllOf(HasSubstr("position_ids[0, 0, 3]=4 is outside 0 to 3"), HasSubstr("try: ")));
}

// transformers separates what lies between such places, but only without its cache.
TEST_F(Batches, PositionsThatJumpWithoutAMaskAreWarnedOf) {
  ints("input_ids", {2, 4}, {1, 2, 3, 4, 5, 6, 7, 8});
  const auto log_of = [&](const std::vector<BatchField>& fields) {
    ::testing::internal::CaptureStderr();
    EXPECT_FALSE(batch(fields).stream("tokens").packed);
    return ::testing::internal::GetCapturedStderr();
  };
  ints("position_ids", {2, 4}, {0, 1, 2, 3, 5, 6, 7, 8});
  EXPECT_EQ(log_of(next_token_fields(10)), "");
  ints("position_ids", {2, 4}, {0, 1, 2, 3, 0, 1, 0, 1});
  EXPECT_THAT(log_of(next_token_fields(10)),
              AllOf(HasSubstr("position_ids does not rise by 1"), HasSubstr("use_cache=True"),
                    HasSubstr("an attention_mask of ones")));
  EXPECT_EQ(log_of({{.name = "input_ids"}, {.name = "token_type_ids", .absent = 0}}),
            ""); // attends to all
  ints("attention_mask", {2, 4}, std::vector<int64_t>(8, 1));
  EXPECT_EQ(log_of(next_token_fields(10)), "");
}

// transformers flattens them.
TEST_F(Batches, ValuesOfSamplesMayBeAColumn) {
  ints("input_ids", {2, 2, 1}, {1, 2, 3, 4});
  ints("labels", {2, 2, 1}, {-100, -100, -100, -100});
  ints("next_sentence_label", {2, 2, 1}, {0, 1, -100, 1});
  const BatchesDataset dataset(write(), bert_fields());
  const std::vector<int64_t> rows{0, 1, 2, 3};
  EXPECT_THAT(make_batch(dataset, rows).ints("next_sentence_label"), ElementsAre(0, 1, -100, 1));
  ints("input_ids", {2, 1}, {1, 2});
  ints("labels", {2, 1}, {-100, -100});
  ints("next_sentence_label", {2, 1}, {0, 1});
  EXPECT_THAT(batch(bert_fields()).ints("next_sentence_label"), ElementsAre(0, 1));
}

TEST_F(Batches, MasksMayBeNumbersOfWhichAllButZeroCount) {
  ints("input_ids", {2, 3}, {1, 2, 3, 4, 5, 6});
  ints("labels", {2, 3}, {1, 2, 3, 4, 5, 6});
  ints("next_sentence_label", {2}, {0, 1});
  put<float>("attention_mask", {2, 3}, {0, 1, 0.5, 1, 1, 0}, SafeDtype::kF32);
  EXPECT_THAT(batch(bert_fields()).stream("tokens").real,
              ElementsAre(StreamRange{1, 3}, StreamRange{0, 2}));
  for (const auto& [type, one] : {std::pair{SafeDtype::kBF16, 0x3f80}, {SafeDtype::kF16, 0x3c00}}) {
    const auto bits = static_cast<uint16_t>(one);
    put<uint16_t>("attention_mask", {2, 3}, {0x8000, bits, bits, bits, bits, 0}, type); // -0 first
    EXPECT_THAT(batch(bert_fields()).stream("tokens").real,
                ElementsAre(StreamRange{1, 3}, StreamRange{0, 2}));
  }
  ints("attention_mask", {2, 3}, {0, 0, 7, -1, 1, 0});
  EXPECT_THAT(batch(bert_fields()).stream("tokens").real,
              ElementsAre(StreamRange{2, 3}, StreamRange{0, 2}));
}

TEST_F(Batches, WhatDoesNotFitIsNamed) {
  ints("input_ids", {2, 3}, {1, 2, 3, 4, 5, 6});
  EXPECT_THAT(error(bert_fields()), AllOf(HasSubstr("has no tensor labels [batch, sequence]"),
                                          HasSubstr("it has input_ids [2, 3]")));
  ints("labels", {2, 3}, {1, 2, 3, -100, -100, 100});
  EXPECT_THAT(error(bert_fields()),
              HasSubstr("labels[1, 2]=100 is outside the vocabulary (0 to 99)"));
  ints("labels", {2, 2}, {1, 2, 3, -100});
  EXPECT_THAT(error(bert_fields()),
              HasSubstr("labels has sequences of 2 tokens, but other tensors of 3"));
  ints("labels", {1, 3}, {1, 2, 3});
  EXPECT_THAT(error(bert_fields()),
              HasSubstr("labels [1, 3] and input_ids differ in the number of samples"));
  ints("labels", {2, 3}, {1, 2, 3, 4, 5, 6});
  EXPECT_THAT(error(bert_fields()), HasSubstr("has no tensor next_sentence_label [batch]"));
  ints("next_sentence_label", {2, 2}, {0, 1, 0, 1});
  EXPECT_THAT(error(bert_fields()), HasSubstr("next_sentence_label is I64 [2, 2], not [batch]"));
  ints("next_sentence_label", {2}, {0, 1});
  ints("attention_mask", {2, 3}, {1, 1, 1, 1, 0, 1});
  EXPECT_THAT(error(bert_fields()),
              AllOf(HasSubstr("row 1 of step 0 of attention_mask is not one run"),
                    HasSubstr("try: attention_mask and the other tensors with the padding of that "
                              "row at its end")));
  ints("attention_mask", {2, 3}, {1, 1, 1, 1, 1, 0});
  ints("labels", {2, 3}, {1, 2, 3, 4, 6, -100});
  EXPECT_NO_THROW(batch(bert_fields()));
  ints("labels", {2, 3}, {1, 2, 3, 4, 5, 6});
  ints("attention_mask", {2, 3}, {1, 1, 1, 1, 1, 1});
  ints("position_ids", {2, 3}, {0, 1, 2, 2, 7, 8});
  std::vector<BatchField> fields = bert_fields();
  fields[0].positions = 8;
  EXPECT_THAT(error(fields), HasSubstr("position_ids[1, 2]=8 is outside 0 to 7"));
  put<uint16_t>("attention_mask", {2, 3}, {1, 1, 1, 1, 1, 1}, SafeDtype::kI16);
  EXPECT_THAT(error(bert_fields()), HasSubstr("attention_mask is I16, not I64"));
}

} // namespace
} // namespace pentatron::data
