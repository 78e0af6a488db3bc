/// What carries messages between this process and the others of its job: MPI, or sockets.
///
/// A message has a tag; those from one rank to another with one tag arrive in the order in which
/// they were sent and meet the receives in the order in which these were posted. Nothing blocks.
/// Calls come from one thread at a time, pause() excepted.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace pentatron::comm::messages {

class Transport {
 public:
  static constexpr int kAnyRank = -1;

  /// A message has ended: it is sent, received, or cancelled.
  struct Completion {
    int64_t id;
    std::string error; ///< empty: none
  };

  virtual ~Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  virtual const char* name() const = 0; ///< "mpi"
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual int largest_tag() const = 0;

  /// `data` stays as it is, and `id` is used by no other message, until this one has ended. Throws
  /// CommError if the transport is of no more use.
  virtual void send(int to, int tag, const void* data, int64_t bytes, int64_t id) = 0;
  /// The message may have fewer than `bytes`. From kAnyRank: of any rank; then nothing else
  /// receives with this tag.
  virtual void receive(int from, int tag, void* data, int64_t bytes, int64_t id) = 0;
  /// Of a receive: it ends soon, unless its message is arriving.
  virtual void cancel(int64_t id) = 0;
  /// Moves what can be moved, and appends what has ended. Throws CommError as send() does.
  virtual void test(std::vector<Completion>& ended) = 0;
  /// Waits at most this long for something to do. Called without the caller's lock, by one thread
  /// at a time.
  virtual void pause(std::chrono::steady_clock::duration longest) = 0;
  /// No calls follow; messages that are open are given up. `all_left`: no rank waits for this one.
  virtual void close(bool all_left) = 0;

 protected:
  Transport() = default;
};

} // namespace pentatron::comm::messages
