#include "pentatron/data/tokenizer/post_processor.h"

#include <string>

#include "pentatron/base/error.h"

namespace pentatron::data::tokenizer {

namespace {

int32_t checked_id(const Json& id, std::string_view where) {
  if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() > INT32_MAX)
    raise<DataError>("an id of {} is {}", where, dump_json(id));
  return static_cast<int32_t>(id.get<int64_t>());
}

PostProcessor make_template(const Json& json) {
  if (!json.contains("single") || !json["single"].is_array())
    throw DataError("the post-processor TemplateProcessing has no list `single`");
  PostProcessor result;
  bool text_seen = false;
  for (const Json& piece : json["single"]) {
    if (piece.is_object() && piece.contains("Sequence")) {
      if (text_seen)
        throw DataError("a template of TemplateProcessing that has the text twice is not "
                        "supported");
      text_seen = true;
      continue;
    }
    if (!piece.is_object() || !piece.contains("SpecialToken"))
      raise<DataError>("a piece of the template of TemplateProcessing is {}", dump_json(piece));
    const auto name = json_get<std::string>(piece["SpecialToken"], "id", "a SpecialToken");
    if (!json.contains("special_tokens") || !json["special_tokens"].is_object() ||
        !json["special_tokens"].contains(name))
      raise<DataError>("TemplateProcessing has no special token {}", name);
    const Json& special = json["special_tokens"][name];
    if (!special.is_object() || !special.contains("ids") || !special["ids"].is_array())
      raise<DataError>("the special token {} of TemplateProcessing has no ids", name);
    for (const Json& id : special["ids"])
      (text_seen ? result.after : result.before).push_back(checked_id(id, name));
  }
  if (!text_seen) throw DataError("the template of TemplateProcessing does not contain the text");
  return result;
}

PostProcessor make_bert(const Json& json, std::string_view type) {
  PostProcessor result;
  for (const char* key : {"cls", "sep"}) {
    if (!json.contains(key) || !json[key].is_array() || json[key].size() != 2)
      raise<DataError>("the post-processor {} has no token `{}` with its id", type, key);
    (key[0] == 'c' ? result.before : result.after).push_back(checked_id(json[key][1], key));
  }
  return result;
}

PostProcessor make_post_processor_step(const Json& json, int depth) {
  const auto type = json_get<std::string>(json, "type", "a post-processor");
  if (type == "ByteLevel") return {}; // moves offsets only
  if (type == "TemplateProcessing") return make_template(json);
  if (type == "BertProcessing" || type == "RobertaProcessing") return make_bert(json, type);
  if (type != "Sequence") raise<DataError>("the post-processor type {} is not supported", type);
  if (depth > 8 || !json.contains("processors") || !json["processors"].is_array())
    throw DataError("a post-processor of type Sequence has no list `processors`");
  PostProcessor all;
  for (const Json& step : json["processors"]) {
    const PostProcessor next = make_post_processor_step(step, depth + 1);
    all.before.insert(all.before.begin(), next.before.begin(), next.before.end());
    all.after.insert(all.after.end(), next.after.begin(), next.after.end());
  }
  return all;
}

} // namespace

PostProcessor make_post_processor(const Json& json) {
  return json.is_null() ? PostProcessor{} : make_post_processor_step(json, 0);
}

} // namespace pentatron::data::tokenizer
