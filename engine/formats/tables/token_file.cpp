// Reads and writes files of tokens.

#include <redco/token_file.h>

#include "../../io/atomic_file.h"
#include "../../io/input_file.h"

#include <redco/error.h>
#include <redco/formats.h>

#include <ATen/ops/aminmax.h>
#include <ATen/ops/empty.h>

#include <array>
#include <bit>
#include <tuple>

namespace redco {

using namespace io;

static_assert(std::endian::native == std::endian::little, "the bytes of tokens are not turned");

namespace {

struct Format {
  c10::ScalarType dtype;
  int32_t magic, version;
  int64_t n_values;  // of a token
};

constexpr Format formats[] = {{at::kUInt16, 20240520, 1, int64_t(1) << 16},
                              {at::kUInt32, 20240801, 7, int64_t(1) << 32}};

using Header = std::array<int32_t, 256>;

const Format& format_of(const std::string& path, c10::ScalarType dtype) {
  for (const Format& format : formats)
    if (format.dtype == dtype) return format;
  fail(path, ": tokens are stored as uint16 or uint32, not as ", dtype);
}

}  // namespace

TokenFile::TokenFile(TokenFile&&) noexcept = default;
TokenFile::~TokenFile() = default;

TokenFile::TokenFile(const std::string& path, c10::ScalarType dtype)
    : path_(path), file_(std::make_unique<InputFile>(path, "a file of tokens")), dtype_(dtype) {
  const Format* format = &format_of(path, dtype);
  Header header{};
  if (file_->size() >= sizeof(header)) file_->read(header.data(), sizeof(header), 0);
  for (const Format& known : formats) {
    if (known.magic != header[0]) continue;
    require(header[1] >= known.version, path, ": version ", header[1], " of its format, expected ",
            known.version);
    check_format(path + ": ", header[1], known.version);
    format = &known;
    offset_ = sizeof(header);
  }
  dtype_ = format->dtype;
  uint64_t bytes = file_->size() - offset_, width = c10::elementSize(dtype_);
  require(bytes % width == 0, path, ": ", bytes, " bytes are no whole number of tokens of ", width,
          " bytes");
  size_ = int64_t(bytes / width);
  require(offset_ == 0 || size_ == header[2], path, ": its header tells of ", header[2],
          " tokens, there are ", size_);
}

at::Tensor TokenFile::read(int64_t first, int64_t count) const {
  require(first >= 0 && count >= 0 && count <= size_ - first, path_, ": there are no ", count,
          " tokens from ", first, " on among ", size_);
  at::Tensor tokens = at::empty({count}, dtype_);
  file_->read(tokens.mutable_data_ptr(), tokens.nbytes(),
              offset_ + uint64_t(first) * c10::elementSize(dtype_));
  return tokens.to(at::kLong);
}

void write_tokens(const std::string& path, const at::Tensor& tokens, c10::ScalarType dtype) {
  const Format& format = format_of(path, dtype);
  require(c10::isIntegralType(tokens.scalar_type(), false), path,
          ": tokens are integers; these are ", tokens.scalar_type());
  require(tokens.numel() <= INT32_MAX, path, ": ", tokens.numel(),
          " tokens are more than a file holds, 2147483647: write several");
  // Only other dtypes can be out of range, and LibTorch's unsigned ones do not support aminmax.
  if (tokens.numel() > 0 && tokens.scalar_type() != dtype) {
    auto [least, most] = at::aminmax(tokens.to(at::kLong));
    for (int64_t token : {least.item<int64_t>(), most.item<int64_t>()})
      require(token >= 0 && token < format.n_values, path, ": token ", token, " does not fit ",
              dtype == at::kUInt16 ? "uint16: write with dtype = \"uint32\"" : "uint32");
  }
  at::Tensor stored = tokens.to(at::kCPU, dtype).contiguous();
  Header header{format.magic, format.version, int32_t(tokens.numel())};
  AtomicFile file(path);
  file.write(header.data(), sizeof(header));
  file.write(stored.const_data_ptr(), stored.nbytes());
  file.commit();
}

}  // namespace redco
