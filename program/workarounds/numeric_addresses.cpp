// Makes getnameinfo return numeric addresses. LibTorch's log resolves both ends of each connection,
// which takes ten seconds if no name server answers. An executable's definition overrides the C
// library's.
#include <dlfcn.h>
#include <netdb.h>

extern "C" [[gnu::visibility("default")]] int getnameinfo(const sockaddr* address, socklen_t length,
                                                          char* host, socklen_t host_size,
                                                          char* service, socklen_t service_size,
                                                          int flags) {
  static const auto next =
      reinterpret_cast<decltype(&getnameinfo)>(dlsym(RTLD_NEXT, "getnameinfo"));
  return next(address, length, host, host_size, service, service_size, flags | NI_NUMERICHOST);
}
