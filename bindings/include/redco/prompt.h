// An interactive Lua prompt without a terminal.

#pragma once

#include <redco/export.h>
#include <redco/script_engine.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

namespace redco {

struct PromptOptions {
  size_t width = 80;                  ///< columns of a line of values
  bool colors = false;                ///< whether values are formatted with ANSI colors
  std::string line_separator = "\n";  ///< between the lines of one value
};

/// An interactive prompt without a terminal: takes lines and returns text, while the caller does
/// input and output. Once constructed, scripts may assign any global; `redco`, `torch`, `nn`,
/// `optim`, `help` and `who` are globals; and LuaJIT's compiler is off, so ScriptEngine::interrupt
/// ends every loop. Use it only on the engine's thread.
class REDCO_API Prompt {
 public:
  explicit Prompt(ScriptEngine& engine, const PromptOptions& options = {});
  ~Prompt();
  Prompt(const Prompt&) = delete;
  Prompt& operator=(const Prompt&) = delete;

  enum class Status {
    more,  ///< the chunk is incomplete
    chunk,
    quit,  ///< the user asked to quit
  };
  struct Fed {
    Status status;
    std::string chunk;  ///< a complete chunk, for `run`
  };
  /// Adds one or more lines.
  Fed feed(const std::string& lines);

  /// Discards the lines of an incomplete chunk and returns them.
  std::string forget();

  /// Fields that do not apply are empty.
  struct Answer {
    std::string text;       ///< the formatted values, or texts of help
    std::string message;    ///< the error message, with file and line
    std::string traceback;  ///< only the user's functions
    std::string hint;       ///< advice
    bool is_help = false;   ///< whether the text has texts of help, which may be long
  };
  /// Runs a complete chunk. Throws ScriptError only if the program must end (Kind::stopped). An
  /// interrupt after the end of the chunk is ignored.
  Answer run(const std::string& chunk);

  struct Completion {
    size_t start;  ///< each candidate may replace the bytes from here to the cursor
    std::vector<std::string> candidates = {};
    bool is_file = false;  ///< the bytes from `start` on begin a file name
  };
  /// Returns completions at the byte `cursor` of the line.
  Completion complete(const std::string& line, size_t cursor) const;

  /// Sets the line width of later results.
  void set_width(size_t columns);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace redco
