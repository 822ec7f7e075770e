// Rules for quantized weights: blocks [out, n, bytes], which are split between outputs or blocks.

#include "flops.h"
#include "rules.h"

#include <redco/quantized.h>

namespace redco::sharding {

namespace {

enum : int8_t { row, out, block, element, byte, choice };
constexpr uint64_t within_block = uint64_t{1} << element | uint64_t{1} << byte;

// A letter for the size of a block, which no argument has.
constexpr int8_t own_size = -1;

// Under sequence parallelism, gathers rows that mp splits if it also splits the weight, the last
// argument: then all ranks need all rows.
Call with_whole_rows(Call call) {
  const Placement& weight = call.tensors.back().placements[Mesh::mp];
  if (!call.mesh->sequence_parallel() || !weight.is_sharded()) return call;
  for (size_t i = 0; i + 1 < call.tensors.size(); ++i) {
    Placement& rows = call.tensors[i].placements[Mesh::mp];
    if (rows.is_sharded() && rows.dim == 0) rows = {};
  }
  return call;
}

CallPlan plan_of_blocks(const Call& call, Factors factors) {
  factors.whole = within_block | uint64_t{1} << choice;
  if (!may_overflow(call.tensors[0].tensor.scalar_type())) factors.linear = {1};
  return plan_by_factors(with_whole_rows(call), factors);
}

// redco::quantized_linear(x [rows, n, size], blocks, type, is_few_rows) -> [rows, out]
std::optional<CallPlan> times_blocks(const Call& call) {
  return plan_of_blocks(call, {{{row, block, element}, {out, block, byte}}, {{row, out}}});
}

// redco::quantized_linear_transposed(grad [rows, out], blocks, type) -> [rows, n, size]
std::optional<CallPlan> times_blocks_transposed(const Call& call) {
  return plan_of_blocks(call, {{{row, out}, {out, block, byte}}, {{row, block, own_size}}});
}

// redco::grouped_quantized_linear(x, numbers, blocks, type, is_transposed, is_few_rows). All
// weights get the layout of the first.
std::optional<CallPlan> grouped_blocks(const Call& call) {
  Call first = call;
  first.tensors.resize(3, call.tensors[0]);
  const Letters numbers{row, choice}, weight{out, block, byte};
  Letters x{row, block, element};
  if (call.tensors[0].tensor.dim() == 4) x.insert(x.begin() + 1, choice);
  CallPlan plan = call.boolean("is_transposed", false)
                      ? plan_of_blocks(first, {{{row, choice, out}, numbers, weight},
                                               {{row, choice, block, own_size}}})
                      : plan_of_blocks(first, {{x, numbers, weight}, {{row, choice, out}}});
  plan.inputs.resize(call.tensors.size(), plan.inputs[2]);
  return plan;
}

// redco::dequantize(blocks [..., n, bytes], type, dtype) -> [..., n, size]
std::optional<CallPlan> dequantize(const Call& call) {
  const Letters all = letters(call.tensors[0].tensor.dim());
  Letters result = all;
  result.back() = own_size;
  Factors factors{{all}, {result}};
  factors.whole = uint64_t{1} << all.back();
  return plan_by_factors(call, factors);
}

// redco::quantize(x [..., n size], type, importance [n size] or None) -> [..., n, bytes]
std::optional<CallPlan> quantize(const Call& call) {
  const Letters all = letters(call.tensors[0].tensor.dim());
  Letters result = all;
  result.back() = own_size;
  result.push_back(own_size);
  Factors factors{{all}, {result}};
  if (call.tensors.size() > 1) factors.inputs.push_back({all.back()});
  factors.whole = uint64_t{1} << all.back();
  return plan_by_factors(call, factors);
}

double block_size(const c10::IValue& type) {
  return double(find_block_type(type.toStringRef())->size);
}

// Counts a multiplication and an addition for each row and each element of the weight, in both
// products.
double flops(const Inputs& inputs) {
  at::IntArrayRef weight = sizes(inputs, 1);
  return 2 * double(sizes(inputs, 0)[0]) * double(weight[0] * weight[1]) * block_size(inputs[2]);
}

// Counts the same for each choice.
double grouped_flops(const Inputs& inputs) {
  const at::Tensor weight = inputs[2].toTensorVector().at(0);
  return 2 * double(inputs[1].toTensor().numel()) * double(weight.size(0) * weight.size(1)) *
         block_size(inputs[3]);
}

}  // namespace

const RuleTable& quantized_rules() {
  static const RuleTable table = [] {
    RuleTable table{{"redco::quantized_linear", times_blocks},
                    {"redco::quantized_linear_transposed", times_blocks_transposed},
                    {"redco::quantize", quantize},
                    {"redco::dequantize", dequantize}};
    table["redco::grouped_quantized_linear"] = grouped_blocks;
    table["redco::grouped_quantized_linear"].is_product = true;
    table["redco::grouped_quantized_linear"].flops = grouped_flops;
    for (const char* name : {"redco::quantized_linear", "redco::quantized_linear_transposed"}) {
      table[name].is_product = true;
      table[name].flops = flops;
    }
    return table;
  }();
  return table;
}

}  // namespace redco::sharding
