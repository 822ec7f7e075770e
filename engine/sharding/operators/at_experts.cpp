// The operators of mixtures, and how each treats rows that are on the ranks of their experts.

#include "rules.h"

#include <unordered_map>

namespace redco::sharding {

AtExperts at_experts(const std::string& name, bool is_pointwise) {
  static const std::unordered_map<std::string_view, AtExperts> table = {
      {"redco::grouped_linear", AtExperts::product},
      {"redco::grouped_quantized_linear", AtExperts::product},
      {"redco::grouped_outer", AtExperts::gradients_of_weights},
      {"aten::embedding", AtExperts::table},
      {"aten::embedding_dense_backward", AtExperts::gradient_of_table},
      {"aten::sum", AtExperts::sum},
      {"aten::add", AtExperts::addition},
      {"aten::view", AtExperts::view},
      {"aten::_unsafe_view", AtExperts::view},
      {"aten::unbind", AtExperts::unbind},
      {"aten::stack", AtExperts::stack},
      {"aten::cat", AtExperts::along_dim},
      {"aten::glu", AtExperts::along_dim},
      {"aten::glu_backward", AtExperts::along_dim},
      {"aten::select", AtExperts::along_dim},
      {"aten::select_backward", AtExperts::along_dim},
      {"aten::slice", AtExperts::along_dim},
      {"aten::slice_backward", AtExperts::along_dim},
      {"aten::split", AtExperts::along_dim},
      {"aten::split_with_sizes", AtExperts::along_dim},
      {"redco::dropout", AtExperts::none},  // its numbers depend on the places of rows
  };
  auto found = table.find(name);
  if (found != table.end()) return found->second;
  return is_pointwise ? AtExperts::pointwise : AtExperts::none;
}

}  // namespace redco::sharding
