/// Keys of config.json under their names in a configuration, for messages.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace pentatron::checkpoint {

/// transformers' key, and the keys of a configuration that say the same.
using KeyName = std::pair<std::string_view, std::string_view>;
const std::vector<KeyName>& key_names();

/// "swiglu_limit=5 cannot be stored (model.activation_func_clamp_value)", for a sentence that
/// begins with a key of config.json; any other sentence stays.
std::string with_key_name(std::string sentence);

} // namespace pentatron::checkpoint
