#include "pentatron/comm/backend/mpi/mpi_transport.h"

#include "pentatron/base/error.h"

#include <algorithm>
#include <mpi.h>
#include <thread>

namespace pentatron::comm::mpi {

namespace {

constexpr int kLeastLargestTag = 32767; // the standard promises it

std::string text_of(int code) {
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(code, text, &length);
  return std::string(text, static_cast<size_t>(length));
}

void check(int code, const char* call) {
  if (code != MPI_SUCCESS) raise<CommError>("{} failed: {}", call, text_of(code));
}

class MpiTransport final : public messages::Transport {
 public:
  MpiTransport() {
    int initialised = 0, level = MPI_THREAD_SINGLE;
    check(MPI_Initialized(&initialised), "MPI_Initialized");
    if (initialised) {
      check(MPI_Query_thread(&level), "MPI_Query_thread");
    } else {
      check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level), "MPI_Init_thread");
      started_here_ = true;
    }
    // Calls of one thread at a time are enough here; MPI_THREAD_MULTIPLE is for other users of MPI
    // in this process.
    if (level < MPI_THREAD_SERIALIZED)
      raise<CommError>("this MPI library does not support calls from several threads\n  try: an "
                       "MPI library with MPI_THREAD_MULTIPLE or MPI_THREAD_SERIALIZED");
    check(MPI_Comm_dup(MPI_COMM_WORLD, &comm_), "MPI_Comm_dup");
    check(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    check(MPI_Comm_rank(comm_, &rank_), "MPI_Comm_rank");
    check(MPI_Comm_size(comm_, &size_), "MPI_Comm_size");
    int* tag = nullptr;
    int found = 0;
    check(MPI_Comm_get_attr(comm_, MPI_TAG_UB, static_cast<void*>(&tag), &found),
          "MPI_Comm_get_attr");
    if (found) largest_tag_ = *tag;
  }

  const char* name() const override { return "mpi"; }
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  int largest_tag() const override { return largest_tag_; }

  void send(int to, int tag, const void* data, int64_t bytes, int64_t id) override {
    MPI_Request request;
    check(MPI_Isend(data, static_cast<int>(bytes), MPI_BYTE, to, tag, comm_, &request),
          "MPI_Isend");
    requests_.push_back(request);
    ids_.push_back(id);
  }

  void receive(int from, int tag, void* data, int64_t bytes, int64_t id) override {
    MPI_Request request;
    check(MPI_Irecv(data, static_cast<int>(bytes), MPI_BYTE,
                    from == kAnyRank ? MPI_ANY_SOURCE : from, tag, comm_, &request),
          "MPI_Irecv");
    requests_.push_back(request);
    ids_.push_back(id);
  }

  void cancel(int64_t id) override {
    const auto found = std::find(ids_.begin(), ids_.end(), id);
    if (found != ids_.end()) MPI_Cancel(&requests_[static_cast<size_t>(found - ids_.begin())]);
  }

  void test(std::vector<Completion>& ended) override {
    places_.resize(requests_.size());
    statuses_.resize(requests_.size());
    int count = 0;
    const int code = MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &count,
                                  places_.data(), statuses_.data());
    if (code != MPI_SUCCESS && code != MPI_ERR_IN_STATUS) check(code, "MPI_Testsome");
    if (count == MPI_UNDEFINED || count == 0) return;
    for (int i = 0; i < count; ++i) {
      const auto place = static_cast<size_t>(places_[static_cast<size_t>(i)]);
      const int error = statuses_[static_cast<size_t>(i)].MPI_ERROR; // set only on errors
      const bool failed = code != MPI_SUCCESS && error != MPI_SUCCESS;
      ended.push_back({ids_[place], failed ? text_of(error) : ""});
      requests_[place] = MPI_REQUEST_NULL;
    }
    size_t kept = 0;
    for (size_t i = 0; i < requests_.size(); ++i) {
      if (requests_[i] == MPI_REQUEST_NULL) continue;
      requests_[kept] = requests_[i];
      ids_[kept++] = ids_[i];
    }
    requests_.resize(kept);
    ids_.resize(kept);
  }

  void pause(std::chrono::steady_clock::duration longest) override {
    std::this_thread::sleep_for(longest);
  }

  void close(bool all_left) override {
    for (MPI_Request& request : requests_) {
      MPI_Cancel(&request);
      MPI_Request_free(&request);
    }
    requests_.clear();
    ids_.clear();
    if (!all_left || comm_ == MPI_COMM_NULL) return; // MPI_Finalize would wait for them
    MPI_Comm_free(&comm_);
    if (started_here_) MPI_Finalize();
  }

 private:
  bool started_here_ = false;
  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_ = 0, size_ = 0, largest_tag_ = kLeastLargestTag;
  std::vector<MPI_Request> requests_;
  std::vector<int64_t> ids_; ///< of requests_
  std::vector<int> places_;
  std::vector<MPI_Status> statuses_;
};

} // namespace

bool available() {
  return true;
}

std::unique_ptr<messages::Transport> make_transport() {
  return std::make_unique<MpiTransport>();
}

} // namespace pentatron::comm::mpi
