// Collects the arguments of one operator call.

#include "../tensor/gathered_view.h"

#include <redco/error.h>

namespace redco::sharding {

namespace {

// Whether two tensors are the same one, or two names of the same elements: LibTorch's `copy_` of
// one to the other does nothing.
bool is_same_view(const TensorArgument& a, const at::Tensor& b, ShardedTensorImpl* b_impl) {
  if (a.tensor.is_same(b)) return true;
  return a.impl && b_impl && a.impl->memory_id() == b_impl->memory_id() &&
         a.placements == b_impl->placements() && a.tensor.scalar_type() == b.scalar_type() &&
         a.tensor.storage_offset() == b.storage_offset() && a.tensor.sizes() == b.sizes() &&
         a.tensor.strides() == b.strides() && a.tensor.is_conj() == b.is_conj() &&
         a.tensor.is_neg() == b.is_neg();
}

}  // namespace

Call::Call(const Operator& op, const torch::jit::Stack& stack)
    : op(op),
      arguments(stack.data() + (stack.size() - op.schema().arguments().size()),
                op.schema().arguments().size()) {
  auto add = [&](size_t argument, int64_t element, const at::Tensor& tensor) {
    if (!tensor.defined()) return;
    ShardedTensorImpl* impl = sharded_impl(tensor);
    require(impl || !tensor.key_set().has(c10::DispatchKey::Fake), op.name,
            ": a plain tensor was given the data of a sharded one by set_data, and holds none; "
            "replace the tensor instead");
    if (impl && impl->gathered_view()) refresh(*impl);
    if (impl && op.is_written[argument]) impl->forget_rows();
    if (impl && (!mesh || (impl->mesh()->stage() && !mesh->stage()))) mesh = impl->mesh();
    auto first = int64_t(tensors.size());
    for (int64_t i = 0; i < first && element < 0; ++i)
      if (is_same_view(tensors[size_t(i)], tensor, impl)) first = i;
    tensors.push_back({argument, element, tensor, impl, impl ? impl->placements() : Placements(),
                       bool(op.is_written[argument]), first});
  };
  for (size_t i = 0; i < arguments.size(); ++i) {
    const c10::IValue& value = arguments[i];
    if (value.isTensor()) {
      add(i, -1, value.toTensor());
    } else if (value.isTensorList()) {
      const auto list = value.toTensorList();
      for (size_t j = 0; j < list.size(); ++j) add(i, int64_t(j), list.get(j));
    } else if (value.isList()) {
      const auto list = value.toList();
      for (size_t j = 0; j < list.size(); ++j) {
        const c10::IValue element = list.get(j);
        if (element.isTensor()) add(i, int64_t(j), element.toTensor());
      }
    }
  }
}

bool Call::draws_numbers() const {
  if (!op.handle.hasTag(at::Tag::nondeterministic_seeded)) return false;
  // Attention draws only for dropout. Does not mark the value as read, because no plan depends on
  // it.
  const int p = index_of("dropout_p");
  return p < 0 || !arguments[size_t(p)].isDouble() || arguments[size_t(p)].toDouble() != 0;
}

int Call::index_of(std::string_view name) const {
  const auto& arguments = op.schema().arguments();
  for (size_t i = 0; i < arguments.size(); ++i)
    if (arguments[i].name() == name) return int(i);
  return -1;
}

const c10::IValue* Call::find(std::string_view name) const {
  int index = index_of(name);
  if (index < 0) return nullptr;
  read |= uint64_t{1} << index;
  return &arguments[size_t(index)];
}

int64_t Call::integer(std::string_view name, int64_t otherwise) const {
  const c10::IValue* value = find(name);
  return value && value->isInt() ? value->toInt() : otherwise;
}

bool Call::boolean(std::string_view name, bool otherwise) const {
  const c10::IValue* value = find(name);
  return value && value->isBool() ? value->toBool() : otherwise;
}

std::optional<std::vector<int64_t>> Call::dims(std::string_view name, int64_t n_dims) const {
  const c10::IValue* value = find(name);
  if (!value || value->isNone()) return std::nullopt;
  std::vector<int64_t> dims =
      value->isInt() ? std::vector<int64_t>{value->toInt()} : value->toIntVector();
  for (int64_t& dim : dims)
    if (dim < 0) dim += n_dims;
  return dims;
}

int Call::tensor_of(std::string_view name) const {
  int index = index_of(name);
  for (size_t i = 0; i < tensors.size(); ++i)
    if (int(tensors[i].argument) == index) return int(i);
  return -1;
}

void set_tensors(const Call& call, const std::vector<at::Tensor>& tensors,
                 torch::jit::Stack& arguments) {
  for (size_t i = 0; i < call.tensors.size(); ++i) {
    const TensorArgument& argument = call.tensors[i];
    c10::IValue& slot = arguments[argument.argument];
    // Lists are shared by reference: copy each before its first write.
    bool is_first = i == 0 || call.tensors[i - 1].argument != argument.argument;
    if (argument.element < 0) {
      slot = tensors[i];
    } else if (slot.isTensorList()) {
      if (is_first) slot = slot.toTensorList().copy();
      slot.toTensorList().set(size_t(argument.element), tensors[i]);
    } else {
      if (is_first) slot = slot.toList().copy();
      slot.toList().set(size_t(argument.element), tensors[i]);
    }
  }
}

}  // namespace redco::sharding
