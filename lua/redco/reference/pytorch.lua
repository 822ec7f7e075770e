--- The addresses of PyTorch's pages. A page exists for the names listed here.
local pytorch = {}

local stable = "https://docs.pytorch.org/docs/stable/"

-- The names of operators and functions by the pages that describe them: % stands for a name.
local names_by_page = {
  ["generated/torch.%.html"] = [[
    Generator abs absolute acos acosh add addbmm addcdiv addcmul addmm addmv addr adjoint all
    allclose amax amin aminmax angle any arange arccos arccosh arcsin arcsinh arctan arctan2
    arctanh are_deterministic_algorithms_enabled argmax argmin argsort argwhere as_strided asin
    asinh atan atan2 atanh atleast_1d atleast_2d atleast_3d baddbmm bartlett_window bernoulli
    bincount bitwise_and bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift
    bitwise_xor blackman_window block_diag bmm broadcast_tensors broadcast_to bucketize can_cast
    cartesian_prod cat cdist ceil chain_matmul cholesky cholesky_inverse cholesky_solve chunk
    clamp clip clone column_stack combinations complex concat concatenate conj conj_physical
    copysign corrcoef cos cosh count_nonzero cov cross cummax cummin cumprod cumsum
    cumulative_trapezoid deg2rad dequantize det diag diag_embed diagflat diagonal
    diagonal_scatter diff digamma dist div divide dot dsplit dstack einsum empty empty_like
    empty_strided enable_grad eq equal erf erfc erfinv exp exp2 expm1 eye
    fake_quantize_per_channel_affine fake_quantize_per_tensor_affine fix flatten flip fliplr
    flipud float_power floor floor_divide fmax fmin fmod frac frexp from_file frombuffer full
    full_like gather gcd ge geqrf ger get_float32_matmul_precision get_num_threads gradient
    greater greater_equal gt hamming_window hann_window heaviside histc histogram histogramdd
    hsplit hstack hypot i0 igamma igammac imag index_add index_copy index_reduce index_select
    inner inverse is_complex is_conj is_floating_point is_grad_enabled is_nonzero is_tensor
    isclose isfinite isin isinf isnan isneginf isposinf isreal istft kaiser_window kron kthvalue
    lcm ldexp le lerp less less_equal lgamma linspace load log log10 log1p log2 logaddexp
    logaddexp2 logcumsumexp logdet logical_and logical_not logical_or logical_xor logit logspace
    logsumexp lt lu_solve lu_unpack manual_seed masked_select matmul matrix_exp matrix_power max
    maximum mean median meshgrid min minimum mm mode moveaxis movedim msort mul multinomial
    multiply mv mvlgamma nan_to_num nanmean nanmedian nanquantile nansum narrow narrow_copy ne
    neg negative nextafter no_grad nonzero norm normal not_equal ones ones_like orgqr ormqr
    outer permute pinverse poisson polar polygamma positive pow prod promote_types qr quantile
    quantize_per_channel quantize_per_tensor quantized_batch_norm quantized_max_pool1d
    quantized_max_pool2d rad2deg rand rand_like randint randint_like randn randn_like randperm
    range ravel real reciprocal remainder renorm repeat_interleave reshape resolve_conj
    resolve_neg result_type roll rot90 round row_stack rsqrt save scatter scatter_add
    scatter_reduce searchsorted select select_scatter set_float32_matmul_precision
    set_num_threads sgn sigmoid sign signbit sin sinc sinh slice_scatter slogdet softmax sort
    sparse_bsc_tensor sparse_bsr_tensor sparse_coo_tensor sparse_csc_tensor sparse_csr_tensor
    split sqrt square squeeze stack std std_mean stft sub subtract sum svd swapaxes swapdims t
    take take_along_dim tan tanh tensor tensor_split tensordot tile topk trace transpose
    trapezoid trapz triangular_solve tril tril_indices triu triu_indices true_divide trunc
    unbind unflatten unique_consecutive unsqueeze use_deterministic_algorithms vander var
    var_mean vdot view_as_complex view_as_real vsplit vstack where xlogy zeros zeros_like]],
  ["generated/torch.nn.functional.%.html"] = [[
    adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d
    adaptive_max_pool2d adaptive_max_pool3d alpha_dropout avg_pool1d avg_pool2d avg_pool3d
    batch_norm bilinear binary_cross_entropy binary_cross_entropy_with_logits celu conv1d conv2d
    conv3d conv_transpose1d conv_transpose2d conv_transpose3d cosine_embedding_loss
    cosine_similarity ctc_loss dropout elu elu_ embedding embedding_bag feature_alpha_dropout
    fractional_max_pool2d fractional_max_pool3d gelu glu group_norm hardshrink hardsigmoid
    hardswish hardtanh hardtanh_ hinge_embedding_loss huber_loss instance_norm kl_div l1_loss
    layer_norm leaky_relu leaky_relu_ linear log_softmax margin_ranking_loss max_pool1d
    max_pool2d max_pool3d max_unpool2d max_unpool3d mish mse_loss multi_margin_loss
    multilabel_margin_loss nll_loss one_hot pad pairwise_distance pdist pixel_shuffle
    pixel_unshuffle poisson_nll_loss prelu relu relu6 relu_ rms_norm rrelu rrelu_
    scaled_dot_product_attention selu silu smooth_l1_loss soft_margin_loss softplus softshrink
    threshold threshold_ triplet_margin_loss unfold]],
  ["generated/torch.Tensor.%.html"] = [[
    abs_ absolute_ acos_ acosh_ add_ addbmm_ addcdiv_ addcmul_ addmm_ addmv_ addr_ arccos_
    arccosh_ arcsin_ arcsinh_ arctan2_ arctan_ arctanh_ as_strided_ asin_ asinh_ atan2_ atan_
    atanh_ backward baddbmm_ bernoulli_ bfloat16 bitwise_and_ bitwise_left_shift_ bitwise_not_
    bitwise_or_ bitwise_right_shift_ bitwise_xor_ bool cauchy_ ceil_ chalf clamp_ clip_ coalesce
    col_indices conj_physical_ contiguous copy_ copysign_ cos_ cosh_ cpu crow_indices cuda
    cumprod_ cumsum_ data_ptr deg2rad_ dense_dim detach detach_ device digamma_ dim div_ divide_
    double eq_ erf_ erfc_ erfinv_ exp2_ exp_ expand expand_as expm1_ exponential_ fill_
    fill_diagonal_ fix_ float float_power_ floor_ floor_divide_ fmod_ frac_ gcd_ ge_ geometric_
    grad greater_ greater_equal_ gt_ half heaviside_ hypot_ i0_ igamma_ igammac_ index_add_
    index_copy_ index_fill index_fill_ index_put index_put_ index_reduce_ indices int int_repr
    is_coalesced is_contiguous is_leaf is_pinned is_set_to is_signed item lcm_ ldexp_ le_ lerp_
    less_ less_equal_ lgamma_ log10_ log1p_ log2_ log_ log_normal_ logical_and_ logical_not_
    logical_or_ logical_xor_ logit_ long lt_ masked_fill masked_fill_ masked_scatter
    masked_scatter_ mul_ multiply_ mvlgamma_ nan_to_num_ nbytes ndim ne_ neg_ negative_
    new_empty new_empty_strided new_full new_ones new_zeros nextafter_ normal_ not_equal_ numel
    pin_memory polygamma_ pow_ put put_ q_per_channel_axis q_per_channel_scales
    q_per_channel_zero_points q_scale q_zero_point rad2deg_ random_ reciprocal_ record_stream
    remainder_ renorm_ repeat requires_grad requires_grad_ reshape_as resize_ resize_as_
    retain_grad retains_grad round_ rsqrt_ scatter_ scatter_add_ scatter_reduce_ sgn_ sigmoid_
    sign_ sin_ sinc_ sinh_ size sparse_dim sparse_mask sparse_resize_ sparse_resize_and_clear_
    sqrt_ square_ squeeze_ stride sub_ subtract_ sum_to_size swapaxes_ swapdims_ t_ tan_ tanh_
    to to_dense to_mkldnn to_sparse to_sparse_bsc to_sparse_bsr to_sparse_csc to_sparse_csr
    tolist transpose_ tril_ triu_ true_divide_ trunc_ type_as uniform_ unsqueeze_ values view
    view_as xlogy_ zero_]],
}

