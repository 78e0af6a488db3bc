// The server's limits, with clients that do what they should not.
#include "pentatron/serve/http/server.h"

#include <chrono>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pentatron/base/descriptors.h"
#include "tests/serve/http/client.h"
#include "tests/support/few_descriptors.h"

namespace pentatron::serve::http {
namespace {

using test::RawClient;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

bool within(double seconds, const std::function<bool()>& condition) {
  for (double waited = 0; waited < seconds; waited += 0.005) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return condition();
}

class HttpServer : public ::testing::Test {
 protected:
  void start(ServerOptions options) {
    options.port = 0;
    server = std::make_unique<Server>(
        options, Server::Calls{.handle =
                                   [this](Request request, std::shared_ptr<Exchange> exchange) {
                                     handle(std::move(request), std::move(exchange));
                                   },
                               .client_gone = [this] { ++gone; },
                               .connections = [this](int64_t count) { open = count; },
                               .refused = [this] { ++refused; }});
    server->start();
  }
  /// "/echo" answers with the body; "/hold" keeps the exchange; "/drop" lets it go.
  void handle(Request request, std::shared_ptr<Exchange> exchange) {
    if (request.path == "/hold") {
      const std::lock_guard lock(mutex);
      held.push_back(std::move(exchange));
    } else if (request.path == "/throw") {
      throw std::runtime_error("a failure");
    } else if (request.path != "/drop") {
      exchange->respond({.body = request.method + request.path + "|" + request.body});
    }
  }
  std::shared_ptr<Exchange> take_held() {
    std::shared_ptr<Exchange> taken;
    within(5, [&] {
      const std::lock_guard lock(mutex);
      if (held.empty()) return false;
      taken = std::move(held.back());
      held.pop_back();
      return true;
    });
    EXPECT_NE(taken, nullptr);
    return taken;
  }
  std::string once(const std::string& bytes) const {
    RawClient client(server->port());
    client.send(bytes);
    return client.read_all();
  }

