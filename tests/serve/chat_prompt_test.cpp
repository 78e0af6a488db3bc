// What a chat template makes of a request; expected texts are those of transformers 5.23.
#include "pentatron/serve/chat_prompt.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace pentatron::serve {
namespace {

using ::testing::HasSubstr;

constexpr const char* kPlain =
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{{ eos_token }}{% endfor "
    "%}{% if add_generation_prompt %}[assistant]{% endif %}";
constexpr const char* kTrimming =
    "{% for m in messages %}[{{ m.role }}]{{ m.content | trim }}</s>{% endfor %}";
constexpr const char* kWithTools =
    "{% for t in tools or [] %}<{{ t.function.name }}>{% endfor %}{% for m in messages %}[{{ "
    "m.role }}]{% for c in m.tool_calls or [] %}({{ c.function.name }}){% endfor %}{{ m.content "
    "or '' }}{% endfor %}";

std::string prompt(const char* form, const std::string& body) {
  const CompletionRequest request = parse_request(body, Endpoint::kChat, {.vocab_size = 100});
  return chat_text(request, data::tokenizer::ChatTemplate(form),
                   {{"bos_token", "<s>"}, {"eos_token", "</s>"}});
}

/// The field that an error names, and its sentence.
std::string refused(const char* form, const std::string& body) {
  try {
    return "no error: " + prompt(form, body);
  } catch (const ApiError& error) {
    EXPECT_EQ(error.status(), 400);
    return error.param() + "|" + error.what();
  }
}

std::string talk(const std::string& answer, const std::string& more) {
  return R"({"messages":[{"role":"user","content":"Q"},{"role":"assistant","content":")" + answer +
         "\"}]" + more + "}";
}

TEST(ChatPrompt, EndsAsTheRequestSays) {
  EXPECT_EQ(prompt(kPlain, talk("A", "")), "<s>[user]Q</s>[assistant]A</s>[assistant]");
  EXPECT_EQ(prompt(kPlain, talk("A", R"(,"add_generation_prompt":false)")),
            "<s>[user]Q</s>[assistant]A</s>");
  EXPECT_EQ(prompt(kPlain, talk("A b ", R"(,"continue_final_message":true)")),
            "<s>[user]Q</s>[assistant]A b ");
  EXPECT_EQ(prompt(kPlain, talk("", R"(,"continue_final_message":true)")),
            "<s>[user]Q</s>[assistant]");
  EXPECT_EQ(prompt(kTrimming, talk("A b ", R"(,"continue_final_message":true)")),
            "[user]Q</s>[assistant]A b");
  EXPECT_THAT(refused("{% for m in messages %}{{ m.content | replace('A', 'B') }}{% endfor %}",
                      talk("A", R"(,"continue_final_message":true)")),
              HasSubstr("continue_final_message|"));
  EXPECT_THAT(refused("{{ messages[0].content }}", talk("A", R"(,"continue_final_message":true)")),
              HasSubstr("continue_final_message|continue_final_message needs a chat template"));
}

const std::string kTools = R"(,"tools":[{"type":"function","function":{"name":"f"}}])";
const std::string kCalls =
    R"({"messages":[{"role":"user","content":"Q"},{"role":"assistant","content":null,"tool_calls":)"
    R"([{"type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","content":)"
    R"("7"}]})";

TEST(ChatPrompt, DoesNotDropToolsSilently) {
  EXPECT_EQ(prompt(kWithTools, talk("A", kTools)), "<f>[user]Q[assistant]A");
  EXPECT_EQ(prompt(kWithTools, kCalls), "[user]Q[assistant](f)[tool]7");
  EXPECT_THAT(refused(kPlain, talk("A", kTools)), HasSubstr("tools|the model's chat template"));
  EXPECT_THAT(refused(kPlain, kCalls), HasSubstr("messages|the model's chat template does not"));
  // The template looks tools up, but writes them only behind a system message.
  EXPECT_THAT(refused("{% if messages[0].role == 'system' %}{{ tools }}{% endif %}{{ "
                      "messages[0].content }}",
                      talk("A", kTools)),
              HasSubstr("tools|the model's chat template"));
  // One that fails without them depends on them.
  EXPECT_EQ(
      prompt("{% if not tools %}{{ raise_exception('none') }}{% endif %}text", talk("A", kTools)),
      "text");
  for (const char* none : {R"(,"tools":[])", R"(,"tools":null)"})
    EXPECT_EQ(prompt(kPlain, talk("A", none)), "<s>[user]Q</s>[assistant]A</s>[assistant]") << none;
}

TEST(ChatPrompt, AnEmptyListOfCallsIsNone) {
  for (const char* calls : {"[]", "null"})
    EXPECT_EQ(prompt(kPlain, R"({"messages":[{"role":"user","content":"Q"},{"role":"assistant",)"
                             R"("content":"A","tool_calls":)" +
                                 std::string(calls) + "}]}"),
              "<s>[user]Q</s>[assistant]A</s>[assistant]")
        << calls;
}

TEST(ChatPrompt, TellsWhatTheTemplateRefuses) {
  EXPECT_THAT(refused("{{ raise_exception('two users') }}", talk("A", "")),
              AllOf(HasSubstr("messages|the chat template: "), HasSubstr("two users")));
}

} // namespace
} // namespace pentatron::serve