-- Entries of the reference whose PyTorch page has another name.
local others = {  -- false: PyTorch's function with this name does something else
  ["torch"] = "torch.html", ["Tensor"] = "tensors.html", ["redco.nn"] = "nn.html",
  ["redco.nn.init"] = "nn.init.html", ["redco.optim"] = "optim.html", ["torch.jit"] = "jit.html",
  ["torch.autograd"] = "autograd.html", ["torch.backends"] = "backends.html",
  ["torch.cuda"] = "cuda.html", ["torch.fft"] = "fft.html", ["torch.linalg"] = "linalg.html",
  ["torch.special"] = "special.html",
  ["torch.autograd.grad"] = "generated/torch.autograd.grad.html",
  ["torch.set_grad_enabled"] = "generated/torch.autograd.grad_mode.set_grad_enabled.html",
  ["torch.jit.load"] = "generated/torch.jit.load.html",
  ["torch.autocast"] = "amp.html#torch.autocast",
  ["Tensor:full"] = false,  -- gathers a sharded tensor
  ["Tensor.T"] = "tensors.html#torch.Tensor.T",
  ["redco.checkpoint"] = "checkpoint.html#torch.utils.checkpoint.checkpoint",
  ["redco.grad"] = "generated/torch.func.grad.html",
  ["redco.value_and_grad"] = "generated/torch.func.grad_and_value.html",
  ["redco.vmap"] = "generated/torch.func.vmap.html",
  ["redco.distributions"] = "distributions.html",
  ["redco.nn.attention"] = "generated/torch.nn.functional.scaled_dot_product_attention.html",
  ["redco.optim.adafactor"] = "generated/torch.optim.Adafactor.html",
  ["redco.optim.adam"] = "generated/torch.optim.Adam.html",
  ["redco.optim.adamw"] = "generated/torch.optim.AdamW.html",
  ["redco.optim.adagrad"] = "generated/torch.optim.Adagrad.html",
  ["redco.optim.muon"] = "generated/torch.optim.Muon.html",
  ["redco.optim.on_plateau"] = "generated/torch.optim.lr_scheduler.ReduceLROnPlateau.html",
  ["redco.optim.one_cycle_schedule"] = "generated/torch.optim.lr_scheduler.OneCycleLR.html",
  ["redco.optim.rmsprop"] = "generated/torch.optim.RMSprop.html",
  ["redco.optim.sgd"] = "generated/torch.optim.SGD.html",
  ["redco.optim.clip_by_global_norm"] = "generated/torch.nn.utils.clip_grad_norm_.html",
}
for page, names in pairs {
  ["generated/torch.cuda.%.html"] = [[current_device device_count get_device_name is_available
    set_device synchronize Event]],
  ["generated/torch.cuda.memory.%.html"] = [[empty_cache max_memory_allocated max_memory_reserved
    mem_get_info memory_allocated memory_reserved reset_peak_memory_stats]],
} do
  for name in names:gmatch "%S+" do others["torch.cuda." .. name] = page:gsub("%%", name) end
