// Files that this program shares with others: locks on them and digests of them.
#include <redco/detail/shared_files.h>
#include <redco/error.h>

#include <fcntl.h>
#include <openssl/evp.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <memory>
#include <thread>
#include <vector>

namespace redco {

namespace {

constexpr auto pause = std::chrono::milliseconds(50);
constexpr size_t piece = 1 << 20;

// Whether the path still names the open file: the previous holder of the lock may have removed it.
bool is_named(int descriptor, const std::string& path) {
  struct stat own {
  }, named{};
  return fstat(descriptor, &own) == 0 && stat(path.c_str(), &named) == 0 &&
         own.st_dev == named.st_dev && own.st_ino == named.st_ino;
}

}  // namespace

WaitingLock::WaitingLock(const std::string& path, const std::function<bool()>& goes_on) {
  while (true) {
    // Writable for a group that shares the folder.
    descriptor_ = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0664);
    require(descriptor_ >= 0, "cannot lock ", path, ": ", std::strerror(errno));
    while (flock(descriptor_, LOCK_EX | LOCK_NB) != 0) {
      const int reason = errno;
      const bool waits = (reason == EWOULDBLOCK || reason == EINTR) && goes_on();
      if (!waits) close(descriptor_);
      require(waits || reason == EWOULDBLOCK || reason == EINTR, "cannot lock ", path, ": ",
              std::strerror(reason));
      if (!waits) throw Interrupted();
      std::this_thread::sleep_for(pause);
    }
    if (is_named(descriptor_, path)) return;
    close(descriptor_);
  }
}

WaitingLock::~WaitingLock() { close(descriptor_); }

std::string digest_of_file(const std::string& path, Digest digest,
                           const std::function<bool()>& goes_on) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  require(file.is_open(), "cannot read ", path, ": ", std::strerror(errno));
  const auto size = int64_t(file.tellg());
  file.seekg(0);
  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> state(EVP_MD_CTX_new(), EVP_MD_CTX_free);
  const EVP_MD* kind = digest == Digest::git ? EVP_sha1() : EVP_sha256();
  require(EVP_DigestInit_ex(state.get(), kind, nullptr) == 1, "OpenSSL cannot compute digests");
  if (digest == Digest::git) {
    const std::string header = "blob " + std::to_string(size);
    EVP_DigestUpdate(state.get(), header.c_str(), header.size() + 1);  // with the zero at its end
  }
  std::vector<char> bytes(piece);
  while (file.read(bytes.data(), piece), file.gcount() > 0) {
    if (!goes_on()) throw Interrupted();
    EVP_DigestUpdate(state.get(), bytes.data(), size_t(file.gcount()));
  }
  require(!file.bad(), "cannot read ", path);
  unsigned char value[EVP_MAX_MD_SIZE];
  unsigned int n = 0;
  EVP_DigestFinal_ex(state.get(), value, &n);
  constexpr const char* digits = "0123456789abcdef";
  std::string text;
  for (unsigned int i = 0; i < n; ++i) text += {digits[value[i] >> 4], digits[value[i] & 15]};
  return text;
}

}  // namespace redco
