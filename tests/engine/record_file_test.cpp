// Records of text files, and files of tokens.
#include "files.h"

#include <redco/record_file.h>
#include <redco/token_file.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/tensor.h>

#include <vector>

using redco::RecordFile;
using redco::RecordKind;
using redco::TokenFile;

namespace {

std::vector<std::string> all_of(const RecordFile& records) {
  std::vector<std::string> found;
  for (int64_t i = 0; i < records.size(); ++i) found.push_back(records.read(i));
  return found;
}

// From a file and from a text at hand.
void check_records(const std::string& text, RecordKind kind,
                   const std::vector<std::string>& expected) {
  INFO("text: ", text);
  Folder folder;
  write_bytes(folder / "text", text);
  CHECK(all_of(RecordFile(folder / "text", kind)) == expected);
  CHECK(all_of(RecordFile::of_text("text", text, kind)) == expected);
}

}  // namespace

TEST_CASE("lines") {
  check_records("a\nb\n", RecordKind::line, {"a", "b"});
  check_records("a\r\nb", RecordKind::line, {"a", "b"});
  check_records("a\n\n\r\n b \n", RecordKind::line, {"a", "", "", " b "});
  check_records("", RecordKind::line, {});
  check_records("\n", RecordKind::line, {""});
  check_records("a\rb\r\n\r\nc\r\rd", RecordKind::line, {"a", "b", "", "c", "", "d"});
  check_records("\r", RecordKind::line, {""});
  check_records("\xEF\xBB\xBFx\n", RecordKind::line, {"x"});
  check_records("\xEF\xBB\xBF", RecordKind::line, {});
  check_records(std::string("\0\n\0", 3), RecordKind::line,
                {std::string(1, '\0'), std::string(1, '\0')});
}

TEST_CASE("full lines, paragraphs and records of CSV") {
  check_records("\n \t\na\n\nb \n \n", RecordKind::full_line, {"a", "b"});
  check_records("\na\nb\n \t\r\n\nc\n", RecordKind::paragraph, {"a\nb", "c"});
  check_records("a,\"1\n\n2\"\n\nb\n", RecordKind::csv, {"a,\"1\n\n2\"", "b"});
  check_records("a,\"x\"\"\ny\"\r\nb,\"\"\r\n", RecordKind::csv, {"a,\"x\"\"\ny\"", "b,\"\""});
  check_records("a\t\r\n\t\n \n\nb, \n  \n", RecordKind::csv, {"a\t", "\t", "b, "});
  check_records("a,5\" pipe\nb,6\"x\"\n", RecordKind::csv, {"a,5\" pipe", "b,6\"x\""});
  check_records("\"a\"\"\"\n\"b\",\"\n\"\n\"c\"d\"\ne\n", RecordKind::csv,
                {"\"a\"\"\"", "\"b\",\"\n\"", "\"c\"d\"", "e"});
  for (char delimiter : {',', ';'}) {
    auto records = RecordFile::of_text("text", "a;\"b\nc\"\n", RecordKind::csv, delimiter);
    CHECK(records.size() == (delimiter == ';' ? 1 : 2));
  }
  check_records("a,b\r1,\"x\ry\"\r\r \r2,3\r", RecordKind::csv, {"a,b", "1,\"x\ry\"", "2,3"});
  check_records("a\rb\r\rc\r", RecordKind::paragraph, {"a\rb", "c"});
  check_records("{\r}\n[]\r\n", RecordKind::full_line, {"{\r}", "[]"});
  check_records("a,\"never closed\nb\n", RecordKind::csv, {"a,\"never closed\nb"});
}

TEST_CASE("records across the pieces that a file is read in, and their lines") {
  std::string text;
  std::vector<std::string> expected;
  for (int i = 0; text.size() < (3 << 20); ++i) {
    std::string line(size_t(i * 7919 % 100000), char('a' + i % 26));
    text += line + (i % 3 == 0 ? "\r\n" : "\n") + (i % 5 == 0 ? "  \n" : "");
    if (!line.empty()) expected.push_back(line);
  }
  check_records(text, RecordKind::full_line, expected);
  auto records = RecordFile::of_text("text", text, RecordKind::full_line);
  CHECK(records.line_number(0) == 3);  // the first is empty, and a blank one follows
  CHECK(records.line_number(5) == 9);
}

