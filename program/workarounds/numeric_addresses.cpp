// Makes getnameinfo return numeric addresses. LibTorch's log resolves both ends of each connection,
// which takes ten seconds if no name server answers. An executable's definition overrides the C
// library's.
//
// https://github.com/pytorch/pytorch/issues/159007 is about these names; measured with
// LibTorch 2.11.0.

#include "is_off.h"

#include <dlfcn.h>
#include <netdb.h>
#include <unistd.h>

extern "C" [[gnu::visibility("default")]] int getnameinfo(const sockaddr* address, socklen_t length,
                                                          char* host, socklen_t host_size,
                                                          char* service, socklen_t service_size,
                                                          int flags) {
  static const auto next =
      reinterpret_cast<decltype(&getnameinfo)>(dlsym(RTLD_NEXT, "getnameinfo"));
  static const int numeric = redco::is_off(environ, "numeric_addresses") ? 0 : NI_NUMERICHOST;
  return next(address, length, host, host_size, service, service_size, flags | numeric);
}
