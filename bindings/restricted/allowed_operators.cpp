// The operators that scripts of a restricted engine may call: those whose CPU kernels check their
// arguments before they use them for memory accesses. Each group states the reason to believe that.
// The fuzzer (tests/bindings/operator_fuzz) covers all of them: `operator_fuzz --restricted` calls
// them with wild arguments, and with tensors between inaccessible pages.
//
// Left out are:
// - backward kernels, which trust indices and statistics of a forward call (backward itself calls
//   them with correct ones),
// - operators that change the storage of a tensor (resize_, set_, data, as_strided_),
// - sparse, quantized and packed tensors,
// - kernels for other devices,
// - operators whose running time is an argument (Chebyshev, Hermite, Laguerre, Legendre,
//   combinations, matrix_power),
// - all `out` arguments.
#include "allowed_operators.h"

#include <algorithm>
#include <string_view>
#include <unordered_set>

namespace redco::lua {

namespace {

enum class InPlace : bool { no, yes };

struct Group {
  const char* why;
  InPlace in_place;  // whether NAME_ is allowed with NAME
  const char* names;
};

constexpr Group groups[] = {
    {"Element by element. TensorIterator broadcasts the sizes or refuses them, and gives the "
     "kernel "
     "pointers and strides of the tensors themselves; no element says where another one is.",
     InPlace::yes,
     "abs absolute acos acosh add addcdiv addcmul angle arccos arccosh arcsin arcsinh arctan "
     "arctan2 arctanh asin asinh atan atan2 atanh bitwise_and bitwise_left_shift bitwise_not "
     "bitwise_or bitwise_right_shift bitwise_xor ceil celu clamp clamp_max clamp_min clip complex "
     "conj_physical copysign cos cosh deg2rad digamma div divide elu eq erf erfc erfinv exp exp2 "
     "expm1 fix float_power floor floor_divide fmax fmin fmod frac frexp gcd ge gelu greater "
     "greater_equal gt hardshrink hardsigmoid hardswish hardtanh heaviside hypot i0 igamma igammac "
     "isclose isfinite isinf isnan isneginf isposinf isreal lcm ldexp le leaky_relu lerp less "
     "less_equal lgamma log log10 log1p log2 log_sigmoid logaddexp logaddexp2 logical_and "
     "logical_not logical_or logical_xor logit lt maximum minimum mish mul multiply mvlgamma "
     "nan_to_num ne neg negative nextafter not_equal polar polygamma positive pow rad2deg "
     "reciprocal relu relu6 remainder round rsqrt rsub selu sgn sigmoid sign signbit silu sin sinc "
     "sinh softplus softshrink special_digamma special_entr special_erf special_erfc "
     "special_erfcx special_erfinv special_exp2 special_expit special_expm1 special_gammainc "
     "special_gammaincc special_gammaln special_i0 special_i0e special_i1 special_i1e "
     "special_log1p special_log_ndtr special_logit special_multigammaln special_ndtr special_ndtri "
     "special_polygamma special_psi special_round special_sinc special_xlog1py special_xlogy "
     "special_zeta sqrt square sub subtract tan tanh threshold true_divide trunc where xlogy "
     "masked_fill fill zero copy glu prelu"},
    {"Reductions and scans. The dimension is wrapped and checked; the rest is as above.",
     InPlace::yes,
     "all allclose amax amin aminmax any argmax argmin count_nonzero cummax cummin cumprod cumsum "
     "cumulative_trapezoid diff equal frobenius_norm kthvalue linalg_norm linalg_vecdot "
     "linalg_vector_norm linalg_matrix_norm logcumsumexp log_softmax logsumexp max mean median min "
     "mode nanmean nanmedian nanquantile nansum norm prod quantile renorm softmax "
     "special_log_softmax "
     "special_logsumexp special_softmax std std_mean sum trapezoid trapz var var_mean sort argsort "
     "msort topk unique_consecutive unique_dim trace isin"},
    {"Views and what they are copied to. Sizes, dimensions and offsets are checked against the "
     "tensor.",
     InPlace::no,
     "atleast_1d atleast_2d atleast_3d broadcast_tensors broadcast_to "
     "adjoint chunk clone conj contiguous detach diag diag_embed diagflat diagonal "
     "diagonal_scatter "
     "dsplit expand expand_as flatten flip fliplr flipud hsplit imag mH mT matrix_H moveaxis "
     "movedim "
     "narrow narrow_copy numpy_T permute pixel_shuffle pixel_unshuffle channel_shuffle ravel real "
     "reshape reshape_as resolve_conj resolve_neg roll rot90 select select_scatter slice "
     "slice_scatter split split_with_sizes squeeze sum_to_size swapaxes swapdims t take_along_dim "
     "tensor_split tile to transpose type_as unbind unflatten unfold unsqueeze view view_as "
     "view_as_complex view_as_real vsplit repeat tril triu"},
    {"Questions about a tensor, answered from its description.", InPlace::no,
     "is_complex is_floating_point is_nonzero is_same_size is_signed is_conj is_neg item "
     "result_type "
     "promote_types can_cast size stride"},
    {"New tensors of sizes and values: the sizes are checked for their sign and for overflow.",
     InPlace::no,
     "arange bartlett_window blackman_window empty empty_like eye full full_like hamming_window "
     "hann_window kaiser_window linspace logspace new_empty new_full new_ones new_zeros ones "
     "ones_like range scalar_tensor tril_indices triu_indices zeros zeros_like block_diag "
     "cartesian_prod cat column_stack concat concatenate constant_pad_nd dstack hstack kron "
     "meshgrid "
     "outer pad_sequence row_stack stack vander vstack fft_fftfreq fft_rfftfreq"},
    {"Random numbers: as element by element; the sizes and probabilities are checked.",
     InPlace::yes,
     "alpha_dropout bernoulli cauchy dropout exponential feature_alpha_dropout feature_dropout "
     "geometric log_normal multinomial normal poisson rand rand_like randint randint_like randn "
     "randn_like random randperm rrelu uniform"},
    {"By index: the kernel compares every index with the size, and refuses those outside.",
     InPlace::yes,
     "embedding gather index index_add index_copy index_fill index_put index_select masked_scatter "
     "masked_select nonzero argwhere one_hot put repeat_interleave scatter scatter_add "
     "scatter_reduce "
     "take bincount bucketize searchsorted histc"},
    {"Products: the sizes of the matrices are compared before BLAS or oneDNN sees them.",
     InPlace::yes,
     "addbmm addmm addmv addr baddbmm bmm chain_matmul corrcoef cov cross dot einsum inner linear "
     "linalg_cross linalg_matmul linalg_multi_dot matmul mm mv tensordot vdot ger cdist "
     "cosine_similarity pairwise_distance dist"},
    {"Decompositions: the matrices are checked to be square or to fit before LAPACK sees a copy.",
     InPlace::no,
     "det inverse linalg_cholesky linalg_det linalg_eig linalg_eigh linalg_eigvals linalg_eigvalsh "
     "linalg_inv linalg_lu linalg_qr linalg_slogdet linalg_solve linalg_svd linalg_svdvals logdet "
     "linalg_solve_triangular linalg_pinv pinverse slogdet svd qr linalg_matrix_rank "
     "linalg_diagonal"},
    {"Fourier transforms: dimensions and lengths are checked and the signal is padded or cut.",
     InPlace::no,
     "fft_fft fft_fft2 fft_fftn fft_fftshift fft_hfft fft_ifft fft_ifft2 fft_ifftn fft_ifftshift "
     "fft_ihfft fft_irfft fft_irfft2 fft_irfftn fft_rfft fft_rfft2 fft_rfftn"},
    {"Layers: windows, channels and groups are checked against the input.", InPlace::no,
     "adaptive_avg_pool1d adaptive_avg_pool2d adaptive_max_pool1d adaptive_max_pool2d avg_pool1d "
     "avg_pool2d batch_norm conv1d conv2d conv3d conv_transpose1d conv_transpose2d "
     "conv_transpose3d "
     "group_norm gru_cell im2col instance_norm layer_norm lstm_cell max_pool1d max_pool2d "
     "max_pool1d_with_indices max_pool2d_with_indices pad reflection_pad1d reflection_pad2d "
     "replication_pad1d replication_pad2d rms_norm rnn_relu_cell rnn_tanh_cell "
     "scaled_dot_product_attention upsample_bicubic2d upsample_bilinear2d upsample_linear1d "
     "upsample_nearest1d upsample_nearest2d grid_sampler affine_grid_generator"},
    {"Losses: element by element, or by a class that is compared with the number of classes.",
     InPlace::no,
     "binary_cross_entropy binary_cross_entropy_with_logits cosine_embedding_loss "
     "cross_entropy_loss "
     "ctc_loss hinge_embedding_loss huber_loss kl_div l1_loss margin_ranking_loss mse_loss "
     "multi_margin_loss multilabel_margin_loss nll_loss nll_loss_nd poisson_nll_loss "
     "smooth_l1_loss "
     "soft_margin_loss triplet_margin_loss"},
    {"An internal one that redco.nn calls: a softmax.", InPlace::no, "_safe_softmax"},
};

std::unordered_set<std::string> all_names() {
  std::unordered_set<std::string> names;
  for (const Group& group : groups) {
    std::string_view rest = group.names;
    while (!rest.empty()) {
      size_t end = std::min(rest.find(' '), rest.size());
      std::string name(rest.substr(0, end));
      if (group.in_place == InPlace::yes) names.insert(name + "_");
      names.insert(std::move(name));
      rest.remove_prefix(std::min(end + 1, rest.size()));
    }
  }
  return names;
}

}  // namespace

bool is_allowed(const std::string& name) {
  static const std::unordered_set<std::string> names = all_names();
  return names.contains(name);
}

}  // namespace redco::lua
