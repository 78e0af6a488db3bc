#include "pentatron/base/descriptors.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <sys/resource.h>

namespace pentatron {

void require_descriptors(int error, std::string_view what) {
  if (error == EMFILE) {
    rlimit limit{};
    ::getrlimit(RLIMIT_NOFILE, &limit);
    // At most what everybody may set, unless that is reached.
    rlim_t enough = std::max<rlim_t>(65536, 2 * limit.rlim_cur);
    if (limit.rlim_max > limit.rlim_cur) enough = std::min(enough, limit.rlim_max);
    raise<OutOfDescriptors>(
        "cannot open {}: this process has reached its limit of {} open files\n  try: ulimit -n {}",
        what, limit.rlim_cur, enough);
  }
  if (error == ENFILE)
    raise<OutOfDescriptors>("cannot open {}: this machine has reached its limit of open files\n  "
                            "try: a larger /proc/sys/fs/file-max",
                            what);
  if (error == ENOBUFS || error == ENOMEM)
    raise<OutOfDescriptors>("cannot open {} ({})", what, std::strerror(error));
}

} // namespace pentatron
