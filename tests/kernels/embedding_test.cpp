#include "pentatron/kernels/embedding/embedding.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/embedding_dense_backward.h>
#include <ATen/ops/from_blob.h>

#include "pentatron/base/error.h"
#include "tests/kernels/array.h"

namespace pentatron::kernels {
namespace {

using namespace testing;

/// Tokens of which many repeat; every seventh is of another rank.
std::vector<int64_t> some_ids(int64_t tokens, int64_t rows, int64_t offset) {
  std::vector<int64_t> ids;
  for (int64_t t = 0; t < tokens; ++t) {
    ids.push_back(t % 7 == 6 ? offset + rows + t : offset + (t * t) % rows);
    if (t % 14 == 13) ids.back() = offset - 1;
  }
  return ids;
}

TEST(Embedding, GathersScalesAndAddsPositions) {
  const int64_t tokens = 37, rows = 11, offset = 100;
  for (const DType dtype : kAllTypes) {
    for (const DType out_dtype : kAllTypes) {
      if ((dtype == DType::kFloat64) != (out_dtype == DType::kFloat64)) continue;
      for (const int64_t width : {1, 16, 67}) {
        for (const bool with_positions : {false, true}) {
          for (const double scale : {1.0, 3.0}) {
            Array table(dtype, rows * width), positions(dtype, 5 * width),
                out(out_dtype, tokens * width);
            table.fill([](int64_t i) { return static_cast<double>(i % 31 - 15); });
            positions.fill([](int64_t i) { return 0.5 * static_cast<double>(i % 17); });
            const std::vector<int64_t> ids = some_ids(tokens, rows, offset);
            std::vector<int64_t> position(static_cast<size_t>(tokens));
            for (int64_t t = 0; t < tokens; ++t) position[static_cast<size_t>(t)] = t % 5;
            const EmbeddingArgs a{.dtype = dtype,
                                  .out_dtype = out_dtype,
                                  .tokens = tokens,
                                  .width = width,
                                  .table = table.data(),
                                  .rows = rows,
                                  .row_offset = offset,
                                  .ids = ids.data(),
                                  .position_table = with_positions ? positions.data() : nullptr,
                                  .num_positions = 5,
                                  .positions = position.data(),
                                  .scale = scale,
                                  .out = out.data()};
            for (const auto& e : entries_for(embedding_entries(), a)) {
              out.fill(99.0);
              e.run(a, {});
              for (int64_t t = 0; t < tokens; ++t) {
                const int64_t r = ids[static_cast<size_t>(t)] - offset;
                for (int64_t c = 0; c < width; ++c) {
                  double expected = r >= 0 && r < rows ? scale * table[r * width + c] : 0;
                  if (with_positions) expected += positions[t % 5 * width + c];
                  ASSERT_EQ(out[t * width + c], expected)
                      << e.name << " " << name(dtype) << " " << t;
                }
              }
            }
          }
        }
      }
    }
  }
}

TEST(Embedding, ShardsSumToTheWhole) {
  const int64_t tokens = 20, width = 24, vocab = 30;
  Array table(DType::kFloat32, vocab * width), whole(DType::kFloat32, tokens * width);
  table.fill_random(1);
  std::vector<int64_t> ids(tokens);
  for (int64_t t = 0; t < tokens; ++t) ids[static_cast<size_t>(t)] = (t * 13) % vocab;
  EmbeddingArgs a{.tokens = tokens,
                  .width = width,
                  .table = table.data(),
                  .rows = vocab,
                  .ids = ids.data(),
                  .out = whole.data()};
  embedding(a);
  Array sum(DType::kFloat32, tokens * width), part = sum;
  for (const auto& [begin, end] : {std::pair{0, 16}, std::pair{16, 30}, std::pair{30, 30}}) {
    a.table = table.at(begin * width);
    a.row_offset = begin;
    a.rows = end - begin;
    a.out = part.data();
    embedding(a);
    sum.fill([&](int64_t i) { return sum[i] + part[i]; });
  }
  EXPECT_TRUE(sum.same_bits(whole));
}

TEST(EmbeddingGradient, MatchesTorch) {
  const int64_t tokens = 200, rows = 13, width = 40;
  Array dy(DType::kFloat64, tokens * width), grad(DType::kFloat64, rows * width);
  dy.fill_random(3);
  std::vector<int64_t> ids(tokens);
  for (int64_t t = 0; t < tokens; ++t) ids[static_cast<size_t>(t)] = (t * t) % rows;
  embedding_gradient({.dtype = DType::kFloat64,
                      .grad_dtype = DType::kFloat64,
                      .tokens = tokens,
                      .width = width,
                      .dy = dy.data(),
                      .ids = ids.data(),
                      .rows = rows,
                      .main_grad = grad.data()});
  const at::Tensor expected =
      at::embedding_dense_backward(at::from_blob(dy.data(), {tokens, width}, at::kDouble),
                                   at::from_blob(ids.data(), {tokens}, at::kLong), rows, -1, false);
  EXPECT_LE((at::from_blob(grad.data(), {rows, width}, at::kDouble) - expected)
                .abs()
                .max()
                .item<double>(),
            1e-13);
}

TEST(EmbeddingGradient, AccumulatesInTokenOrderForEveryEntryAndThreadCount) {
  const int64_t tokens = 150, rows = 9, offset = 50;
  for (const DType dtype : kAllTypes) {
    for (const int64_t width : {1, 65, 300, 1024}) {
      Array dy(dtype, tokens * width), before(acc_dtype(dtype), rows * width);
      dy.fill_random(4);
      before.fill_random(5);
      const std::vector<int64_t> ids = some_ids(tokens, rows, offset);
      Array expected = before;
      EmbeddingGradientArgs a{.dtype = dtype,
                              .grad_dtype = acc_dtype(dtype),
                              .tokens = tokens,
                              .width = width,
                              .dy = dy.data(),
                              .ids = ids.data(),
                              .rows = rows,
                              .row_offset = offset,
                              .scale = 0.7,
                              .main_grad = expected.data()};
      reference_of(embedding_gradient_entries()).run(a, {});
      EXPECT_FALSE(expected.same_bits(before));
      for (const auto& e : entries_for(embedding_gradient_entries(), a)) {
        for (const int threads : {1, 2, 5, 16}) {
          Array grad = before;
          a.main_grad = grad.data();
          with_threads(threads, [&] { e.run(a, {}); });
          EXPECT_TRUE(grad.same_bits(expected))
              << e.name << " " << name(dtype) << " " << width << " " << threads;
        }
      }
    }
  }
}

TEST(EmbeddingGradient, RefusesAnotherAccumulateType) {
  EXPECT_THROW(embedding_gradient({.dtype = DType::kFloat32, .grad_dtype = DType::kFloat64}),
               ShapeError);
}

TEST(FirstBadId, NamesTheFirstOutsideTheVocabulary) {
  const std::vector<int64_t> ids = {0, 9, -1, 10, -5};
  EXPECT_EQ(first_bad_id(ids.data(), 2, 10), -1);
  EXPECT_EQ(first_bad_id(ids.data(), 5, 10), 2);
  EXPECT_EQ(first_bad_id(ids.data(), 5, 10, /*allow_negative=*/true), 3);
  EXPECT_EQ(first_bad_id(ids.data(), 0, 10), -1);
}

} // namespace
} // namespace pentatron::kernels
