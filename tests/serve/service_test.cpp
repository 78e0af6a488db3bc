// The routes over a real socket; passes are made by the test.
#include "pentatron/serve/service.h"

#include <memory>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pentatron/base/json.h"
#include "tests/serve/http/client.h"
#include "tests/serve/tiny_server.h"

namespace pentatron::serve {
namespace {

using test::RawClient;
using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class Serves : public ::testing::Test {
 protected:
  Serves() { server.start(); }

  static std::string request(const std::string& method, const std::string& path,
                             const std::string& body = "") {
    return fmt::format("{} {} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                       "Content-Length: {}\r\n\r\n{}",
                       method, path, body.size(), body);
  }
  std::string once(const std::string& bytes) const {
    RawClient client(server.port());
    client.send(bytes);
    return client.read_answer();
  }

  parallelize::RankModel model = test::tiny_served_model(test::tiny_served_config());
  RankedSession session{model, {.texts = 2, .pages = 20}, comm::Group()};
  Metrics metrics;
  Scheduler scheduler{session, {.texts = 2, .pass_tokens = 50}, metrics};
  data::ByteTokenizer tokenizer;
  Service service{{.models = {"org/tiny"},
                   .chats = {{}},
                   .context = test::kServedContext,
                   .num_tokens = 61,
                   .limits = {.vocab_size = 61}},
                  tokenizer,
                  scheduler,
                  metrics};
  http::Server server{
      {}, {.handle = [this](http::Request request, std::shared_ptr<http::Exchange> exchange) {
        service.handle(std::move(request), exchange);
      }}};
};

const std::string kStream = R"({"prompt":[1,2,3],"max_tokens":20,"stream":true,"ignore_eos":true})";

TEST_F(Serves, TellsThatItStopsUntilItsStreamsHaveEnded) {
  RawClient idle(server.port()), old(server.port()), running(server.port());
  old.send(request("GET", "/health"));
  EXPECT_THAT(old.read_answer(), StartsWith("HTTP/1.1 200 "));
  running.send(request("POST", "/v1/completions", kStream));
  while (!scheduler.step()) { // until it has come
  }
  EXPECT_THAT(running.read_until("data: {"), StartsWith("HTTP/1.1 200 "));

  service.stop();
  server.begin_stop();
  const auto stopping = AllOf(StartsWith("HTTP/1.1 503 "), HasSubstr("\r\nConnection: close\r\n"),
                              HasSubstr(R"("type":"server_error")"));
  for (const char* path : {"/health", "/readyz"})
    EXPECT_THAT(once(request("GET", path)), stopping) << path;
  for (const char* path : {"/livez", "/metrics", "/v1/models"})
    EXPECT_THAT(once(request("GET", path)), StartsWith("HTTP/1.1 200 ")) << path;
  for (const char* path : {"/v1/completions", "/v1/chat/completions"})
    EXPECT_THAT(once(request("POST", path, kStream)), stopping) << path;
  old.send(request("GET", "/health"));
  EXPECT_THAT(old.read_answer(), stopping);

  while (scheduler.step()) {
  }
  EXPECT_THAT(running.read_until("[DONE]"), EndsWith("data: [DONE]"));
  server.stop(60);
  EXPECT_EQ(idle.read_all(), "") << "closed";
}

TEST_F(Serves, HeadAsGetWithoutContent) {
  RawClient client(server.port());
  for (const char* path : {"/", "/health", "/livez", "/readyz", "/v1/models", "/v1/models/org/tiny",
                           "/v1/models/none", "/none"}) {
    std::string expected = once(request("GET", path));
    const size_t end = expected.find("\r\n\r\n") + 4;
    EXPECT_GT(expected.size(), end);
    client.send(request("HEAD", path));
    const std::string head = client.read_until("\r\n\r\n");
    const auto line = [](const std::string& text, const char* name) {
      const size_t at = text.find(name);
      return text.substr(at, text.find('\r', at) - at);
    };
    for (const char* name : {"HTTP/1.1", "Content-Length: ", "Content-Type: "})
      EXPECT_EQ(line(head, name), line(expected, name)) << path;
  }
  client.send(request("HEAD", "/metrics"));
  EXPECT_THAT(client.read_until("\r\n\r\n"), StartsWith("HTTP/1.1 200 "));
  for (const char* path : {"/v1/completions", "/v1/chat/completions"}) {
    client.send(request("HEAD", path));
    EXPECT_THAT(client.read_until("\r\n\r\n"),
                AllOf(StartsWith("HTTP/1.1 405 "), HasSubstr("\r\nAllow: POST\r\n")));
  }
  client.send(request("PUT", "/health"));
  EXPECT_THAT(client.read_answer(),
              AllOf(StartsWith("HTTP/1.1 405 "), HasSubstr("\r\nAllow: GET, HEAD\r\n")));
}

TEST_F(Serves, ModelsByEncodedNames) {
  for (const char* path : {"/v1/models/org/tiny", "/v1/models/org%2Ftiny",
                           "/v1/models/%6frg%2ftiny", "http://localhost/v1/models/org%2Ftiny"})
    EXPECT_THAT(once(request("GET", path)),
                AllOf(StartsWith("HTTP/1.1 200 "), HasSubstr(R"("id":"org/tiny")")))
        << path;
  EXPECT_THAT(once(request("GET", "/v1/models/org%252Ftiny")), StartsWith("HTTP/1.1 404 "));
  EXPECT_THAT(once(request("GET", "/v1/models/%0d%0aX:%20%ff")), StartsWith("HTTP/1.1 404 "));
}

} // namespace
} // namespace pentatron::serve
