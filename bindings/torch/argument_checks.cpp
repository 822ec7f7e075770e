// Argument checks that LibTorch's CPU kernels lack, by operator: without them a wrong argument
// reads or writes outside of a tensor, ends the process or never returns. GPU kernels check indices
// themselves.
#include "argument_checks.h"

#include "untransformed.h"

#include <redco/error.h>

#include <ATen/ExpandUtils.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>
#include <ATen/ops/_validate_sparse_compressed_tensor_args.h>
#include <ATen/ops/_validate_sparse_coo_tensor_args.h>
#include <ATen/ops/all.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/result_type.h>
#include <ATen/ops/scalar_tensor.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>
#include <vector>

namespace redco::lua {

namespace {

// The arguments of a call, by name.
class Call {
 public:
  Call(const c10::FunctionSchema& schema, c10::ArrayRef<c10::IValue> arguments)
      : schema_(schema), arguments_(arguments) {}

  // Returns None if this overload of the operator has no such argument.
  const c10::IValue& at(std::string_view name) const {
    static const c10::IValue none;
    for (size_t i = 0; i < arguments_.size(); ++i)
      if (schema_.arguments()[i].name() == name) return arguments_[i];
    return none;
  }
  // Returns an undefined tensor if the argument is missing or not a tensor.
  at::Tensor tensor(std::string_view name) const {
    const c10::IValue& value = at(name);
    return value.isTensor() ? value.toTensor() : at::Tensor();
  }
  std::vector<int64_t> integers(std::string_view name) const {
    const c10::IValue& value = at(name);
    return value.isIntList() ? value.toIntVector() : std::vector<int64_t>();
  }
  int64_t integer(std::string_view name, int64_t otherwise) const {
    const c10::IValue& value = at(name);
    return value.isInt() ? value.toInt() : otherwise;
  }

  template <class... Parts>
  void require(bool holds, const Parts&... parts) const {
    if (!holds)
      fail("torch.", schema_.name().substr(std::string_view("aten::").size()), ": ", parts...);
  }

