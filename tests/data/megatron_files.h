/// Where the files made by megatron-core lie.
#pragma once

#include <string>

namespace pentatron::data {

inline std::string megatron_file(const std::string& name) {
  return std::string(PENTATRON_TEST_DATA) + "/megatron/" + name;
}

} // namespace pentatron::data
