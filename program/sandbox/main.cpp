// redco-sandbox: the process of a redco::Sandbox. It gives up all system calls except those for
// computing and for its socket, and then runs scripts in a restricted engine.

#include "confine.h"
#include "host/sandbox_channel.h"

#include <redco/error.h>
#include <redco/run_log.h>
#include <redco/script_engine.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <malloc.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <lua.hpp>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace redco::sandbox {

namespace {

// Uses once every part of LibTorch that opens files or makes other system calls at its first use.
void warm_up() {
  tzset();
  at::Tensor x = at::rand({4, 4}).requires_grad_();
  at::Tensor y = at::conv2d(x.view({1, 1, 4, 4}), at::ones({1, 1, 3, 3}));
  (x.matmul(x).sum() + y.sum()).backward();
  at::linalg_svd(x.detach());
  at::fft_fft(x.detach());
  try {
    x.view({3});
  } catch (const std::exception& error) {
    (void)error.what();
  }
}

struct Lines : Console {
  explicit Lines(Channel& channel) : channel(channel) {}
  void line(std::string_view text) override {
    channel.send(channel.encode({Kind::line, {std::string(text)}}));
  }
  void progress(const ProgressState&) override {}
  Channel& channel;
};

Tree::List run(ScriptEngine& engine, Channel& channel, const Message& message) {
  const Tree::List& values = message.values;
  const auto& name = values.at(0).as<std::string>();
  switch (message.kind) {
    case Kind::run: {
      std::vector<std::string> args;
      for (const Tree& arg : values.at(2).as<Tree::List>()) args.push_back(arg.as<std::string>());
      engine.run_string(name, values.at(1).as<std::string>(), args);
      return {};
    }
    case Kind::call:
      return engine.call(name, values.at(1).as<Tree::List>());
    case Kind::get_global:
      return {engine.get_global(name)};
    case Kind::set_global:
      engine.set_global(name, values.at(1));
      return {};
    case Kind::define_function:
      engine.register_function(name, [&channel, name](const std::vector<Tree>& args) {
        channel.send(channel.encode({Kind::call_program, {name, args}}));
        Message answer = channel.receive();
        if (answer.kind == Kind::error) fail(name, ": ", answer.values.at(0).as<std::string>());
        return answer.values;
      });
      return {};
    default:
      fail("unknown message");
  }
}

// Asks the system, because malloc keeps much of its freed memory, which LuaJIT cannot use.
bool has_room(size_t bytes) {
  void* room = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return room != MAP_FAILED && munmap(room, bytes) == 0;
}

std::string answer(ScriptEngine& engine, Channel& channel, const Message& message,
                   size_t memory_bytes) {
  Tree::List error;
  try {
    return channel.encode({Kind::results, run(engine, channel, message)});
  } catch (const Closed&) {
    throw;
  } catch (const ScriptError& e) {
    error = {std::string(e.what()), e.traceback(), int64_t(e.kind()), int64_t(e.number())};
  } catch (const std::exception& e) {
    error = {std::string(e.what()), "", int64_t(ScriptError::Kind::script), int64_t{0}};
  }
  // The script may have filled the memory.
  lua_gc(engine.state(), LUA_GCCOLLECT, 0);
  malloc_trim(0);
  if (!has_room(std::max<size_t>(memory_bytes / 2, 1)))
    return channel.encode({Kind::error,
                           {"it used up its memory, see SandboxOptions::memory_bytes: " +
                            error[0].as<std::string>()}});
  return channel.encode({Kind::script_error, error});
}

[[noreturn]] void serve(size_t memory_bytes, bool strict, Channel& channel) {
  at::set_num_threads(1);
  ScriptEngine engine(
      {.strict = strict, .console = std::make_shared<Lines>(channel), .restricted = true});
  warm_up();
  confine(memory_bytes);
  channel.send(channel.encode({Kind::results, {}}));
  for (;;) channel.send(answer(engine, channel, channel.receive(), memory_bytes));
}

int main(int argc, char** argv) {
  struct stat memory;
  if (argc != 3 || fstat(memory_fd, &memory) != 0) {
    std::fputs("redco-sandbox: redco::Sandbox starts this program\n", stderr);
    return 2;
  }
  Channel channel(socket_fd, memory_fd, size_t(memory.st_size));
  try {
    serve(std::stoull(argv[1]), argv[2] == std::string_view("strict"), channel);
  } catch (const Closed&) {
    return 0;
  } catch (const std::exception& error) {
    channel.send(channel.encode({Kind::error, {std::string(error.what())}}));
    return 1;
  }
}

}  // namespace

}  // namespace redco::sandbox

int main(int argc, char** argv) { return redco::sandbox::main(argc, argv); }
