// Scripts in another process: what they compute, and that nothing they do ends this one or lasts
// longer than its limits.
#include <redco/error.h>
#include <redco/run_log.h>
#include <redco/sandbox.h>

#include "collected_lines.h"
#include "program/sandbox/confine.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace redco {
namespace {

using doctest::Contains;

const std::string head = "local redco = require 'redco' local torch = redco.torch; ";

TEST_CASE("values go to the script and back") {
  auto console = std::make_shared<CollectedLines>();
  Sandbox sandbox({.strict = false, .console = console});
  sandbox.run_string(head + R"(
    args = { ... }
    function same(...) print("got", select("#", ...)) return ... end
    function twice(x) return x * 2, x.shape end)",
                     "script", {"a", "b"});
  CHECK(sandbox.get_global("args").as<Tree::List>().at(1).as<std::string>() == "b");

  Tree tree = Tree::Dict{{"list", Tree::List{1, 2.5, true, std::string("te\0xt", 5)}},
                         {"empty", Tree::Dict{}},
                         {"large", std::numeric_limits<int64_t>::max()},
                         {"nested", Tree::Dict{{"x", at::arange(6).view({2, 3})}}}};
  Tree back = sandbox.call("same", {tree}).at(0);
  CHECK(back.at("list").as<Tree::List>().at(1).as<double>() == 2.5);
  CHECK(back.at("list").as<Tree::List>().at(2).as<bool>());
  CHECK(back.at("large").as<int64_t>() == std::numeric_limits<int64_t>::max());
  CHECK(at::equal(back.at("nested").at("x").tensor(), at::arange(6).view({2, 3})));
  CHECK(console->lines == std::vector<std::string>{"got\t1"});

  for (auto dtype : {at::kByte, at::kShort, at::kHalf, at::kBFloat16, at::kDouble, at::kBool,
                     at::kComplexFloat}) {
    at::Tensor x = at::ones({3, 2}, dtype).t();
    at::Tensor y = sandbox.call("same", {x}).at(0).tensor();
    CHECK((y.scalar_type() == dtype));
    CHECK(at::equal(x, y));
  }
  CHECK(sandbox.call("same", {at::ones({2, 0})}).at(0).tensor().sizes() == at::IntArrayRef{2, 0});
  at::Tensor x = at::rand({3}, at::requires_grad());
  CHECK(at::equal(sandbox.call("twice", {x}).at(0).tensor(), x * 2));
  sandbox.set_global("given", x);
  CHECK(at::equal(sandbox.get_global("given").tensor(), x));
  CHECK(sandbox.get_global("none").is_none());
}

TEST_CASE("functions of the program are called, and their errors are errors of the script") {
  Sandbox sandbox({.strict = false});
  sandbox.register_function("add", [](const std::vector<Tree>& args) {
    return std::vector<Tree>{args.at(0).tensor() + args.at(1).tensor(), "and text"};
  });
  sandbox.register_function("refuse", [](const std::vector<Tree>&) -> std::vector<Tree> {
    throw std::runtime_error("not today");
  });
  sandbox.register_function("again",
                            [&](const std::vector<Tree>&) { return sandbox.call("f", {}); });
  sandbox.run_string(head + "function f() return add(torch.ones { 2 }, torch.ones { 2 }) end");
  std::vector<Tree> results = sandbox.call("f", {});
  CHECK(results.at(0).tensor().sum().item<double>() == 4);
  CHECK(results.at(1).as<std::string>() == "and text");
  CHECK_THROWS_WITH_AS(sandbox.run_string("\nrefuse()", "x.lua"), "x.lua:2: refuse: not today",
                       ScriptError);
  CHECK_THROWS_WITH_AS(sandbox.run_string("again()"), Contains("used by two threads"), ScriptError);
  CHECK_THROWS_WITH_AS(sandbox.run_string("add(print)"), Contains("add: argument 1"), ScriptError);
  sandbox.run_string("assert(not pcall(refuse))");
}

