#include "pentatron/data/tokenizer/chat_messages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pentatron/base/error.h"
#include "pentatron/base/json.h"
#include "pentatron/data/sft/taught_text.h"
#include "tests/data/data_files.h"

namespace pentatron::data::tokenizer {
namespace {

using namespace testing;
std::string taken(const char* message) {
  OrderedJson json = OrderedJson::parse(message);
  take_message(json, "messages[3]");
  return json.dump();
}

TEST(ChatMessages, AreWhatTemplatesKnow) {
  EXPECT_EQ(taken(R"({"role":"developer","content":"a"})"), R"({"role":"system","content":"a"})");
  EXPECT_EQ(taken(R"({"role":"user","content":[{"type":"text","text":"a "},)"
                  R"({"type":"text","text":"b"}]})"),
            R"({"role":"user","content":"a b"})");
  EXPECT_EQ(taken(R"({"role":"user","content":[]})"), R"({"role":"user","content":""})");
  EXPECT_EQ(taken(R"({"role":"assistant","content":null,"tool_calls":[]})"),
            R"({"role":"assistant","content":"","tool_calls":[]})");
  EXPECT_EQ(taken(R"({"role":"assistant","content":null,"tool_calls":[{}]})"),
            R"({"role":"assistant","content":null,"tool_calls":[{}]})");
  EXPECT_EQ(taken(R"({"role":"assistant","tool_calls":[{}]})"),
            R"({"role":"assistant","tool_calls":[{}],"content":null})");
  EXPECT_EQ(taken(R"({"role":"assistant","tool_calls":[]})"),
            R"({"role":"assistant","tool_calls":[],"content":""})");
  EXPECT_EQ(taken(R"({"role":"user","of":1})"), R"({"role":"user","of":1})");
  for (const char* content : {"3", R"({"text":"a"})"})
    EXPECT_THAT(
        error_of<DataError>([&] { taken(fmt::format(R"({{"content":{}}})", content).c_str()); }),
        HasSubstr("messages[3].content must be a string or a list of parts"));
  for (const char* part :
       {R"("a")", R"({"type":"image_url","image_url":{"url":"x"}})", R"({"type":"text"})"})
    EXPECT_THAT(
        error_of<DataError>([&] { taken(fmt::format(R"({{"content":[{}]}})", part).c_str()); }),
        HasSubstr("messages[3].content may only have parts of type text"));
}

/// The texts of a call with these arguments.
std::string rendered(const char* source, const char* arguments) {
  OrderedJson variables = OrderedJson::parse(fmt::format(
      R"({{"messages":[{{"role":"user","content":"q"}},{{"role":"assistant","content":"",)"
      R"("tool_calls":[{{"function":{{"name":"f","arguments":{}}}}}]}}]}})",
      arguments));
  return render_messages(ChatTemplate(source), variables);
}

TEST(ChatMessages, ArgumentsAreObjectsUnlessTheTemplateNeedsTheirText) {
  constexpr const char* kTakesObjects =
      "{% for m in messages %}{% for c in m.tool_calls or [] %}{{ c.function.arguments | tojson "
      "}}{% endfor %}{% endfor %}";
  EXPECT_EQ(rendered(kTakesObjects, R"("{\"z\":1, \"a\":[2]}")"), R"({"z": 1, "a": [2]})");
  EXPECT_EQ(rendered(kTakesObjects, R"({"z":1,"a":[2]})"), R"({"z": 1, "a": [2]})");
  EXPECT_EQ(rendered(kTakesObjects, R"("[3]")"), R"("[3]")") << "no object";
  EXPECT_EQ(rendered(kTakesObjects, R"("{3")"), R"("{3")") << "no JSON";
  constexpr const char* kTakesText = // DeepSeek's
      "{% for m in messages %}{% for c in m.tool_calls or [] %}{{ c.function.name + '\n' + "
      "c.function.arguments }}{% endfor %}{% endfor %}";
  EXPECT_EQ(rendered(kTakesText, R"("{\"z\":1, \"a\":[2]}")"), "f\n{\"z\":1, \"a\":[2]}");
  EXPECT_THROW(rendered(kTakesText, R"({"z":1})"), DataError);
}

/// DeepSeek's asks whether there is no content; others print it, or add it to text.
TEST(ChatMessages, ACallWithoutContentIsSeen) {
  const auto written = [](const char* source) {
    OrderedJson variables = OrderedJson::parse(
        R"({"messages":[{"role":"assistant","content":null,"tool_calls":[{"function":{"name":"f",)"
        R"("arguments":{}}}]},{"role":"user","content":"None"}]})");
    for (OrderedJson& message : variables["messages"]) take_message(message, "messages");
    return render_messages(ChatTemplate(source), variables);
  };
  EXPECT_EQ(
      written("{% for m in messages %}{% if m.content is none %}CALL {{ "
              "m.tool_calls[0].function.name }}{% else %}{{ m.content }}{% endif %};{% endfor %}"),
      "CALL f;None;");
  EXPECT_EQ(written("{% for m in messages %}{{ m.content }};{% endfor %}"), ";None;");
  EXPECT_EQ(written("{% for m in messages %}{{ '' + m.content }};{% endfor %}"), ";None;");
}

/// With a template that needs the text of arguments, answers are located in what it wrote.
TEST(ChatMessages, TrainingLearnsWhatServingShows) {
  const std::string record =
      R"({"messages":[{"role":"user","content":[{"type":"text","text":"Q"}]},{"role":"assistant",)"
      R"("content":null,"tool_calls":[{"function":{"name":"f","arguments":"{\"z\":  1}"}}]},)"
      R"({"role":"tool","content":"T"},{"role":"assistant","content":"A"}]})";
  for (const char* value : {"c.function.arguments | tojson", "'' + c.function.arguments"}) {
    const std::string source =
        fmt::format("{{% for m in messages %}}<{{{{ m.role }}}}>{{{{ m.content }}}}{{% for c in "
                    "m.tool_calls or [] %}}{{{{ {} }}}}{{% endfor %}}</s>{{% endfor %}}{{% if "
                    "add_generation_prompt %}}<assistant>{{% endif %}}",
                    value);
    const auto form = std::make_shared<const ChatTemplate>(source);
    const ByteTokenizer bytes;
    const TaughtText text = teach_record(record, render_by(form, OrderedJson::object()), bytes);
    std::string learned;
    for (size_t i = 0; i < text.tokens.size(); ++i)
      if (text.taught[i] != 0) learned += static_cast<char>(text.tokens[i]);
    OrderedJson variables = OrderedJson::parse(record);
    for (OrderedJson& message : variables["messages"]) take_message(message, "messages");
    EXPECT_EQ(bytes.decode(std::vector<int64_t>(text.tokens.begin(), text.tokens.end())),
              render_messages(*form, variables));
    EXPECT_EQ(learned, value[0] == 'c' ? "{\"z\": 1}</s>A</s>" : "{\"z\":  1}</s>A</s>");
  }
}

} // namespace
} // namespace pentatron::data::tokenizer
