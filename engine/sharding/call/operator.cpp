// Describes an operator from its schema and its row in operators/.

#include "../operators/rules.h"

#include <algorithm>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace redco::sharding {

namespace {

// Whether an argument's value is part of the plan cache's key. Most floats never affect placements,
// and change from call to call.
bool is_keyed_type(const c10::TypePtr& type, const OperatorFacts& facts) {
  switch (type->kind()) {
    case c10::TypeKind::OptionalType:
      return is_keyed_type(type->castRaw<c10::OptionalType>()->getElementType(), facts);
    case c10::TypeKind::FloatType:
    case c10::TypeKind::NumberType:
      return facts.keys_floats;
    case c10::TypeKind::DeviceObjType:
      return false;
    default:
      return true;
  }
}

// Recurrent kernels save an unnamed state, and only while gradients are recorded.
bool has_state(const c10::FunctionSchema& schema) {
  static const std::set<std::string_view> states = {"reserve", "reserveSpace", "workspace",
                                                    "philox_seed", "rng_state"};
  return schema.name().find("_rnn") != std::string::npos ||
         std::any_of(
             schema.arguments().begin(), schema.arguments().end(),
             [](const c10::Argument& argument) { return states.contains(argument.name()); });
}

Operator describe(const c10::OperatorHandle& handle) {
  const c10::FunctionSchema& schema = handle.schema();
  std::string name(base_name(schema.name()));
  const OperatorFacts& facts = find_facts(name, handle);
  Operator op{.handle = handle,
              .facts = facts,
              .name = std::move(name),
              .is_inplace_view = handle.hasTag(at::Tag::inplace_view),
              .is_view = facts.is_view,
              .has_state = has_state(schema)};
  for (const c10::Argument& argument : schema.arguments()) {
    bool is_marked = argument.alias_info() && argument.alias_info()->isWrite();
    bool is_listed = std::ranges::find(facts.written, argument.name()) != facts.written.end();
    op.is_keyed.push_back(is_keyed_type(argument.type(), facts));
    op.is_written.push_back((is_marked && argument.name() != facts.scratch) || is_listed);
  }
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
  op.at_experts = at_experts(op.name, is_pointwise(op));
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
