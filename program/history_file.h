#pragma once

#include <string>
#include <vector>

namespace redco {

/// The input history of prompts, in a file that only its user can read. Several prompts may share
/// it.
class HistoryFile {
 public:
  /// $REDCO_HISTORY, else $XDG_STATE_HOME/redco/history, else ~/.local/state/redco/history.
  static std::string default_path();

  /// Creates the file's folder. An empty path means no file.
  explicit HistoryFile(std::string path);

  /// Returns the newest entries, oldest first; none if the file cannot be read. Truncates a file
  /// that has grown far beyond them.
  std::vector<std::string> read();

  /// Appends an entry, which may have several lines. Returns false if it cannot be written.
  bool append(const std::string& entry);

 private:
  std::string path_;
};

}  // namespace redco
