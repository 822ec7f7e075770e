// Runs untrusted Lua scripts in a separate process.

#pragma once

#include <redco/error.h>
#include <redco/export.h>
#include <redco/script_error.h>
#include <redco/tree.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace redco {

class Console;

struct SandboxOptions {
  /// Limits of one call, from its beginning to its result, with the functions of the program that
  /// it calls: seconds on the clock, and seconds of processor time.
  double seconds = 10;
  int64_t processor_seconds = 10;
  /// Bytes that the process may use in addition to what it has after its start.
  size_t memory_bytes = size_t{1} << 30;
  /// Bytes of all values in one message: the arguments of a call, or its results. This much memory
  /// is shared with the process; pages that nothing is written to take none.
  size_t message_bytes = size_t{256} << 20;
  /// Reading or writing an undeclared global raises an error.
  bool strict = true;
  /// Receives the lines that scripts print. Null: they are dropped.
  std::shared_ptr<Console> console = {};
  /// The path of the program redco-sandbox. Empty: in the folder `redco` beside this library, where
  /// `cmake --install` puts it.
  std::string program = {};
};

/// The process of a Sandbox has ended, because it reached a limit, made a forbidden system call or
/// crashed; the text says which.
class REDCO_API SandboxError : public Error {
 public:
  using Error::Error;
};

/// Runs scripts as a restricted ScriptEngine does, but in another process, which is the wall around
/// them. The process can compute, and exchange values with this one. The kernel (seccomp) ends it
/// at any other system call: it cannot open files, use the network, start processes or threads, or
/// send signals. Operators use one thread of the CPU.
///
/// Values are copied in both directions. Tensors of the results are on the CPU and need no
/// gradient. Everything that the process sends is checked.
///
/// Errors of scripts are thrown as ScriptError; the process continues. If it ends, the call throws
/// SandboxError, and the next call starts a new process. It has the registered functions, but no
/// globals: run the script again.
///
/// Used by one thread at a time, except `interrupt`.
class REDCO_API Sandbox {
 public:
  using Function = std::function<std::vector<Tree>(const std::vector<Tree>&)>;

  /// Starts the process. Throws Error if that fails, also where the kernel lacks seccomp.
  explicit Sandbox(SandboxOptions options = {});
  ~Sandbox();
  Sandbox(const Sandbox&) = delete;
  Sandbox& operator=(const Sandbox&) = delete;

  /// As the functions of ScriptEngine with these names.
  void run_string(const std::string& code, const std::string& name = "string",
                  const std::vector<std::string>& args = {});
  std::vector<Tree> call(const std::string& function, const std::vector<Tree>& args);
  Tree get_global(const std::string& name);
  void set_global(const std::string& name, const Tree& value);

  /// Registers a function of the program as a global. Scripts choose its arguments, so it must
  /// check them. Its exceptions become Lua errors. It must not use this Sandbox.
  void register_function(const std::string& name, Function function);

  /// Ends the process if a call is running, on any thread: the call throws SandboxError.
  void interrupt();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace redco