end
for name in ([[Conv1d Conv2d Conv3d ConvTranspose1d ConvTranspose2d ConvTranspose3d Embedding
  EmbeddingBag GRU GRUCell GroupNorm LSTM LSTMCell LayerNorm Linear MultiheadAttention RMSNorm RNN
  RNNCell]]):gmatch "%S+" do
  others["redco.nn." .. name] = "generated/torch.nn." .. name .. ".html"
end
for name in ([[adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d
  adaptive_max_pool2d adaptive_max_pool3d avg_pool1d avg_pool2d avg_pool3d batch_norm
  binary_cross_entropy binary_cross_entropy_with_logits conv1d conv2d conv3d conv_transpose1d
  conv_transpose2d conv_transpose3d cosine_embedding_loss cross_entropy ctc_loss dropout embedding
  embedding_bag gaussian_nll_loss group_norm hinge_embedding_loss huber_loss instance_norm kl_div
  l1_loss layer_norm linear margin_ranking_loss max_pool1d max_pool2d max_pool3d mse_loss
  multi_margin_loss multilabel_margin_loss multilabel_soft_margin_loss nll_loss poisson_nll_loss
  rms_norm smooth_l1_loss soft_margin_loss triplet_margin_loss]]):gmatch "%S+" do
  others["redco.nn." .. name] = "generated/torch.nn.functional." .. name .. ".html"
end
for name in ([[calculate_gain constant_ dirac_ eye_ kaiming_normal_ kaiming_uniform_ normal_ ones_
  orthogonal_ sparse_ trunc_normal_ uniform_ xavier_normal_ xavier_uniform_
  zeros_]]):gmatch "%S+" do
  others["redco.nn.init." .. name] = "nn.init.html#torch.nn.init." .. name
end

for name in ("Bernoulli Categorical Independent Normal"):gmatch "%S+" do
  others["redco.distributions." .. name] = "distributions.html#" .. name:lower()
end

local page_of = {}  -- by the name of an operator
for page, names in pairs(names_by_page) do
  for name in names:gmatch "%S+" do page_of[name] = page:gsub("%%", name) end
end

-- Operators of families: torch.fft_rfft is torch.fft.rfft, without a page for private ones.
local families = {
  fft = "generated/torch.fft.%.html", linalg = "generated/torch.linalg.%.html",
  special = "special.html#torch.special.%",
}

--- Returns the address of PyTorch's page about a full name of the reference or an operator,
--- "torch.abs" or "Tensor:abs", and the name of the function there; nil if there is none.
function pytorch.address(full_name)
  local page = others[full_name]
  if page == false then return nil end
  local name = full_name:match "^torch%.([%w_]+)$" or full_name:match "^Tensor[.:]([%w_]+)$"
  if not page and name then
    local family, member = name:match "^(%a+)_(%a[%w_]*)$"
    page = page_of[name] or families[family] and families[family]:gsub("%%", member)
  end
  if not page then return nil end
  return stable .. page, (page:gsub("%.html$", ""):match "[%w_.]+$")
end

return pytorch
