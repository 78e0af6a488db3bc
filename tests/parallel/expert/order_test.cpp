// Choices in order of their experts: the host's loop and the operators of GPUs.
#include "pentatron/parallel/expert/order.h"

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "tests/nn/op_fixture.h"

namespace pentatron::parallel {
namespace {

at::Tensor numbers(const std::vector<int64_t>& values) {
  return at::tensor(values, at::kLong);
}

TEST(Order, LiesByKeyAndOfOneKeyInItsOwnOrder) {
  const at::Tensor keys = numbers({2, 0, -1, 2, 0, 3});
  const at::Tensor counts = counts_of_keys(keys, 5, 0);
  EXPECT_TRUE(at::equal(counts, numbers({2, 0, 2, 1, 0})));
  const Order order = order_by_key(keys, counts, 0);
  EXPECT_TRUE(at::equal(order.place, numbers({2, 0, -1, 3, 1, 4})));
  EXPECT_TRUE(at::equal(order.thing.narrow(0, 0, 5), numbers({1, 4, 0, 3, 5})));
}

TEST(Order, KeysWithFewThingsHaveEmptyPlaces) {
  const at::Tensor keys = numbers({1, 1, 1, 0});
  const at::Tensor counts = counts_of_keys(keys, 3, 2);
  EXPECT_TRUE(at::equal(counts, numbers({2, 3, 2})));
  const Order order = order_by_key(keys, counts, 2);
  EXPECT_TRUE(at::equal(order.place, numbers({2, 3, 4, 0})));
  EXPECT_TRUE(at::equal(order.thing.narrow(0, 0, 7), numbers({3, -1, 0, 1, 2, -1, -1})));
}

TEST(Order, OperatorsOfGpusGiveTheSame) {
  at::Generator random = at::detail::createCPUGenerator(3);
  for (const int64_t things : {0, 1, 7, 300}) {
    for (const int64_t num_keys : {1, 4, 37}) {
      for (const int64_t least : {0, 1, 6}) {
        const at::Tensor keys = at::randint(-1, num_keys, {things}, random, at::kLong),
                         counts = counts_of_keys(keys, num_keys, least);
        const Order host = order_by_key(keys, counts, least),
                    operators = order_by_operators(keys, counts, least);
        EXPECT_TRUE(at::equal(host.place, operators.place)) << things << " of " << num_keys;
        const int64_t places = counts.sum().item<int64_t>();
        ASSERT_GE(operators.thing.numel(), places);
        EXPECT_TRUE(at::equal(host.thing, operators.thing.narrow(0, 0, places)))
            << things << " of " << num_keys << ", at least " << least;
        EXPECT_TRUE((operators.thing.narrow(0, places, operators.thing.numel() - places) == -1)
                        .all()
                        .item<bool>());
      }
    }
  }
}

} // namespace
} // namespace pentatron::parallel
