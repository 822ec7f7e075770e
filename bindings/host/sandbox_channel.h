#pragma once

#include <redco/error.h>
#include <redco/tree.h>

#include <cstddef>
#include <functional>
#include <string>

namespace redco::sandbox {

/// Where the process of a Sandbox finds its end of the socket, and the shared memory.
constexpr int socket_fd = 3, memory_fd = 4;

/// The message of each kind has these values:
enum class Kind : char {
  // from the program
  run = 'r',              ///< code, name, list of arguments
  call = 'c',             ///< name, list of arguments
  get_global = 'g',       ///< name
  set_global = 's',       ///< name, value
  define_function = 'd',  ///< name
  // from the process
  line = 'l',          ///< text
  call_program = 'p',  ///< name, list of arguments
  script_error = 'e',  ///< text, traceback, kind, number
  // from both
  results = '=',  ///< any number
  error = '!',    ///< text
};

struct Message {
  Kind kind;
  Tree::List values;
};

/// The other end is closed.
class Closed : public Error {
 public:
  using Error::Error;
};

/// Sends messages over a socket. The elements of their tensors are in shared memory, which belongs
/// to the message until it is received: both ends take turns. Nothing received is trusted: a
/// message that is damaged, or larger than the memory, throws Error.
class Channel {
 public:
  /// Called before each read (POLLIN) and write (POLLOUT); may throw.
  using Wait = std::function<void(short events)>;

  /// Maps the memory. Both descriptors remain the caller's.
  Channel(int socket, int memory, size_t size, Wait wait = {});
  ~Channel();
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  /// Writes the tensors into the shared memory and returns the rest of the message. Throws Error if
  /// a value cannot be sent.
  std::string encode(const Message& message);
  /// Both throw Closed.
  void send(const std::string& encoded);
  Message receive();

 private:
  void read(char* to, size_t n);

  int socket_;
  char* memory_;
  size_t size_;
  Wait wait_;
};

}  // namespace redco::sandbox
