// Errors of scripts.

#pragma once

#include <redco/error.h>
#include <redco/export.h>

#include <string>
#include <utility>

namespace redco {

/// An error of a script. `what()` is its message, with file and line.
class REDCO_API ScriptError : public Error {
 public:
  enum class Kind {
    script,               ///< the script or its data failed
    usage,                ///< the script was given wrong arguments
    interrupted,          ///< ScriptEngine::interrupt
    stopped,              ///< request_stop: a training run was saved and ended
    out_of_instructions,  ///< ScriptEngine::set_instruction_limit
    exited                ///< os.exit: see ScriptEngineOptions::exits_process
  };

  ScriptError(const std::string& message, std::string traceback, Kind kind, int number = 0)
      : Error(message), traceback_(std::move(traceback)), kind_(kind), number_(number) {}
  const std::string& traceback() const { return traceback_; }
  Kind kind() const { return kind_; }
  /// The signal given to request_stop; 0 for other kinds.
  int signal() const { return kind_ == Kind::stopped ? number_ : 0; }
  /// The argument of os.exit; 0 for other kinds.
  int exit_code() const { return kind_ == Kind::exited ? number_ : 0; }
  /// Whichever of the two the kind has.
  int number() const { return number_; }

 private:
  std::string traceback_;
  Kind kind_;
  int number_;
};

}  // namespace redco
