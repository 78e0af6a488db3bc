#include "pentatron/base/error.h"
#include "pentatron/base/text.h"
#include "pentatron/checkpoint/gguf/families/family.h"

namespace pentatron::checkpoint {

int64_t GgufKeyWriter::checked(const char* key, int64_t value) const {
  if (value >= 1 && value <= INT32_MAX) return value;
  problem(fmt::format("{}={} is not valid", key, value));
  return 1;
}

void GgufKeyWriter::add(const char* key, GgufValue value) {
  out_.metadata.emplace_back(fmt::format("{}.{}", out_.structure.family->architecture, key),
                             std::move(value));
}

GgufHead config_to_gguf(const Json& hf, Problems& problems) {
  if (!hf.is_object()) raise<DataError>("{} is not a JSON object", GgufKeyWriter::kWhere);
  GgufHead out;
  GgufKeyWriter w(hf, out, problems);
  const auto family = w.get<std::string>("model_type");
  const GgufFamily* const known = find_gguf_family(&GgufFamily::model_type, family);
  if (known == nullptr)
    raise<ConfigError>("model_type={} cannot be written as GGUF; supported are {}", excerpt(family),
                       gguf_family_list());
  out.structure.family = known;
  out.structure.vocab = w.size("vocab_size");
  known->write(w);
  w.put("vocab_size", out.structure.vocab);
  return out;
}

} // namespace pentatron::checkpoint
