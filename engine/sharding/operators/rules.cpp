// Finds the rule of an operator.

#include "rules.h"

#include <redco/error.h>

namespace redco::sharding {

Letters letters(int64_t n_dims, int first) {
  Letters result;
  for (int64_t dim = 0; dim < n_dims; ++dim) result.push_back(int8_t(first + dim));
  return result;
}

namespace {

// Collects all tables. Two rows for one operator are an error.
RuleTable collect_rows() {
  RuleTable all;
  for (const RuleTable* table : {&product_rules(),          &quantized_rules(),
                                 &reduction_rules(),        &view_rules(),
                                 &reshaping_rules(),        &pointwise_rules(),
                                 &softmax_rules(),          &loss_rules(),
                                 &embedding_rules(),        &normalization_rules(),
                                 &batch_norm_rules(),       &convolution_rules(),
                                 &spatial_rules(),          &attention_rules(),
                                 &recurrent_rules(),        &list_rules(),
                                 &random_rules(),           &storage_rules(),
                                 &indexing_rules(),         &advanced_indexing_rules(),
                                 &own_dimension_rules(),    &joining_rules(),
                                 &padding_rules(),          &statistics_rules(),
                                 &extremes_rules(),         &strided_view_rules(),
                                 &searching_rules(),        &fused_loss_rules(),
                                 &elementwise_loss_rules(), &ctc_loss_rules(),
                                 &slicing_rules(),          &rotary_rules()})
    for (const auto& [name, facts] : *table)
      require(all.emplace(name, facts).second, "two rows for ", name);
  return all;
}

const RuleTable& all_rows() {
  static const RuleTable all = collect_rows();
  return all;
}

}  // namespace

std::string_view base_name(std::string_view name) {
  bool is_inplace = name.ends_with('_') && !name.ends_with("__");
  if (is_inplace) name.remove_suffix(1);
  return name;
}

const OperatorFacts& find_facts(const std::string& name, const c10::OperatorHandle& handle) {
  const RuleTable& all = all_rows();
  static const OperatorFacts none;
  if (auto found = all.find(name); found != all.end()) return found->second;
  constexpr std::string_view list_prefix = "aten::_foreach_";
  if (name.starts_with(list_prefix)) return all.at(list_prefix);
  if (handle.hasTag(at::Tag::pointwise)) return all.at("");
  return none;
}

FlopFormula find_flops(std::string_view name) {
  auto found = all_rows().find(base_name(name));
  return found == all_rows().end() ? nullptr : found->second.flops;
}

}  // namespace redco::sharding
