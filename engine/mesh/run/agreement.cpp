// Agreement between processes: joint failures, votes and broadcast texts.

#include "agreement.h"

#include <redco/detail/printable.h>
#include <redco/error.h>

#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <cstring>
#include <string>

namespace redco::mesh {

std::string text_of(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const std::exception& error) {
    return error.what();
  }
}

bool any_process(const Mesh& mesh, bool says_so) {
  if (mesh.world().size() == 1) return says_so;
  at::Tensor value = at::tensor({int64_t{says_so}}).to(mesh.device());
  return mesh.world().all_reduce(value, ReduceOp::max).item<int64_t>() != 0;
}

std::string text_of_process(const Mesh& mesh, int64_t process, const std::string& text) {
  Group& world = mesh.world();
  if (world.size() == 1) return text;
  std::string own = world.rank() == process ? text : "";
  at::Tensor size = at::tensor({int64_t(own.size())}).to(mesh.device());
  auto length = world.all_reduce(size, ReduceOp::max).item<int64_t>();
  if (length == 0) return "";
  at::Tensor letters = at::zeros({length}, at::kByte);
  std::memcpy(letters.mutable_data_ptr(), own.data(), own.size());
  letters = world.all_reduce(letters.to(mesh.device()), ReduceOp::max).cpu();
  return {static_cast<const char*>(letters.const_data_ptr()), letters.nbytes()};
}

void throw_together(const Mesh* mesh, const std::exception_ptr& failure) {
  if (mesh != nullptr && mesh->world().size() > 1) {
    Group& world = mesh->world();
    // Exchange the first failed rank, then the length of its text, then the text.
    at::Tensor ranks = at::tensor({failure ? world.rank() : world.size()}).to(mesh->device());
    auto first = world.all_reduce(ranks, ReduceOp::min).item<int64_t>();
    if (first < world.size()) {
      std::string text = text_of_process(*mesh, first, failure ? text_of(failure) : "");
      if (!failure) fail("process ", first, ": ", printable(text));
    }
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace redco::mesh
