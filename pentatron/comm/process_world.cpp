#include "pentatron/comm/process_world.h"

#include "pentatron/base/error.h"
#include "pentatron/comm/backend/messages/message_backend.h"
#include "pentatron/comm/backend/mpi/mpi_transport.h"
#include "pentatron/comm/backend/sockets/rendezvous.h"
#include "pentatron/comm/backend/sockets/socket_transport.h"

#include <climits>

namespace pentatron::comm {

namespace {

using messages::Transport;

ProcessBackend choose(const Launch& launch, ProcessBackend asked) {
  switch (launch.launcher) {
  case Launcher::kMpirun:
    return asked == ProcessBackend::kAuto ? ProcessBackend::kMpi : asked;
  case Launcher::kSrun: {
    const Environment environment = process_environment();
    const bool pmix = environment.contains("PMIX_RANK"); // what Open MPI takes; others take PMI
    if (asked == ProcessBackend::kMpi && !pmix && !environment.contains("PMI_RANK"))
      raise<ConfigError>(
          "srun started {} ranks without MPI\n  try: srun --mpi=pmix, or --backend sockets",
          launch.world_size);
    if (asked != ProcessBackend::kAuto) return asked;
    return pmix && mpi::available() ? ProcessBackend::kMpi : ProcessBackend::kSockets;
  }
  default:
    if (asked == ProcessBackend::kMpi)
      raise<ConfigError>("--backend mpi cannot be used with {}, which starts ranks without MPI\n  "
                         "try: mpirun -n {}, or --backend sockets",
                         config::to_string(launch.launcher), launch.world_size);
    return ProcessBackend::kSockets;
  }
}

std::unique_ptr<Transport> make_transport(const Launch& launch, ProcessBackend asked,
                                          double timeout_s) {
  if (choose(launch, asked) == ProcessBackend::kSockets)
    return sockets::make_transport(
        launch.rank, sockets::connect_ranks(launch, process_environment(), timeout_s));
  std::unique_ptr<Transport> transport = mpi::make_transport();
  if (transport->size() != launch.world_size || transport->rank() != launch.rank)
    raise<ConfigError>(
        "{} reports rank {} of {}, but MPI reports rank {} of {}\n  try: the mpirun of the MPI "
        "that pentatron was built with, srun --mpi=pmix, or --backend sockets",
        config::to_string(launch.launcher), launch.rank, launch.world_size, transport->rank(),
        transport->size());
  return transport;
}

} // namespace

struct ProcessWorld::Impl {
  bool failed = false;
  std::shared_ptr<messages::Engine> engine;
};

ProcessWorld::ProcessWorld(const Launch& launch, ProcessBackend backend, double timeout_s,
                           const MessageOptions& options)
    : impl_(std::make_unique<Impl>()) {
  if (options.max_message_bytes < 1 || options.max_message_bytes > INT_MAX ||
      options.inline_bytes < 0 || options.inline_bytes > (int64_t{1} << 24) ||
      options.step_bytes < 1)
    raise<CommError>("max_message_bytes={} inline_bytes={} step_bytes={}: messages have 1 to {} "
                     "bytes",
                     options.max_message_bytes, options.inline_bytes, options.step_bytes, INT_MAX);
  impl_->engine =
      std::make_shared<messages::Engine>(make_transport(launch, backend, timeout_s), options);
}

ProcessWorld::~ProcessWorld() {
  try {
    if (!impl_->failed) run([](const Group&) {}); // wait for the others, or say that this rank goes
  } catch (const std::exception&) {
    // The rank that failed tells.
  }
  impl_->engine->close();
}

int ProcessWorld::rank() const {
  return impl_->engine->rank();
}

int ProcessWorld::size() const {
  return impl_->engine->size();
}

const char* ProcessWorld::backend() const {
  return impl_->engine->transport();
}

void ProcessWorld::run(const std::function<void(Group world)>& body) {
  messages::Engine& engine = *impl_->engine;
  std::exception_ptr own;
  {
    const Group world(
        std::make_shared<messages::MessageBackend>(impl_->engine, engine.begin_run()));
    try {
      body(world);
      engine.drain();
    } catch (...) {
      own = std::current_exception();
    }
  }
  using Kind = messages::Outcome::Kind;
  messages::Outcome outcome{Kind::kFinished, {}};
  if (engine.aborted())
    outcome.kind = Kind::kLeft;
  else if (own)
    outcome = {Kind::kFailed, Failure::of(own)};
  const auto failure = engine.end_run(outcome);
  impl_->failed = failure.has_value();
  if (failure) failure->second.raise(fmt::format("rank {} of {}: ", failure->first, size()));
}

} // namespace pentatron::comm
