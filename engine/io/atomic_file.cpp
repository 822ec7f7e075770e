// Files that are written atomically, under a temporary name.

#include "atomic_file.h"

#include <redco/error.h>
#include <redco/mapped_files.h>

#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <filesystem>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

namespace redco::io {

namespace fs = std::filesystem;

namespace {

const std::string suffix = ".redco";

// .NAME.PROCESS-NUMBER.redco: hidden, so that no pattern such as *.safetensors matches an
// incomplete file; truncated, so that a long name does not become too long.
std::string temporary_name(const std::string& name) {
  static std::atomic<unsigned> counter{0};
  return "." + name.substr(0, 200) + "." + std::to_string(getpid()) + "-" +
         std::to_string(counter++) + suffix;
}

bool is_temporary(const std::string& name) {
  if (!name.starts_with('.') || !name.ends_with(suffix)) return false;
  std::string rest = name.substr(0, name.size() - suffix.size());
  size_t dot = rest.rfind('.'), dash = rest.rfind('-');
  return dot > 0 && dash != rest.npos && dot + 1 < dash && dash + 1 < rest.size() &&
         rest.find_first_not_of("0123456789-", dot + 1) == rest.npos;
}

void remove_stale_files_once(const std::string& folder) {
  static std::mutex mutex;
  static std::set<std::string> done;
  {
    std::lock_guard guard(mutex);
    if (!done.insert(folder).second) return;
  }
  remove_stale_files(folder);
}

}  // namespace

void remove_stale_files(const std::string& folder) {
  std::error_code ignored;
  std::vector<std::string> found;
  for (const auto& item : fs::directory_iterator(folder, ignored))
    if (is_temporary(item.path().filename()) && item.is_regular_file(ignored))
      found.push_back(item.path());
  for (const std::string& path : found)
    if (FileLock lock(path); lock.state() == FileLock::State::taken) lock.remove_file();
}

AtomicFile::AtomicFile(std::string path) : path_(std::move(path)) {
  struct stat there {};
  if (stat(path_.c_str(), &there) == 0)
    require(S_ISREG(there.st_mode), "cannot write ", path_, ": there is a ",
            S_ISDIR(there.st_mode) ? "folder" : "device or other special file",
            " of this name, expected a regular file or nothing");

  size_t slash = path_.rfind('/');
  folder_ = slash == std::string::npos ? "." : path_.substr(0, slash + 1);
  std::string name = slash == std::string::npos ? path_ : path_.substr(slash + 1);
  require(!name.empty(), "cannot write '", path_, "': the path ends without a file name");

  remove_stale_files_once(folder_);
  using enum FileLock::State;
  do {
    std::string temporary;
    do {
      temporary = folder_ + "/" + temporary_name(name);
    } while (access(temporary.c_str(), F_OK) == 0);  // left by a killed process with this pid
    file_ = std::make_unique<OutputFile>(std::move(temporary), path_);
    lock_ = std::make_unique<FileLock>(file_->path());
    // Until it is locked, another process may remove it as stale.
  } while (lock_->state() == gone || lock_->state() == held);
}

AtomicFile::~AtomicFile() {
  if (file_) unlink(file_->path().c_str());
}

void AtomicFile::write(const void* data, size_t size) { file_->write(data, size); }

void AtomicFile::finish() { file_->finish(); }

void AtomicFile::commit() {
  if (!file_->is_finished()) finish();
  check_mapped_files();  // the written data may come from a mapped file
  if (std::rename(file_->path().c_str(), path_.c_str()) != 0) fail_to_write(path_);
  file_.reset();
  lock_.reset();
  sync_folder(folder_);  // makes the new name durable
}

}  // namespace redco::io

namespace redco {

void write_file(const std::string& path, std::string_view bytes) {
  io::AtomicFile file(path);
  file.write(bytes.data(), bytes.size());
  file.commit();
}

}  // namespace redco
