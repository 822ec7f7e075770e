// Reads and checks zip archives as torch.save writes them.

#include "zip_archive.h"

#include "../../io/strict_json.h"

#include <redco/error.h>

#include <zlib.h>

#include <algorithm>
#include <bit>
#include <cctype>
#include <cstring>
#include <functional>
#include <set>
#include <utility>
#include <vector>

namespace redco::io {

namespace {

// https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT: the records and their lengths.
static_assert(std::endian::native == std::endian::little, "the format is little-endian");
constexpr uint32_t local_signature = 0x04034b50, central_signature = 0x02014b50,
                   end_signature = 0x06054b50, end64 = 0x06064b50, locator64 = 0x07064b50,
                   data_descriptor = 0x08074b50;
constexpr size_t local_length = 30, central_length = 46, end_length = 22, end64_length = 56,
                 locator64_length = 20, descriptor_length = 16;
constexpr uint16_t has_descriptor = 1 << 3, is_utf8 = 1 << 11, zip64_field = 1;
constexpr uint32_t in_zip64 = 0xffffffff;  // the value is in the zip64 field

constexpr uint64_t max_inflated = uint64_t{1} << 30;  // code and pickles are smaller
constexpr uint16_t stored_method = 0, deflated_method = 8;

// Passes the uncompressed bytes of a file to `take` in pieces. Returns false if they are damaged.
bool inflate_all(std::string_view stored, uint64_t size,
                 const std::function<void(std::string_view)>& take) {
  z_stream stream{};
  if (inflateInit2(&stream, -MAX_WBITS) != Z_OK) return false;
  struct End {
    z_stream& stream;
    ~End() { inflateEnd(&stream); }
  } end{stream};
  std::vector<char> piece(1 << 16);
  uint64_t n_done = 0;
  int state = Z_OK;
  while (state == Z_OK && n_done <= size) {
    if (stream.avail_in == 0) {
      size_t n = std::min<size_t>(stored.size(), 1 << 20);
      stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(stored.data()));
      stream.avail_in = static_cast<uInt>(n);
      stored.remove_prefix(n);
    }
    stream.next_out = reinterpret_cast<Bytef*>(piece.data());
    stream.avail_out = static_cast<uInt>(piece.size());
    state = inflate(&stream, Z_NO_FLUSH);
    size_t n = piece.size() - stream.avail_out;
    take({piece.data(), n});
    n_done += n;
  }
  return state == Z_STREAM_END && n_done == size && stored.empty() && stream.avail_in == 0;
}

class ZipReader {
 public:
  ZipReader(const std::string& where, std::string_view bytes) : where_(where), bytes_(bytes) {}

  ZipMembers read() {
    find_directory();
    ZipMembers members;
    std::set<std::string> lower_names;
    uint64_t at = directory_, end = 0;
    std::vector<Entry> entries;
    for (uint64_t i = 0; i < n_entries_; ++i) {
      entries.push_back(read_entry(at));
      at = entries.back().next;
    }
    require(at == directory_end_, where_, "its directory has other bytes after the last file");
    // Files must not overlap.
    std::ranges::sort(entries, {}, &Entry::offset);
    for (const Entry& entry : entries) {
      require(entry.offset >= end, where_, "the file ", in_quotes(entry.name), " overlaps another");
      ZipMember member = member_of(entry, end);
      // LibTorch looks up names case-insensitively.
      std::string lower = entry.name;
      std::ranges::transform(lower, lower.begin(), [](unsigned char c) { return std::tolower(c); });
      require(lower_names.insert(lower).second && members.emplace(entry.name, member).second,
              where_, "the file ", in_quotes(entry.name), " is there twice");
    }
    require(end <= directory_, where_, "the last file overlaps the directory");
    return members;
  }

 private:
  struct Entry {
    std::string name;
    uint16_t flags, method;
    uint32_t crc;
    uint64_t stored, size, offset, next;
  };

  template <class T>
  T number(uint64_t at) const {
    T value;
    std::memcpy(&value, take(at, sizeof(T)).data(), sizeof(T));
    return value;
  }

  std::string_view take(uint64_t at, uint64_t size) const {
    require(at <= bytes_.size() && size <= bytes_.size() - at, where_,
            "it ends within its directory or a file: it is cut short or damaged");
    return bytes_.substr(at, size);
  }

  void check_signature(uint64_t at, uint32_t expected, const char* what) const {
    require(number<uint32_t>(at) == expected, where_, "there is no ", what, " at byte ", at,
            ": it is damaged or no zip archive");
  }

  // The directory is at the end, without a comment.
  void find_directory() {
    require(bytes_.size() >= end_length, where_, "it has ", bytes_.size(),
            " bytes, too few for a zip archive");
    uint64_t end = bytes_.size() - end_length;
    check_signature(end, end_signature, "end of a zip archive");
    require(number<uint16_t>(end + 4) == 0 && number<uint16_t>(end + 6) == 0 &&
                number<uint16_t>(end + 20) == 0,
            where_, "it has several parts or a comment, which PyTorch does not write");
    uint64_t size = number<uint32_t>(end + 12);
    n_entries_ = number<uint16_t>(end + 10);
    directory_ = number<uint32_t>(end + 16);
    uint64_t after = end;
    bool has_zip64 = end >= locator64_length + end64_length &&
                     number<uint32_t>(end - locator64_length) == locator64;
    if (has_zip64) {
      uint64_t at = number<uint64_t>(end - locator64_length + 8);
      require(at == end - locator64_length - end64_length, where_, "its zip64 records are damaged");
      check_signature(at, end64, "zip64 record");
      n_entries_ = number<uint64_t>(at + 32);
      size = number<uint64_t>(at + 40);
      directory_ = number<uint64_t>(at + 48);
      after = at;
    }
    require(directory_ <= after && size == after - directory_, where_,
            "its directory is not where its end says");
    directory_end_ = after;
  }