 private:
  const c10::FunctionSchema& schema_;
  c10::ArrayRef<c10::IValue> arguments_;
};

// Returns the elements if they are in plain CPU memory. Of a vmap batch it returns all elements.
std::optional<at::Tensor> elements(const at::Tensor& given) {
  const at::Tensor tensor = untransformed(given);
  bool plain = tensor.defined() && tensor.device().is_cpu() && tensor.has_storage() &&
               tensor.layout() == at::kStrided && tensor.numel() > 0 &&
               !tensor.key_set().has(c10::DispatchKey::Fake);
  return plain ? std::optional(tensor.detach()) : std::nullopt;
}

// Checks that every element is from `least` to `limit` - 1. The kernel refuses non-integers.
void within(const Call& call, const char* name, int64_t least, int64_t limit) {
  auto tensor = elements(call.tensor(name));
  if (!tensor || !at::isIntegralType(tensor->scalar_type(), false)) return;
  auto [low, high] = at::aminmax(*tensor);
  int64_t smallest = low.item<int64_t>(), largest = high.item<int64_t>();
  call.require(smallest >= least && largest < limit, name, ": expected ", least, " to ", limit - 1,
               ", got ", smallest < least ? smallest : largest);
}

// Checks the class numbers, and the lengths that locate them.
void ctc_loss(const Call& call) {
  at::Tensor log_probs = call.tensor("log_probs"), targets = call.tensor("targets");
  if (!log_probs.defined() || !targets.defined() || log_probs.dim() < 1) return;
  int64_t n_classes = log_probs.size(-1);
  call.require(n_classes > 0, "log_probs: there are no classes, its sizes are ", log_probs.sizes());
  int64_t blank = call.integer("blank", 0);
  call.require(blank >= 0 && blank < n_classes, "blank: expected 0 to ", n_classes - 1, ", got ",
               blank);
  // The elements of a padded target beyond its length are not read.
  auto values = elements(targets);
  if (!values || !at::isIntegralType(values->scalar_type(), false)) return;
  std::vector<int64_t> lengths = call.integers("target_lengths");
  if (auto given = elements(call.tensor("target_lengths")); given) {
    if (!at::isIntegralType(given->scalar_type(), false)) return;
    at::Tensor flat = given->to(at::kLong).reshape(-1).contiguous();
    lengths.assign(flat.const_data_ptr<int64_t>(), flat.const_data_ptr<int64_t>() + flat.numel());
  }
  int64_t total = 0;
  for (int64_t length : lengths) {
    call.require(length >= 0, "target_lengths: expected 0 or more, got ", length);
    call.require(length <= targets.numel() - total || targets.dim() != 1,
                 "target_lengths: ", lengths, " are more than the ", targets.numel(), " targets");
    total += targets.dim() == 1 ? length : 0;
  }
  // The rows of a vmap batch cannot be distinguished.
  if (targets.dim() != 2 || values->dim() != 2 || targets.size(0) != int64_t(lengths.size())) {
    within(call, "targets", 0, n_classes);
    return;
  }
  for (int64_t i = 0; i < targets.size(0); ++i) {
    int64_t length = lengths[size_t(i)];
    call.require(length <= targets.size(1), "target_lengths: ", length, " is more than the ",
                 targets.size(1), " targets of row ", i);
    if (length == 0) continue;
    auto [low, high] = at::aminmax(values->select(0, i).narrow(0, 0, length));
    int64_t smallest = low.item<int64_t>(), largest = high.item<int64_t>();
    call.require(smallest >= 0 && largest < n_classes, "targets: expected 0 to ", n_classes - 1,
                 ", got ", smallest < 0 ? smallest : largest, " in row ", i);
  }
}

// LAPACK's pivots count from 1; those of 2 x 2 blocks are negative.
void ldl_pivots(const Call& call) {
  at::Tensor matrix = call.tensor("LD");
  if (matrix.defined() && matrix.dim() >= 2)
    within(call, "pivots", -matrix.size(-1), matrix.size(-1) + 1);
}

void lu_pivots(const Call& call) {
  at::Tensor matrix = call.tensor("LU_data"), pivots = call.tensor("LU_pivots");
  if (!matrix.defined() || !pivots.defined() || matrix.dim() < 2) return;
  std::vector<int64_t> expected = matrix.sizes().vec();
  expected.pop_back();
  expected.back() = std::min(matrix.size(-1), matrix.size(-2));
  call.require(pivots.sizes() == at::IntArrayRef(expected), "LU_pivots: expected the sizes ",
               expected, ", got ", pivots.sizes());
}

// LAPACK's eigenvalue iteration may not end on NaN.
void finite(const Call& call) {
  at::Tensor self = call.tensor("self").defined() ? call.tensor("self") : call.tensor("input");
  if (auto values = elements(self))
    call.require(at::isfinite(*values).all().item<bool>(),
                 "the matrix has NaN or infinite elements");
}

void segment_reduce(const Call& call) {
  const c10::IValue& is_unsafe = call.at("unsafe");
  call.require(!is_unsafe.isBool() || !is_unsafe.toBool(),
               "unsafe = true would skip the check of the lengths; omit it");
}

void sparse_coo(const Call& call) {
  at::Tensor indices = call.tensor("indices"), values = call.tensor("values");
  if (!elements(indices) || !values.defined() || call.at("size").isNone()) return;
  call.require(indices.scalar_type() == at::kLong, "indices: expected int64");
  at::_validate_sparse_coo_tensor_args(indices, values, call.integers("size"));
}

struct SparseLayout {
  const char* compressed;
  const char* plain;
  c10::Layout layout;
};

constexpr SparseLayout sparse_layouts[] = {{"crow_indices", "col_indices", at::kSparseCsr},
                                           {"ccol_indices", "row_indices", at::kSparseCsc},
                                           {"compressed_indices", "plain_indices", at::kSparseCsr}};

template <bool is_blocked>
void sparse_compressed(const Call& call) {
  for (const SparseLayout& each : sparse_layouts) {
    at::Tensor compressed = call.tensor(each.compressed), plain = call.tensor(each.plain),
               values = call.tensor("values");
    if (!compressed.defined() || !plain.defined() || !values.defined()) continue;
    c10::Layout layout = each.layout;
    if (is_blocked) layout = layout == at::kSparseCsr ? at::kSparseBsr : at::kSparseBsc;
    if (call.at("layout").isInt()) layout = call.at("layout").toLayout();
    if (call.at("size").isNone()) continue;
    at::_validate_sparse_compressed_tensor_args(compressed, plain, values, call.integers("size"),
                                                layout);
  }
}

void attention(const Call& call) {
  at::Tensor query = call.tensor("query"), key = call.tensor("key"), value = call.tensor("value");
  if (!query.defined() || !key.defined() || !value.defined()) return;
  if (query.dim() < 2 || key.dim() < 2 || value.dim() < 2) return;  // the operator refuses it
  call.require(key.size(-2) == value.size(-2), "key and value: expected the same length, got ",
               key.sizes(), " and ", value.sizes());
  for (const at::Tensor& tensor : {query, key, value})
    call.require(tensor.dim() < 3 || tensor.size(-3) > 0,
                 "query, key and value: expected one head or more, got ", query.sizes(), ", ",
                 key.sizes(), " and ", value.sizes());
}

// Checks the weights of each layer and direction: [gates x hidden, input], [gates x hidden,
// hidden], ...
template <int gates>
void recurrent(const Call& call) {
  at::Tensor input = call.tensor("input");
  if (!input.defined()) input = call.tensor("data");
  const c10::IValue& params = call.at("params");
  at::Tensor hidden = call.tensor("hx");
  if (call.at("hx").isTensorList() && !call.at("hx").toTensorVector().empty())
    hidden = call.at("hx").toTensorVector()[0];
  if (!input.defined() || !params.isTensorList() || !hidden.defined() || input.dim() < 1) return;
  bool has_biases = call.at("has_biases").isBool() && call.at("has_biases").toBool();
  bool both_ways = call.at("bidirectional").isBool() && call.at("bidirectional").toBool();
  int64_t n_layers = call.integer("num_layers", 1), size = hidden.dim() > 0 ? hidden.size(-1) : 0;
  std::vector<at::Tensor> weights = params.toTensorVector();
  size_t n_each = has_biases ? 4 : 2;
  bool projected = weights.size() > 0 && n_each > 0 && weights.size() % (n_each + 1) == 0 &&
                   weights.size() % n_each != 0;
  if (projected) return;  // the general path checks every product
  call.require(n_layers > 0 && n_layers < (int64_t{1} << 20) &&
                   weights.size() == n_each * size_t(n_layers * (both_ways ? 2 : 1)),
               "params: expected ", n_each, " for each layer and direction, got ", weights.size());
  for (size_t i = 0; i < weights.size(); ++i) {
    auto layer = int64_t(i / n_each) / (both_ways ? 2 : 1);
    int64_t inner = layer == 0 ? input.size(-1) : size * (both_ways ? 2 : 1);
    std::vector<int64_t> expected{gates * size};
    if (i % n_each < 2) expected.push_back(i % n_each == 0 ? inner : size);
    call.require(weights[i].sizes() == at::IntArrayRef(expected), "params[", i + 1,
                 "]: expected the sizes ", expected, ", got ", weights[i].sizes());
  }
}

void matrix_power(const Call& call) {
  call.require(call.integer("n", 0) != std::numeric_limits<int64_t>::min(), "n: out of range");
}

// The operator creates a tensor for each of the `r` positions.
void combinations(const Call& call) {
  call.require(call.integer("r", 2) <= 64, "r: expected at most 64, got ", call.integer("r", 2));
}

// Their sum is checked, but a negative number makes the kernel write before the result.
// https://github.com/pytorch/pytorch/issues/188938
void repeats(const Call& call) {
  if (!call.at("output_size").isNone())
    within(call, "repeats", 0, std::numeric_limits<int64_t>::max());
}

// Dividing the smallest integer by -1 is a floating-point exception, which ends the process.
// https://github.com/pytorch/pytorch/issues/138425
void truncated_division(const Call& call) {
  const c10::IValue& mode = call.at("rounding_mode");
  const c10::IValue& other = call.at("other");
  auto dividends = elements(call.tensor("self"));
  if (!dividends || !mode.isString() || mode.toStringRef() != "trunc") return;
  auto divisors = other.isScalar() ? std::optional(at::scalar_tensor(other.toScalar()))
                                   : elements(call.tensor("other"));
  if (!divisors) return;
  c10::ScalarType dtype = other.isScalar() ? at::result_type(*dividends, other.toScalar())
                                           : at::result_type(*dividends, *divisors);
  if (dtype != at::kInt && dtype != at::kLong) return;
  int64_t least =
      dtype == at::kInt ? std::numeric_limits<int32_t>::min() : std::numeric_limits<int64_t>::min();
  at::Tensor is_least = dividends->to(dtype).eq(least), is_minus_one = divisors->to(dtype).eq(-1);
  if (!is_least.any().item<bool>() || !is_minus_one.any().item<bool>()) return;
  // The places cannot be compared in a vmap batch, or if the sizes do not fit.
  bool meets = !at::are_expandable(is_least.sizes(), is_minus_one.sizes()) ||
               is_least.logical_and(is_minus_one).any().item<bool>();
  call.require(!meets, "the quotient of ", least, " and -1 does not fit in the dtype");
}

// Sums of larger numbers overflow in the computation of sizes.
// https://github.com/pytorch/pytorch/issues/169741
void window(const Call& call) {
  constexpr int64_t limit = int64_t{1} << 31;
  for (const char* name :
       {"padding", "pad", "kernel_size", "stride", "dilation", "output_padding"}) {
    std::vector<int64_t> numbers = call.integers(name);
    if (const c10::IValue& one = call.at(name); one.isInt()) numbers.push_back(one.toInt());
    for (int64_t number : numbers)
      call.require(number > -limit && number < limit, name, ": ", number, " is too large");
  }
}

struct Entry {
  const char* names;
  void (*check)(const Call&);
};

constexpr Entry checked_operators[] = {
    {"ctc_loss _ctc_loss", ctc_loss},
    {"repeat_interleave", repeats},
    {"div div_ divide divide_", truncated_division},
    {"pad constant_pad_nd replication_pad1d replication_pad2d replication_pad3d reflection_pad1d "
     "reflection_pad2d reflection_pad3d conv1d conv2d conv3d conv_transpose1d conv_transpose2d "
     "conv_transpose3d convolution _convolution im2col col2im max_pool1d max_pool2d max_pool3d "
     "max_pool1d_with_indices max_pool2d_with_indices max_pool3d_with_indices avg_pool1d "
     "avg_pool2d avg_pool3d",
     window},
    {"linalg_ldl_solve", ldl_pivots},
    {"lu_unpack", lu_pivots},
    {"linalg_eig linalg_eigvals _linalg_eigvals", finite},
    {"segment_reduce", segment_reduce},
    {"sparse_coo_tensor", sparse_coo},
    {"sparse_csr_tensor sparse_csc_tensor sparse_compressed_tensor", sparse_compressed<false>},
    {"sparse_bsr_tensor sparse_bsc_tensor", sparse_compressed<true>},
    {"scaled_dot_product_attention", attention},
    {"lstm", recurrent<4>},
    {"gru", recurrent<3>},
    {"rnn_tanh rnn_relu", recurrent<1>},
    {"matrix_power linalg_matrix_power", matrix_power},
    {"combinations", combinations},
};

// Operators that change the storage of a tensor; operators on weights packed by functions that are
// not in Lua; inner kernels whose arguments their outer operators check, and kernels of backward,
// which trust indices and statistics of a forward call; dimensions by name.
constexpr const char* withheld =
    "set_ set_data quantized_lstm_cell quantized_gru_cell quantized_rnn_relu_cell "
    "quantized_rnn_tanh_cell fbgemm_linear_int8_weight fbgemm_linear_int8_weight_fp32_activation "
    "fbgemm_linear_quantize_weight fbgemm_pack_quantized_matrix fbgemm_pack_gemm_matrix_fp16 "
    "fbgemm_linear_fp16_weight fbgemm_linear_fp16_weight_fp32_activation mkldnn_rnn_layer "
    "mkldnn_rnn_layer_backward slow_conv3d slow_conv3d_forward align_tensors align_as "
    "native_batch_norm native_batch_norm_backward batch_norm_backward native_layer_norm_backward "
    "native_group_norm native_group_norm_backward max_pool2d_with_indices_backward "
    "max_pool3d_with_indices_backward adaptive_max_pool2d_backward adaptive_max_pool3d_backward "
    "fractional_max_pool2d_backward fractional_max_pool3d_backward avg_pool2d_backward "
    "avg_pool3d_backward grid_sampler_2d_backward grid_sampler_3d_backward unfold_backward "
    "_ctc_loss_backward";

bool has_word(std::string_view words, std::string_view word) {
  while (!words.empty()) {
    size_t end = std::min(words.find(' '), words.size());
    if (words.substr(0, end) == word) return true;
    words.remove_prefix(std::min(end + 1, words.size()));
  }
  return false;
}

template <size_t i>
void run_check(const c10::FunctionSchema& schema, c10::ArrayRef<c10::IValue> arguments) {
  checked_operators[i].check(Call(schema, arguments));
}

template <size_t... i>
Check check_at(size_t index, std::index_sequence<i...>) {
  constexpr Check all[] = {run_check<i>...};
  return all[index];
}

}  // namespace

Check find_check(const std::string& name) {
  constexpr size_t n = std::size(checked_operators);
  std::string_view bare = std::string_view(name).substr(std::string_view("aten::").size());
  for (size_t i = 0; i < n; ++i)
    if (has_word(checked_operators[i].names, bare))
      return check_at(i, std::make_index_sequence<n>());
  return nullptr;
}

bool is_withheld(const std::string& name) { return has_word(withheld, name); }

}  // namespace redco::lua
