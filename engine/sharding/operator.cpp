// Static properties of operators, from their schemas.

#include "operators/rules.h"

#include <set>
#include <string_view>
#include <unordered_map>

namespace redco::sharding {

namespace {

// The order of a norm; whether the fill value is zero.
bool plan_depends_on_floats(const std::string& operator_name) {
  return operator_name.find("norm") != std::string::npos || operator_name == "aten::masked_fill";
}

// Whether an argument's value is part of the plan cache's key. Other floats never affect
// placements, and change from call to call.
bool is_keyed_type(const c10::TypePtr& type, const std::string& operator_name) {
  switch (type->kind()) {
    case c10::TypeKind::OptionalType:
      return is_keyed_type(type->castRaw<c10::OptionalType>()->getElementType(), operator_name);
    case c10::TypeKind::FloatType:
    case c10::TypeKind::NumberType:
      return plan_depends_on_floats(operator_name);
    case c10::TypeKind::DeviceObjType:
      return false;
    default:
      return true;
  }
}

std::string base_name(const c10::FunctionSchema& schema) {
  std::string name = schema.name();
  bool is_inplace = name.size() > 1 && name.back() == '_' && name[name.size() - 2] != '_';
  if (is_inplace) name.pop_back();
  return name;
}

// Operators that write to arguments not marked in their schema.
const std::unordered_map<std::string, std::vector<std::string>> unmarked_writes = {
    {"aten::native_batch_norm", {"running_mean", "running_var"}},
    {"aten::cudnn_batch_norm", {"running_mean", "running_var"}},
    {"aten::miopen_batch_norm", {"running_mean", "running_var"}},
};

// Operators whose results share memory with their argument, which their schemas do not declare.
const std::set<std::string_view> unmarked_views = {
    "aten::unsafe_split", "aten::unsafe_split_with_sizes", "aten::_unsafe_view"};

// Gradients that an optimizer unscales in place. Nothing reads them afterwards, so redistributed
// copies are not written back.
const std::unordered_map<std::string, std::string> scratch = {
    {"aten::_fused_adam", "grads"},
    {"aten::_fused_adamw", "grads"},
    {"aten::_fused_sgd", "grads"},
};

Operator describe(const c10::OperatorHandle& handle) {
  const c10::FunctionSchema& schema = handle.schema();
  Operator op{handle, base_name(schema), handle.hasTag(at::Tag::inplace_view), false, {}, {}, {},
              {}};
  op.is_view = unmarked_views.contains(op.name);
  for (const c10::Argument& argument : schema.arguments()) {
    op.is_keyed.push_back(is_keyed_type(argument.type(), op.name));
    op.is_written.push_back(argument.alias_info() && argument.alias_info()->isWrite());
  }
  if (auto found = unmarked_writes.find(op.name); found != unmarked_writes.end())
    for (size_t i = 0; i < op.is_written.size(); ++i)
      for (const std::string& name : found->second)
        if (schema.arguments()[i].name() == name) op.is_written[i] = true;
  if (auto found = scratch.find(op.name); found != scratch.end())
    for (size_t i = 0; i < op.is_written.size(); ++i)
      if (schema.arguments()[i].name() == found->second) op.is_written[i] = false;
  for (const c10::Argument& result : schema.returns()) {
    int source = -1;
    const c10::AliasInfo* alias = result.alias_info();
    if (alias && !alias->isWrite()) op.is_view = true;
    for (size_t i = 0; alias && alias->isWrite() && i < schema.arguments().size(); ++i) {
      const c10::AliasInfo* other = schema.arguments()[i].alias_info();
      if (other && other->isWrite() && other->beforeSets() == alias->beforeSets()) source = int(i);
    }
    op.returned.push_back(source);
  }
  for (size_t i = 0; i < schema.arguments().size(); ++i)
    if (schema.arguments()[i].name() == "generator") op.generator = int(i);
  op.rule = find_rule(op.name, handle);
  return op;
}

}  // namespace

const Operator& known_operator(const c10::OperatorHandle& handle) {
  thread_local std::unordered_map<const c10::FunctionSchema*, Operator> operators;
  const c10::FunctionSchema* key = &handle.schema();
  auto found = operators.find(key);
  if (found == operators.end()) found = operators.emplace(key, describe(handle)).first;
  return found->second;
}

}  // namespace redco::sharding
