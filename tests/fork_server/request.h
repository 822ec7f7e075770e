// How a client asks the fork server for a process of the program.

#pragma once

#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <utility>

namespace fork_server {

/// At most so many descriptors of a client are its process' too.
inline constexpr int most_descriptors = 64;

/// What a process can see and name depends on them.
inline constexpr const char* namespace_kinds[] = {"mnt", "net", "pid", "user", "uts"};

/// The fixed part of a request. It comes with the descriptors of the client's folder and of its
/// open files; arguments and variables follow it, each ended by a zero byte.
struct Request {
  uint32_t n_bytes, n_arguments;
  int32_t descriptors[most_descriptors];  // their numbers in the client
  rlimit limits[RLIM_NLIMITS];
  uint64_t ignored, blocked;  // bit i stands for signal i
  uint32_t file_mask;
  uint64_t namespaces[std::size(namespace_kinds)];
};

/// Writes the numbers of this process' namespaces.
inline void read_namespaces(uint64_t* to) {
  for (const char* each : namespace_kinds) {
    struct stat found = {};
    stat(("/proc/self/ns/" + std::string(each)).c_str(), &found);
    *to++ = found.st_ino;
  }
}

/// Whether the server has started the process, the first byte of its reply. The status that the
/// process is waited for with follows.
enum class Answer : char { started, refused };

/// The address of the server of one build of the program.
inline std::pair<sockaddr_un, socklen_t> address(const char* program) {
  struct stat file = {};
  stat(program, &file);
  std::string name = "redco_fork_server." + std::to_string(file.st_dev) + "." +
                     std::to_string(file.st_ino) + "." + std::to_string(getuid());
  sockaddr_un result = {};
  result.sun_family = AF_UNIX;
  name.copy(result.sun_path + 1, sizeof(result.sun_path) - 1);
  return {result, socklen_t(offsetof(sockaddr_un, sun_path) + 1 + name.size())};
}

}  // namespace fork_server
