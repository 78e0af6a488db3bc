/// The name of this machine, as gethostname(2) gives it.
#pragma once

#include <string>

namespace pentatron {

/// "localhost" if the system reports no name.
std::string host_name();

} // namespace pentatron
