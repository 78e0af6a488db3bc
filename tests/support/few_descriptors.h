/// A process that can open only a few more files.
#pragma once

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

namespace pentatron::test {

/// While it lives this process can open at most `spare` more descriptors.
class FewDescriptors {
 public:
  explicit FewDescriptors(int spare) {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    // The limit is one of numbers, so gaps below it count as well.
    int highest = 0, next = -1;
    for (int left = spare; left >= 0; --left) {
      next = ::fcntl(0, F_DUPFD_CLOEXEC, 0);
      if (left > 0) fillers_[used_++] = next;
      highest = next > highest ? next : highest;
    }
    ::close(next);
    while (used_ > 0) ::close(fillers_[--used_]);
    rlimit few = before_;
    few.rlim_cur = static_cast<rlim_t>(highest);
    ::setrlimit(RLIMIT_NOFILE, &few);
  }
  ~FewDescriptors() { ::setrlimit(RLIMIT_NOFILE, &before_); }
  FewDescriptors(const FewDescriptors&) = delete;
  FewDescriptors& operator=(const FewDescriptors&) = delete;

 private:
  rlimit before_{};
  int fillers_[64] = {};
  int used_ = 0;
};

} // namespace pentatron::test
