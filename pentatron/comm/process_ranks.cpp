#include "pentatron/comm/process_ranks.h"

#include "pentatron/base/error.h"
#include "pentatron/base/host_name.h"
#include "pentatron/base/text.h"
#include "pentatron/comm/collectives.h"
#include "pentatron/comm/control/client.h"
#include "pentatron/comm/control/monitored_backend.h"
#include "pentatron/comm/control/server.h"
#include "pentatron/comm/failure.h"
#include "pentatron/comm/gpu_ranks.h"
#include "pentatron/comm/supervisor.h"

#include <ATen/ops/zeros.h>

#include <cstring>
#include <unistd.h>

namespace pentatron::comm {

namespace {

using control::Verdict;

/// The monitor of a run that no supervisor watches.
std::unique_ptr<control::Server> start_monitor(const Launch& launch, const DistConfig& dist) {
  const bool far = launch.spans_machines();
  const std::string host = launch.master_addr.empty() ? host_name() : launch.master_addr;
  return std::make_unique<control::Server>(
      control::ServerOptions{.ranks = launch.world_size,
                             .timeout_s = dist.timeout_s,
                             .heartbeat_s = dist.heartbeat_s,
                             .all_interfaces = far,
                             .advertised_host = far ? host : "127.0.0.1",
                             .host_rank = launch.rank,
                             .on_verdict =
                                 [](const Verdict& verdict) {
                                   const std::string line = "error: " + verdict.sentence() + "\n";
                                   [[maybe_unused]] const ssize_t written =
                                       ::write(STDERR_FILENO, line.data(), line.size());
                                 },
                             .on_end = [](const Verdict& verdict) { ::_exit(verdict.exit_code); }});
}

/// Rank 0's address and secret on every rank.
control::Address share(const control::Address& address, const Group& world) {
  at::Tensor bytes = at::zeros({512}, at::kByte);
  char* const data = reinterpret_cast<char*>(bytes.mutable_data_ptr<uint8_t>());
  const auto size = static_cast<size_t>(bytes.numel());
  if (world.rank() == 0) {
    const std::string text = address.endpoint() + "\n" + control::to_hex(address.secret) + "\n";
    PT_DCHECK(text.size() < size);
    std::memcpy(data, text.data(), text.size());
  }
  broadcast_(bytes, 0, world);
  const std::vector<std::string_view> lines = split(std::string_view(data, size), '\n');
  return control::make_address(lines.at(0), lines.at(1));
}

Group connect_gpus(const Group& world, int device, const DistConfig& dist,
                   control::OperationLog& log) {
  const control::MonitoredCall call(log, world.name(), world.ranks(), "connect_gpus");
  return with_gpu_messages(world, device, dist.gpu_messages);
}

void disconnect_gpus(const Group& world, int device, control::OperationLog& log) {
  const control::MonitoredCall call(log, world.name(), world.ranks(), "disconnect_gpus");
  end_gpu_messages(world, device);
}

} // namespace

void run_process_rank(const Launch& launch, const ProcessOptions& options,
                      const std::function<void(Group world)>& body) {
  const auto supervisor = supervisor_address(process_environment());
  const DistConfig& dist = options.dist;
  ProcessWorld processes(launch, options.backend, dist.timeout_s);
  processes.run([&](const Group& world) {
    std::unique_ptr<control::Server> monitor;
    if (!supervisor && world.rank() == 0) monitor = start_monitor(launch, dist);
    const control::Address address =
        supervisor ? *supervisor : share(monitor ? monitor->address() : control::Address{}, world);
    const auto log = std::make_shared<control::OperationLog>();
    control::Client client({.address = address,
                            .rank = world.rank(),
                            .world_size = world.size(),
                            .heartbeat_s = dist.heartbeat_s,
                            .timeout_s = dist.timeout_s},
                           log);
    try {
      const Group all = options.gpu ? connect_gpus(world, *options.gpu, dist, *log) : world;
      body(all.size() > 1 ? Group(control::monitored(all.shared_backend(), log)) : all);
      if (options.gpu) disconnect_gpus(world, *options.gpu, *log);
    } catch (...) {
      client.fail(Failure::of(std::current_exception()));
      throw;
    }
    client.finish();
    if (monitor) monitor->wait_until_over();
  });
}

} // namespace pentatron::comm
