#pragma once

#include <redco/engine.h>
#include <redco/export.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

namespace redco {

struct PromptOptions {
  size_t width = 80;    ///< columns of a line of values
  bool colors = false;  ///< whether values have the escapes of ANSI terminals
};

/// A prompt of an engine without a terminal: it takes lines and answers with text, and leaves
/// reading and writing to its owner. From its making on the engine's globals are free, `redco`,
/// `torch`, `help` and `who` are among them, and LuaJIT's compiler is off, so that
/// Engine::interrupt ends every loop. To be used by the engine's thread.
class REDCO_API Prompt {
 public:
  explicit Prompt(Engine& engine, const PromptOptions& options = {});
  ~Prompt();
  Prompt(const Prompt&) = delete;
  Prompt& operator=(const Prompt&) = delete;

  enum class Status {
    more,  ///< the chunk lacks its end
    chunk,
    quit,  ///< the user asked to end
  };
  struct Fed {
    Status status;
    std::string chunk;  ///< for `run`
  };
  /// Takes a line, or several.
  Fed feed(const std::string& lines);

  /// Drops the lines of a chunk that lacks its end, and returns them.
  std::string forget();

  /// What there is of these is not empty.
  struct Answer {
    std::string text;       ///< the values
    std::string message;    ///< of an error, with its place
    std::string traceback;  ///< its way through the user's functions
    std::string hint;       ///< advice
  };
  /// Runs a whole chunk. Throws ScriptError only for what ends the program, Kind::stopped. An
  /// interrupt that came too late for the chunk is forgotten.
  Answer run(const std::string& chunk);

  struct Completion {
    size_t start;  ///< each candidate may replace the bytes from here to the cursor
    std::vector<std::string> candidates = {};
    bool is_file = false;  ///< the bytes from `start` on begin the name of a file
  };
  /// What the user may want at the byte `cursor` of the line.
  Completion complete(const std::string& line, size_t cursor) const;

  /// For what runs from now on.
  void set_width(size_t columns);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace redco
