// Helpers of the tests of files: a folder, bytes, and checks of errors.
#pragma once

#include <redco/error.h>

#include <doctest/doctest.h>
#include <sys/resource.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <string>
#include <string_view>

/// A folder of its own that goes with the test.
struct Folder {
  std::filesystem::path path;
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "redco-files-XXXXXX").string();
    REQUIRE(mkdtemp(name.data()) != nullptr);
    path = name;
  }
  ~Folder() { std::filesystem::remove_all(path); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string operator/(const std::string& name) const { return (path / name).string(); }
  size_t count() const {
    return size_t(std::distance(std::filesystem::directory_iterator(path), {}));
  }
};

inline std::string read_bytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline void write_bytes(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

template <class Call>
std::string message_of(const Call& call) {
  try {
    call();
  } catch (const redco::Error& error) {
    return error.what();
  }
  return "no error";
}

inline void check_contains(const std::string& text, const std::string& part) {
  INFO("message: ", text, "\nexpected part: ", part);
  CHECK(text.find(part) != std::string::npos);
}

inline void check_contains(const std::string& text, std::initializer_list<std::string_view> parts) {
  for (std::string_view part : parts) check_contains(text, std::string(part));
}

/// The most memory this process has had.
inline size_t peak_memory() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return size_t(usage.ru_maxrss) * 1024;
}