TEST_CASE("errors of scripts have lines, and the process goes on") {
  Sandbox sandbox({.strict = false});
  sandbox.run_string("function f(n) error('no ' .. n) end", "lib.lua");
  for (int i = 0; i < 3; ++i) {
    try {
      sandbox.call("f", {i});
      FAIL("no error");
    } catch (const ScriptError& error) {
      CHECK(std::string(error.what()) == "lib.lua:1: no " + std::to_string(i));
      CHECK(error.traceback().find("lib.lua:1") != std::string::npos);
      CHECK(error.kind() == ScriptError::Kind::script);
    }
  }
  CHECK_THROWS_WITH_AS(sandbox.run_string("x = = 1", "y.lua"), Contains("y.lua:1:"), ScriptError);
  CHECK_THROWS_WITH_AS(sandbox.call("nothing", {}), Contains("no global 'nothing'"), ScriptError);
  CHECK_THROWS_AS(Sandbox().run_string("undeclared = 1"), ScriptError);
  for (const char* absent : {"io.open('/etc/passwd')", "os.execute('true')", "require 'ffi'",
                             "require('redco').data.json('/etc/passwd')"})
    CHECK_THROWS_AS(sandbox.run_string(absent), ScriptError);
}

TEST_CASE("models train in it") {
  Sandbox sandbox({.strict = false});
  sandbox.run_string(head + R"(
    local nn = redco.nn
    local params = nn.MLP { 2, 16, 1 }
    local optimizer = redco.optim.adamw { learning_rate = 0.05 }
    local state = optimizer:init(params)
    local x = torch.randn { 64, 2 }
    local y = x:prod(1):unsqueeze(1)
    for i = 1, 200 do
      local loss, grads = redco.value_and_grad(function(p)
        return (nn.mlp(p, x, { activation = torch.tanh }) - y):square():mean()
      end)(params)
      optimizer:step(grads, state, params)
      last = loss:item()
    end
    local image = torch.conv2d(torch.rand { 2, 3, 16, 16 }, torch.rand { 4, 3, 3, 3 })
    torch.linalg.svd(torch.rand { 8, 8 })
    torch.fft.fft(torch.rand { 30 })
    date = os.date() .. os.date('!%c') .. os.time { year = 2020, month = 1, day = 1 })");
  CHECK(sandbox.get_global("last").as<double>() < 0.5);
}

