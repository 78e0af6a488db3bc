// Two passes that take turns: their order, their ends, failures, and what their threads have.
#include "pentatron/nn/turns.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "pentatron/base/error.h"
#include "pentatron/base/log.h"
#include "pentatron/comm/rank_threads.h"
#include "pentatron/nn/memory/counting_allocator.h"
#include "pentatron/nn/record.h"
#include "tests/support/ranks.h"

namespace pentatron::nn {
namespace {

using test::error_of;

/// A pass of so many parts, that writes down each and hands over behind it.
std::function<void()> pass(Turns& turns, std::string& seen, char name, int parts) {
  return [&turns, &seen, name, parts] {
    for (int i = 0; i < parts; ++i) {
      seen += name;
      seen += std::to_string(i);
      turns.pass();
    }
    seen += name;
  };
}

TEST(Turns, AlternateUntilOneHasEnded) {
  Turns turns;
  const auto order = [&](int first, int second) {
    std::string seen;
    turns.run(pass(turns, seen, 'F', first), pass(turns, seen, 'B', second));
    return seen;
  };
  EXPECT_EQ(order(2, 2), "F0B0F1B1FB");
  EXPECT_EQ(order(1, 3), "F0B0FB1B2B");
  EXPECT_EQ(order(3, 1), "F0B0F1BF2F");
  EXPECT_EQ(order(0, 2), "FB0B1B");
  EXPECT_EQ(order(0, 0), "FB");
  turns.pass(); // outside of a pair: nothing to hand over to
}

TEST(Turns, AFailureEndsBoth) {
  Turns turns;
  std::string seen;
  const auto fail = [&](int parts, const char* text) {
    return [&turns, parts, text] {
      for (int i = 0; i < parts; ++i) turns.pass();
      raise<DataError>("{}", text);
    };
  };
  EXPECT_EQ(error_of([&] { turns.run(fail(0, "first"), pass(turns, seen, 'B', 2)); }), "first");
  EXPECT_EQ(seen, "") << "the second does not begin";
  EXPECT_EQ(error_of([&] { turns.run(fail(1, "first"), pass(turns, seen, 'B', 2)); }), "first");
  EXPECT_EQ(seen, "B0") << "the second ends where it has handed over";
  seen.clear();
  EXPECT_EQ(error_of([&] { turns.run(pass(turns, seen, 'F', 2), fail(0, "second")); }), "second");
  EXPECT_EQ(seen, "F0");
  EXPECT_EQ(error_of([&] { turns.run(fail(1, "earlier"), fail(1, "later")); }), "earlier");
  EXPECT_THROW(turns.run(fail(0, "x"), [] {}), DataError) << "of the type that was thrown";
  seen.clear();
  turns.run(pass(turns, seen, 'F', 1), pass(turns, seen, 'B', 1));
  EXPECT_EQ(seen, "F0B0FB") << "and the next pair is as any other";
}

/// The second pass of a pair is autograd's, which must let its end through.
TEST(Turns, AFailureEndsABackwardPass) {
  Turns turns;
  const auto backward = [&] {
    const at::Tensor x = at::ones({2}).requires_grad_(true);
    at::Tensor y;
    {
      const NoAutograd guard;
      y = x.detach() * 2;
    }
    record("double", {x}, {y}, {}, [&](auto&& grads, Saved&) {
      turns.pass();
      return std::vector<at::Tensor>{grads[0] * 2};
    });
    y.sum().backward();
    EXPECT_EQ(x.grad().sum().item<double>(), 4);
  };
  const auto failing = [&] {
    turns.pass();
    raise<ShapeError>("of the first");
  };
  EXPECT_EQ(error_of([&] { turns.run(failing, backward); }), "of the first");
  turns.run([&] { turns.pass(); }, backward);
}

TEST(Turns, ItsThreadBelongsToTheRank) {
  install_counting_allocator();
  comm::run_ranks(3, {.threads_per_rank = 2}, [](const comm::Group& world) {
    Turns turns;
    log::set_thread_prefix("rank " + std::to_string(world.rank()));
    const MemoryScope scope(MemoryCategory::kActivations);
    const c10::AutoGradMode grad(false);
    const auto look = [&] {
      EXPECT_EQ(comm::current_rank(), world.rank());
      EXPECT_EQ(log::thread_settings().prefix, "rank " + std::to_string(world.rank()));
      EXPECT_EQ(memory_category(), MemoryCategory::kActivations);
      EXPECT_FALSE(c10::GradMode::is_enabled());
      EXPECT_EQ(at::get_num_threads(), 2);
    };
    const std::thread::id own = std::this_thread::get_id();
    turns.run(
        [&] {
          EXPECT_NE(std::this_thread::get_id(), own);
          look();
          turns.pass();
          look();
        },
        [&] {
          EXPECT_EQ(std::this_thread::get_id(), own);
          look();
        });
  });
}

} // namespace
} // namespace pentatron::nn
