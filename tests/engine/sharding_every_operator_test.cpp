// Every ATen operator that can be called with tensors of one shape and numbers made up by its
// schema: on parts, and on sums whose terms cancel to the values, it must give what it gives on
// whole tensors.
#include "sharding_cases.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <iterator>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

using namespace redco;
using redco::testing::on_threads;
using redco::testing::placed;
using redco::testing::Tensors;
using torch::jit::Stack;

namespace {

// Names with any of these in them: no values to compare, no tensors of elements, not for users, or
// not what operators are for.
constexpr std::string_view left_out[] = {
    "empty",  "rand",   "dropout",       "rrelu",       "bernoulli", "multinomial", "sparse",
    "mkldnn", "cudnn",  "miopen",        "quant",       "fbgemm",    "from_file",   "sym_",
    "is_",    "item",   "record_stream", "nested",      "to_padded", "_version",    "output_nr",
    "data",   "retain", "storage",       "requires",    "_nnz",      "q_",          "int_repr",
    "crow",   "ccol",   "row_indices",   "col_indices", "values",    "coalesce",    "pin_memory",
    "normal", "lift",   "wrapped",       "poisson",     "binomial",  "numpy_T",     "refine_names",
    "rename", "align_", "batch_norm",
};

bool is_tried(const c10::OperatorHandle& op) {
  const std::string& name = op.schema().name();
  if (op.schema().arguments().empty()) return false;
  const c10::AliasInfo* alias = op.schema().arguments()[0].alias_info();
  bool is_inplace = name.ends_with("_") && !name.ends_with("__") && alias && alias->isWrite();
  if (!name.starts_with("aten::") || (op.schema().is_mutable() && !is_inplace)) return false;
  for (const c10::Argument& argument : op.schema().arguments())
    if (argument.name() == "generator") return false;
  if (name.starts_with("aten::_") && !name.starts_with("aten::_foreach_")) return false;
  return std::none_of(std::begin(left_out), std::end(left_out),
                      [&](std::string_view part) { return name.find(part) != std::string::npos; });
}

// Of the tensors of a call, in turn.
using Types = std::array<at::ScalarType, 2>;
using Pattern = std::array<Placement, 2>;

// A value for an argument, where there is a simple one. Tensors are put in later.
std::optional<c10::IValue> value_for(const c10::Argument& argument, at::IntArrayRef sizes,
                                     const Types& types, Tensors& tensors) {
  auto noise = [&] {
    auto generator = at::detail::createCPUGenerator(tensors.size() + 1);
    at::Tensor values = at::randn(sizes, generator, at::kDouble).mul_(2);
    tensors.push_back(values.to(types[tensors.size() % 2]));
    return tensors.back();
  };
  c10::TypePtr type = argument.type();
  if (type->kind() == c10::TypeKind::TensorType) return noise();
  if (type->isSubtypeOf(*c10::ListType::ofTensors()))
    return c10::List<at::Tensor>{noise(), noise()};
  if (argument.default_value()) return *argument.default_value();
  bool is_list = type->kind() == c10::TypeKind::ListType;
  if (is_list) type = type->castRaw<c10::ListType>()->getElementType();
  bool is_size = argument.name().find("size") != std::string::npos;
  switch (type->kind()) {
    case c10::TypeKind::OptionalType:
      return c10::IValue();
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType:
      if (is_list) return is_size ? sizes.vec() : std::vector<int64_t>{1};
      return int64_t{1};
    case c10::TypeKind::FloatType:
      return 0.5;
    case c10::TypeKind::NumberType:
      if (is_list) return std::nullopt;
      return at::Scalar(0.5);
    case c10::TypeKind::BoolType:
      return false;
    default:
      return std::nullopt;
  }
}

Tensors tensors_of(const Stack& results) {
  Tensors tensors;
  for (const c10::IValue& value : results) {
    if (value.isTensor()) tensors.push_back(value.toTensor());
    if (value.isTensorList())
      for (const at::Tensor& tensor : value.toTensorVector()) tensors.push_back(tensor);
  }
  return tensors;
}

// The stack with other tensors in the places of its own.
Stack with_tensors(const Stack& stack, const Tensors& tensors) {
  Stack result;
  size_t next = 0;
  for (const c10::IValue& value : stack) {
    if (value.isTensor()) {
      result.emplace_back(tensors[next++]);
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (size_t i = 0; i < value.toTensorList().size(); ++i) list.push_back(tensors[next++]);
      result.emplace_back(list);
    } else {
      result.push_back(value);
    }
  }
  return result;
}

std::string first_line(const std::exception& error) {
  std::string text = error.what();
  return text.substr(0, text.find('\n'));
}

bool is_documented(const std::string& error) {
  for (const char* part : {"share memory", "would move between"})
    if (error.find(part) != std::string::npos) return true;
  return false;
}

// Returns a text about the first difference, or an empty one.
std::string difference(const Tensors& actual, const Tensors& expected, double tolerance) {
  if (actual.size() != expected.size()) return "another number of results";
  for (size_t i = 0; i < actual.size(); ++i) {
    if (!expected[i].defined()) continue;
    at::Tensor a = full(actual[i]), e = expected[i];
    bool is_same = a.sizes() == e.sizes() && a.scalar_type() == e.scalar_type() &&
                   at::allclose(a, e, tolerance, tolerance, /*equal_nan=*/true);
    if (is_same) continue;
    std::ostringstream text;
    text << "result " << i << " is\n" << a << "\nnot\n" << e;
    return text.str();
  }
  return {};
}

// The results, and what has become of the arguments.
Tensors called(const c10::OperatorHandle& op, const Stack& stack, const Tensors& tensors) {
  at::NoGradGuard no_grad;
  Stack own = with_tensors(stack, tensors);
  op.callBoxed(&own);
  Tensors all = tensors_of(own);
  all.insert(all.end(), tensors.begin(), tensors.end());
  return all;
}

Tensors copies(const Tensors& tensors) {
  Tensors result;
  for (const at::Tensor& tensor : tensors) result.push_back(tensor.clone());
  return result;
}

void try_on_parts(const c10::OperatorHandle& op, const Stack& stack, const Tensors& tensors,
                  const Tensors& expected, const Pattern& pattern) {
  std::string failure;
  bool is_float = false;
  for (const Tensors* all : {&tensors, &expected})
    for (const at::Tensor& tensor : *all)
      is_float |= tensor.defined() && tensor.scalar_type() == at::kFloat;
  const double tolerance = is_float ? 1e-4 : 1e-9;
  try {
    on_threads(1, 2, [&](const std::shared_ptr<const Mesh>& mesh) {
      Tensors parts;
      for (const at::Tensor& tensor : tensors)
        parts.push_back(placed(tensor.clone(), mesh, {Placement(), {}, pattern[parts.size() % 2]}));
      std::string text = difference(called(op, stack, parts), expected, tolerance);
      if (mesh->coordinate(Mesh::mp) == 0) failure = text;
    });
  } catch (const std::exception& error) {
    failure = first_line(error);
    if (is_documented(failure)) failure.clear();
  }
  if (failure.empty()) return;
  std::ostringstream where;
  where << op.schema().name() << "." << op.schema().overload_name() << " of";
  for (size_t i = 0; i < tensors.size(); ++i)
    where << " " << tensors[i].scalar_type() << tensors[i].sizes() << " "
          << to_string(pattern[i % 2]);
  FAIL_CHECK(where.str() << ": " << failure);
}

// Tries an operator on tensors of these types and the first sizes that it takes. False, where it
// takes none.
bool try_operator(const c10::OperatorHandle& op, const Types& types,
                  const std::vector<Pattern>& patterns) {
  for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{5, 4}, {4, 4}, {2, 3, 4, 6}}) {
    Tensors tensors;
    Stack stack;
    for (const c10::Argument& argument : op.schema().arguments()) {
      auto value = value_for(argument, sizes, types, tensors);
      if (!value) return false;
      stack.push_back(*value);
    }
    if (tensors.empty()) return false;
    Tensors expected;
    try {
      expected = called(op, stack, copies(tensors));
    } catch (const std::exception&) {
      continue;
    }
    for (const Pattern& pattern : patterns)
      if (tensors.size() > 1 || pattern[0] == pattern[1])
        try_on_parts(op, stack, tensors, expected, pattern);
    return true;
  }
  return false;
}

}  // namespace

