#include "pentatron/cli/named_adapters.h"

#include <algorithm>
#include <filesystem>

#include <fmt/ranges.h>

#include "pentatron/base/error.h"
#include "pentatron/base/naming.h"
#include "pentatron/base/text.h"
#include "pentatron/checkpoint/adapters/adapter_source.h"

namespace pentatron::cli {

bool names_adapter(const std::string& text) {
  std::error_code error;
  const size_t equals = text.find('=');
  return equals != std::string::npos && equals > 0 && equals + 1 < text.size() &&
         !std::filesystem::is_directory(text, error);
}

NamedAdapters read_named_adapters(const std::vector<std::string>& texts, const OpenedModel& model,
                                  const std::string& name) {
  NamedAdapters all{.names = {name}, .adapters = {}};
  for (const std::string& text : texts) {
    if (!names_adapter(text))
      raise<ConfigError>("--adapter {} is not of the form NAME=DIR\n  try: --adapter mine={}", text,
                         text);
    const size_t equals = text.find('=');
    const std::string own = text.substr(0, equals), folder = text.substr(equals + 1);
    if (std::ranges::find(all.names, own) != all.names.end())
      raise<ConfigError>(
          "--adapter {} has the name of the model or of another adapter\n  try: --adapter {}-2={}",
          text, own, folder);
    all.names.push_back(own);
    all.adapters.push_back(naming(
        "--adapter ", folder, [&] { return checkpoint::read_adapter(folder, *model.source); },
        "--adapter NAME=DIR with the folder of an adapter"));
    const std::vector<checkpoint::WholeParam>& whole = all.adapters.back().whole;
    if (!whole.empty())
      raise<ConfigError>("--adapter {} also has completely trained modules ({}), which replace "
                         "weights that adapters by name share\n  try: pentatron convert {} merged "
                         "--adapter {} --format hf, and merged as the model",
                         text, fmt::join(checkpoint::names_of_modules(whole), ", "),
                         shell_word(model.where), shell_word(folder));
    checkpoint::divide_by_row_norms(all.adapters.back(), *model.source);
  }
  return all;
}

} // namespace pentatron::cli
