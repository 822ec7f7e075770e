#include "pass_digest.h"

#include "../../mesh/spmd_log.h"
#include "../tensor/sharded_tensor.h"
#include "moves.h"

#include <bit>
#include <cstddef>
#include <string_view>

namespace redco::sharding {

namespace {

using mesh::Digest;

void add(Digest& digest, const at::Tensor& tensor) {
  digest.add(tensor.sizes()).add(uint64_t(tensor.scalar_type()));
  const bool is_of_stages = stage_of(tensor) || resting_stage_of(tensor);
  if (!is_of_stages && !tensor.is_inference()) digest.add(uint64_t(tensor._version()));
}

void add(Digest& digest, const c10::IValue& value) {
  if (value.isInt()) {
    digest.add(uint64_t(value.toInt()));
  } else if (value.isDouble()) {
    digest.add(std::bit_cast<uint64_t>(value.toDouble()));
  } else if (value.isBool()) {
    digest.add(uint64_t(value.toBool()));
  } else if (value.isString()) {
    digest.add(std::string_view(value.toStringRef()));
  } else if (value.isTensor()) {
    if (value.toTensor().defined()) add(digest, value.toTensor());
  } else if (value.isList()) {
    for (const c10::IValue& element : value.toListRef()) add(digest, element);
  } else if (value.isGenerator()) {
    digest.add(with_draw(0, value.toGenerator()));
  }
}

}  // namespace

uint64_t with_call(uint64_t before, const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  Digest digest;
  digest.add(before).add(std::bit_cast<uint64_t>(&op.schema()));
  const size_t n = op.schema().arguments().size();
  for (size_t i = stack.size() - n; i < stack.size(); ++i) add(digest, stack[i]);
  return digest.value();
}

uint64_t with_draw(uint64_t before, const at::Generator& generator) {
  const at::Tensor state = generator.get_state();
  const std::string_view bytes(static_cast<const char*>(state.const_data_ptr()), state.nbytes());
  return Digest().add(before).add(bytes).value();
}

}  // namespace redco::sharding
