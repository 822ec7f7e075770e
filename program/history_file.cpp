// The input history of prompts.

#include "history_file.h"

#include <redco/detail/user_folder.h>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <utility>

namespace redco {

namespace {

constexpr size_t max_entries = 10000;

// The file, locked against writes and replacement by other prompts.
class LockedFile {
 public:
  explicit LockedFile(const std::string& path) {
    while (true) {
      descriptor_ = open(path.c_str(), O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
      if (descriptor_ < 0 || flock(descriptor_, LOCK_EX) != 0) return;
      struct stat locked, named;
      bool is_same = fstat(descriptor_, &locked) == 0 && stat(path.c_str(), &named) == 0 &&
                     locked.st_ino == named.st_ino;
      if (is_same) return;
      close(descriptor_);
    }
  }
  ~LockedFile() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  LockedFile(const LockedFile&) = delete;
  LockedFile& operator=(const LockedFile&) = delete;
  int descriptor() const { return descriptor_; }

 private:
  int descriptor_ = -1;
};

bool write_text(int descriptor, const std::string& text) {
  return write(descriptor, text.data(), text.size()) == static_cast<ssize_t>(text.size());
}

// An entry is one line: newlines become "\n", and backslashes are doubled.
std::string escaped(const std::string& entry) {
  std::string line;
  for (char c : entry) line += c == '\n' ? "\\n" : c == '\\' ? "\\\\" : std::string(1, c);
  return line + "\n";
}

std::string unescaped(const std::string& line) {
  std::string entry;
  for (size_t i = 0; i < line.size(); ++i) {
    bool is_escape = line[i] == '\\' && i + 1 < line.size();
    if (is_escape) ++i;
    entry += is_escape && line[i] == 'n' ? '\n' : line[i];
  }
  return entry;
}

}  // namespace

std::string HistoryFile::default_path() {
  if (const char* path = std::getenv("REDCO_HISTORY")) return path;
  std::string state = user_folder("XDG_STATE_HOME", "/.local/state");
  return state.empty() ? "" : state + "/redco/history";
}

HistoryFile::HistoryFile(std::string path) : path_(std::move(path)) {
  std::error_code ignored;  // then opening the file fails too
  auto folder = std::filesystem::path(path_).parent_path();
  if (!folder.empty()) std::filesystem::create_directories(folder, ignored);
}

std::vector<std::string> HistoryFile::read() {
  std::vector<std::string> entries;
  if (path_.empty()) return entries;
  LockedFile file(path_);
  std::string text;
  char buffer[65536];
  for (ssize_t n; (n = ::read(file.descriptor(), buffer, sizeof(buffer))) > 0;)
    text.append(buffer, size_t(n));
  for (size_t from = 0, to; (to = text.find('\n', from)) != std::string::npos; from = to + 1)
    entries.push_back(unescaped(text.substr(from, to - from)));
  size_t n = entries.size();
  if (n <= max_entries) return entries;
  entries.erase(entries.begin(), entries.end() - max_entries);
  if (n < 2 * max_entries) return entries;
  // Replaced atomically: a kill leaves either the old or the new file intact.
  std::string fresh = path_ + ".new";
  int descriptor = open(fresh.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (descriptor < 0) return entries;
  std::string kept;
  for (const std::string& entry : entries) kept += escaped(entry);
  bool is_whole = write_text(descriptor, kept);
  if (close(descriptor) == 0 && is_whole) std::rename(fresh.c_str(), path_.c_str());
  return entries;
}

bool HistoryFile::append(const std::string& entry) {
  if (path_.empty()) return true;
  LockedFile file(path_);
  return file.descriptor() >= 0 && write_text(file.descriptor(), escaped(entry));
}

}  // namespace redco