double seconds_of(const std::function<void()>& body) {
  auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

TEST_CASE("what has no end ends at the limits") {
  Sandbox sandbox({.seconds = 1, .processor_seconds = 100, .strict = false});
  sandbox.register_function("host", [](const std::vector<Tree>&) { return std::vector<Tree>{}; });
  for (const std::string endless :
       {"while true do end", "while true do pcall(error) end", "while true do host() end",
        "while true do print 'again' end", "(('a'):rep(1e5)):find(('.-'):rep(9) .. 'b')",
        "local s = ('a'):rep(4e6) s:find(s .. 'b', 1, true) while true do end",
        "local x = torch.ones { 300, 300 } while true do x:matmul(x) end"}) {
    CAPTURE(endless);
    CHECK(seconds_of([&] {
            CHECK_THROWS_WITH_AS(sandbox.run_string(head + endless),
                                 Contains("more than 1 s, see SandboxOptions::seconds"),
                                 SandboxError);
          }) < 60);
    sandbox.run_string("x = host()");  // in a new process, which has the function
  }
  Sandbox busy({.seconds = 100, .processor_seconds = 1});
  CHECK_THROWS_WITH_AS(busy.run_string("while true do end"),
                       Contains("1 s of processor time, see SandboxOptions::processor_seconds"),
                       SandboxError);
}

TEST_CASE("what takes memory without end fails") {
  Sandbox sandbox({.seconds = 60,
                   .memory_bytes = size_t{96} << 20,
                   .message_bytes = size_t{16} << 20,
                   .strict = false});
  sandbox.register_function("host", [](const std::vector<Tree>&) { return std::vector<Tree>{}; });
  sandbox.run_string(
      "function big() return ('x'):rep(17e6) end function many() local t = {} "
      "for i = 1, 1e5 do t[i] = i end return t end");
  CHECK_THROWS_WITH_AS(sandbox.call("big", {}), Contains("SandboxOptions::message_bytes"),
                       ScriptError);
  CHECK_THROWS_WITH_AS(sandbox.call("many", {}), Contains("SandboxOptions::message_bytes"),
                       ScriptError);
  CHECK_THROWS_WITH_AS(sandbox.set_global("x", at::zeros({5 << 20})),
                       Contains("SandboxOptions::message_bytes"), Error);
  for (const std::string greedy :
       {"local t = {} while true do t[#t + 1] = {} end",
        "local t = {} while true do t[#t + 1] = torch.ones { 1000, 1000 } end",
        "local t = {} while true do t[#t + 1] = ('x'):rep(1e6 + #t) end",
        "local t = { 1 } for i = 1, 40 do t = { t, t } end host(t)",
        "local t = { torch.ones { 1 } } for i = 1, 40 do t = { t, t } end "
        "redco.optim.sgd { learning_rate = 1 }:init(t)",
        "local t = {} for i = 1, 1000 do t[i] = i end for d = 1, 3 do local u = {} "
        "for i = 1, 1000 do u[i] = t end t = u end torch.tensor(t)",
        "local function f() return f() + 1 end f()"}) {
    CAPTURE(greedy);
    // The script may get an error, or its process may end; this one goes on.
    CHECK_THROWS_AS(sandbox.run_string(head + greedy), Error);
    CHECK_NOTHROW(sandbox.run_string("assert(#('x'):rep(1e7) == 1e7)"));
  }
}

TEST_CASE("what crashes ends its process only") {
  Sandbox sandbox({.strict = false});
  std::string poke = R"(
    for offset = 1, 200 do
      local runs = 0
      local wild = torch.full({ 1, 1, 2, 2 }, offset * 1e6, { dtype = "int64" })
      local big = torch.ones({ 1 }, { requires_grad = true }):expand { 2^40 }
      local function f(a)
        runs = runs + 1
        if runs == 1 then return (torch.max_pool2d_with_indices(a, { 2, 2 })) end
        a:cos() torch.index(big, { wild })
        return a
      end
      redco.checkpoint(f, torch.rand({ 1, 1, 4, 4 }, { requires_grad = true })):sum():backward()
    end)";
  CHECK_THROWS_AS(sandbox.run_string(head + poke), SandboxError);
  CHECK_NOTHROW(sandbox.run_string("x = 1"));
}

