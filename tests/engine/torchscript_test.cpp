// TorchScript files: those of torch.jit.save are read, damaged ones are refused or harmless.
#include <redco/torchscript.h>

#include "files.h"
#include "zip_of.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <caffe2/serialize/inline_container.h>
#include <doctest/doctest.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/serialization/import.h>

#include <random>
#include <sstream>
#include <utility>
#include <vector>

namespace {

// A module with tensors, a list and code that is long enough to be compressed.
torch::jit::Module make_module() {
  torch::jit::Module module("Small");
  module.register_parameter("weight", at::arange(12, at::kFloat).view({3, 4}), false);
  module.register_buffer("half", at::ones({5}, at::kHalf));
  module.register_attribute("sizes", c10::ListType::ofInts(), std::vector<int64_t>{1, 2, 3});
  module.register_attribute("name", c10::StringType::get(), "small");
  std::string code = "def forward(self, x: Tensor):\n  y = torch.matmul(x, self.weight)\n";
  for (int i = 0; i < 20; ++i) code += "  y = torch.tanh(y + " + std::to_string(i) + ")\n";
  module.define(code + "  return y\n");
  return module;
}

std::vector<Member> members_of(const std::string& bytes) {
  std::istringstream stream(bytes);
  caffe2::serialize::PyTorchStreamReader reader(&stream);
  std::vector<Member> members;
  for (const std::string& name : reader.getAllRecords()) {
    auto [data, size] = reader.getRecord(name);
    members.emplace_back("archive/" + name, std::string(static_cast<char*>(data.get()), size));
  }
  return members;
}

std::string saved() {
  std::ostringstream stream;
  make_module().save(stream);
  return stream.str();
}

// A file with these bytes; what LibTorch makes of them once they are checked.
struct File {
  Folder folder;
  std::string path = folder / "module.pt";

  std::string error_of(const std::string& bytes) {
    write_bytes(path, bytes);
    return message_of([&] { redco::read_torchscript(path); });
  }

  // Whether they load. A crash ends the test.
  bool loads(const std::string& bytes) {
    if (error_of(bytes) != "no error") return false;
    std::istringstream stream(redco::read_torchscript(path));
    try {
      auto module = torch::jit::load(stream);
      for (const auto& each : module.named_parameters()) each.value.sum().item<double>();
      for (const auto& each : module.named_buffers()) each.value.sum().item<double>();
      module.forward({at::ones({2, 3})});
    } catch (const std::exception&) {
      return false;
    }
    return true;
  }
};

// One change of a kind that disks and copies make.
std::string damaged(std::string bytes, std::mt19937& random) {
  if (bytes.empty()) return "x";
  auto below = [&](size_t n) { return random() % n; };
  size_t at = below(bytes.size()), n = 1 + below(16);
  switch (below(5)) {
    case 0:
      bytes[at] = char(bytes[at] ^ 1 << below(8));
      break;
    case 1:
      bytes.resize(at);
      break;
    case 2:
      bytes.erase(at, n);
      break;
    case 3:
      bytes.insert(at, n, char(random()));
      break;
    default:
      bytes.replace(at, n, bytes.substr(below(bytes.size()), n));
  }
  return bytes;
}

}  // namespace

TEST_CASE("TorchScript: files of torch.jit.save are accepted, compressed code included") {
  File file;
  CHECK(file.loads(saved()));
  CHECK(file.loads(zip_of(members_of(saved()))));
  check_contains(file.error_of("text"), file.path + ": it has 4 bytes");
  check_contains(file.error_of(""), "too few for a zip archive");
  check_contains(file.error_of(zip_of({{"archive/version", "3"}})), "there is no data.pkl");
}

TEST_CASE("TorchScript: a damaged file is refused, or its content has not changed") {
  File file;
  const std::string good = saved();
  const auto members = members_of(good);
  std::mt19937 random(1);
  int n_refused = 0;
  for (int i = 0; i < 1000; ++i) {
    std::string bytes = damaged(good, random);
    CAPTURE(i);
    if (file.error_of(bytes) != "no error") {
      ++n_refused;
      continue;
    }
    std::vector<Member> read;
    try {
      read = members_of(bytes);
    } catch (const c10::Error&) {
      ++n_refused;  // LibTorch looks at more fields of zip64
      continue;
    }
    REQUIRE(read.size() == members.size());
    for (size_t k = 0; k < members.size(); ++k) {
      CAPTURE(members[k].first);
      CHECK(read[k] == members[k]);
    }
  }
  CHECK(n_refused > 500);  // the others hit fields such as times and padding
}

TEST_CASE("TorchScript: wrong content with sums that fit does not end the process") {
  File file;
  const auto good = members_of(saved());
  std::mt19937 random(2);
  for (int i = 0; i < 1000; ++i) {
    auto members = good;
    Member& member = members[random() % members.size()];
    if (i % 4 == 0)
      std::swap(member.second, members[random() % members.size()].second);
    else
      member.second = damaged(member.second, random);
    CAPTURE(i);
    file.loads(zip_of(members));
  }
  // A storage in the pickle that is larger than its file.
  auto members = good;
  for (Member& member : members)
    if (member.first == "archive/data/0") member.second.clear();
  check_contains(file.error_of(zip_of(members)), "its file has 0: the archive is damaged");
}
