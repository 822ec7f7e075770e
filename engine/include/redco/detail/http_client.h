#pragma once

#include <redco/detail/http_server.h>
#include <redco/export.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace redco {

/// What `HttpClient::get` asks for.
struct HttpQuery {
  std::string url;                ///< http:// or https://
  HttpHeaders headers = {};       ///< to send
  bool is_head = false;           ///< only the headers are wanted
  std::string file = "";          ///< gets the body of status 200 and 206; "": `body` does
  int64_t offset = 0;             ///< bytes that `file` has already: the rest is asked for
  std::string certificates = "";  ///< a PEM file; "": those of the system
  int64_t seconds_to_wait = 10;   ///< for a connection, and for the next byte
  /// Called while it waits, with the bytes of the file so far and in all (0: unknown). False ends
  /// the transfer.
  std::function<bool(int64_t, int64_t)> goes_on = nullptr;
};

struct HttpReply {
  enum class End {
    whole,
    unreachable,  ///< no server answers: a wrong name, no network, a certificate that is not
                  ///< trusted
    cut,          ///< the connection broke or nothing came any more
    unwritten,    ///< the file cannot be written
    stopped,      ///< by `goes_on`
  };

  End end = End::whole;
  std::string reason;        ///< of an end that is not whole
  int status = 0;            ///< 0 if there was no answer
  HttpHeaders headers = {};  ///< their names in small letters
  std::string body;          ///< at most 64 MiB
  std::string redirect;      ///< the whole URL to which the answer points, or ""
};

/// An HTTP client on libcurl, which is loaded when the first client is made. It follows no
/// redirects: whoever asks decides what another host is sent. Proxies are those of curl's
/// environment variables. For one thread at a time; it keeps its connections.
class REDCO_API HttpClient {
 public:
  /// Throws Error if there is no libcurl.
  HttpClient();
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  HttpReply get(const HttpQuery& query);

 private:
  void* handle_;
};

}  // namespace redco