  Entry read_entry(uint64_t at) const {
    check_signature(at, central_signature, "file in the directory");
    Entry entry;
    entry.flags = number<uint16_t>(at + 8);
    entry.method = number<uint16_t>(at + 10);
    entry.crc = number<uint32_t>(at + 16);
    entry.stored = number<uint32_t>(at + 20);
    entry.size = number<uint32_t>(at + 24);
    auto name_size = number<uint16_t>(at + 28), extra_size = number<uint16_t>(at + 30),
         comment_size = number<uint16_t>(at + 32);
    entry.offset = number<uint32_t>(at + 42);
    entry.name = take(at + central_length, name_size);
    std::string_view extra = take(at + central_length + name_size, extra_size);
    entry.next = at + central_length + name_size + extra_size + comment_size;
    read_zip64(extra, {&entry.size, &entry.stored, &entry.offset});
    std::string where = where_ + "the file " + in_quotes(entry.name) + ": ";
    require(entry.method == deflated_method ||
                (entry.method == stored_method && entry.stored == entry.size),
            where, "the method of compression is ", entry.method, ", expected 0 or 8");
    require(entry.method == stored_method || entry.size <= max_inflated, where, "it has ",
            entry.size, " bytes when it is uncompressed, expected at most ", max_inflated);
    require((entry.flags & ~(has_descriptor | is_utf8)) == 0, where, "it has unknown flags");
    // LibTorch's zip reader does not handle folders.
    constexpr uint32_t folder = 0x10;
    bool is_folder = (number<uint32_t>(at + 38) & folder) != 0 || entry.name.ends_with('/');
    require(!is_folder, where, "it is marked as a folder");
    require(!entry.name.empty() && entry.name.find('\0') == std::string::npos, where,
            "it has no proper name");
    return entry;
  }

  // Replaces numbers that do not fit into 32 bits by their 64-bit values.
  void read_zip64(std::string_view extra, const std::vector<uint64_t*>& numbers) const {
    while (extra.size() >= 4) {
      uint16_t id, size;
      std::memcpy(&id, extra.data(), 2);
      std::memcpy(&size, extra.data() + 2, 2);
      require(size <= extra.size() - 4, where_, "an extra field is cut short");
      std::string_view field = extra.substr(4, size);
      extra.remove_prefix(4 + size_t{size});
      if (id != zip64_field) continue;
      for (uint64_t* each : numbers) {
        if (*each != in_zip64) continue;
        require(field.size() >= 8, where_, "a zip64 field is cut short");
        std::memcpy(each, field.data(), 8);
        field.remove_prefix(8);
      }
    }
  }

  // Reads a file; its header must agree with the directory. Moves `end` past the file.
  ZipMember member_of(const Entry& entry, uint64_t& end) const {
    std::string where = where_ + "the file " + in_quotes(entry.name) + ": ";
    check_signature(entry.offset, local_signature, "file");
    auto name_size = number<uint16_t>(entry.offset + 26);
    auto extra_size = number<uint16_t>(entry.offset + 28);
    auto flags = number<uint16_t>(entry.offset + 6);
    bool is_same = take(entry.offset + local_length, name_size) == entry.name &&
                   number<uint16_t>(entry.offset + 8) == entry.method && flags == entry.flags;
    require(is_same, where, "its header and the directory differ");
    uint64_t data = entry.offset + local_length + name_size + extra_size;
    ZipMember member{take(data, entry.stored), entry.size, entry.method == deflated_method,
                     entry.crc, where};
    end = data + entry.stored;
    if ((flags & has_descriptor) != 0) {
      check_signature(end, data_descriptor, "data descriptor");
      require(number<uint32_t>(end + 4) == entry.crc, where,
              "its CRC-32 is there twice and differs");
      end += descriptor_length;  // or 24 with zip64
    }
    return member;
  }

  const std::string& where_;
  std::string_view bytes_;
  uint64_t n_entries_ = 0, directory_ = 0, directory_end_ = 0;
};

}  // namespace

void ZipMember::check() const {
  uint64_t sum = 0;
  auto add = [&](std::string_view piece) {
    sum = crc32_z(sum, reinterpret_cast<const Bytef*>(piece.data()), piece.size());
  };
  bool is_whole = true;
  if (is_compressed)
    is_whole = inflate_all(stored, size, add);
  else
    add(stored);
  require(is_whole && sum == crc, where, "its CRC-32 is ", sum, ", expected ", crc,
          ": the file is damaged");
}

std::string ZipMember::text() const {
  check();
  if (!is_compressed) return std::string(stored);
  std::string all;
  inflate_all(stored, size, [&](std::string_view piece) { all += piece; });
  return all;
}

ZipMembers read_zip(const std::string& where, std::string_view bytes) {
  return ZipReader(where, bytes).read();
}

std::string folder_of(const std::string& where, const ZipMembers& members) {
  require(!members.empty(), where, "the archive is empty");
  std::string folder = members.begin()->first;
  folder.resize(folder.find('/') == std::string::npos ? 0 : folder.find('/') + 1);
  for (const auto& [name, member] : members)
    require(!folder.empty() && name.starts_with(folder), where,
            "its files are not all in one folder");
  return folder;
}

}  // namespace redco::io
