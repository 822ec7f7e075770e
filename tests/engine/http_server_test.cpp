// The HTTP server: what clients may send, and what it does with those that are slow or leave.
#include <redco/detail/http_server.h>
#include <redco/error.h>

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

using redco::HttpServer;
using std::chrono::milliseconds;

namespace {

constexpr milliseconds long_enough(20000);

class Client {
 public:
  explicit Client(const HttpServer& server) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_port = htons(uint16_t(server.port()));
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    is_connected_ = ::connect(socket_, reinterpret_cast<sockaddr*>(&at), sizeof at) == 0;
    timeval limit{20, 0};
    ::setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  }
  ~Client() { leave(); }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  bool is_connected() const { return is_connected_; }
  bool send(const std::string& text) {
    return ::send(socket_, text.data(), text.size(), MSG_NOSIGNAL) == ssize_t(text.size());
  }
  void leave() {
    if (socket_ >= 0) ::close(socket_);
    socket_ = -1;
  }
  // All until the server closes the connection, or until `end` has come.
  std::string receive(const std::string& end = "\n\n\n") {
    std::string text;
    char part[4096];
    while (text.find(end) == std::string::npos) {
      ssize_t n = ::recv(socket_, part, sizeof part, 0);
      if (n <= 0) break;
      text.append(part, size_t(n));
    }
    return text;
  }

 private:
  int socket_;
  bool is_connected_ = false;
};

const redco::HttpHeaders text_type{{"Content-Type", "text/plain"}};

