// Rules for quantized weights: blocks [out, n, bytes], which are split between outputs or blocks.

#include "flops.h"
#include "rules.h"

#include <redco/quantized.h>

namespace redco::sharding {

namespace {

enum : int8_t { row, out, block, element, byte };
constexpr uint64_t within_block = uint64_t{1} << element | uint64_t{1} << byte;

// The size of this letter is that of a block, which no argument has.
constexpr int8_t own_size = -1;

// Under sequence parallelism, rows that mp splits are gathered if it splits the weight: all ranks
// need them.
Call with_whole_rows(Call call) {
  Placement& rows = call.tensors[0].placements[Mesh::mp];
  if (call.mesh->sequence_parallel() && rows.is_sharded() && rows.dim == 0 &&
      call.tensors[1].placements[Mesh::mp].is_sharded())
    rows = {};
  return call;
}

CallPlan product(const Call& call, Factors factors) {
  factors.whole = within_block;
  if (!may_overflow(call.tensors[0].tensor.scalar_type())) factors.linear = {1};
  return plan_by_factors(with_whole_rows(call), factors);
}

// redco::quantized_linear(x [rows, n, size], blocks, type, is_few_rows) -> [rows, out]
std::optional<CallPlan> linear(const Call& call) {
  return product(call, {{{row, block, element}, {out, block, byte}}, {{row, out}}});
}

// redco::quantized_linear_transposed(grad [rows, out], blocks, type) -> [rows, n, size]
std::optional<CallPlan> transposed(const Call& call) {
  return product(call, {{{row, out}, {out, block, byte}}, {{row, block, own_size}}});
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

double block_size(const Inputs& inputs) {
  return double(find_block_type(inputs[2].toStringRef())->size);
}

// Of both products: a multiplication and an addition for each row and element of the weight.
double flops(const Inputs& inputs) {
  at::IntArrayRef weight = sizes(inputs, 1);
  return 2 * double(sizes(inputs, 0)[0]) * double(weight[0] * weight[1]) * block_size(inputs);
}

}  // namespace

const RuleTable& quantized_rules() {
  static const RuleTable table = [] {
    RuleTable table{{"redco::quantized_linear", linear},
                    {"redco::quantized_linear_transposed", transposed},
                    {"redco::quantize", quantize},
                    {"redco::dequantize", dequantize}};
    for (const char* name : {"redco::quantized_linear", "redco::quantized_linear_transposed"}) {
      table[name].is_product = true;
      table[name].flops = flops;
    }
    return table;
  }();
  return table;
}

}  // namespace redco::sharding
