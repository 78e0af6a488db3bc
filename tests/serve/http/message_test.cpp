// Who may send requests.
#include "pentatron/serve/http/message.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pentatron/base/json.h"

namespace pentatron::serve::http {
namespace {

using ::testing::HasSubstr;

int status_of(std::map<std::string, std::string> headers, const Guard& guard,
              const std::string& path = "/v1/models") {
  const auto refusal =
      refuse({.method = "GET", .path = path, .headers = std::move(headers), .body = {}}, guard);
  return refusal ? refusal->status : 200;
}

TEST(Refuse, OtherHostsBecauseOfRebinding) {
  const Guard guard{.hosts = {"127.0.0.1", "localhost", "[::1]"}};
  for (const char* host : {"localhost", "LOCALHOST:8000", "127.0.0.1:80", "[::1]:9"})
    EXPECT_EQ(status_of({{"host", host}}, guard), 200) << host;
  for (const char* host :
       {"evil.example", "localhost.evil.example", "127.0.0.1.evil", "", "[::2]:9"})
    EXPECT_EQ(status_of({{"host", host}}, guard), 421) << host;
  EXPECT_EQ(status_of({{"host", "any"}}, {}), 200);
}

TEST(Refuse, PagesOfOtherSites) {
  const Guard guard;
  EXPECT_EQ(status_of({{"host", "localhost:8000"}, {"origin", "http://localhost:8000"}}, guard),
            200);
  EXPECT_EQ(status_of({{"host", "localhost:8000"}, {"origin", "https://LOCALHOST:8000"}}, guard),
            200);
  for (const char* origin : {"http://localhost:8001", "http://evil.example", "null", "x"})
    EXPECT_EQ(status_of({{"host", "localhost:8000"}, {"origin", origin}}, guard), 403) << origin;
}

TEST(Refuse, RequestsWithoutTheToken) {
  const Guard guard{.token = "0123456789abcdef", .open_paths = {"/health"}};
  EXPECT_EQ(status_of({{"authorization", "Bearer 0123456789abcdef"}}, guard), 200);
  EXPECT_EQ(status_of({{"authorization", "bearer  0123456789abcdef "}}, guard), 200);
  EXPECT_EQ(status_of({}, guard, "/health"), 200);
  for (const char* value :
       {"", "Bearer", "Bearer ", "Bearer 0123456789abcdeF", "0123456789abcdef",
        "Bearer 0123456789abcdef0", "Bearer 0123456789abcde", "Basic 0123456789abcdef"})
    EXPECT_EQ(status_of({{"authorization", value}}, guard), 401) << value;
  EXPECT_EQ(status_of({}, guard), 401);
}

TEST(ParseTarget, DecodesPaths) {
  const auto path_of = [](std::string_view text) {
    const auto target = parse_target(text);
    return target ? target->authority + "|" + target->path : "invalid";
  };
  EXPECT_EQ(path_of("/"), "|/");
  EXPECT_EQ(path_of("*"), "|*");
  EXPECT_EQ(path_of("/a%2Fb%2fc%25%C3%A4+?d%"), "|/a/b/c%\xc3\xa4+");
  EXPECT_EQ(path_of("/%2520"), "|/%20") << "once";
  EXPECT_EQ(path_of("http://[::1]:80/a"), "[::1]:80|/a");
  EXPECT_EQ(path_of("Http://host?a/b"), "host|/");
  for (const char* text : {"", "a", "/%", "/%1", "/%1g", "/%+1", "/%00", "http:/a", "http://",
                           "http://?a", "http://a@b/", "https://a/", "a:80"})
    EXPECT_EQ(path_of(text), "invalid") << text;
}

TEST(ConstantTime, ComparesAsEqualityDoes) {
  EXPECT_TRUE(equal_in_constant_time("", ""));
  EXPECT_TRUE(equal_in_constant_time("abc", "abc"));
  EXPECT_FALSE(equal_in_constant_time("abc", "abcabc"));
  EXPECT_FALSE(equal_in_constant_time("abc", ""));
  EXPECT_FALSE(equal_in_constant_time("", "a"));
}

TEST(ErrorResponse, HasOpenAisForm) {
  const Response response = error_response(429, "too many \"requests\"", "", "queue_full");
  const Json error = parse_json(response.body, "body").at("error");
  EXPECT_EQ(error["message"], "too many \"requests\"");
  EXPECT_EQ(error["type"], "rate_limit_error");
  EXPECT_EQ(error["param"], Json());
  EXPECT_EQ(error["code"], "queue_full");
  EXPECT_EQ(response.headers.at(0).first, "Retry-After");
}

} // namespace
} // namespace pentatron::serve::http
