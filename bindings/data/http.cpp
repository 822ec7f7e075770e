// The HTTP server of redco.serve. Its protocol is in lua/redco/serve.
#include "http.h"

#include "state/object.h"
#include "state/values.h"

#include <redco/detail/check_stop.h>
#include <redco/detail/forced_stop.h>
#include <redco/detail/http_server.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <string>

namespace redco::lua {

namespace {

using std::chrono::milliseconds;

struct LuaHttpServer : HttpServer {
  static constexpr const char* lua_name = "HttpServer";
  using HttpServer::HttpServer;
};

struct LuaHttpRequest {
  static constexpr const char* lua_name = "HttpRequest";
  std::shared_ptr<HttpRequest> request;
};

struct LuaStopListener {
  static constexpr const char* lua_name = "StopListener";
  std::optional<StopListener> listener;
};

std::string check_string(lua_State* L, int index) {
  size_t size = 0;
  const char* bytes = luaL_checklstring(L, index, &size);
  return {bytes, size};
}

HttpServer& server_of(lua_State* L) { return *check_object<LuaHttpServer>(L, 1, "HttpServer"); }

HttpRequest& request_of(lua_State* L) {
  return *check_object<LuaHttpRequest>(L, 1, "HttpRequest")->request;
}

int http_server(lua_State* L) {
  HttpLimits limits;
  limits.body_bytes = size_t(check_integer(L, 3, "http_server: body_bytes"));
  const int port = int(check_integer(L, 2, "http_server: port"));
  push_object(L, std::make_shared<LuaHttpServer>(luaL_checkstring(L, 1), port, limits));
  return 1;
}

// Waits in intervals of at most 50 ms, so that an interrupt can end the wait.
int next(lua_State* L) {
  HttpServer& server = server_of(L);
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + milliseconds(int64_t(luaL_optnumber(L, 2, 0) * 1e3));
  std::shared_ptr<HttpRequest> request;
  do {
    auto left = std::chrono::duration_cast<milliseconds>(end - Clock::now());
    request = server.next(std::clamp(left, milliseconds(0), milliseconds(50)));
  } while (!request && Clock::now() < end && !context(L).interrupted && !is_interrupt_pending());
  if (!request) return 0;
  push_object(L, std::make_shared<LuaHttpRequest>(LuaHttpRequest{std::move(request)}));
  return 1;
}

int port(lua_State* L) {
  lua_pushinteger(L, server_of(L).port());
  return 1;
}

int is_local(lua_State* L) {
  lua_pushboolean(L, server_of(L).is_local());
  return 1;
}

int close_server(lua_State* L) {
  server_of(L).close();
  return 0;
}

int read(lua_State* L) {
  const HttpRequest& request = request_of(L);
  push_string(L, request.method());
  push_string(L, request.path());
  push_string(L, request.body());
  return 3;
}

int header(lua_State* L) {
  push_string(L, request_of(L).header(luaL_checkstring(L, 2)));
  return 1;
}

int is_open(lua_State* L) {
  lua_pushboolean(L, request_of(L).is_open());
  return 1;
}

// Headers are a table at `index`, or nothing.
HttpHeaders headers_at(lua_State* L, int index) {
  HttpHeaders headers;
  if (lua_isnoneornil(L, index)) return headers;
  for (lua_pushnil(L); lua_next(L, index) != 0; lua_pop(L, 1))
    headers.emplace_back(luaL_checkstring(L, -2), check_string(L, lua_gettop(L)));
  return headers;
}

int respond(lua_State* L) {
  request_of(L).respond(int(luaL_checkinteger(L, 2)), headers_at(L, 3), check_string(L, 4));
  return 0;
}

int begin(lua_State* L) {
  request_of(L).begin(int(luaL_checkinteger(L, 2)), headers_at(L, 3));
  return 0;
}

int write(lua_State* L) {
  request_of(L).write(check_string(L, 2));
  return 0;
}

int finish(lua_State* L) {
  request_of(L).finish();
  return 0;
}

int stop_listener(lua_State* L) {
  auto object = std::make_shared<LuaStopListener>();
  object->listener.emplace(context(L).stop);
  push_object(L, std::move(object));
  return 1;
}

int stop_signal(lua_State* L) {
  const auto& listener = check_object<LuaStopListener>(L, 1, "StopListener")->listener;
  lua_pushinteger(L, listener ? listener->signal() : 0);
  return 1;
}

int close_listener(lua_State* L) {
  check_object<LuaStopListener>(L, 1, "StopListener")->listener.reset();
  return 0;
}

int same_secret(lua_State* L) {
  lua_pushboolean(L, is_same_secret(check_string(L, 1), check_string(L, 2)));
  return 1;
}

}  // namespace

void add_http(lua_State* L) {
  make_object_type<LuaHttpServer>(
      L,
      "HttpServer {}\n"
      "Takes HTTP requests on a thread of its own.",
      {{"next", next,
        "next(self, seconds = 0) -> HttpRequest or nil\n"
        "Returns the next request, or nil if none comes within the time."},
       {"port", port, "port(self) -> integer\nReturns the port it listens at."},
       {"is_local", is_local,
        "is_local(self) -> boolean\nReturns whether only programs of this machine can connect."},
       {"close", close_server,
        "close(self)\nClears the port. Clients have two seconds to receive finished responses."}});
  make_object_type<LuaHttpRequest>(
      L,
      "HttpRequest {}\n"
      "A request whose client waits for the response.",
      {{"read", read,
        "read(self) -> method, path, body\nReturns the parts of the request, without the query."},
       {"header", header, "header(self, name) -> string\nReturns the value of a header, or \"\"."},
       {"is_open", is_open,
        "is_open(self) -> boolean\nReturns whether the client waits for the response."},
       {"respond", respond,
        "respond(self, status, headers: table = nil, body)\nSends the whole response."},
       {"begin", begin,
        "begin(self, status, headers: table = nil)\nBegins a response of several parts."},
       {"write", write, "write(self, part)\nSends a part."},
       {"finish", finish, "finish(self)\nEnds a response of several parts."}});
  make_object_type<LuaStopListener>(
      L,
      "StopListener {}\n"
      "Takes SIGTERM and SIGUSR1, which would end the program.",
      {{"signal", stop_signal, "signal(self) -> integer\nReturns the signal, or 0."},
       {"close", close_listener, "close(self)\nStops listening."}});
  const std::pair<const char*, lua_CFunction> functions[] = {{"http_server", http_server},
                                                             {"stop_listener", stop_listener},
                                                             {"is_same_secret", same_secret}};
  for (auto [name, function] : functions) {
    lua_pushcfunction(L, function);
    lua_setfield(L, -2, name);
  }
}

}  // namespace redco::lua
