// Finds or creates the secret of runs.

#include <redco/detail/run_secret.h>

#include "../../core/require_usage.h"

#include <redco/detail/last_error.h>
#include <redco/detail/user_folder.h>

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>
#include <system_error>

namespace redco {

namespace {

// In characters: 16 characters from `openssl rand -hex` are 64 bits.
constexpr size_t shortest = 16;
constexpr size_t longest = 4096;

constexpr const char* what_to_do =
    ". Name a file that all hosts have alike with --secret-file (REDCO_SECRET_FILE); "
    "openssl rand -hex 32 makes a secret";

std::string checked(std::string text, const std::string& source) {
  text.erase(text.find_last_not_of(" \t\r\n") + 1);
  require_usage(text.size() >= shortest, source, " has a secret of ", text.size(),
                " characters; it must have at least ", shortest);
  require_usage(text.size() <= longest, source, " has a secret of more than ", longest,
                " characters");
  return text;
}

// None if the file does not exist.
std::optional<std::string> read_secret(const std::string& path) {
  int file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0 && errno == ENOENT) return std::nullopt;
  require_usage(file >= 0, "cannot read the secret of the run, ", path, ": ", LastError{});
  struct stat about = {};
  bool is_known = fstat(file, &about) == 0;
  std::string text(longest + 1, '\0');
  ssize_t n = read(file, text.data(), text.size());
  int cause = errno;
  close(file);
  require_usage(is_known && n >= 0, "cannot read the secret of the run, ", path, ": ",
                std::strerror(cause));
  require_usage((about.st_mode & 077) == 0, "other users can read the secret of the run, ", path,
                ": chmod 600 it, and change it if they may have done so");
  text.resize(size_t(n));
  return checked(text, path);
}

// Several hosts may do this concurrently: the first link wins, on network file systems too.
void make_secret(const std::string& path) {
  auto folder = std::filesystem::path(path).parent_path();
  std::error_code failure;
  std::filesystem::create_directories(folder, failure);
  std::string text = random_secret() + "\n";
  std::string draft = path + "." + random_secret().substr(0, 16);
  int file = open(draft.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  bool is_written = file >= 0 && write(file, text.data(), text.size()) == ssize_t(text.size()) &&
                    fsync(file) == 0;
  int cause = errno;
  if (file >= 0) close(file);
  if (is_written && link(draft.c_str(), path.c_str()) != 0 && errno != EEXIST) {
    cause = errno;
    is_written = false;
  }
  if (file >= 0) unlink(draft.c_str());
  require_usage(is_written, "cannot make a secret for runs, ", path, ": ", std::strerror(cause),
                what_to_do);
}

}  // namespace

std::string random_secret() {
  uint8_t bytes[32];
  require(getrandom(bytes, sizeof(bytes), 0) == sizeof(bytes),
          "cannot draw random bytes: ", LastError{});
  constexpr const char* digits = "0123456789abcdef";
  std::string text;
  for (uint8_t byte : bytes) text += {digits[byte >> 4], digits[byte & 15]};
  return text;
}

RunSecret find_run_secret() {
  const char* text = std::getenv(secret_variable);
  if (text != nullptr && *text != '\0') {
    std::string source = std::string("the variable ") + secret_variable;
    return {checked(text, source), source};
  }
  const char* named = std::getenv(secret_file_variable);
  if (named != nullptr && *named != '\0') {
    auto found = read_secret(named);
    require_usage(found.has_value(), "there is no file ", named,
                  ", which --secret-file or REDCO_SECRET_FILE names");
    return {*found, std::string("the file ") + named};
  }
  std::string folder = user_folder("XDG_CONFIG_HOME", "/.config");
  require_usage(!folder.empty(), "this user has no home for the secret of runs", what_to_do);
  std::string path = folder + "/redco/secret";
  auto found = read_secret(path);
  if (!found) {
    make_secret(path);
    found = read_secret(path);
  }
  require_usage(found.has_value(), "the file ", path, " has just been removed");
  return {*found, "the file " + path};
}

}  // namespace redco
