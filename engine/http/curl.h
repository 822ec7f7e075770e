// libcurl, loaded at run time.

#pragma once

namespace redco {

/// The functions of libcurl that are used here. The numbers below and these declarations are part
/// of its binary interface, which libcurl.so.4 has kept since 2006, so no header is needed to
/// build.
struct Curl {
  int (*global_init)(long);
  void* (*easy_init)();
  void (*easy_reset)(void*);
  void (*easy_cleanup)(void*);
  int (*easy_setopt)(void*, int, ...);
  int (*easy_perform)(void*);
  int (*easy_getinfo)(void*, int, ...);
  const char* (*easy_strerror)(int);
  void* (*slist_append)(void*, const char*);
  void (*slist_free_all)(void*);

  enum Option {
    low_speed_limit = 19,
    low_speed_time = 20,
    no_progress = 43,
    no_body = 44,
    no_signal = 99,
    connect_timeout = 78,
    protocols = 181,
    write_data = 10001,
    url = 10002,
    range = 10007,
    error_buffer = 10010,
    http_header = 10023,
    header_data = 10029,
    progress_data = 10057,
    ca_file = 10065,
    write_function = 20011,
    header_function = 20079,
    progress_function = 20219,
  };
  enum Info { effective_status = 0x200002, redirect_url = 0x10001F };
  enum Code {
    fine = 0,
    no_proxy_address = 5,
    no_host_address = 6,
    no_connection = 7,
    write_failed = 23,
    aborted = 42,
    tls_failed = 35,
    untrusted = 60,
    bad_ca_file = 77,
    bad_url = 3,
  };
  static constexpr long http_and_https = 3, error_size = 256;

  /// Loads the library on the first call. Throws Error if that fails.
  static const Curl& get();
};

}  // namespace redco
