// Line editing at a terminal.

#pragma once

#include "history_file.h"

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace redco {

/// The result of reading a line.
struct Input {
  enum class Kind {
    line,
    cleared,  ///< Ctrl-C: the typed text is discarded
    end,      ///< Ctrl-D, or no more input
  };
  Kind kind;
  std::string text = {};  ///< of Kind::line; pasted text may have several lines
};

/// Completions that may replace the bytes of a line from `start` to the cursor.
struct Choices {
  size_t start;
  std::vector<std::string> texts;
};

/// Reads lines from a terminal on standard input and output, with editing, history, completion by
/// TAB and multi-line paste. The terminal settings are changed only while a line is read.
class LineEditor {
 public:
  using Complete = std::function<Choices(const std::string& line, size_t cursor)>;

  LineEditor(const std::string& history_path, Complete complete);
  ~LineEditor();
  LineEditor(const LineEditor&) = delete;
  LineEditor& operator=(const LineEditor&) = delete;

  Input read(const char* prompt);

  /// Adds an entry to the history of this and later prompts.
  void remember(const std::string& entry);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace redco
