#include "pentatron/checkpoint/adapters/adapter_settings.h"

#include <fmt/format.h>

namespace pentatron::checkpoint {

void AdapterSettings::validate(config::Violations& violations, std::string_view path) const {
  if (on()) return;
  const AdapterSettings fresh;
  const auto unused = [&](const char* key, bool given) {
    if (given)
      violations.add(config::join(path, key),
                     fmt::format("{} has no effect without {}", config::join(path, key),
                                 config::join(path, "type")),
                     fmt::format("{}=lora", config::join(path, "type")));
  };
  unused("r", r != fresh.r);
  unused("alpha", alpha != fresh.alpha);
  unused("dropout", dropout != fresh.dropout);
  unused("target_modules", target_modules != fresh.target_modules);
  unused("modules_to_save", !modules_to_save.empty());
  unused("use_rslora", use_rslora);
  unused("lora_plus_ratio", lora_plus_ratio != fresh.lora_plus_ratio);
  unused("rank_pattern", !rank_pattern.empty());
  unused("alpha_pattern", !alpha_pattern.empty());
  unused("base_dtype", base_dtype != fresh.base_dtype);
  unused("base", !base.empty());
}

} // namespace pentatron::checkpoint
