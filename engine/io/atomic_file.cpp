#include "atomic_file.h"

#include <redco/error.h>

#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <utility>

namespace redco {

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

  // Hidden, so that no pattern such as *.safetensors takes a half-written file for a whole one;
  // cut, so that a long name does not become too long. Names left by a killed process are skipped.
  static std::atomic<unsigned> counter{0};
  std::string temporary;
  do {
    temporary = folder_ + "/." + name.substr(0, 200) + "." + std::to_string(getpid()) + "-" +
                std::to_string(counter++) + ".tmp";
  } while (access(temporary.c_str(), F_OK) == 0);
  file_ = std::make_unique<OutputFile>(std::move(temporary), path_);
}

bool AtomicFile::is_temporary(const std::string& name) {
  if (!name.starts_with('.') || !name.ends_with(".tmp")) return false;
  std::string rest = name.substr(0, name.size() - 4);
  size_t dot = rest.rfind('.'), dash = rest.rfind('-');
  return dot > 0 && dash != rest.npos && dot + 1 < dash && dash + 1 < rest.size() &&
         rest.find_first_not_of("0123456789-", dot + 1) == rest.npos;
}

AtomicFile::~AtomicFile() {
  if (file_) unlink(file_->path().c_str());
}

void AtomicFile::write(const void* data, size_t size) { file_->write(data, size); }

void AtomicFile::finish() { file_->finish(); }

void AtomicFile::commit() {
  if (!file_->is_finished()) finish();
  if (std::rename(file_->path().c_str(), path_.c_str()) != 0) fail_to_write(path_);
  file_.reset();
  sync_folder(folder_);  // the new name itself
}

void write_file(const std::string& path, std::string_view bytes) {
  AtomicFile file(path);
  file.write(bytes.data(), bytes.size());
  file.commit();
}

}  // namespace redco
