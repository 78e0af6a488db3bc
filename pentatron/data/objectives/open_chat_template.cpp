#include "pentatron/data/objectives/open_chat_template.h"

#include <memory>

#include "pentatron/data/tokenizer/chat_template.h"
#include "pentatron/data/tokenizer/open.h"

namespace pentatron::data {

ChatTemplate open_chat_template(const std::filesystem::path& tokenizer) {
  const std::optional<std::string> source = tokenizer::find_chat_template(tokenizer);
  if (!source) return chatml;
  using Variables = nlohmann::ordered_json;
  Variables names = Variables::object();
  for (const char* name : {"bos_token", "eos_token", "unk_token", "pad_token"})
    names[name] = tokenizer::configured_token(tokenizer, name);
  const auto program = std::make_shared<const tokenizer::ChatTemplate>(*source);
  return [program, names](const Json& messages, bool add_generation_prompt) {
    Variables variables = names;
    variables["messages"] = Variables::parse(dump_json(messages));
    variables["add_generation_prompt"] = add_generation_prompt;
    return program->render(variables);
  };
}

} // namespace pentatron::data
