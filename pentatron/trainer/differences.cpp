#include "pentatron/trainer/differences.h"

#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "pentatron/base/error.h"
#include "pentatron/comm/gather_text.h"
#include "pentatron/config/config.h"

namespace pentatron::trainer {

std::string differences(const Config& one, const Config& other,
                        const std::set<config::OnResume>& meanings) {
  std::vector<std::string> texts;
  for (const config::Difference& d : config::diff(one, other)) {
    if (meanings.contains(d.on_resume))
      texts.push_back(fmt::format("{}={} and not {}", d.path, d.before, d.after));
  }
  return fmt::format("{}", fmt::join(texts, ", "));
}

std::string assignments(const Config& one, const Config& other,
                        const std::set<config::OnResume>& meanings) {
  std::vector<std::string> texts;
  for (const config::Difference& d : config::diff(one, other))
    if (meanings.contains(d.on_resume)) texts.push_back(fmt::format("{}={}", d.path, d.before));
  return fmt::format("{}", fmt::join(texts, " and "));
}

Config equal_config(Config config, const comm::Group& world) {
  const std::vector<std::string> all = comm::gather_text(config::to_yaml(config), world);
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    using config::OnResume;
    Config theirs, first;
    config::Violations ignored;
    config::apply_yaml(theirs, all[rank], "", ignored);
    config::apply_yaml(first, all[0], "", ignored);
    raise<CommError>("the configuration of rank {} differs from rank 0: {}\n  try: the same file, "
                     "keys and program on all ranks",
                     rank,
                     differences(theirs, first,
                                 {OnResume::kTold, OnResume::kModel, OnResume::kState,
                                  OnResume::kData, OnResume::kIgnored}));
  }
  return config;
}

} // namespace pentatron::trainer