  std::mutex mutex;
  std::vector<std::shared_ptr<Exchange>> held;
  std::atomic<int> gone = 0;
  std::atomic<int64_t> open = 0, refused = 0;
  std::unique_ptr<Server> server;
};

constexpr const char* kHost = "Host: localhost\r\n";

TEST_F(HttpServer, AnswersOneRequestAfterAnother) {
  start({});
  RawClient client(server->port());
  for (int i = 0; i < 3; ++i) {
    client.send(fmt::format("POST /echo?x=1 HTTP/1.1\r\n{}Content-Length: 2\r\n\r\nb{}", kHost, i));
    EXPECT_THAT(client.read_answer(), AllOf(StartsWith("HTTP/1.1 200 OK\r\n"), HasSubstr("nosniff"),
                                            HasSubstr(fmt::format("POST/echo|b{}", i))));
  }
}

TEST_F(HttpServer, SaysThatNoDescriptorIsLeft) {
  // For the event loop, and for the listener.
  int failures = 0;
  while (failures < 9 && server == nullptr) {
    std::string said;
    {
      const test::FewDescriptors few(failures);
      try {
        start({});
      } catch (const OutOfDescriptors& error) {
        said = error.what();
      }
    }
    if (server == nullptr) {
      EXPECT_THAT(said, AllOf(HasSubstr("open files"), HasSubstr("try: ulimit -n"))) << failures;
      ++failures;
    }
  }
  EXPECT_GE(failures, 2);
  EXPECT_NE(server, nullptr);
}

TEST_F(HttpServer, AnswersPipelinedRequestsInOrder) {
  start({});
  RawClient client(server->port());
  std::string all;
  for (int i = 0; i < 20; ++i) all += fmt::format("GET /{} HTTP/1.1\r\n{}\r\n", i, kHost);
  client.send(all);
  for (int i = 0; i < 20; ++i)
    EXPECT_THAT(client.read_answer(), HasSubstr(fmt::format("GET/{}|", i)));
}

TEST_F(HttpServer, TakesBodiesInChunksAndWaitsToBeAskedForThem) {
  start({});
  RawClient client(server->port());
  client.send(fmt::format("POST /echo HTTP/1.1\r\n{}Transfer-Encoding: chunked\r\nExpect: "
                          "100-continue\r\n\r\n",
                          kHost));
  EXPECT_EQ(client.read_until("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  client.send("3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n");
  EXPECT_THAT(client.read_answer(), HasSubstr("|abcde"));
}

TEST_F(HttpServer, StreamsPiecesAndGoesOn) {
  start({});
  RawClient client(server->port());
  client.send(fmt::format("GET /hold HTTP/1.1\r\n{}\r\n", kHost));
  const std::shared_ptr<Exchange> exchange = take_held();
  exchange->begin("text/event-stream");
  exchange->write("data: 1\n\n");
  EXPECT_THAT(client.read_until("data: 1\n\n\r\n"),
              AllOf(HasSubstr("Transfer-Encoding: chunked"), HasSubstr("text/event-stream")));
  exchange->write("data: 2\n\n");
  exchange->end();
  exchange->write("too late");
  EXPECT_THAT(client.read_until("0\r\n\r\n"), HasSubstr("9\r\ndata: 2\n\n\r\n"));
  client.send(fmt::format("GET /next HTTP/1.1\r\n{}\r\n", kHost));
  EXPECT_THAT(client.read_answer(), HasSubstr("GET/next|"));
}

TEST_F(HttpServer, StreamsToOldClientsUntilItCloses) {
  start({});
  RawClient client(server->port());
  client.send("GET /hold HTTP/1.0\r\n\r\n");
  const std::shared_ptr<Exchange> exchange = take_held();
  exchange->begin("text/plain");
  exchange->write("ab");
  exchange->end();
  EXPECT_THAT(client.read_all(),
              AllOf(HasSubstr("Connection: close"), ::testing::EndsWith("\r\n\r\nab")));
}

TEST_F(HttpServer, RefusesWhatIsNoRequest) {
  start({.max_header_bytes = 2000, .max_headers = 10, .max_body_bytes = 100});
  const std::string host = kHost;
  EXPECT_THAT(once("this is not HTTP\r\n\r\n"), StartsWith("HTTP/1.1 400 "));
  EXPECT_THAT(once(std::string(3, '\0') + "\xff\xfe\r\n\r\n"), StartsWith("HTTP/1.1 400 "));
  EXPECT_THAT(once("GET / HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 400 ")) << "no Host";
  EXPECT_THAT(once("GET / HTTP/1.1\r\n" + host + host + "\r\n"), StartsWith("HTTP/1.1 400 "));
  EXPECT_THAT(once("GET / HTTP/1.1\r\n" + host + "X: " + std::string(3000, 'x') + "\r\n\r\n"),
              StartsWith("HTTP/1.1 431 "));
  std::string many = "GET / HTTP/1.1\r\n" + host;
  for (int i = 0; i < 20; ++i) many += fmt::format("X-{}: 1\r\n", i);
  EXPECT_THAT(once(many + "\r\n"), StartsWith("HTTP/1.1 431 "));
  EXPECT_THAT(once("POST / HTTP/1.1\r\n" + host + "Content-Length: 101\r\n\r\n"),
              AllOf(StartsWith("HTTP/1.1 413 "), HasSubstr("100 bytes")));
  EXPECT_THAT(once("POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\n\r\n80\r\n" +
                   std::string(128, 'x') + "\r\n0\r\n\r\n"),
              StartsWith("HTTP/1.1 413 "));
  EXPECT_THAT(once("POST / HTTP/1.1\r\n" + host + "Content-Length: 99999999999999999999\r\n\r\n"),
              StartsWith("HTTP/1.1 400 "));
  EXPECT_THAT(once("GET /throw HTTP/1.1\r\n" + host + "Connection: close\r\n\r\n"),
              StartsWith("HTTP/1.1 500 "));
  EXPECT_THAT(once("GET /drop HTTP/1.1\r\n" + host + "\r\n"), StartsWith("HTTP/1.1 500 "));
  EXPECT_TRUE(within(5, [&] { return open == 0; }));
}

TEST_F(HttpServer, RefusesBeforeItReadsTheBody) {
  start({.guard = {.token = "0123456789abcdef"}});
  EXPECT_THAT(once(fmt::format("POST / HTTP/1.1\r\n{}Content-Length: 1000\r\n\r\n", kHost)),
              AllOf(StartsWith("HTTP/1.1 401 "), HasSubstr("WWW-Authenticate: Bearer")));
}

TEST_F(HttpServer, ClosesConnectionsThatAreTooSlow) {
  start({.request_timeout_s = 0.2, .idle_timeout_s = 0.2});
  EXPECT_EQ(once(""), "") << "closed, after the idle time";
  EXPECT_THAT(once("GET / HT"), StartsWith("HTTP/1.1 408 "));
  EXPECT_THAT(once(fmt::format("POST / HTTP/1.1\r\n{}Content-Length: 9\r\n\r\nabc", kHost)),
              StartsWith("HTTP/1.1 408 "));
  RawClient drips(server->port());
  for (int i = 0; i < 40; ++i) {
    drips.send("G");
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_THAT(drips.read_all(), StartsWith("HTTP/1.1 408 "));
}

TEST_F(HttpServer, NoticesAClientThatLeaves) {
  start({});
  RawClient client(server->port());
  client.send(fmt::format("GET /hold HTTP/1.1\r\n{}\r\n", kHost));
  const std::shared_ptr<Exchange> exchange = take_held();
  const auto flag = exchange->gone();
  EXPECT_FALSE(*flag);
  client.leave();
  EXPECT_TRUE(within(5, [&] { return flag->load(); }));
  EXPECT_EQ(gone, 1);
  exchange->respond({}); // nobody is there
}

TEST_F(HttpServer, GivesUpOnAClientThatDoesNotRead) {
  start({.max_unsent_bytes = 1 << 20});
  RawClient client(server->port());
  client.send(fmt::format("GET /hold HTTP/1.1\r\n{}\r\n", kHost));
  const std::shared_ptr<Exchange> exchange = take_held();
  exchange->begin("text/plain");
  for (int i = 0; i < 2000 && !*exchange->gone(); ++i) exchange->write(std::string(100000, 'x'));
  EXPECT_TRUE(within(5, [&] { return exchange->gone()->load(); }));
}

TEST_F(HttpServer, TellsClientsThatAreTooMany) {
  start({.max_connections = 2});
  RawClient one(server->port()), two(server->port());
  EXPECT_TRUE(within(5, [&] { return open == 2; }));
  EXPECT_THAT(once(""), AllOf(StartsWith("HTTP/1.1 503 "), HasSubstr("Retry-After: 1")));
  EXPECT_EQ(refused, 1);
  one.leave();
  EXPECT_TRUE(within(5, [&] { return open == 1; }));
  EXPECT_THAT(once(fmt::format("GET / HTTP/1.1\r\n{}Connection: close\r\n\r\n", kHost)),
              StartsWith("HTTP/1.1 200 "));
}

TEST_F(HttpServer, AnswersWhileItStopsAndClosesWhenTheAnswersAreSent) {
  start({});
  RawClient idle(server->port()), old(server->port()), busy(server->port());
  const std::string request = fmt::format("GET /a HTTP/1.1\r\n{}\r\n", kHost);
  old.send(request);
  EXPECT_THAT(old.read_answer(), HasSubstr("Connection: keep-alive"));
  busy.send(fmt::format("GET /hold HTTP/1.1\r\n{}\r\n", kHost));
  std::shared_ptr<Exchange> exchange = take_held();
  server->begin_stop();
  EXPECT_THAT(once(request), AllOf(StartsWith("HTTP/1.1 200 "), HasSubstr("Connection: close"),
                                   HasSubstr("GET/a|")));
  old.send(request);
  EXPECT_THAT(old.read_all(), AllOf(HasSubstr("Connection: close"), HasSubstr("GET/a|")));
  exchange->begin("text/plain");
  exchange->write("late");
  exchange->end();
  exchange.reset();
  const auto began = std::chrono::steady_clock::now();
  constexpr double kMost_s = 60;
  server->stop(kMost_s);
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(30)) << "not for idle";
  EXPECT_THAT(busy.read_all(), AllOf(HasSubstr("Connection: close"), HasSubstr("late")));
  EXPECT_EQ(idle.read_all(), "");
}

int count_of(const std::string& text, const std::string& part) {
  int count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

/// Otherwise the body is read as the next request.
TEST_F(HttpServer, RefusesBodiesWhoseEndIsNotCertain) {
  start({});
  const std::string inner = fmt::format("GET /inner HTTP/1.1\r\n{}\r\n", kHost);
  const std::string chunk = fmt::format("{:x}\r\n{}\r\n0\r\n\r\n", inner.size(), inner);
  const auto refused = [&](const std::string& version, const std::string& headers, int status) {
    for (const std::string& body : {inner, chunk}) {
      const std::string all =
          once(fmt::format("POST /echo HTTP/{}\r\n{}Connection: keep-alive\r\n{}\r\n{}", version,
                           kHost, headers, body));
      EXPECT_THAT(all, AllOf(StartsWith(fmt::format("HTTP/1.1 {} ", status)),
                             HasSubstr("Connection: close\r\n")))
          << headers;
      EXPECT_EQ(count_of(all, "HTTP/1.1 "), 1) << headers;
    }
  };
  for (const char* coding : {"gzip", "xchunked", "identity", "chunked, gzip", "chunked, chunked",
                             "gzip, chunked", "chunked;q=1", "\"chunked\"", ""})
    refused("1.1", fmt::format("Transfer-Encoding: {}\r\n", coding), 501);
  refused("1.1", "Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n", 501);
  refused("1.1", "Transfer-Encoding: gzip\r\nContent-Length: 3\r\n", 501);
  refused("1.1", "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", 400);
  refused("1.1", "Transfer-Encoding: chunked\r\nContent-Length: 3\r\n", 400);
  refused("1.1", "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n", 400);
  refused("1.1", "Content-Length: 3\r\nContent-Length: 4\r\n", 400);
  refused("1.0", "Transfer-Encoding: chunked\r\n", 400);
  refused("1.0", "Transfer-Encoding: gzip\r\n", 400);
  EXPECT_THAT(once(fmt::format("POST /echo HTTP/1.1\r\n{}Connection: close\r\nTransfer-Encoding: "
                               "Chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
                               kHost)),
              HasSubstr("|abc"));
}

TEST_F(HttpServer, AnswersHeadWithoutContent) {
  start({.max_header_bytes = 2000, .guard = {.hosts = {"localhost"}}});
  RawClient client(server->port());
  for (int i = 0; i < 2; ++i) { // a body would be before the second answer
    client.send(fmt::format("HEAD /a HTTP/1.1\r\n{}\r\n", kHost));
    EXPECT_THAT(client.read_until("\r\n\r\n"),
                AllOf(StartsWith("HTTP/1.1 200 OK\r\n"), HasSubstr("Content-Length: 7\r\n")));
  }
  client.send(fmt::format("HEAD /hold HTTP/1.1\r\n{}\r\n", kHost));
  const std::shared_ptr<Exchange> exchange = take_held();
  exchange->begin("text/plain");
  exchange->write("abc");
  exchange->end();
  EXPECT_THAT(client.read_until("\r\n\r\n"), HasSubstr("Transfer-Encoding: chunked"));
  client.send(fmt::format("GET /next HTTP/1.1\r\n{}\r\n", kHost));
  EXPECT_THAT(client.read_answer(), AllOf(StartsWith("HTTP/1.1 200 "), HasSubstr("GET/next|")));
  const auto nothing_follows = ::testing::EndsWith("\r\n\r\n");
  EXPECT_THAT(once("HEAD /a HTTP/1.1\r\nHost: evil.example\r\n\r\n"),
              AllOf(StartsWith("HTTP/1.1 421 "), nothing_follows));
  EXPECT_THAT(once("HEAD /a HTTP/1.1\r\nX: " + std::string(3000, 'x') + "\r\n\r\n"),
              AllOf(StartsWith("HTTP/1.1 431 "), nothing_follows));
  EXPECT_THAT(once(fmt::format("HEAD /drop HTTP/1.1\r\n{}\r\n", kHost)),
              AllOf(StartsWith("HTTP/1.1 500 "), nothing_follows));
}

TEST_F(HttpServer, TakesTheFormsOfATarget) {
  start({.guard = {.token = "0123456789abcdef",
                   .hosts = {"localhost"},
                   .open_paths = {"/a b/c", "/", "/x"}}});
  const auto get = [&](const std::string& target, const std::string& host = "localhost") {
    return once(
        fmt::format("GET {} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", target, host));
  };
  EXPECT_THAT(get("/a%20b%2Fc?d=%zz"), HasSubstr("GET/a b/c|"));
  EXPECT_THAT(get("http://localhost:80/x?y"), HasSubstr("GET/x|"));
  EXPECT_THAT(get("HTTP://LOCALHOST"), HasSubstr("GET/|"));
  EXPECT_THAT(get("http://localhost/other"), StartsWith("HTTP/1.1 401 "));
  EXPECT_THAT(get("http://evil.example/x"), StartsWith("HTTP/1.1 421 "));
  EXPECT_THAT(get("http://localhost/x", "evil.example"), StartsWith("HTTP/1.1 421 "));
  for (const char* target : {"/%", "/a%2", "/%zz", "/%-1", "/%00", "/a%00b", "x", "http://",
                             "http:///x", "http://a@localhost/x", "ftp://localhost/x"})
    EXPECT_THAT(get(target), StartsWith("HTTP/1.1 400 ")) << target;
}

TEST_F(HttpServer, IgnoresEmptyLinesBeforeARequest) {
  start({});
  RawClient client(server->port());
  const std::string post =
      fmt::format("POST /p HTTP/1.1\r\n{}Content-Length: 1\r\n\r\nb\r\n", kHost);
  client.send("\r\n" + post + "\r\n" + post); // some clients end bodies with a line end
  for (int i = 0; i < 2; ++i) EXPECT_THAT(client.read_answer(), HasSubstr("POST/p|b"));
  for (const char* piece : {"\r", "\n", "\r\n\r"}) {
    client.send(piece);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  client.send(fmt::format("\nGET /hold HTTP/1.1\r\n{}\r\n\r\n", kHost));
  const std::shared_ptr<Exchange> exchange = take_held();
  exchange->respond({.body = "held"});
  EXPECT_THAT(client.read_answer(), HasSubstr("held"));
  client.send(fmt::format("GET /next HTTP/1.1\r\n{}\r\n", kHost));
  EXPECT_THAT(client.read_answer(), HasSubstr("GET/next|"));
  EXPECT_THAT(once("\n\n"), StartsWith("HTTP/1.1 400 "));
}

TEST_F(HttpServer, DoesNotWaitForARequestAfterEmptyLines) {
  start({.idle_timeout_s = 0.2});
  RawClient drips(server->port());
  EXPECT_TRUE(within(5, [&] { return open == 1; }));
  EXPECT_TRUE(within(5, [&] {
    drips.send("\r\n");
    return open == 0;
  }));
}

} // namespace
} // namespace pentatron::serve::http
