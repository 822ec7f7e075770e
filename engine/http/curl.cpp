// Loads libcurl, so that only programs that download need it.
#include "curl.h"

#include <redco/error.h>

#include <dlfcn.h>
#include <openssl/ssl.h>

namespace redco {

namespace {

template <class Function>
void find(void* library, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(dlsym(library, name));
  require(function != nullptr, "libcurl has no function ", name);
}

Curl load() {
  // Started by libcurl, OpenSSL would clean up at exit, before threads that use it have ended.
  OPENSSL_init_ssl(OPENSSL_INIT_NO_ATEXIT, nullptr);
  void* library = nullptr;
  for (const char* name : {"libcurl.so.4", "libcurl-gnutls.so.4", "libcurl-nss.so.4"})
    if (library == nullptr) library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  require(library != nullptr,
          "downloads need libcurl.so.4, which is not on this machine: install it, the package "
          "libcurl4 of Debian and Ubuntu, libcurl of Red Hat");
  Curl curl{};
  find(library, "curl_global_init", curl.global_init);
  find(library, "curl_easy_init", curl.easy_init);
  find(library, "curl_easy_reset", curl.easy_reset);
  find(library, "curl_easy_cleanup", curl.easy_cleanup);
  find(library, "curl_easy_setopt", curl.easy_setopt);
  find(library, "curl_easy_perform", curl.easy_perform);
  find(library, "curl_easy_getinfo", curl.easy_getinfo);
  find(library, "curl_easy_strerror", curl.easy_strerror);
  find(library, "curl_slist_append", curl.slist_append);
  find(library, "curl_slist_free_all", curl.slist_free_all);
  constexpr long everything = 3;
  require(curl.global_init(everything) == Curl::fine, "libcurl cannot be started");
  return curl;
}

}  // namespace

const Curl& Curl::get() {
  static const Curl curl = load();
  return curl;
}

}  // namespace redco
