/// Collectives of the mpi and sockets backends beside the MPI library's own and beside thread
/// ranks, on the same data in the same run:
///
///   mpirun -n 2 build/dev/benchmarks/bench_comm [all_reduce|all_gather|reduce_scatter
///   [STEP_BYTES]]
///
/// A figure is the bytes of the whole tensor over the median time of one operation; the ratio is
/// that of the mpi backend over the MPI library's.
#include "pentatron/comm/collectives.h"
#include "pentatron/comm/process_world.h"
#include "pentatron/comm/rank_threads.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <mpi.h>

#include <algorithm>
#include <chrono>

namespace {

using namespace pentatron;
using comm::Group;
using comm::ReduceOp;

/// Median seconds of one call. All ranks of `group` call it together.
double seconds(const Group& group, int64_t bytes, const std::function<void()>& call) {
  using Clock = std::chrono::steady_clock;
  const int64_t calls = std::clamp<int64_t>((int64_t{1} << 25) / bytes, 1, 100);
  std::vector<double> samples;
  call();
  for (int i = 0; i < 9; ++i) {
    comm::barrier(group);
    const auto begin = Clock::now();
    for (int64_t k = 0; k < calls; ++k) call();
    samples.push_back(std::chrono::duration<double>(Clock::now() - begin).count() /
                      static_cast<double>(calls));
  }
  std::nth_element(samples.begin(), samples.begin() + 4, samples.end());
  return samples[4];
}

struct Collective {
  const char* name;
  std::function<void(const at::Tensor& whole, const at::Tensor& part, const Group&)> ours;
  std::function<void(const at::Tensor& whole, const at::Tensor& part)> library;
};

const Collective kCollectives[] = {
    {"all_reduce",
     [](const at::Tensor& whole, const at::Tensor&, const Group& group) {
       comm::all_reduce_start_(whole, ReduceOp::kSum, group).wait();
     },
     [](const at::Tensor& whole, const at::Tensor&) {
       MPI_Allreduce(MPI_IN_PLACE, whole.data_ptr(), static_cast<int>(whole.numel()), MPI_FLOAT,
                     MPI_SUM, MPI_COMM_WORLD);
     }},
    {"all_gather",
     [](const at::Tensor& whole, const at::Tensor& part, const Group& group) {
       comm::all_gather_into(whole, part, 0, group).wait();
     },
     [](const at::Tensor& whole, const at::Tensor& part) {
       MPI_Allgather(part.data_ptr(), static_cast<int>(part.numel()), MPI_FLOAT, whole.data_ptr(),
                     static_cast<int>(part.numel()), MPI_FLOAT, MPI_COMM_WORLD);
     }},
    {"reduce_scatter",
     [](const at::Tensor& whole, const at::Tensor& part, const Group& group) {
       comm::reduce_scatter_into(part, whole, group).wait();
     },
     [](const at::Tensor& whole, const at::Tensor& part) {
       MPI_Reduce_scatter_block(whole.data_ptr(), part.data_ptr(), static_cast<int>(part.numel()),
                                MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
     }}};

double of_threads(int ranks, const Collective& collective, int64_t bytes) {
  double result = 0;
  comm::run_ranks(ranks, {.threads_per_rank = 1}, [&](const Group& group) {
    const at::Tensor part = at::zeros({bytes / 4 / ranks}, at::kFloat);
    const at::Tensor whole = at::zeros({part.numel() * ranks}, at::kFloat);
    const double s = seconds(group, bytes, [&] { collective.ours(whole, part, group); });
    if (group.rank() == 0) result = s;
  });
  return result;
}

void compare(const Group& world, const Group& by_sockets, const Collective& collective,
             int64_t bytes) {
  const at::Tensor part = at::zeros({bytes / 4 / world.size()}, at::kFloat);
  const at::Tensor whole = at::zeros({part.numel() * world.size()}, at::kFloat);
  const double ours = seconds(world, bytes, [&] { collective.ours(whole, part, world); });
  const double library = seconds(world, bytes, [&] { collective.library(whole, part); });
  const double sockets =
      seconds(by_sockets, bytes, [&] { collective.ours(whole, part, by_sockets); });
  double threads = 0;
  if (world.rank() == 0) threads = of_threads(world.size(), collective, bytes);
  comm::barrier(world); // the others sleep in it
  if (world.rank() != 0) return;
  const auto gb_per_s = [&](double s) { return static_cast<double>(bytes) / s / 1e9; };
  fmt::print("{:14} {:9} B {} ranks: mpi backend {:7.3f} GB/s ({:9.1f} us), MPI library {:7.3f} "
             "GB/s, ratio {:.2f}, sockets {:7.3f} GB/s, threads {:7.3f} GB/s\n",
             collective.name, bytes, world.size(), gb_per_s(ours), ours * 1e6, gb_per_s(library),
             library / ours, gb_per_s(sockets), gb_per_s(threads));
  std::fflush(stdout);
}

} // namespace

int main(int argc, char** argv) {
  comm::MessageOptions options;
  const std::string only = argc > 1 ? argv[1] : "";
  if (argc > 2) options.step_bytes = std::atoll(argv[2]);
  const comm::Launch launch = comm::detect_launch();
  constexpr double kTimeout = 60; // s
  comm::ProcessWorld processes(launch, comm::ProcessBackend::kMpi, kTimeout, options);
  comm::ProcessWorld by_sockets(launch, comm::ProcessBackend::kSockets, kTimeout, options);
  at::set_num_threads(1);
  processes.run([&](const Group& world) {
    by_sockets.run([&](const Group& other) {
      for (const Collective& collective : kCollectives)
        if (only.empty() || only == collective.name)
          for (int64_t bytes = 1024; bytes <= int64_t{64} << 20; bytes *= 4)
            compare(world, other, collective, bytes);
    });
  });
}