TEST_CASE("a CR at the end of a piece, which a LF may follow") {
  constexpr size_t piece = 1 << 20;
  for (std::string end : {"\r", "\r\n"}) {
    std::string first(piece - 1, 'a');
    check_records(first + end + "b" + end, RecordKind::line, {first, "b"});
    auto records = RecordFile::of_text("text", first + end + end + "b", RecordKind::csv);
    CHECK(records.size() == 2);
    CHECK(records.line_number(1) == 3);
  }
}

TEST_CASE("a record that is not there, and a file that was shortened") {
  Folder folder;
  write_bytes(folder / "text", "some\nlines\n");
  RecordFile records(folder / "text", RecordKind::line);
  check_contains(message_of([&] { records.read(2); }), "no record 2 among 2");
  check_contains(message_of([&] { records.read(-1); }), "no record -1");
  write_bytes(folder / "text", "some\n");
  CHECK(records.read(0) == "some");
  check_contains(message_of([&] { records.read(1); }), folder / "text");
}

TEST_CASE("tokens with and without a header") {
  Folder folder;
  at::Tensor tokens = at::arange(65000, 65536);
  redco::write_tokens(folder / "a.bin", tokens);
  TokenFile written(folder / "a.bin");
  CHECK(written.size() == 536);
  CHECK(at::equal(written.read(0, 536), tokens));
  CHECK(at::equal(written.read(530, 3), tokens.narrow(0, 530, 3)));
  CHECK(read_bytes(folder / "a.bin").size() == 1024 + 2 * 536);

  redco::write_tokens(folder / "b.bin", tokens * 65537, at::kUInt32);
  CHECK(at::equal(TokenFile(folder / "b.bin").read(0, 536), tokens * 65537));

  write_bytes(folder / "c.bin", read_bytes(folder / "a.bin").substr(1024));
  CHECK(at::equal(TokenFile(folder / "c.bin").read(0, 536), tokens));
  CHECK(TokenFile(folder / "c.bin", at::kUInt32).size() == 268);
}

TEST_CASE("what is no file of tokens, or no token") {
  Folder folder;
  auto refused = [&](const std::string& bytes, const std::string& part) {
    write_bytes(folder / "bad.bin", bytes);
    std::string message = message_of([&] { TokenFile(folder / "bad.bin"); });
    check_contains(message, "bad.bin");
    check_contains(message, part);
  };
  redco::write_tokens(folder / "a.bin", at::arange(10));
  std::string good = read_bytes(folder / "a.bin");
  refused("abc", "3 bytes are no whole number of tokens of 2 bytes");
  refused(good.substr(0, good.size() - 2), "tells of 10 tokens, there are 9");
  std::string other = good;
  other[4] = 9;
  refused(other, "its format is 9");
  TokenFile file(folder / "a.bin");
  check_contains(message_of([&] { file.read(9, 2); }), "no 2 tokens from 9 on among 10");
  check_contains(message_of([&] { file.read(-1, 1); }), "among 10");
  auto write = [&](const at::Tensor& tokens, c10::ScalarType dtype) {
    return message_of([&] { redco::write_tokens(folder / "a.bin", tokens, dtype); });
  };
  check_contains(write(at::tensor({65536}), at::kUInt16), "token 65536 does not fit uint16");
  check_contains(write(at::tensor({-1}), at::kUInt32), "token -1 does not fit uint32");
  check_contains(write(at::tensor({0.5}), at::kUInt16), "tokens are integers");
  check_contains(write(at::tensor({1}), at::kLong), "not as Long");
  CHECK(read_bytes(folder / "a.bin") == good);
}
