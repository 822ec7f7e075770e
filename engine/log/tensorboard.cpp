// Writes TensorBoard event files.

#include "tensorboard.h"

#include "../io/append_file.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <utility>

namespace redco::io {

namespace {

// ---- Protocol buffers: a key (field number and wire type), then the value ----

enum WireType : uint8_t { varint_type = 0, fixed64_type = 1, bytes_type = 2, fixed32_type = 5 };

void put_varint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out.push_back(char(value | 0x80));
  out.push_back(char(value));
}

// In memory order: little-endian on all platforms of LibTorch.
template <class T>
void put_raw(std::string& out, T value) {
  char bytes[sizeof(T)];
  std::memcpy(bytes, &value, sizeof(T));
  out.append(bytes, sizeof(T));
}

void put_key(std::string& out, int field, WireType type) {
  put_varint(out, uint64_t(field) << 3 | type);
}

std::string number_field(int field, int64_t value) {
  std::string out;
  put_key(out, field, varint_type);
  put_varint(out, uint64_t(value));
  return out;
}

std::string double_field(int field, double value) {
  std::string out;
  put_key(out, field, fixed64_type);
  put_raw(out, value);
  return out;
}

std::string float_field(int field, float value) {
  std::string out;
  put_key(out, field, fixed32_type);
  put_raw(out, value);
  return out;
}

// A string or a message.
std::string bytes_field(int field, std::string_view bytes) {
  std::string out;
  put_key(out, field, bytes_type);
  put_varint(out, bytes.size());
  return out.append(bytes);
}

std::string packed_field(int field, const std::vector<double>& values) {
  std::string bytes;
  for (double value : values) put_raw(bytes, value);
  return bytes_field(field, bytes);
}

// A google.protobuf.Value.
std::string any_value(const Tree& value) {
  if (value.is<bool>()) return number_field(4, value.as<bool>());
  if (value.is<int64_t>()) return double_field(2, double(value.as<int64_t>()));
  if (value.is<double>()) return double_field(2, value.as<double>());
  return bytes_field(3, value.as<std::string>());
}

// ---- TFRecords: length, its checksum, the bytes, their checksum ----

constexpr std::array<uint32_t, 256> make_crc_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit)
      value = value >> 1 ^ (value & 1 ? 0x82F63B78u : 0);  // Castagnoli's polynomial, reflected
    table[i] = value;
  }
  return table;
}

// CRC-32C, rotated and offset, because a CRC of data that contains CRCs is weak.
uint32_t masked_crc(std::string_view bytes) {
  static constexpr auto table = make_crc_table();
  uint32_t crc = ~0u;
  for (char byte : bytes) crc = table[(crc ^ uint8_t(byte)) & 0xFF] ^ crc >> 8;
  crc = ~crc;
  return (crc >> 15 | crc << 17) + 0xA282EAD8u;
}

std::string record(std::string_view bytes) {
  std::string out;
  put_raw<uint64_t>(out, bytes.size());
  put_raw(out, masked_crc(out));
  out.append(bytes);
  put_raw(out, masked_crc(bytes));
  return out;
}

// ---- Messages ----

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string event(int64_t step, std::string_view content) {
  std::string out = double_field(1, seconds_now());
  if (step != 0) out += number_field(2, step);
  return out.append(content);
}

std::string version_event() { return event(0, bytes_field(3, "brain.Event:2")); }

std::string start_event(int64_t step) {
  constexpr int64_t start = 1;
  return event(step, bytes_field(7, number_field(1, start)));
}

std::string summary_value(const std::string& tag, std::string_view value) {
  return bytes_field(1, bytes_field(1, tag).append(value));
}

std::string scalar_summary(const std::map<std::string, double>& values) {
  std::string summary;
  for (const auto& [tag, value] : values)
    summary += summary_value(tag, float_field(2, float(value)));
  return summary;
}

