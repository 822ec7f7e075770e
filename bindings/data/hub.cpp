// The functions of the system for lua/redco/hub: HTTP, locks, digests, links.
#include "hub.h"

#include "state/arguments.h"
#include "state/object.h"

#include <redco/detail/forced_stop.h>
#include <redco/detail/http_client.h>
#include <redco/detail/shared_files.h>

#include <unistd.h>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <thread>

namespace redco::lua {

namespace {

namespace fs = std::filesystem;

struct LuaHttpClient : HttpClient {
  static constexpr const char* lua_name = "HttpClient";
};

struct LuaWaitingLock {
  static constexpr const char* lua_name = "WaitingLock";
  std::optional<WaitingLock> lock;
};

std::function<bool()> until_interrupt(lua_State* L) {
  return [&ctx = context(L)] { return !ctx.interrupted && !is_interrupt_pending(); };
}

// Shows how far a file is, on a terminal and at most ten times a second.
class Progress {
 public:
  explicit Progress(std::string label)
      : label_(std::move(label)), is_shown_(!label_.empty() && isatty(STDERR_FILENO) == 1) {}
  ~Progress() {
    if (is_begun_) std::fputs("\r\033[K", stderr);
  }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void show(int64_t done, int64_t all) {
    const auto now = std::chrono::steady_clock::now();
    if (!is_shown_ || all <= 0 || now < next_) return;
    next_ = now + std::chrono::milliseconds(100);
    is_begun_ = true;
    std::fprintf(stderr, "\r%s: %.0f of %.0f MB\033[K", label_.c_str(), double(done) / 1e6,
                 double(all) / 1e6);
  }

