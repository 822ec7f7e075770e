#pragma once

#include "history_file.h"

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace redco {

/// What a reader of lines was given.
struct Input {
  enum class Kind {
    line,
    cleared,  ///< Ctrl-C: what was typed is dropped
    end,      ///< Ctrl-D, or no more input
  };
  Kind kind;
  std::string text = {};  ///< of a line; pasted text may have several
};

/// What may replace the bytes of a line from `start` to the cursor.
struct Choices {
  size_t start;
  std::vector<std::string> texts;
};

/// Lines typed at the terminal of standard input and output: editing, history, completion with TAB,
/// pasting of several lines. The terminal is changed only while a line is read.
class LineEditor {
 public:
  using Complete = std::function<Choices(const std::string& line, size_t cursor)>;

  LineEditor(const std::string& history_path, Complete complete);
  ~LineEditor();
  LineEditor(const LineEditor&) = delete;
  LineEditor& operator=(const LineEditor&) = delete;

  Input read(const char* prompt);

  /// Keeps an entry for the arrow keys, and for later prompts.
  void remember(const std::string& entry);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace redco