std::string text_summary(const std::string& tag, const std::string& text) {
  // TensorBoard renders Markdown: indentation preserves lines and uses a monospaced font.
  std::string shown = text;
  if (text.find('\n') != std::string::npos) {
    shown.insert(0, "    ");
    for (size_t at = 0; (at = shown.find('\n', at)) != std::string::npos; at += 5)
      shown.insert(at + 1, "    ");
  }
  constexpr int64_t string_type = 7;
  std::string shape = bytes_field(2, number_field(1, 1));  // one dimension, of size 1
  std::string tensor = number_field(1, string_type) + bytes_field(2, shape) + bytes_field(8, shown);
  std::string metadata = bytes_field(1, bytes_field(1, "text"));  // the name of the plugin
  return summary_value(tag, bytes_field(8, tensor) + bytes_field(9, metadata));
}

std::string new_path(const std::string& folder) {
  static std::atomic<int> count{0};
  auto seconds = std::chrono::duration_cast<std::chrono::seconds>(
      std::chrono::system_clock::now().time_since_epoch());
  char host[256] = "localhost";
  gethostname(host, sizeof(host) - 1);
  char name[400];
  std::snprintf(name, sizeof(name), "/events.out.tfevents.%010ld.%s.%d.%d", long(seconds.count()),
                host, int(getpid()), count++);
  return folder + name;
}

}  // namespace

void EventFile::append(int64_t step, std::string_view summary) {
  std::string path = path_, records;
  if (path.empty()) {
    path = new_path(folder_);
    int64_t first_dropped = resumed_.value_or(step == 0 ? 0 : step + 1);
    records = record(version_event()) + record(start_event(first_dropped));
    if (!kept_.empty())
      records += record(event(first_dropped, bytes_field(5, scalar_summary(kept_))));
    for (const std::string& text : waiting_) records += record(event(step, bytes_field(5, text)));
  }
  append_to_file(path, records + record(event(step, bytes_field(5, summary))));
  path_ = path;
  waiting_.clear();
  step_ = step;
}

void EventFile::append_without_step(std::string summary) {
  if (path_.empty())
    waiting_.push_back(std::move(summary));
  else
    append(step_, summary);
}

void EventFile::resume(int64_t step, std::map<std::string, double> kept) {
  resumed_ = step;
  kept_ = std::move(kept);
}

void EventFile::scalars(int64_t step, const std::map<std::string, double>& values) {
  std::string summary = scalar_summary(values);
  if (!summary.empty()) append(step, summary);
}

void EventFile::text(int64_t step, const std::string& tag, const std::string& text) {
  append(step, text_summary(tag, text));
}

void EventFile::text(const std::string& tag, const std::string& text) {
  append_without_step(text_summary(tag, text));
}

void EventFile::image(int64_t step, const std::string& tag, const EncodedImage& image) {
  append(step,
         summary_value(
             tag, bytes_field(4, number_field(1, image.height) + number_field(2, image.width) +
                                     number_field(3, image.channels) + bytes_field(4, image.png))));
}

void EventFile::histogram(int64_t step, const std::string& tag, const Histogram& histogram) {
  std::string message = double_field(1, histogram.min) + double_field(2, histogram.max) +
                        double_field(3, histogram.count) + double_field(4, histogram.sum) +
                        double_field(5, histogram.sum_of_squares) +
                        packed_field(6, histogram.limits) + packed_field(7, histogram.counts);
  append(step, summary_value(tag, bytes_field(5, message)));
}

// tensorboard/plugins/hparams/plugin_data.proto: a SessionStartInfo. TensorBoard finds the metrics
// of a run by itself.
void EventFile::settings(const Tree::Dict& values) {
  std::string session;
  for (const auto& [name, value] : values)
    session += bytes_field(1, bytes_field(1, name) + bytes_field(2, any_value(value)));
  session += double_field(5, seconds_now());
  std::string plugin = bytes_field(1, "hparams") + bytes_field(2, bytes_field(3, session));
  constexpr int64_t float_type = 1;
  std::string no_shape = bytes_field(2, bytes_field(2, number_field(1, 0)));
  append_without_step(summary_value("_hparams_/session_start_info",
                                    bytes_field(8, number_field(1, float_type) + no_shape) +
                                        bytes_field(9, bytes_field(1, plugin))));
}

}  // namespace redco::io
