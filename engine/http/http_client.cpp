#include "curl.h"

#include <redco/detail/http_client.h>
#include <redco/error.h>

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <string_view>

namespace redco {

namespace {

constexpr size_t most_in_memory = 64 << 20;

// One request under way; libcurl calls its functions.
class Transfer {
 public:
  Transfer(const Curl& curl, void* handle, const HttpQuery& query)
      : curl_(curl), handle_(handle), query_(query) {}
  ~Transfer() {
    if (descriptor_ >= 0) close(descriptor_);
    curl_.slist_free_all(headers_);
  }
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;

  HttpReply run() {
    set_options();
    const int code = curl_.easy_perform(handle_);
    read_status();
    const char* redirect = nullptr;
    curl_.easy_getinfo(handle_, Curl::redirect_url, &redirect);
    if (redirect != nullptr) reply_.redirect = redirect;
    // libcurl reports a broken answer as a failure. An empty rest of a file is no failure, so the
    // file is opened here even if no data came.
    if (code != Curl::fine) set_failure(code);
    if (is_written() && code == Curl::fine && !open_file()) reply_.end = HttpReply::End::unwritten;
    return std::move(reply_);
  }

 private:
  void set_options() {
    auto set = [&](Curl::Option option, auto value) {
      require(curl_.easy_setopt(handle_, option, value) == Curl::fine,
              "libcurl is too old: it lacks the option ", int(option));
    };
    set(Curl::url, query_.url.c_str());
    set(Curl::protocols, Curl::http_and_https);
    set(Curl::no_signal, 1L);
    set(Curl::error_buffer, error_.data());
    set(Curl::connect_timeout, long(query_.seconds_to_wait));
    set(Curl::low_speed_limit, 1L);
    set(Curl::low_speed_time, long(query_.seconds_to_wait));
    set(Curl::no_body, query_.is_head ? 1L : 0L);
    if (!query_.certificates.empty()) set(Curl::ca_file, query_.certificates.c_str());
    const std::string rest = std::to_string(query_.offset) + "-";
    if (query_.offset > 0) set(Curl::range, rest.c_str());  // libcurl copies it
    for (const auto& [name, value] : query_.headers)
      headers_ = curl_.slist_append(headers_, (name + ": " + value).c_str());
    set(Curl::http_header, headers_);
    set(Curl::header_function, &Transfer::take_header);
    set(Curl::header_data, this);
    set(Curl::write_function, &Transfer::take_body);
    set(Curl::write_data, this);
    set(Curl::progress_function, &Transfer::take_progress);
    set(Curl::progress_data, this);
    set(Curl::no_progress, 0L);
  }

  void read_status() {
    long status = 0;
    curl_.easy_getinfo(handle_, Curl::effective_status, &status);
    reply_.status = int(status);
  }

  void set_failure(int code) {
    using enum HttpReply::End;
    switch (code) {
      case Curl::bad_url:
      case Curl::no_proxy_address:
      case Curl::no_host_address:
      case Curl::no_connection:
      case Curl::tls_failed:
      case Curl::untrusted:
      case Curl::bad_ca_file:
        reply_.end = unreachable;
        break;
      case Curl::write_failed:
        reply_.end = unwritten;
        break;
      case Curl::aborted:
        reply_.end = stopped;
        break;
      default:
        reply_.end = cut;
    }
    if (reply_.reason.empty())
      reply_.reason = error_[0] != '\0' ? error_.data() : curl_.easy_strerror(code);
  }

  bool is_written() const {
    return !query_.file.empty() && (reply_.status == 200 || reply_.status == 206);
  }

  // Opens the file, and empties it if the answer is the whole and not the rest.
  bool open_file() {
    if (descriptor_ >= 0) return true;
    descriptor_ = open(query_.file.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    const int64_t kept = reply_.status == 206 ? query_.offset : 0;
    const bool is_ready = descriptor_ >= 0 && ftruncate(descriptor_, kept) == 0 &&
                          lseek(descriptor_, kept, SEEK_SET) == kept;
    if (!is_ready) reply_.reason = std::strerror(errno);
    n_written_ = kept;
    return is_ready;
  }

  bool write(std::string_view bytes) {
    if (descriptor_ < 0) read_status();
    if (!is_written()) {
      reply_.body += bytes.substr(0, most_in_memory - std::min(reply_.body.size(), most_in_memory));
      return true;
    }
    if (!open_file()) return false;
    while (!bytes.empty()) {
      const ssize_t n = ::write(descriptor_, bytes.data(), bytes.size());
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) {
        reply_.reason = std::strerror(errno);
        return false;
      }
      bytes.remove_prefix(size_t(n));
      n_written_ += n;
    }
    return true;
  }

  static size_t take_body(const char* bytes, size_t size, size_t count, void* self) {
    return static_cast<Transfer*>(self)->write({bytes, size * count}) ? size * count : 0;
  }

  static size_t take_header(const char* bytes, size_t size, size_t count, void* self) {
    HttpHeaders& headers = static_cast<Transfer*>(self)->reply_.headers;
    const std::string_view line(bytes, size * count);
    if (line.starts_with("HTTP/")) headers.clear();  // those before are of a proxy, or of "100"
    const size_t colon = line.find(':');
    if (colon == line.npos) return line.size();
    std::string name(line.substr(0, colon));
    std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::tolower(c); });
    constexpr const char* blanks = " \t\r\n";
    const size_t first = line.find_first_not_of(blanks, colon + 1);
    const size_t last = line.find_last_not_of(blanks);
    const bool is_empty = first == line.npos;
    headers.emplace_back(std::move(name), is_empty ? "" : line.substr(first, last - first + 1));
    return line.size();
  }

  static int take_progress(void* self, int64_t total, int64_t, int64_t, int64_t) {
    auto& transfer = *static_cast<Transfer*>(self);
    if (!transfer.query_.goes_on) return 0;
    const int64_t offset = transfer.reply_.status == 206 ? transfer.query_.offset : 0;
    return transfer.query_.goes_on(transfer.n_written_, total > 0 ? total + offset : 0) ? 0 : 1;
  }

  const Curl& curl_;
  void* handle_;
  const HttpQuery& query_;
  HttpReply reply_;
  void* headers_ = nullptr;
  int descriptor_ = -1;
  int64_t n_written_ = 0;
  std::array<char, Curl::error_size> error_{};
};

}  // namespace

HttpClient::HttpClient() : handle_(Curl::get().easy_init()) {
  require(handle_ != nullptr, "libcurl cannot start a client");
}

HttpClient::~HttpClient() { Curl::get().easy_cleanup(handle_); }

HttpReply HttpClient::get(const HttpQuery& query) {
  const Curl& curl = Curl::get();
  curl.easy_reset(handle_);
  return Transfer(curl, handle_, query).run();
}

}  // namespace redco
