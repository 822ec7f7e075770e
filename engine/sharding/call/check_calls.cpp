// Logs operator calls, to check that all processes make the same ones.

#include "check_calls.h"

#include "../../mesh/spmd_log.h"

#include <redco/random.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

namespace redco::sharding {

using namespace mesh;

namespace {

bool logs_calls() {
  static const bool asked = [] {
    const char* value = std::getenv("REDCO_CHECK_SPMD");
    return value != nullptr && std::strcmp(value, "1") == 0;
  }();
  return asked && SpmdLog::get().is_on();
}

// Exact: different numbers have different texts.
template <class Number>
void append_number(std::string& text, Number number) {
  char digits[32];
  text.append(digits, std::to_chars(digits, digits + sizeof digits, number).ptr);
}

void append(std::string& text, c10::IntArrayRef numbers) {
  text += '[';
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (i > 0) text += ", ";
    append_number(text, numbers[i]);
  }
  text += ']';
}

bool is_contiguous(c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  int64_t expected = 1;
  for (size_t i = sizes.size(); i-- > 0;) {
    if (strides[i] != expected) return false;
    expected *= std::max<int64_t>(sizes[i], 1);
  }
  return true;
}

// Appends the logical metadata, and the value of a number that was wrapped as a tensor.
void append(std::string& text, const TensorArgument& argument) {
  const at::Tensor& tensor = argument.tensor;
  append_type(text, tensor.scalar_type(), tensor.sizes());
  if (!is_contiguous(tensor.sizes(), tensor.strides()))
    append(text += " strides ", tensor.strides());
  if (argument.impl) {
    if (tensor.storage_offset() != 0) append_number(text += " offset ", tensor.storage_offset());
    for (Mesh::Dim dim : Mesh::dims)
      if (const Placement& placement = argument.placements[dim]; !placement.is_replicated())
        text.append(" ").append(Mesh::facts[dim].name).append(" ").append(to_string(placement));
  } else if (tensor.dim() == 0 && tensor.is_cpu() && !tensor.is_complex() && !argument.is_written) {
    append_number(text += " ", tensor.item<double>());
  }
}

void append(std::string& text, const c10::IValue& value) {
  if (value.isInt()) {
    append_number(text, value.toInt());
  } else if (value.isBool()) {
    text += value.toBool() ? "true" : "false";
  } else if (value.isDouble()) {
    append_number(text, value.toDouble());
  } else if (value.isString()) {
    text.append("\"").append(value.toStringRef()).append("\"");
  } else if (value.isIntList()) {
    append(text, c10::IntArrayRef(value.toIntVector()));
  } else if (value.isGenerator()) {
    if (const CounterGenerator* rng = counter_generator(value.toGenerator())) {
      append_number(text += "rng ", rng->key());
      append_number(text += " + ", rng->count());
    } else {
      text += "generator";
    }
  } else if (value.isNone()) {
    text += "none";
  } else if (value.isList()) {
    text += '{';
    for (const c10::IValue& element : value.toListRef()) append(text, element), text += ' ';
    text += '}';
  }
}

std::string story(const Call& call) {
  std::string text = "calls " + call.op.name + "(";
  size_t next = 0;  // index in the call's tensors
  for (size_t i = 0; i < call.arguments.size(); ++i) {
    if (i > 0) text += ", ";
    bool has_tensors = next < call.tensors.size() && call.tensors[next].argument == i;
    if (!has_tensors) append(text, call.arguments[i]);
    // The size of a kernel's workspace depends on the local part.
    bool is_local = call.op.schema().arguments()[i].name() == "workspace";
    for (; next < call.tensors.size() && call.tensors[next].argument == i; ++next) {
      if (is_local) continue;
      if (call.tensors[next].element > 0) text += ' ';
      append(text, call.tensors[next]);
    }
  }
  return text += ')';
}

}  // namespace

InCall::InCall(const Call& call) : outer_(std::exchange(current_operator(), call.op.name)) {
  // One process alone may print a tensor, which detaches it, or read a number.
  if (logs_calls() && call.op.name != "aten::detach" && call.op.name != "aten::_local_scalar_dense")
    SpmdLog::get().add(story(call));
}

InCall::~InCall() { current_operator() = outer_; }

}  // namespace redco::sharding