// Actions of a script that has taken over its process.
TEST_CASE("the process cannot reach anything but its socket") {
  struct Attempt {
    std::string what;
    std::function<void()> body;
    int expected = SIGSYS;
  };
  sockaddr_in address{.sin_family = AF_INET, .sin_port = htons(80), .sin_addr = {}, .sin_zero = {}};
  char byte = 0;
  for (const Attempt& attempt : std::vector<Attempt>{
           {"nothing", [] {}, 0},
           {"memory", [] { free(malloc(1 << 20)); }, 0},
           {"open", [] { open("/etc/passwd", O_RDONLY); }},
           {"create", [] { open("/tmp/sandbox_test_file", O_RDWR | O_CREAT, 0600); }},
           {"/proc", [] { open("/proc/self/maps", O_RDONLY); }},
           {"open as openat2", [] { syscall(SYS_openat2, AT_FDCWD, "/", nullptr, 0); }},
           {"unlink", [] { unlink("/tmp/sandbox_test_file"); }},
           {"stat", [] { access("/etc/passwd", F_OK); }},
           {"socket", [] { socket(AF_INET, SOCK_STREAM, 0); }},
           {"connect", [&] { connect(3, reinterpret_cast<sockaddr*>(&address), sizeof(address)); }},
           {"send elsewhere", [] { send(7, "", 1, 0); }},
           {"descriptors", [] { syscall(SYS_recvmsg, 3, nullptr, 0); }},
           {"read another", [&] { (void)!read(0, &byte, 1); }},
           {"write another", [] { (void)!write(1, "", 1); }},
           {"fork", [] { fork(); }},
           {"thread", [] { std::thread([] {}).detach(); }},
           {"exec", [] { execl("/bin/true", "true", nullptr); }},
           {"kill the parent", [] { kill(getppid(), 0); }},
           {"signal another", [] { syscall(SYS_tgkill, 1, 1, 0); }},
           {"ptrace", [] { ptrace(PTRACE_TRACEME, 0, nullptr, nullptr); }},
           {"read the parent",
            [] { syscall(SYS_process_vm_readv, getpid(), nullptr, 0, nullptr, 0, 0); }},
           {"limits",
            [] {
              rlimit r{RLIM_INFINITY, RLIM_INFINITY};
              setrlimit(RLIMIT_AS, &r);
            }},
           {"ignore limits", [] { signal(SIGXCPU, SIG_IGN); }},
           {"block limits",
            [] {
              sigset_t all;
              sigfillset(&all);
              sigprocmask(SIG_BLOCK, &all, nullptr);
            }},
           {"io_uring", [] { syscall(SYS_io_uring_setup, 1, nullptr); }},
           {"another memory", [] { memfd_create("m", 0); }},
           {"sleep", [] { sleep(100); }},
           {"abort", [] { abort(); }, SIGABRT},
       }) {
    CAPTURE(attempt.what);
    pid_t child = fork();
    if (child == 0) {
      signal(SIGABRT, SIG_DFL);  // not doctest's
      try {
        sandbox::confine(size_t{64} << 20);
      } catch (const std::exception&) {
        _exit(3);
      }
      attempt.body();
      _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    CHECK((WIFSIGNALED(status) ? WTERMSIG(status) : -WEXITSTATUS(status)) == attempt.expected);
  }
}

TEST_CASE("another thread interrupts a call") {
  Sandbox sandbox({.seconds = 100, .processor_seconds = 100});
  sandbox.interrupt();  // nothing is running
  sandbox.run_string("assert(true)");
  std::thread impatient([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    sandbox.interrupt();
  });
  CHECK_THROWS_WITH_AS(sandbox.run_string("while true do end"), Contains("interrupted"),
                       SandboxError);
  impatient.join();
  sandbox.run_string("assert(true)");
}

// ---- another program in the place of redco-sandbox, as if a script had taken it over ----

class Folder {
 public:
  Folder() {
    char name[] = "/tmp/sandbox_test_XXXXXX";
    path = mkdtemp(name);
  }
  ~Folder() { std::filesystem::remove_all(path); }
  std::string path;
};

// A shell script that says that it is ready, and then does `commands`.
std::string program_of(const Folder& folder, const std::string& commands) {
  std::string path = folder.path + "/child";
  std::filesystem::remove(path);
  std::ofstream(path) << "#!/bin/sh\nprintf '\\1\\0\\0\\0\\0\\0\\0\\0=' >&3\n" << commands << "\n";
  chmod(path.c_str(), 0700);
  return path;
}

// A message of the kind '=' with the given bytes, as an argument of printf.
std::string message(const std::string& bytes, size_t length) {
  char octal[8];
  std::string text;
  for (size_t n = length + 1, i = 0; i < 8; ++i, n >>= 8) {
    snprintf(octal, sizeof(octal), "\\%03o", unsigned(n & 255));
    text += octal;
  }
  return "printf '" + text + "=" + bytes + "' >&3; sleep 60";
}

TEST_CASE("nothing that the process sends harms this one") {
  const std::string all = "\\377\\377\\377\\377\\377\\377\\377", zeros = "\\0\\0\\0\\0\\0\\0\\0\\0";
  Folder folder;
  struct Case {
    std::string commands, error;
  };
  for (const Case& each : std::vector<Case>{
           {"printf '" + all + "\\177=' >&3; sleep 60", "bytes"},  // 2^63 - 1
           {"printf '" + zeros + "' >&3; sleep 60", "0 bytes"},
           {"printf '\\377\\0\\0\\0\\0\\0\\0\\0=abc' >&3; sleep 60", "more than 0.5 s"},
           {"printf '\\377\\0\\0\\0\\0\\0\\0\\0=abc' >&3", "exit code 0"},
           {"kill -11 $$", "signal 11"},
           {"exit 7", "exit code 7"},
           {"exec 3>&-; sleep 60", "signal 9"},
           {"sleep 60", "more than 0.5 s"},
           {"cat /dev/zero >&3", "0 bytes"},
           {"while :; do printf '\\12\\0\\0\\0\\0\\0\\0\\0ls\\0\\0\\0\\0\\0\\0\\0\\0' >&3; done",
            "more than 0.5 s"},
           {message("?", 1), "unknown kind"},
           {message("s" + all + "\\177", 9), "too early"},  // a string of 2^63 - 1
           {message("L" + all + "\\177", 9), "too early"},  // a list
           {message("D" + all + "\\177", 9), "too early"},
           {message("i\\0", 2), "too early"},
           // Tensors: dtype, number of dimensions, sizes, offset.
           {message("T\\100\\0" + zeros, 11), "unknown dtype"},
           {message("T\\377\\0" + zeros, 11), "unknown dtype"},
           {message("T\\6\\377", 3), "dimensions"},
           {message("T\\6\\1" + all + "\\377" + zeros, 19), "negative"},
           {message("T\\6\\1" + all + "\\177" + zeros, 19), "too large"},
           {message("T\\6\\2" + zeros + all + "\\177" + zeros, 27), "too large"},
           {message("T\\6\\1\\0\\0\\0\\0\\0\\1\\0\\0" + zeros, 19), "shared memory"},
           {message("T\\6\\1\\1\\0\\0\\0\\0\\0\\0\\0" + all + "\\377", 19), "shared memory"},
           {message("T\\6\\1\\1\\0\\0\\0\\0\\0\\0\\0\\0\\0\\20\\0\\0\\0\\0\\0", 19),
            "shared memory"},
       }) {
    CAPTURE(each.commands);
    std::string program = program_of(folder, each.commands);
    Sandbox sandbox({.seconds = 0.5, .message_bytes = size_t{1} << 20, .program = program});
    CHECK_THROWS_WITH_AS(sandbox.call("f", {}), Contains(each.error.c_str()), SandboxError);
  }
  // Lists in lists, to the end of the stack if nobody counts.
  std::string deep =
      "printf '\\240\\206\\1\\0\\0\\0\\0\\0=' >&3; "
      "i=0; while [ $i -lt 11111 ]; do printf 'L\\1\\0\\0\\0\\0\\0\\0\\0' >&3; i=$((i+1)); done; "
      "sleep 60";
  Sandbox nested({.message_bytes = size_t{1} << 20, .program = program_of(folder, deep)});
  CHECK_THROWS_WITH_AS(nested.call("f", {}), Contains("nested too deep"), SandboxError);
  // Many tensors of the same memory.
  std::string many = "printf '\\72\\0\\0\\0\\0\\0\\0\\0=";
  for (int i = 0; i < 3; ++i) many += "T\\0\\1\\0\\0\\20\\0\\0\\0\\0\\0" + zeros;
  many += "' >&3; sleep 60";
  Sandbox repeated({.message_bytes = size_t{1} << 20, .program = program_of(folder, many)});
  CHECK_THROWS_WITH_AS(repeated.call("f", {}), Contains("message_bytes"), SandboxError);
}

TEST_CASE("the shared memory cannot be cut off") {
  Folder folder;
  // The size after the attempt is the name of a missing function.
  Sandbox sandbox(
      {.message_bytes = size_t{1} << 20,
       .program = program_of(folder,
                             "truncate -s 0 /proc/self/fd/4 2>/dev/null; "
                             "[ $(stat -Lc %s /proc/self/fd/4) = 1048576 ] && exit 5")});
  CHECK_THROWS_WITH_AS(sandbox.call("f", {at::ones({1000})}), Contains("exit code 5"),
                       SandboxError);
}

TEST_CASE("it says why it does not start") {
  CHECK_THROWS_WITH_AS(Sandbox({.program = "/nowhere/redco-sandbox"}),
                       Contains("/nowhere/redco-sandbox: No such file"), Error);
  CHECK_THROWS_AS(Sandbox({.processor_seconds = -1}), UsageError);
  CHECK_THROWS_WITH_AS(Sandbox({.program = "/bin/false"}), Contains("exit code 1"), SandboxError);
}

}  // namespace
}  // namespace redco
