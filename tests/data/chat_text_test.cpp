#include "pentatron/data/sft/chat_text.h"

#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pentatron/base/error.h"
#include "tests/data/data_files.h"

namespace pentatron::data {
namespace {

using namespace testing;

/// By templates without marks, where transformers finds them by marks; the README beside the file
/// has the origin.
TEST(ChatText, AnswersAreFoundWhereTemplatesChangeEarlierText) {
  std::ifstream file(std::filesystem::path(PENTATRON_TEST_DATA) / "sft/changing.json");
  const OrderedJson expected = OrderedJson::parse(file);
  int cases = 0;
  for (const OrderedJson& one : expected["cases"]) {
    const std::string form = one["template"], name = one["name"];
    SCOPED_TRACE(form + ", " + name);
    const RenderChat render = render_by(std::make_shared<const tokenizer::ChatTemplate>(
                                            expected["templates"][form].get<std::string>()),
                                        {{"bos_token", "<s>"}, {"eos_token", "</s>"}});
    const ChatText chat = render(expected["conversations"][name], {}, ChatEnd::kNothing);
    EXPECT_EQ(chat.text, one["text"].get<std::string>());
    std::vector<std::string> found, answers;
    for (const TextSpan& span : chat.answers)
      found.push_back(fmt::format("{} to {}", span.begin, span.end));
    for (const OrderedJson& span : one["answers"])
      answers.push_back(fmt::format("{} to {}", span[0].get<size_t>(), span[1].get<size_t>()));
    EXPECT_EQ(found, answers);
    ++cases;
  }
  EXPECT_GT(cases, 20);
}

/// An end that only the text's last message has, and an answer that is the last to write something.
TEST(ChatText, AnswersMayEndWithTheTextBeforeTheLastMessage) {
  const OrderedJson messages =
      OrderedJson::parse(R"([{"role":"user","content":"a"},{"role":"assistant","content":"b"},)"
                         R"({"role":"system","content":"x"}])");
  const RenderChat render = render_by(
      std::make_shared<const tokenizer::ChatTemplate>(
          "{% for m in messages %}{% if m.role == 'user' %}[INST]{{ m.content }}[/INST]{% "
          "elif m.role == 'assistant' %}{{ m.content }}<end>{% if loop.last %}</s>{% endif "
          "%}{% endif %}{% endfor %}"),
      OrderedJson::object());
  const ChatText chat = render(messages, {}, ChatEnd::kNothing);
  ASSERT_EQ(chat.text, "[INST]a[/INST]b<end>");
  ASSERT_EQ(chat.answers.size(), 1u);
  EXPECT_EQ(chat.text.substr(chat.answers[0].begin), "b<end>");
  EXPECT_EQ(chat.answers[0].end, chat.text.size());
}

/// The answers of a conversation with a tool call, as texts.
std::vector<std::string> answers_with_call(const char* source, const char* call) {
  const OrderedJson messages = OrderedJson::parse(fmt::format(
      R"([{{"role":"user","content":"a"}},{{"role":"assistant","content":"","tool_calls":[{}]}},)"
      R"({{"role":"tool","content":"c"}},{{"role":"assistant","content":"d"}}])",
      call));
  const RenderChat render =
      render_by(std::make_shared<const tokenizer::ChatTemplate>(source), OrderedJson::object());
  const ChatText chat = render(messages, {}, ChatEnd::kNothing);
  std::vector<std::string> answers;
  for (const TextSpan& span : chat.answers)
    answers.push_back(chat.text.substr(span.begin, span.end - span.begin));
  return answers;
}

constexpr const char* kCallB =
    R"({"id":"7","function":{"name":"f","arguments":{"x":{"y":["b"]}}}})";

/// A call that has an id unless it is in the last message (Apriel 1.5).
TEST(ChatText, ACallIsAnAnswerThoughTheLastMessageWritesItDifferently) {
  EXPECT_THAT(
      answers_with_call(
          "{% for m in messages %}{% if m.role == 'assistant' %}<|assistant|>\n{{ m.content }}{% "
          "for c in m.tool_calls or [] %}<calls>[{{ c.function | tojson }}{% if not "
          "messages[-1].tool_calls %}, id {{ c.id }}{% endif %}]</calls>{% endfor "
          "%}<|end|>\n</s>{% else %}<|{{ m.role }}|>\n{{ m.content }}\n<|end|>\n{% endif %}{% "
          "if loop.last and add_generation_prompt and m.role != 'assistant' %}<|assistant|>\n{% "
          "endif %}{% endfor %}",
          kCallB),
      ElementsAre("<calls>[{\"name\": \"f\", \"arguments\": {\"x\": {\"y\": [\"b\"]}}}, id "
                  "7]</calls><|end|>\n</s>",
                  "d<|end|>\n</s>"));
}

/// The same where the last message has no end and answers begin with more than is there later
/// (Apriel 1.6).
TEST(ChatText, TheEndThatOnlyEarlierAnswersHaveIsLearned) {
  EXPECT_THAT(
      answers_with_call(
          "{% for m in messages %}{% if m.role == 'assistant' %}<|assistant|>{{ m.content }}{% for "
          "c in m.tool_calls or [] %}<calls>[{{ c.function | tojson }}{% if not "
          "messages[-1].tool_calls %}, id {{ c.id }}{% endif %}]</calls>{% endfor %}{% if not "
          "loop.last %}<|end|>\n{% endif %}{% else %}<|{{ m.role }}|>\n{{ m.content }}{% endif "
          "%}{% if loop.last and add_generation_prompt and m.role != 'assistant' "
          "%}<|assistant|>Steps:\n{% endif %}{% endfor %}",
          kCallB),
      ElementsAre("<calls>[{\"name\": \"f\", \"arguments\": {\"x\": {\"y\": [\"b\"]}}}, id "
                  "7]</calls><|end|>\n",
                  "d"));
}

/// What the template writes behind a call depends on the number of messages.
TEST(ChatText, APartOfACallIsNeverLearnedAlone) {
  EXPECT_THAT(error_of<DataError>([] {
                answers_with_call(
                    "{% for m in messages %}<{{ m.role }}>{% for c in m.tool_calls or [] "
                    "%}<calls>[{{ messages | length }}, {{ c.function | tojson }}]{% endfor %}{{ "
                    "m.content }}, {{ messages | length }}.{% endfor %}{% if "
                    "add_generation_prompt %}<assistant>{% endif %}",
                    kCallB);
              }),
              HasSubstr("the answer in message 2 cannot be located"));
}

TEST(ChatText, ThoughtsOfAnyNameAreLearned) {
  const RenderChat render = render_by(
      std::make_shared<const tokenizer::ChatTemplate>(
          "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}<think>{{ "
          "m.reasoning_content }}</think>{% endif %}{{ m.content }}<end>{% endfor %}{% if "
          "add_generation_prompt %}<assistant>{% endif %}"),
      OrderedJson::object());
  for (const char* name : {"reasoning_content", "thinking", "reasoning"}) {
    const OrderedJson messages = {{{"role", "user"}, {"content", "q"}},
                                  {{"role", "assistant"}, {"content", "yes"}, {name, "because"}}};
    const ChatText chat = render(messages, {}, ChatEnd::kNothing);
    ASSERT_EQ(chat.answers.size(), 1u);
    EXPECT_EQ(chat.text.substr(chat.answers[0].begin), "<think>because</think>yes<end>") << name;
  }
}

/// Whether <|turn|> ends a message or begins the next one, only the beginning of the text shows.
TEST(ChatText, ABeginningBehindEveryConversationIsNotLearnedIfItIsClear) {
  const auto learned = [](const char* begin) {
    const OrderedJson messages =
        OrderedJson::parse(R"([{"role":"user","content":"a"},{"role":"assistant","content":"b"},)"
                           R"({"role":"user","content":"c"},{"role":"assistant","content":"d"}])");
    const RenderChat render =
        render_by(std::make_shared<const tokenizer::ChatTemplate>(fmt::format(
                      "{}{{% for m in messages %}}{{{{ '<|turn|><|' + m.role + '|>' + m.content + "
                      "'<|end|>' }}}}{{% endfor %}}<|turn|><|assistant|>",
                      begin)),
                  OrderedJson::object());
    const ChatText chat = render(messages, {}, ChatEnd::kNothing);
    std::string text;
    for (const TextSpan& span : chat.answers)
      text += chat.text.substr(span.begin, span.end - span.begin) + " ";
    return text;
  };
  EXPECT_EQ(learned(""), "b<|end|> d<|end|> ");
  EXPECT_EQ(learned("<s>"), "b<|end|> d<|end|> ");
  EXPECT_EQ(learned("Be."), "b<|end|> d<|end|> ");
}

TEST(ChatText, AnswersThatCannotBeLocatedAreErrors) {
  const OrderedJson messages =
      OrderedJson::parse(R"([{"role":"user","content":"a"},{"role":"assistant","content":"b"},)"
                         R"({"role":"user","content":"c"}])");
  const auto message = [&](const char* source) {
    const RenderChat render =
        render_by(std::make_shared<const tokenizer::ChatTemplate>(source), OrderedJson::object());
    return error_of<DataError>([&] { render(messages, {}, ChatEnd::kNothing); });
  };
  // The answer twice, not at all, with an end that shorter conversations do not have, and behind a
  // name of which the beginning of an answer shares only white space.
  for (const char* source :
       {"{{ messages | length }}{% for m in messages %}<{{ m.role }}>{{ m.content * 2 }}{% endfor "
        "%}{% if add_generation_prompt %}<assistant>{% endif %}",
        "{{ messages | length }}{% for m in messages %}<{{ m.role }}>{% endfor %}{% if "
        "add_generation_prompt %}<assistant>{% endif %}",
        "{{ messages | length }}{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ loop.length "
        "}}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}",
        "{{ messages | length }}{% for m in messages %}{{ '\n\nHuman: ' if m.role == 'user' else "
        "'\n\nAssistant: ' }}{{ m.content }}{% endfor %}{% if add_generation_prompt %}{{ "
        "'\n\nAssistant: <think>' }}{% endif %}"})
    EXPECT_THAT(message(source), HasSubstr("the answer in message 2 cannot be located")) << source;
}

TEST(ChatText, ChatmlIsTheSameAsItsTemplate) {
  const RenderChat by_template = render_by(
      std::make_shared<const tokenizer::ChatTemplate>(kChatmlTemplate), OrderedJson::object());
  const OrderedJson messages =
      OrderedJson::parse(R"([{"role":"system","content":"be"},{"role":"user","content":"a\nb"},)"
                         R"({"role":"assistant","content":"c"},{"role":"user","content":""}])");
  for (const ChatEnd end : {ChatEnd::kNothing, ChatEnd::kAnswer})
    EXPECT_EQ(by_template(messages, {}, end).text, render_chatml(messages, {}, end).text);
}

} // namespace
} // namespace pentatron::data