// Answers the next request with its parts.
void echo(HttpServer& server) {
  auto request = server.next(long_enough);
  REQUIRE(request != nullptr);
  request->respond(200, text_type,
                   request->method() + " " + request->path() + " " + request->body());
  CHECK(!request->is_open());
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("a connection carries several requests, also those sent at once") {
  HttpServer server("127.0.0.1", 0);
  CHECK(server.is_local());
  Client client(server);
  client.send("POST /a?b=c HTTP/1.1\r\nContent-Length: 3\r\nX-Name: value\r\n\r\none");
  auto request = server.next(long_enough);
  REQUIRE(request != nullptr);
  CHECK(request->path() == "/a");
  CHECK(request->header("x-name") == "value");
  CHECK(request->header("other").empty());
  CHECK(request->is_open());
  request->respond(200, text_type, "first");
  CHECK(has(client.receive("first"), "Connection: keep-alive"));
  client.send("GET /b HTTP/1.1\r\n\r\nGET /c HTTP/1.1\r\nConnection: close\r\n\r\n");
  for (int i = 0; i < 2; ++i) echo(server);
  const std::string text = client.receive();
  CHECK(has(text, "GET /b "));
  CHECK(has(text, "GET /c "));
  CHECK(server.next(milliseconds(0)) == nullptr);
}

TEST_CASE("a response may come in parts, for old clients too") {
  HttpServer server("127.0.0.1", 0);
  auto ask = [&](const std::string& head) {
    Client client(server);
    client.send(head + "Connection: close\r\n\r\n");
    auto request = server.next(long_enough);
    REQUIRE(request != nullptr);
    request->begin(200, text_type);
    for (const char* part : {"one ", "", "two"}) request->write(part);
    CHECK(request->is_open());
    request->finish();
    CHECK(!request->is_open());
    request->write("after the end");
    const std::string text = client.receive();
    return text.substr(text.find("\r\n\r\n") + 4);
  };
  CHECK(ask("GET / HTTP/1.1\r\n") == "4\r\none \r\n3\r\ntwo\r\n0\r\n\r\n");
  CHECK(ask("GET / HTTP/1.0\r\n") == "one two");
  CHECK(ask("HEAD / HTTP/1.1\r\n").empty());
}

TEST_CASE("requests that are wrong or too long get an answer") {
  redco::HttpLimits limits;
  limits.body_bytes = 100;
  limits.header_bytes = 1000;
  HttpServer server("127.0.0.1", 0, limits);
  auto status = [&](const std::string& text) {
    Client client(server);
    client.send(text);
    return client.receive().substr(0, 12);
  };
  CHECK(status("nonsense\r\n\r\n") == "HTTP/1.1 400");
  CHECK(status("GET / HTTP/1.1\r\nContent-Length: -1\r\n\r\n") == "HTTP/1.1 400");
  CHECK(status("POST / HTTP/1.1\r\nContent-Length: 101\r\n\r\n") == "HTTP/1.1 413");
  CHECK(status("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n65\r\n" +
               std::string(101, 'x') + "\r\n0\r\n\r\n") == "HTTP/1.1 413");
  CHECK(status("GET / HTTP/1.1\r\nX: " + std::string(1000, 'x') + "\r\n\r\n") == "HTTP/1.1 431");
  CHECK(server.next(milliseconds(0)) == nullptr);
  Client careful(server);
  careful.send("POST / HTTP/1.1\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n");
  CHECK(has(careful.receive("\r\n\r\n"), "100 Continue"));
  careful.send("hi");
  echo(server);
  CHECK(has(careful.receive("hi"), "200 OK"));
}

TEST_CASE("a client that sends, receives or does nothing for too long is left") {
  redco::HttpLimits limits;
  limits.time_to_send = limits.time_to_receive = limits.time_to_idle = milliseconds(200);
  HttpServer server("127.0.0.1", 0, limits);
  SUBCASE("sends") {
    Client client(server);
    bool is_open = true;
    // Each byte comes in time, but never the whole request.
    for (int i = 0; i < 1000 && is_open; ++i) {
      is_open = client.send("G");
      std::this_thread::sleep_for(milliseconds(20));
    }
    CHECK(!is_open);
  }
  SUBCASE("receives") {
    Client client(server);
    client.send("GET / HTTP/1.1\r\n\r\n");
    auto request = server.next(long_enough);
    REQUIRE(request != nullptr);
    request->begin(200, text_type);
    for (int i = 0; i < 100; ++i) request->write(std::string(1 << 20, 'x'));
    for (int i = 0; i < 1000 && request->is_open(); ++i)
      std::this_thread::sleep_for(milliseconds(20));
    CHECK(!request->is_open());
  }
  SUBCASE("does nothing") {
    Client client(server);
    client.send("GET / HTTP/1.1\r\n\r\n");
    echo(server);
    CHECK(has(client.receive(), "GET / "));  // until the server closes
  }
}

TEST_CASE("a client that leaves is noticed, and one that waits is not") {
  redco::HttpLimits limits;
  limits.time_to_send = limits.time_to_idle = milliseconds(50);
  HttpServer server("127.0.0.1", 0, limits);
  Client stays(server), leaves(server);
  for (Client* each : {&leaves, &stays}) each->send("GET / HTTP/1.1\r\n\r\n");
  std::vector<std::shared_ptr<redco::HttpRequest>> requests;
  for (int i = 0; i < 2; ++i) requests.push_back(server.next(long_enough));
  REQUIRE(requests[1] != nullptr);
  leaves.leave();
  auto n_open = [&] { return requests[0]->is_open() + requests[1]->is_open(); };
  for (int i = 0; i < 1000 && n_open() == 2; ++i) std::this_thread::sleep_for(milliseconds(20));
  std::this_thread::sleep_for(milliseconds(100));
  CHECK(n_open() == 1);
  for (auto& request : requests) request->respond(200, text_type, "here");
  CHECK(has(stays.receive("here"), "here"));
}

TEST_CASE("a further connection takes the place of one without a request") {
  redco::HttpLimits limits;
  limits.connections = 2;
  HttpServer server("127.0.0.1", 0, limits);
  Client busy(server), slow(server);
  busy.send("GET /busy HTTP/1.1\r\n\r\n");
  slow.send("GET /slow");
  auto request = server.next(long_enough);
  REQUIRE(request != nullptr);
  Client third(server);
  third.send("GET /third HTTP/1.1\r\n\r\n");
  echo(server);
  CHECK(has(third.receive("/third"), "/third"));
  CHECK(slow.receive().empty());
  CHECK(request->is_open());
  request->respond(200, text_type, "still here");
  CHECK(has(busy.receive("still here"), "still here"));
}

TEST_CASE("a request without a response, and the end of the server, close connections") {
  auto server = std::make_unique<HttpServer>("127.0.0.1", 0);
  const int port = server->port();
  Client forgotten(*server);
  forgotten.send("GET / HTTP/1.1\r\n\r\n");
  REQUIRE(server->next(long_enough) != nullptr);
  CHECK(forgotten.receive().empty());
  Client idle(*server), open(*server), waiting(*server);
  open.send("GET / HTTP/1.1\r\n\r\n");
  auto request = server->next(long_enough);
  REQUIRE(request != nullptr);
  waiting.send("GET / HTTP/1.1\r\n\r\n");
  server.reset();
  for (Client* each : {&idle, &open, &waiting}) CHECK(each->receive().empty());
  CHECK(!request->is_open());
  request->respond(200, text_type, "too late");
  HttpServer next("127.0.0.1", port);
  CHECK(next.port() == port);
  CHECK_THROWS_AS(HttpServer("127.0.0.1", port), redco::Error);
}

TEST_CASE("secrets are compared whole") {
  CHECK(redco::is_same_secret("secret", "secret"));
  for (const char* wrong : {"", "secre", "secret2", "Secret"})
    CHECK(!redco::is_same_secret(wrong, "secret"));
}
