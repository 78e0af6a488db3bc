// One rank of a run that goes wrong, for tests of the control channel and the supervisor.
//
//   fault_rank FOLDER FAULT VICTIM STEPS
// Ranks meet STEPS times in a barrier of their own, which is memory of a file in FOLDER, and log it
// as all_reduce; the file pid.RANK there holds a rank's process id. In the middle the rank VICTIM
// does FAULT: none, sigkill, sigstop, sigsegv, sleep, mismatch, exit, leave, error.
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fcntl.h>
#include <fstream>
#include <string>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>

#include "pentatron/base/error.h"
#include "pentatron/comm/control/client.h"
#include "pentatron/comm/launch.h"
#include "pentatron/comm/supervisor.h"

namespace {

using namespace pentatron::comm; // NOLINT: a program of one file
using control::OperationLog;

volatile std::sig_atomic_t g_asked_to_end = 0;

struct Shared {
  std::atomic<int> arrived;
};

Shared* map_shared(const std::string& file) {
  const int fd = ::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0 || ::ftruncate(fd, sizeof(Shared)) != 0) std::abort();
  void* memory = ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) std::abort();
  return static_cast<Shared*>(memory);
}

void sleep_ms(int ms) {
  std::this_thread::sleep_for(std::chrono::milliseconds(ms));
}

} // namespace

int main(int argc, char** argv) {
  if (argc != 5) return 64;
  const std::string folder = argv[1], fault = argv[2];
  const int victim = std::atoi(argv[3]), steps = std::atoi(argv[4]);
  const Launch launch = detect_launch();
  std::signal(SIGTERM, [](int) { g_asked_to_end = 1; });
  const auto address = supervisor_address(process_environment());
  if (!address) return 65;
  const auto log = std::make_shared<OperationLog>();
  std::vector<int> members;
  for (int rank = 0; rank < launch.world_size; ++rank) members.push_back(rank);
  const int group = log->add_group("world", members);
  control::Client client({.address = *address,
                          .rank = launch.rank,
                          .world_size = launch.world_size,
                          .heartbeat_s = 0.1,
                          .timeout_s = 60},
                         log);
  std::ofstream(folder + "/pid." + std::to_string(launch.rank)) << ::getpid() << std::flush;
  Shared* shared = map_shared(folder + "/shared");

  for (int step = 0; step < steps; ++step) {
    control::OperationStart start{
        .call = "all_reduce(sum)", .dtype = "float32", .num_dims = 2, .dims = {3, 4}};
    if (launch.rank == victim && step == steps / 2) {
      if (fault == "sigkill") ::kill(::getpid(), SIGKILL);
      if (fault == "sigstop") ::kill(::getpid(), SIGSTOP);
      if (fault == "sigsegv") ::kill(::getpid(), SIGSEGV);
      if (fault == "sleep") sleep_ms(60'000);
      if (fault == "exit") std::_Exit(3);
      if (fault == "leave") break;
      if (fault == "mismatch")
        start = {.call = "all_gather", .dtype = "float32", .num_dims = 1, .dims = {12}};
      if (fault == "error") {
        client.fail({FailureKind::kError, "file x.bin is damaged"});
        return 66;
      }
    }
    const auto token = log->begin(group, start);
    log->wait(token);
    const bool wrong = fault == "mismatch" && step == steps / 2;
    if (!wrong) ++shared->arrived; // a mismatch leaves everyone waiting
    while (shared->arrived < (step + 1) * launch.world_size) sleep_ms(1);
    log->end(token);
    sleep_ms(2);
    if (g_asked_to_end) break;
  }
  if (g_asked_to_end) {
    std::printf("rank %d was asked to end\n", launch.rank);
    shared->arrived += 1'000'000;
  }
  client.finish();
  return g_asked_to_end ? 7 : 0;
}
