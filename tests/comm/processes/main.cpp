/// Runs GoogleTest in every process of a launcher, with test::run_ranks(n) on the first n of them.
/// Tests that want more ranks are skipped. PENTATRON_TEST_CUTS=1 makes every tensor large: data
/// goes in many steps and many messages.
#include "tests/comm/processes/processes.h"
#include "tests/support/exit_status.h"
#include "tests/support/ranks.h"

#include <ATen/Parallel.h>

#include <cstdlib>
#include <iostream>

namespace pentatron::test {

namespace {

comm::ProcessWorld* g_processes = nullptr;

/// Of the ranks above 0 only failures are shown.
class Failures : public testing::EmptyTestEventListener {
  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (result.failed())
      std::cerr << fmt::format("rank {}: {}:{}: {}\n", g_processes->rank(),
                               result.file_name() ? result.file_name() : "", result.line_number(),
                               result.message());
  }
};

void run_on_processes(int world_size, const std::function<void(comm::Group)>& body) {
  if (world_size > g_processes->size()) {
    [&] { GTEST_SKIP() << world_size << " ranks of " << g_processes->size(); }();
    return;
  }
  g_processes->run([&](const comm::Group& all) {
    const bool takes_part = all.rank() < world_size;
    const comm::Group world = all.split(takes_part ? 0 : 1, 0, "world");
    if (takes_part) body(world);
  });
}

} // namespace

comm::ProcessWorld& processes() {
  return *g_processes;
}

} // namespace pentatron::test

int main(int argc, char** argv) {
  using namespace pentatron;
  testing::InitGoogleTest(&argc, argv);
  comm::MessageOptions options;
  if (std::getenv("PENTATRON_TEST_CUTS"))
    options = {.max_message_bytes = 1000, .inline_bytes = 8, .step_bytes = 3000};
  comm::ProcessWorld world(comm::detect_launch(), comm::ProcessBackend::kAuto, 120, options);
  test::g_processes = &world;
  test::set_run_ranks(test::run_on_processes, world.rank() == 0);
  at::set_num_threads(1);
  if (world.rank() > 0) {
    auto& listeners = testing::UnitTest::GetInstance()->listeners();
    delete listeners.Release(listeners.default_result_printer());
    listeners.Append(new test::Failures);
  }
  return test::run_all_tests();
}
