#pragma once

#include "pickle_machine.h"

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace redco::io {

/// A storage that a pickle of torch.save refers to.
struct TorchStorage {
  std::string key;
  at::ScalarType dtype;
  bool is_untyped;
  int64_t size;  ///< in elements; in bytes if it is untyped

  int64_t bytes() const;
};

/// A tensor in a storage; its elements are within it. Offset and strides count elements.
struct TorchTensor {
  size_t storage;
  at::ScalarType dtype;
  int64_t offset;
  std::vector<int64_t> sizes, strides;
};

/// Reads pickles that torch.save writes of tensors in dictionaries, lists and tuples, with numbers
/// and texts beside them. Every function but those that make such values is refused by its name,
/// and none is called. A value of kind `tensor` has its index in `tensors`; one of kind `object` is
/// a dtype with its name as text.
class TorchUnpickler final : public PickleMachine {
 public:
  TorchUnpickler(std::string where, std::string_view pickle)
      : PickleMachine(std::move(where), pickle, "torch.save") {}

  PickleValue read() { return run(); }
  using PickleMachine::rest;
  const std::vector<TorchStorage>& storages() const { return storages_; }
  const std::vector<TorchTensor>& tensors() const { return tensors_; }

 private:
  using Function = PickleValue (TorchUnpickler::*)(const PickleValue& arguments);
  static const std::map<std::string_view, Function>& functions();

  PickleValue global(std::string_view text) override;
  PickleValue reduce(const PickleValue& function, const PickleValue& arguments) override;
  PickleValue build(const PickleValue& object, const PickleValue& state) override;
  PickleValue storage(const PickleValue& id) override;
  void other(uint8_t code) override;

  PickleValue ordered_dict(const PickleValue& given);
  PickleValue size(const PickleValue& given);
  PickleValue tensor(const PickleValue& given);
  PickleValue tensor_v2(const PickleValue& given);
  PickleValue tensor_v3(const PickleValue& given);
  PickleValue parameter(const PickleValue& given);
  PickleValue parameter_with_state(const PickleValue& given);
  PickleValue from_type(const PickleValue& given);
  PickleValue add_tensor(const PickleValues& args, at::ScalarType dtype);

  std::vector<TorchStorage> storages_;
  std::map<std::string_view, size_t> index_of_;  ///< of storages, by key
  std::vector<TorchTensor> tensors_;
};

}  // namespace redco::io
