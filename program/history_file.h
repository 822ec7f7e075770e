#pragma once

#include <string>
#include <vector>

namespace redco {

/// What was typed at prompts, in a file that only its user can read. Several prompts may use one.
class HistoryFile {
 public:
  /// $REDCO_HISTORY, else $XDG_STATE_HOME/redco/history, else ~/.local/state/redco/history.
  static std::string default_path();

  /// Makes the file's folder; an empty path is no file.
  explicit HistoryFile(std::string path);

  /// The newest entries, oldest first. A file that has grown far beyond them is cut to them. Empty
  /// where the file cannot be read.
  std::vector<std::string> read();

  /// Adds an entry, which may have several lines. False where it cannot be written.
  bool append(const std::string& entry);

 private:
  std::string path_;
};

}  // namespace redco
