#include "pentatron/comm/mpi_world.h"

#include "pentatron/base/error.h"
#include "pentatron/comm/backend/mpi/mpi_backend.h"

#include <climits>

namespace pentatron::comm {

struct MpiWorld::Impl {
  bool started_here = false;
  bool failed = false;
  MPI_Comm comm = MPI_COMM_NULL;
  std::shared_ptr<mpi::Engine> engine;
};

bool mpi_available() {
  return true;
}

MpiWorld::MpiWorld(const MpiOptions& options) : impl_(std::make_unique<Impl>()) {
  if (options.max_message_bytes < 1 || options.max_message_bytes > INT_MAX ||
      options.inline_bytes < 0 || options.inline_bytes > (int64_t{1} << 24) ||
      options.step_bytes < 1)
    raise<CommError>(
        "max_message_bytes={} inline_bytes={} step_bytes={}: messages of MPI have 1 to "
        "{} bytes",
        options.max_message_bytes, options.inline_bytes, options.step_bytes, INT_MAX);
  int initialised = 0, level = MPI_THREAD_SINGLE;
  mpi::check(MPI_Initialized(&initialised), "MPI_Initialized");
  if (initialised) {
    mpi::check(MPI_Query_thread(&level), "MPI_Query_thread");
  } else {
    mpi::check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level), "MPI_Init_thread");
    impl_->started_here = true;
  }
  // Calls of one thread at a time are enough here; MPI_THREAD_MULTIPLE is for other users of MPI in
  // this process.
  if (level < MPI_THREAD_SERIALIZED)
    raise<CommError>("this MPI library takes no calls from several threads\n  try: an MPI built "
                     "with MPI_THREAD_MULTIPLE or MPI_THREAD_SERIALIZED");
  mpi::check(MPI_Comm_dup(MPI_COMM_WORLD, &impl_->comm), "MPI_Comm_dup");
  impl_->engine = std::make_shared<mpi::Engine>(impl_->comm, options);
}

MpiWorld::~MpiWorld() {
  try {
    if (!impl_->failed) run([](const Group&) {}); // wait for the others, or say that this rank goes
  } catch (const std::exception&) {
    // The rank that failed tells.
  }
  impl_->engine->close();
  if (!impl_->engine->all_left()) return; // MPI_Finalize would wait for them
  MPI_Comm_free(&impl_->comm);
  if (impl_->started_here) MPI_Finalize();
}

int MpiWorld::rank() const {
  return impl_->engine->rank();
}

int MpiWorld::size() const {
  return impl_->engine->size();
}

void MpiWorld::run(const std::function<void(Group world)>& body) {
  mpi::Engine& engine = *impl_->engine;
  std::exception_ptr own;
  {
    const Group world(std::make_shared<mpi::MpiBackend>(impl_->engine, engine.begin_run()));
    try {
      body(world);
      engine.drain();
    } catch (...) {
      own = std::current_exception();
    }
  }
  using Kind = mpi::Outcome::Kind;
  mpi::Outcome outcome{Kind::kFinished, {}};
  if (engine.aborted())
    outcome.kind = Kind::kLeft;
  else if (own)
    outcome = {Kind::kFailed, Failure::of(own)};
  const auto failure = engine.end_run(outcome);
  impl_->failed = failure.has_value();
  if (failure) failure->second.raise(fmt::format("rank {} of {}: ", failure->first, size()));
}

} // namespace pentatron::comm