 private:
  std::string label_;
  bool is_shown_, is_begun_ = false;
  std::chrono::steady_clock::time_point next_ = std::chrono::steady_clock::now();
};

int http_client(lua_State* L) {
  push_object(L, std::make_shared<LuaHttpClient>());
  return 1;
}

void set_text(lua_State* L, const char* key, const std::string& text) {
  lua_pushlstring(L, text.data(), text.size());
  lua_setfield(L, -2, key);
}

const char* name_of(HttpReply::End end) {
  using enum HttpReply::End;
  switch (end) {
    case whole:
      return "whole";
    case unreachable:
      return "unreachable";
    case cut:
      return "cut";
    case unwritten:
      return "unwritten";
    case stopped:
      return "stopped";
  }
  return "";
}

int get(lua_State* L) {
  auto self = check_object<LuaHttpClient>(L, 1, "HttpClient:get");
  NamedArguments args(L, 2, "HttpClient:get");
  HttpQuery query;
  query.url = args.required<std::string>("url");
  query.is_head = args.get<bool>("is_head", false);
  query.file = args.get<std::string>("file", "");
  query.offset = args.get<int64_t>("offset", 0);
  query.certificates = args.get<std::string>("certificates", "");
  query.seconds_to_wait = args.get<int64_t>("seconds_to_wait", query.seconds_to_wait);
  Progress progress(args.get<std::string>("label", ""));
  args.push("headers");
  if (lua_istable(L, -1))
    for (lua_pushnil(L); lua_next(L, -2) != 0; lua_pop(L, 1))
      query.headers.emplace_back(luaL_checkstring(L, -2), luaL_checkstring(L, -1));
  lua_pop(L, 1);
  args.finish();
  query.goes_on = [&progress, goes_on = until_interrupt(L)](int64_t done, int64_t all) {
    progress.show(done, all);
    return goes_on();
  };
  const HttpReply reply = self->get(query);
  if (reply.end == HttpReply::End::stopped) throw Interrupted();
  lua_newtable(L);
  set_text(L, "ending", name_of(reply.end));
  set_text(L, "reason", reply.reason);
  set_text(L, "body", reply.body);
  if (!reply.redirect.empty()) set_text(L, "redirect", reply.redirect);
  lua_pushinteger(L, reply.status);
  lua_setfield(L, -2, "status");
  lua_newtable(L);
  for (const auto& [name, value] : reply.headers) set_text(L, name.c_str(), value);
  lua_setfield(L, -2, "headers");
  return 1;
}

int waiting_lock(lua_State* L) {
  auto object = std::make_shared<LuaWaitingLock>();
  object->lock.emplace(luaL_checkstring(L, 1), until_interrupt(L));
  push_object(L, std::move(object));
  return 1;
}

int release(lua_State* L) {
  check_object<LuaWaitingLock>(L, 1, "WaitingLock:release")->lock.reset();
  return 0;
}

// digest_of_file(path, "sha256" or "git")
int digest(lua_State* L) {
  const std::string name = luaL_checkstring(L, 2);
  const std::string text = digest_of_file(
      luaL_checkstring(L, 1), name == "git" ? Digest::git : Digest::sha256, until_interrupt(L));
  lua_pushlstring(L, text.data(), text.size());
  return 1;
}

int make_folders(lua_State* L) {
  std::error_code error;
  const std::string path = luaL_checkstring(L, 1);
  fs::create_directories(path, error);
  require(!error || fs::is_directory(path), "cannot make the folder ", path, ": ", error.message());
  return 0;
}

// make_link(target, path): a symbolic link, in the place of an earlier one
int make_link(lua_State* L) {
  const fs::path path = luaL_checkstring(L, 2), made = path.string() + ".new";
  std::error_code error;
  fs::remove(made, error);
  fs::create_symlink(luaL_checkstring(L, 1), made, error);
  if (!error) fs::rename(made, path, error);
  require(!error, "cannot make the link ", path.string(), ": ", error.message());
  return 0;
}

// The bytes that can be written to the folder's disk.
int free_bytes(lua_State* L) {
  std::error_code error;
  const fs::space_info space = fs::space(luaL_checkstring(L, 1), error);
  lua_pushnumber(L, error ? HUGE_VAL : double(space.available));
  return 1;
}

int file_size(lua_State* L) {
  std::error_code error;
  const auto size = fs::file_size(luaL_checkstring(L, 1), error);
  if (error) return 0;
  lua_pushnumber(L, double(size));
  return 1;
}

// pause(seconds): ends early at an interrupt
int pause(lua_State* L) {
  const auto end = std::chrono::steady_clock::now() +
                   std::chrono::milliseconds(int64_t(luaL_checknumber(L, 1) * 1e3));
  auto goes_on = until_interrupt(L);
  while (goes_on() && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  return 0;
}

}  // namespace

void add_hub(lua_State* L) {
  make_object_type<LuaHttpClient>(
      L,
      "HttpClient {}\n"
      "Asks HTTP servers. It follows no redirects.",
      {{"get", get,
        "get(self, {url, headers: table = nil, is_head = false, file: string = nil, offset = 0,\n"
        "  certificates: string = nil, seconds_to_wait = 10, label: string = nil}) -> table\n"
        "Returns {status, headers, body, redirect, ending, reason}. `ending` is \"whole\", or by\n"
        "`reason` \"unreachable\", \"cut\" or \"unwritten\". `file` gets the body from `offset` "
        "on."}});
  make_object_type<LuaWaitingLock>(L,
                                   "WaitingLock {}\n"
                                   "An exclusive lock on a file.",
                                   {{"release", release, "release(self)\nReleases the lock."}});
  const std::pair<const char*, lua_CFunction> functions[] = {
      {"http_client", http_client}, {"waiting_lock", waiting_lock},
      {"digest_of_file", digest},   {"make_folders", make_folders},
      {"make_link", make_link},     {"free_bytes", free_bytes},
      {"file_size", file_size},     {"pause", pause}};
  for (auto [name, function] : functions) {
    lua_pushcfunction(L, function);
    lua_setfield(L, -2, name);
  }
}

}  // namespace redco::lua
