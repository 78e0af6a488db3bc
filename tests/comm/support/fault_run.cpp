// A run of four ranks that communicate in every way until something goes wrong; the campaign
// (fault_campaign.py) does the harm.
//
//   fault_run mpi FOLDER               supervises ranks under mpirun
//   fault_run sockets FOLDER           supervises ranks that it starts itself
//   fault_run rank FOLDER              one such rank, also under a foreign launcher
//   fault_run threads FAULT RANK STEP  thread ranks; RANK throws or is absent from STEP on
// Ranks write their process id to FOLDER/pid.RANK once they communicate. The run ends well after
// 60 s.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>
#include <unistd.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "pentatron/base/error.h"
#include "pentatron/comm/collectives.h"
#include "pentatron/comm/process_ranks.h"
#include "pentatron/comm/rank_threads.h"
#include "pentatron/comm/supervisor.h"

namespace {

using namespace pentatron; // NOLINT: a program of one file
using comm::Group;

constexpr comm::DistConfig kDist{.timeout_s = 5, .heartbeat_s = 1};

void communicate(const Group& world, const std::function<bool(int step)>& go_on) {
  const Group pair = world.split(world.rank() / 2, 0, "tp");
  const at::Tensor x = at::ones({64, 3});
  for (int step = 0; go_on(step); ++step) {
    comm::all_reduce(x, comm::ReduceOp::kSum, world);
    comm::all_gather(x, 0, pair);
    comm::reduce_scatter(x, 0, world);
    at::Tensor received = at::empty_like(x);
    comm::TransferBatch batch(world);
    batch.send(x, (world.rank() + 1) % world.size());
    batch.recv(received, (world.rank() + world.size() - 1) % world.size());
    batch.start().wait();
    comm::barrier(pair);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

int run(const std::string& verb, int argc, char** argv) {
  at::set_num_threads(1);
  const auto start = std::chrono::steady_clock::now();
  const auto in_time = [start] {
    return std::chrono::steady_clock::now() - start < std::chrono::seconds(60);
  };
  using Start = comm::SupervisorOptions::Start;
  if ((verb == "mpi" || verb == "sockets") && argc == 3)
    return comm::supervise({.ranks = 4,
                            .arguments = {"rank", argv[2]},
                            .start = verb == "mpi" ? Start::kMpirun : Start::kProcesses,
                            .dist = kDist});
  if (verb == "rank" && argc == 3) {
    const comm::Launch launch = comm::detect_launch();
    comm::run_process_rank(launch, {.dist = kDist}, [&](const Group& world) {
      communicate(world, [&](int step) {
        if (step == 1)
          std::ofstream(argv[2] + std::string("/pid.") + std::to_string(world.rank()))
              << ::getpid();
        // All ranks must agree on the end.
        at::Tensor go_on = at::full({1}, in_time() ? 1 : 0, at::kInt);
        comm::broadcast_(go_on, 0, world);
        return go_on.item<int>() == 1;
      });
    });
    return 0;
  }
  if (verb == "threads" && argc == 5) {
    const std::string fault = argv[2];
    const int victim = std::atoi(argv[3]), when = std::atoi(argv[4]);
    comm::run_ranks(
        4, {.threads_per_rank = 1, .timeout_s = kDist.timeout_s, .heartbeat_s = kDist.heartbeat_s},
        [&](const Group& world) {
          communicate(world, [&](int step) {
            if (world.rank() != victim || step < when) return true;
            if (fault == "throw") raise<DataError>("file x.bin is damaged");
            while (true) std::this_thread::sleep_for(std::chrono::seconds(1));
          });
        });
    return 0;
  }
  return 64;
}

} // namespace

int main(int argc, char** argv) {
  try {
    return run(argc > 1 ? argv[1] : "", argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
}
