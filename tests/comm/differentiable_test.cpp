#include "pentatron/comm/differentiable.h"

#include "pentatron/base/error.h"
#include "pentatron/comm/collectives.h"
#include "tests/support/ranks.h"
#include "tests/support/tensors.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

namespace pentatron::comm {
namespace {

using test::expect_close;
using test::randn;
using test::run_ranks;
using test::shard;

/// The oracle is the closed form of forward and backward in terms of all ranks' inputs and output
/// gradients. In fp64, where the only sums are those of the collectives, in rank order: equal bit
/// for bit.
class Differentiable : public testing::TestWithParam<int> {
 protected:
  int world() const { return GetParam(); }
  static at::Tensor x_of(int rank, at::IntArrayRef shape) {
    return randn(shape, 10 + static_cast<uint64_t>(rank));
  }
  static at::Tensor dy_of(int rank, at::IntArrayRef shape) {
    return randn(shape, 90 + static_cast<uint64_t>(rank));
  }
  template <class F> at::Tensor sum(const F& of_rank) const {
    at::Tensor result = of_rank(0);
    for (int r = 1; r < world(); ++r) result = result + of_rank(r);
    return result;
  }
  template <class F> at::Tensor cat(const F& of_rank, int64_t dim) const {
    std::vector<at::Tensor> parts;
    for (int r = 0; r < world(); ++r) parts.push_back(of_rank(r));
    return at::cat(parts, dim);
  }

