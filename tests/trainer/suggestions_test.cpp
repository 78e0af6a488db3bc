// Every `try:` of a configuration's errors, followed: what it says is applied as it stands, and the
// error is gone. Values come from every key and from a seeded generator, so that a new rule is
// covered without being listed.
#include <algorithm>
#include <map>
#include <optional>
#include <random>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "pentatron/base/error.h"
#include "pentatron/trainer/config.h"

namespace pentatron::trainer {
namespace {

using Overrides = std::vector<std::string>;

struct Call {
  Overrides overrides;
  int ranks = 1;
};

struct Complaint {
  std::string cause;  ///< without the place that the value came from
  std::string remedy; ///< what follows `try:`, or empty
};

std::vector<Complaint> complaints(const Call& call) {
  std::string text;
  try {
    load_config(std::nullopt, call.overrides, {}, call.ranks);
    return {};
  } catch (const ConfigError& error) {
    text = error.what();
  }
  static const std::regex place("^(override '[^\n]*?': )");
  std::vector<Complaint> all;
  size_t at = 0;
  while (at < text.size()) {
    const size_t end = std::min(text.find('\n', at), text.size());
    std::string line = text.substr(at, end - at);
    at = end + 1;
    line.erase(0, line.find_first_not_of(' '));
    if (line.starts_with("try: ")) {
      if (!all.empty()) all.back().remedy = line.substr(5);
    } else if (!line.empty() && !line.ends_with(" problems in the configuration")) {
      all.push_back({.cause = std::regex_replace(line, place, ""), .remedy = ""});
    }
  }
  return all;
}

std::vector<std::string> split(const std::string& text, const std::string& separators) {
  const std::regex separator(separators);
  return {std::sregex_token_iterator(text.begin(), text.end(), separator, -1), {}};
}

/// What a remedy tells to do, each alternative apart; empty if it is not made of assignments.
std::vector<Call> followed(const Call& call, const std::string& remedy) {
  static const std::regex assignment("[a-z_]+([.][a-z0-9_]+)*=.*"),
      range(R"(([a-z_.0-9]+) in \{(.*)\})"), ranks("--ranks ([0-9]+)"),
      removal("remove ([a-z_.0-9]+)");
  std::vector<Call> results;
  for (const std::string& alternative : split(remedy, ",? or (?=[a-z-])")) {
    std::smatch match;
    if (std::regex_match(alternative, match, range)) {
      for (const std::string& value : split(match[2], ", ")) {
        results.push_back(call);
        results.back().overrides.push_back(match[1].str() + "=" + value);
      }
      continue;
    }
    Call next = call;
    for (const std::string& part : split(alternative, ",? and (?=[a-z-])")) {
      if (std::regex_match(part, match, removal)) { // of a key or a section
        const std::string key = match[1];
        std::erase_if(next.overrides, [&](const std::string& o) {
          return o.starts_with(key + "=") || o.starts_with(key + ".");
        });
      } else if (std::regex_match(part, match, ranks)) {
        next.ranks = std::stoi(match[1]);
      } else if (std::regex_match(part, assignment)) {
        const std::string key = part.substr(0, part.find('=') + 1);
        std::erase_if(next.overrides, [&](const std::string& o) { return o.starts_with(key); });
        next.overrides.push_back(part);
      } else {
        return {};
      }
    }
    results.push_back(std::move(next));
  }
  return results;
}

std::string shown(const Call& call) {
  std::string text = "--ranks " + std::to_string(call.ranks);
  for (const std::string& override_text : call.overrides) text += " " + override_text;
  return text;
}

bool complains(const Call& call, const std::string& cause) {
  return std::ranges::any_of(complaints(call),
                             [&](const Complaint& c) { return c.cause == cause; });
}

class Suggestions : public testing::Test {
 protected:
  /// Follows every alternative of every remedy, and the first of each until nothing is wrong.
  void follow(Call call) {
    const std::string started = shown(call);
    for (int round = 0; round < 12; ++round) {
      const std::vector<Complaint> wrong = complaints(call);
      if (wrong.empty()) return;
      std::optional<Call> next;
      for (const Complaint& complaint : wrong) {
        if (complaint.remedy.empty()) continue;
        const std::vector<Call> ways = followed(call, complaint.remedy);
        if (ways.empty()) prose_[complaint.remedy] = complaint.cause;
        for (const Call& way : ways) {
          ++followed_;
          EXPECT_FALSE(complains(way, complaint.cause))
              << complaint.cause << "\n  try: " << complaint.remedy << "\nfollowed: " << shown(way);
        }
        if (!next && !ways.empty()) next = ways.front();
      }
      if (!next) return; // nothing that could be followed
      call = *next;
    }
    ADD_FAILURE() << "twelve suggestions later there are errors still: " << started << "\nnow "
                  << shown(call) << ": " << complaints(call).front().cause;
  }

  /// Remedies that are no assignments are about what only the user knows.
  void expect_assignments() const {
    for (const auto& [remedy, cause] : prose_)
      EXPECT_TRUE(remedy == "the numbers of the tokenizer's special tokens" ||
                  remedy == "pentatron config presets" ||
                  remedy == "a folder that save_pretrained() of peft has written")
          << cause << "\n  try: " << remedy;
  }

  int followed_ = 0;
  std::map<std::string, std::string> prose_; ///< remedies that are no assignments
};

Overrides values_of(const config::FieldInfo& field) {
  if (field.type.starts_with("one of ")) {
    Overrides names = split(field.type.substr(7), ", ");
    names.emplace_back("nonsense");
    return names;
  }
  if (field.type.find("list") != std::string::npos)
    return {"[]", "[1]", "[1, 2, 3]", "[-1]", "[text]"};
  if (field.type.find("string") != std::string::npos) return {"\"\"", "nonsense", "1", "a.txt"};
  if (field.type.find("bool") != std::string::npos) return {"true", "false", "maybe"};
  return {"-1",
          "0",
          "0.5",
          "1",
          "2",
          "3",
          "7",
          "100",
          ".inf",
          "1e9",
          "1e300",
          "null",
          "4611686018427387904"};
}

std::vector<std::pair<std::string, Overrides>> all_values() {
  std::vector<std::pair<std::string, Overrides>> all;
  for (const config::FieldInfo& field : config::list_fields<Config>())
    all.emplace_back(field.path, values_of(field));
  return all;
}

TEST_F(Suggestions, OfEveryKeyAreRight) {
  for (const auto& [key, values] : all_values()) {
    for (const std::string& value : values)
      for (const int ranks : {1, 4}) follow({.overrides = {key + "=" + value}, .ranks = ranks});
  }
  EXPECT_GT(followed_, 300);
  expect_assignments();
}

TEST_F(Suggestions, OfKeysThatMeetAreRight) {
  const auto all = all_values();
  std::mt19937 random(7);
  const auto below = [&](size_t n) { return static_cast<size_t>(random()) % n; };
  const int calls = test::full_matrix() ? 3000 : 1000;
  for (int i = 0; i < calls; ++i) {
    Call call{.overrides = {}, .ranks = std::vector<int>{1, 2, 4, 6, 8}[below(5)]};
    std::set<std::string> used;
    for (size_t k = 2 + below(4); k > 0; --k) {
      const auto& [key, values] = all[below(all.size())];
      if (used.insert(key).second)
        call.overrides.push_back(key + "=" + values[below(values.size())]);
    }
    follow(call);
  }
  EXPECT_GT(followed_, 2 * calls / 3);
  expect_assignments();
}

} // namespace
} // namespace pentatron::trainer