TEST_CASE("operators on parts and on sums that cancel give what they give on whole tensors") {
  const Placement whole, sum = Placement::reduction(), rows = Placement::shard(0),
                         columns = Placement::shard(1);
  const std::vector<Pattern> sums = {{sum, sum}, {sum, whole}, {whole, sum}};
  std::vector<Pattern> all = {{rows, rows}, {columns, columns}, {rows, whole}, {sum, columns}};
  all.insert(all.end(), sums.begin(), sums.end());
  int64_t n_tried = 0;
  const char* only = std::getenv("REDCO_TEST_CASE");
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    auto op = c10::Dispatcher::singleton().findSchema(name);
    if (!op || !is_tried(*op) || (only && name.name != only)) continue;
    // The bits of a sum depend on the order of its terms.
    if (name.overload_name == "dtype" && name.name.starts_with("aten::view")) continue;
    n_tried += try_operator(*op, {at::kDouble, at::kDouble}, all);
    // Kernels of derivatives divide whole numbers by zero.
    if (!name.name.ends_with("_backward")) {
      try_operator(*op, {at::kLong, at::kLong}, {{sum, sum}});
      try_operator(*op, {at::kLong, at::kDouble}, sums);
    }
    try_operator(*op, {at::kDouble, at::kFloat}, sums);
  }
  MESSAGE(n_tried << " operators");
  CHECK((only || n_tried > 400));
}
