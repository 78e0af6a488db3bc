#include "pentatron/data/tokenizer/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "pentatron/base/json.h"
#include "pentatron/data/sft/chat_text.h"
#include "tests/support/files.h"

namespace pentatron::data {
namespace {

using testing::HasSubstr;

std::string text_of_template(const std::string& source, const OrderedJson& variables,
                             const std::tm* now = nullptr) {
  return tokenizer::ChatTemplate(source).render(variables, nullptr, now);
}

/// The texts are those of Jinja 3.1.6 with the rules of transformers.
TEST(ChatTemplate, ComputesAsJinja) {
  const Json cases =
      read_json(std::filesystem::path(PENTATRON_TEST_DATA) / "chat_expressions.json");
  ASSERT_GE(cases.size(), 60u);
  for (const Json& one : cases)
    EXPECT_EQ(text_of_template(one[0], OrderedJson::object()), one[1]) << one[0];
}

/// The texts are those of Jinja 3.1.6 with the rules of transformers 5.23.
TEST(ChatTemplate, FiltersAndFormatsAreThoseOfJinja) {
  const OrderedJson cases =
      OrderedJson::parse(std::ifstream(std::string(PENTATRON_TEST_DATA) + "/chat_filters.json"));
  ASSERT_GE(cases["texts"].size(), 25u);
  for (const OrderedJson& one : cases["texts"])
    EXPECT_EQ(text_of_template(one[0], cases["variables"]), one[1]) << one[0];
}

/// As repr() of Python 3.11.
TEST(ChatTemplate, ListsShowWhatCannotBePrinted) {
  const std::string text = "a\u00a0b\u200b\u00ad\x01\ufeff\U000e0001 é😀\x7f\u2028'";
  EXPECT_EQ(text_of_template("{{ [t] }}", {{"t", text}}),
            R"(["a\xa0b\u200b\xad\x01\ufeff\U000e0001 é😀\x7f\u2028'"])");
}

TEST(ChatTemplate, NoArgumentIsIgnored) {
  for (const auto& [source, why] : std::vector<std::pair<std::string, const char*>>{
           {"{{ 1.5|round(digits=1) }}", "the filter 'round' has no supported argument 'digits'\n  "
                                         "try: one of precision, method"},
           {"{{ 1.5|round(0, 'up') }}", "try: method='common', 'ceil' or 'floor'"},
           {"{{ {}|dictsort(by='x') }}", "try: by='key' or by='value'"},
           {"{{ ['a']|map('upper', 1)|list }}", "the filter 'upper' takes no arguments, not 1"},
           {"{{ ['a']|map(attribute='b', x=1)|list }}", "map has no argument 'x'"},
           {"{{ ['a']|select('defined', 1)|list }}", "the test 'defined' takes no arguments"},
           {"{{ ['a']|select(x=1)|list }}", "no argument 'x' without a test"},
           {"{{ 'a'|replace('a', 'b', old='c') }}", "gets the argument 'old' twice"},
           {"{{ 'a'.strip(chars='a') }}", "the method 'strip' has no supported argument 'chars'"},
           {"{{ range(3, step=1) }}", "the function 'range' has no supported argument 'step'"},
           {"{{ 3 is divisibleby(1, 2) }}", "takes at most 1 arguments, not 2"},
           {"{{ 'a'|tojson(keys=1) }}", "no supported argument 'keys'"},
           {"{{ '%s'|format('a', b=1) }}", "by position or by name, not both"},
           {"{% macro f(x) %}{% endmacro %}{{ f(1, y=2) }}",
            "the macro 'f' does not have the argument 'y'"},
           {"{% macro f(x) %}{{ varargs }}{% endmacro %}{{ f(1, x=2) }}", "the argument 'x'"},
           {"{% macro f() %}{% endmacro %}{% call f() %}{% endcall %}", "the argument 'caller'"},
           {"{{ dict(a=1, **{'a': 2}) }}", "gives the argument 'a' twice"},
           {"{{ range(**[1]) }}", "'**' before what is not a dictionary"}})
    EXPECT_THAT(message_of([&] { text_of_template(source, OrderedJson::object()); }),
                HasSubstr(why))
        << source;
}

TEST(ChatTemplate, KnowsThatThereAreNoTools) {
  const char* const source = "{{ tools is defined }}{{ tools is none }}{{ documents is none }}";
  EXPECT_EQ(text_of_template(source, OrderedJson::object()), "TrueTrueTrue");
  EXPECT_EQ(text_of_template(source, {{"tools", {1}}}), "TrueFalseTrue");
}

std::string repeated(const char* text, int count) {
  std::string all;
  for (int i = 0; i < count; ++i) all += text;
  return all;
}

/// Formats cut and pad characters, not bytes.
TEST(ChatTemplate, FormatsKeepCharactersWhole) {
  EXPECT_EQ(text_of_template("{{ '%.1s|%5s|%-5s|' % ('\u00e9a', '\u00e9', '\u00e9') }}",
                             OrderedJson::object()),
            "\u00e9|    \u00e9|\u00e9    |");
}

TEST(ChatTemplate, FormatsCharactersAndTakesThemByNumber) {
  const auto text = [](const char* source) {
    return text_of_template(source, OrderedJson::object());
  };
  EXPECT_EQ(text("{{ '{:5c}|{:<5c}|{:^5c}'.format(65, 65, 65) }}"), "    A|A    |  A  ");
  EXPECT_EQ(text("{{ '%5.c|%-5c' % (65, 66) }}"), "    A|B    ");
  EXPECT_EQ(text("{{ '{0[1]}{0[2]}'.format('a\xC3\xA9\xE2\x82\xAC') }}"), "\xC3\xA9\xE2\x82\xAC");
  EXPECT_EQ(text("{{ 'ab'[-1] }}{{ [1, 2][-2] }}{{ 'ab'[2] }}"), "b1");
  EXPECT_EQ(text("{% macro m(caller=none) %}{{ caller }}{% endmacro %}{{ m() }}"), "None");
}

TEST(ChatTemplate, RefusesWhatHasNoBounds) {
  for (const auto& [source, why] : std::vector<std::pair<std::string, const char*>>{
           {"{{ '%.1000000000d' % 1 }}", "not supported"},
           {"{{ '%10000s' % 1 }}", "not supported"},
           {"{{ '%x' % -1 }}", "negative"},
           {"{{ 10 ** 20 }}", "an integer that is too large"},
           {"{{ 9223372036854775808 }}", "the number 9223372036854775808 is too large"},
           {"{{ 0xfffffffffffffffff }}", "the number 0xfffffffffffffffff is too large"},
           {"{{ 012 }}", "unexpected content"},
           {"{{ [1] * 1000000000000 }}", "too long"},
           {"{{ [range(1000)] * 10000 }}", "too long"},
           {"{{ 0.0 ** -1 }}", "divides by zero"},
           {"{% raw %}{{ x }}", "raw has no end"},
           {"{{ 'a'.ljust(100000, 'xy') }}", "one character"},
           {"{% set n = namespace(f=0) %}{% for i in range(99999) %}{% set n.f = [n.f].index %}"
            "{% endfor %}",
            "too deep"},
           {"{% set x = 1 %}" + repeated("{% set x = [x] %}", 50'000), "too deep"},
           {"{% set x = 1 %}" + repeated("{% set x = [x, x] %}", 40) + "{{ x }}", "too large"},
           {"{% set n = namespace() %}{% set n.f = {'a': n}.items %}", "part of itself"},
           {"{% set n = namespace() %}{% macro m() %}{% set n.c = caller %}{{ caller() }}{% "
            "endmacro %}"
            "{% call m() %}{{ n.c() if n.c }}{% endcall %}",
            "calls a caller outside of its macro, or in itself"},
           {"{% set n = namespace() %}{% macro m() %}{% set n.c = caller %}{% endmacro %}"
            "{% call m() %}{% endcall %}{{ n.c() }}",
            "calls a caller outside of its macro, or in itself"},
           {"{% macro m() %}{{ caller() }}{% call m() %}{% endcall %}{% endmacro %}"
            "{% call m() %}{% endcall %}",
            "nested too deep"},
           {"{% macro m(x) %}{{ m(*varargs) }}{% endmacro %}{{ m(*range(9999)) }}", "too "},
           {"{{ 'a'|map(*(['map'] * 500 + ['upper']))|list }}", "map maps map more than 8 times"},
           {"{{ 'a'|map(*(['map'] * 12000 + ['upper']))|list }}", "too many arguments"},
           {"{% for i in range(1000) %}{% set x = [1]|slice(99999, 'x')|list %}{% endfor %}",
            "too many steps"},
           {"{{ range(99999)|map('center', 100000)|list|length }}", "map makes more than"},
           {"{{ ('a b ' * 300000)|wordwrap(1) }}", "wordwrap of 1200000 bytes"},
           {"{{ '{:99999}'.format(1) }}", "more than 4 digits"},
           {"{{ '{:{}}'.format(1, 2) }}", "a field in the specification of one"},
           {"{{ '&eacute;'|striptags }}", "striptags of &eacute; is not supported"},
           {"{% for i in [1] %}{% filter upper %}{% break %}{% endfilter %}{% endfor %}",
            "outside of a loop"},
           {"{% set n = namespace() %}{% for i in [1] %}{% set n.c = loop.changed %}{% endfor %}"
            "{{ n.c(1) }}",
            "after its loop"},
           {"\xF0", "not UTF-8"}})
    EXPECT_THAT(message_of([&] { text_of_template(source, OrderedJson::object()); }),
                HasSubstr(why))
        << source.substr(0, 80);
}

/// As _alias_reasoning_fields of transformers 5.23.
TEST(ChatTemplate, ThoughtsHaveTheNamesThatTemplatesRead) {
  const auto text = [](const OrderedJson& message) {
    return text_of_template("{{ messages[0] | tojson }}",
                            {{"messages", OrderedJson::array({message})}});
  };
  EXPECT_EQ(text({{"role", "a"}, {"thinking", "t"}}),
            R"({"role": "a", "thinking": "t", "reasoning_content": "t"})");
  EXPECT_EQ(text({{"role", "a"}, {"reasoning", "r"}}),
            R"({"thinking": "r", "role": "a", "reasoning": "r", "reasoning_content": "r"})");
  EXPECT_EQ(text({{"reasoning_content", ""}, {"reasoning", "r"}}),
            R"({"thinking": "", "reasoning_content": "", "reasoning": "r"})");
  EXPECT_EQ(text({{"reasoning_content", nullptr}, {"thinking", "t"}, {"reasoning", "r"}}),
            R"({"thinking": "t", "reasoning": "r", "reasoning_content": "t"})");
  EXPECT_EQ(text({{"thinking", "t"}, {"reasoning_content", "c"}}),
            R"({"thinking": "t", "reasoning_content": "c"})");
  EXPECT_EQ(text({{"role", "a"}, {"thinking", nullptr}}), R"({"role": "a"})");
}

constexpr const char* kDated = "{% if strftime_now is defined %}{% set day = strftime_now('%d %b "
                               "%Y, %A') %}{% else %}{% set day = '26 Jul 2024' %}{% endif %}{{ "
                               "day }}";

TEST(ChatTemplate, PrintsTheDateThatIsGiven) {
  const auto date = tokenizer::read_date("2024-02-29");
  ASSERT_TRUE(date);
  EXPECT_EQ(text_of_template(kDated, OrderedJson::object(), &*date), "29 Feb 2024, Thursday");
  EXPECT_EQ(text_of_template(kDated, OrderedJson::object()), "26 Jul 2024");
  const std::tm now = tokenizer::local_time();
  EXPECT_GE(std::stoi(text_of_template("{{ strftime_now('%Y') }}", OrderedJson::object(), &now)),
            2026);
}

TEST(ChatTemplate, ReadsDatesThatExist) {
  for (const char* wrong : {"2023-02-29", "2024-13-01", "2024-1-01", "2024-01-00", "0000-01-01",
                            "2024-01-1x", "2024/01/01", "", "2024-01-011"})
    EXPECT_FALSE(tokenizer::read_date(wrong)) << wrong;
}

TEST(ChatTemplate, OfTrainingPrintsNoOtherDate) {
  const TemporaryFolder folder;
  std::ofstream(folder.path() / "chat_template.jinja") << kDated << "{{ messages[0].content }}";
  const OrderedJson messages = {{{"role", "user"}, {"content", "Hi"}}};
  const auto text = [&](const std::string& date) {
    return open_chat_template(folder.path(), date)(messages, nullptr, ChatEnd::kAnswer).text;
  };
  EXPECT_EQ(text(""), "26 Jul 2024Hi");
  EXPECT_EQ(text("2025-01-31"), "31 Jan 2025, FridayHi");
}

} // namespace
} // namespace pentatron::data
