// Reads parts of binary files, and whole zip archives.

#include <redco/byte_file.h>

#include "../formats/tensors/zip_archive.h"
#include "input_file.h"

#include <redco/error.h>

#include <ATen/ops/empty.h>

#include <bit>
#include <string_view>

namespace redco {

using namespace io;

static_assert(std::endian::native == std::endian::little, "the bytes of elements are not turned");

ByteFile::ByteFile(ByteFile&&) noexcept = default;
ByteFile::~ByteFile() = default;

ByteFile::ByteFile(const std::string& path, const std::string& kind)
    : path_(path), file_(std::make_unique<InputFile>(path, kind)) {}

int64_t ByteFile::size() const { return int64_t(file_->size()); }

void ByteFile::check(int64_t offset, int64_t count, int64_t width) const {
  require(offset >= 0 && offset <= size() && count >= 0 && count <= (size() - offset) / width,
          path_, ": the file has ", size(), " bytes, expected ", count, " times ", width,
          " bytes from byte ", offset, " on: it is cut short or damaged");
}

std::string ByteFile::read(int64_t offset, int64_t count) const {
  check(offset, count, 1);
  require(uint64_t(count) <= longest_piece, path_, ": ", count,
          " bytes in one piece, expected at most ", longest_piece);
  std::string bytes(size_t(count), '\0');
  file_->read(bytes.data(), bytes.size(), uint64_t(offset));
  return bytes;
}

at::Tensor ByteFile::read_tensor(int64_t offset, int64_t count, c10::ScalarType dtype) const {
  check(offset, count, int64_t(c10::elementSize(dtype)));
  at::Tensor result = at::empty({count}, dtype);
  file_->read(result.mutable_data_ptr(), result.nbytes(), uint64_t(offset));
  return result;
}

std::map<std::string, std::string> read_zip_archive(const std::string& path) {
  InputFile file(path, "a zip archive");
  std::map<std::string, std::string> texts;
  require(file.size() > 0, path, ": the file is empty, expected a zip archive");
  std::shared_ptr<std::byte> bytes = file.map();
  std::string_view all(reinterpret_cast<const char*>(bytes.get()), file.size());
  for (const auto& [name, member] : read_zip(path + ": ", all)) {
    require(member.size <= longest_piece, path, ": the file '", name, "' has ", member.size,
            " bytes, expected at most ", longest_piece);
    texts[name] = member.text();
  }
  return texts;
}

}  // namespace redco
