/// The name of this machine, as gethostname(2) gives it.
#pragma once

#include <string>

namespace pentatron {

/// "localhost" where the system tells none.
std::string host_name();

} // namespace pentatron