  /// Runs y = f(x), y.backward(dy) on every rank and compares with what the test expects for that
  /// rank.
  void check(at::IntArrayRef shape_x, at::IntArrayRef shape_y,
             const std::function<at::Tensor(const at::Tensor&, const Group&)>& f,
             const std::function<at::Tensor(const Group&)>& expected_y,
             const std::function<at::Tensor(const Group&)>& expected_dx) {
    run_ranks(world(), [&](const Group& group) {
      const at::Tensor x = x_of(group.rank(), shape_x).requires_grad_();
      const at::Tensor y = f(x, group);
      EXPECT_TRUE(y.requires_grad());
      expect_close(y, expected_y(group));
      y.backward(dy_of(group.rank(), shape_y));
      expect_close(x.grad(), expected_dx(group));
      {
        const at::NoGradGuard no_grad;
        EXPECT_FALSE(f(x.detach(), group).requires_grad());
      }
    });
  }
};

INSTANTIATE_TEST_SUITE_P(Worlds, Differentiable, testing::Values(1, 2, 3, 4, 16));

TEST_P(Differentiable, CopyToSumsTheGradients) {
  check(
      {3, 5}, {3, 5}, [](const auto& x, const Group& g) { return copy_to(x, g); },
      [](const Group& g) {
        return x_of(g.rank(), {3, 5});
      },
      [&](const Group&) { return sum([](int r) {
                            return dy_of(r, {3, 5});
                          }); });
}

TEST_P(Differentiable, ReduceFromSumsTheInputsAndPassesTheGradient) {
  check(
      {3, 5}, {3, 5}, [](const auto& x, const Group& g) { return reduce_from(x, g); },
      [&](const Group&) { return sum([](int r) {
                            return x_of(r, {3, 5});
                          }); },
      [](const Group& g) {
        return dy_of(g.rank(), {3, 5});
      });
}

TEST_P(Differentiable, GatherFromTakesItsPartOfTheGradient) {
  check(
      {3, 5}, {3, 5 * world()}, [](const auto& x, const Group& g) { return gather_from(x, -1, g); },
      [&](const Group&) {
        return cat([](int r) { return x_of(r, {3, 5}); }, 1);
      },
      [&](const Group& g) {
        return shard(dy_of(g.rank(), {3, 5 * world()}), 1, g);
      });
}

TEST_P(Differentiable, ScatterToGathersTheGradients) {
  check(
      {3 * world(), 1}, {3, 1}, [](const auto& x, const Group& g) { return scatter_to(x, 0, g); },
      [&](const Group& g) {
        return shard(x_of(g.rank(), {3 * world(), 1}), 0, g);
      },
      [&](const Group&) {
        return cat([](int r) { return dy_of(r, {3, 1}); }, 0);
      });
}

TEST_P(Differentiable, AllGatherReduceScattersTheGradients) {
  check(
      {3, 5}, {3, 5 * world()}, [](const auto& x, const Group& g) { return all_gather(x, 1, g); },
      [&](const Group&) {
        return cat([](int r) { return x_of(r, {3, 5}); }, 1);
      },
      [&](const Group& g) {
        return shard(sum([&](int r) { return dy_of(r, {3, 5 * world()}); }), 1, g);
      });
}

TEST_P(Differentiable, ReduceScatterAllGathersTheGradients) {
  check(
      {3 * world(), 5}, {3, 5},
      [](const auto& x, const Group& g) { return reduce_scatter(x, 0, g); },
      [&](const Group& g) {
        return shard(sum([&](int r) { return x_of(r, {3 * world(), 5}); }), 0, g);
      },
      [&](const Group&) {
        return cat([](int r) { return dy_of(r, {3, 5}); }, 0);
      });
}

TEST_P(Differentiable, AllToAllSendsTheGradientsBack) {
  check(
      {3, 2 * world()}, {3 * world(), 2},
      [](const auto& x, const Group& g) { return all_to_all(x, 1, 0, g); },
      [&](const Group& g) {
        return shard(cat([&](int r) { return x_of(r, {3, 2 * world()}); }, 0), 1, g);
      },
      [&](const Group& g) {
        return shard(cat([&](int r) { return dy_of(r, {3 * world(), 2}); }, 1), 0, g);
      });
}

TEST_P(Differentiable, AllToAllRowsSendsTheGradientsBack) {
  // Every rank sends r + 1 rows to rank r, so rank r receives r + 1 from each.
  const int n = world();
  const auto start = [](int r) { return int64_t{r} * (r + 1) / 2; };
  run_ranks(n, [&](const Group& group) {
    const int me = group.rank();
    std::vector<int64_t> send_rows, recv_rows(n, me + 1);
    for (int r = 0; r < n; ++r) send_rows.push_back(r + 1);
    const at::Tensor x = x_of(me, {start(n), 2}).requires_grad_();
    const at::Tensor y = all_to_all_rows(x, send_rows, recv_rows, group);
    expect_close(y, cat(
                        [&](int r) {
                          return x_of(r, {start(n), 2}).narrow(0, start(me), me + 1);
                        },
                        0));
    y.backward(dy_of(me, y.sizes()));
    expect_close(
        x.grad(),
        cat(
            [&](int r) {
              return dy_of(r, {int64_t{n} * (r + 1), 2}).narrow(0, int64_t{me} * (r + 1), r + 1);
            },
            0));
  });
}

TEST_P(Differentiable, AParallelMlpHasTheGradientsOfOneRank) {
  // y = relu(x A) B with A split by columns and B by rows: the operators f and g of Megatron-LM.
  const int64_t f = 3 * world();
  const at::Tensor a = randn({5, f}, 1), b = randn({f, 7}, 2), x0 = randn({4, 5}, 3),
                   dy = randn({4, 7}, 4);
  const at::Tensor x1 = x0.clone().requires_grad_(), a1 = a.clone().requires_grad_(),
                   b1 = b.clone().requires_grad_();
  const at::Tensor y1 = at::relu(x1.matmul(a1)).matmul(b1);
  y1.backward(dy);
  run_ranks(world(), [&](const Group& tp) {
    const at::Tensor x = x0.clone().requires_grad_();
    const at::Tensor a_part = shard(a, 1, tp).requires_grad_(),
                     b_part = shard(b, 0, tp).requires_grad_();
    const at::Tensor y = reduce_from(at::relu(copy_to(x, tp).matmul(a_part)).matmul(b_part), tp);
    y.backward(dy);
    const test::Tolerance tolerance{.rtol = 1e-12, .atol = 1e-12};
    expect_close(y, y1, tolerance);
    expect_close(x.grad(), x1.grad(), tolerance);
    expect_close(a_part.grad(), shard(a1.grad(), 1, tp), tolerance);
    expect_close(b_part.grad(), shard(b1.grad(), 0, tp), tolerance);
  });
}

TEST_P(Differentiable, HundredsOfAllReducesInsideBackwardGiveThePowerOfTheWorld) {
  // Each copy_to multiplies the gradient by the world size; halving keeps the power of two exact.
  run_ranks(world(), [&](const Group& group) {
    const at::Tensor x = at::ones({3}, at::kDouble).requires_grad_();
    at::Tensor y = x;
    for (int i = 0; i < 300; ++i) y = copy_to(y, group) / group.size();
    y.sum().backward();
    expect_close(x.grad(), at::ones({3}, at::kDouble), {.rtol = 1e-12});
  });
}

TEST_P(Differentiable, SecondDerivativesCrossTheRanks) {
  // z = sum over ranks of x_r^3; d/dx_r of (dz/dx_r summed) is 6 x_r.
  run_ranks(world(), [&](const Group& group) {
    const at::Tensor x = x_of(group.rank(), {4}).requires_grad_();
    const at::Tensor z = reduce_from((x * x * x).sum(), group);
    const at::Tensor first =
        torch::autograd::grad({z}, {x}, {}, /*retain_graph=*/true, /*create_graph=*/true)[0];
    expect_close(first, 3 * x * x, {.rtol = 1e-14});
    first.sum().backward();
    expect_close(x.grad(), 6 * x, {.rtol = 1e-14});
  });
}

TEST(DifferentiableErrors, RefuseADimThatDoesNotDivide) {
  run_ranks(2, [](const Group& group) {
    EXPECT_THROW(scatter_to(at::zeros({3}), 0, group), ShapeError);
    EXPECT_THROW(gather_from(at::zeros({3}), 1, group), ShapeError);
  });
}

} // namespace
} // namespace pentatron::comm
