// For its log LibTorch asks for the names of both ends of each connection. Where no name server
// answers that takes ten seconds. The definition of an executable goes before the C library's: in
// this program addresses stay numbers.
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
