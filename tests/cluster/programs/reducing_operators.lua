--- Rows as in operators.lua: reductions, products, layers and losses, transforms.
local reductions, products, layers, losses, transforms = {}, {}, {}, {}, {}

for _, text in ipairs { "<x>:sum(<d><k>)", "<x>:mean(<d><k>)", "<x>:sum { <D> }",
  "<x>:mean({ <D> }<k>)",
  "<x>:sum()", "<x>:mean()", "<x>:prod()", "<x>:prod(<d><k>)", "<x>:amax({ <D> }<k>)",
    "<x>:amin(<d><k>)",
  "<x>:max()", "<x>:min()", "<x>:norm()", "<x>:norm(1)", "torch.linalg.vector_norm(<x>, 3)",
  "torch.linalg.vector_norm(<x>, inf)", "torch.linalg.vector_norm(<x>, -inf)",
  "torch.linalg.vector_norm(<x>, 2, { <D> }<k>)", "torch.linalg.vector_norm(<x>, 0)",
  "torch.linalg.vector_norm(<x>, 1, { <D> })", "torch.linalg.vector_norm(<x>, 0.5)",
  "<x>:var()", "<x>:std()", "<x>:var(<d>)", "<x>:std({ <D> }, { correction = 0 })", "<x>:nansum()",
  "<x>:var({ <D> }, { correction = 1, keepdim = true })", "<x>:logsumexp({ <D> }<k>)",
    "<x>:cumsum(<d>)",
  "<x>:cumprod(<d>)", "<x>:nansum(<d>)", "<x>:logcumsumexp(<d>)", "<x>:softmax(<d>)",
    "<x>:nanmean(<d>)",
  "<x>:log_softmax(<d>)", "torch.linalg.vector_norm(<x>, inf, { <D> })", "torch.trace(<x>)",
  "<x>:norm(2, { <d> }<k>)", "<x>:renorm(2, <d>, 1)", "<x>:diff(1, <d>)", "torch.dist(<x>, <s>)",
  "<x>:sum(<d><k>)", "<x>:sum(<d><k>)", "<x>:mean(<d><k>)" } do
  reductions[#reductions + 1] = { text, dims = text == "torch.trace(<x>)" and { 2, 2 } or nil }
end
for _, row in ipairs {
  { "<x>:max(<d><k>)", n = 2, weight = 2 }, { "<x>:min(<d><k>)", n = 2 },
    { "<x>:argmax(<d><k>)", weight = 0.5 },
  { "<x>:argmin()", weight = 0.5 }, { "<x>:argmax()", weight = 0.5 },
    { "<x>:sort(<d>)", n = 2, distinct = true },
  { "<x>:sort { stable = true, dim = <d>, descending = true }", n = 2 },
    { "<x>:topk(<some>, <d>)", n = 2, distinct = true },
  { "<x>:aminmax { dim = <d> }", n = 2 }, { "<x>:aminmax()", n = 2 }, { "<x>:cummax(<d>)", n = 2 },
  { "<x>:cummin(<d>)", n = 2 }, { "<x>:median(<d>)", n = 2, distinct = true }, { "<x>:median()" },
  { "<x>:kthvalue(<some>, <d>)", n = 2, distinct = true },
    { "<x>:argsort(<d>)", distinct = true, weight = 0.5 },
  { "<x>:any(<d>)", kind = "bool" }, { "torch.var_mean(<x>, <d>)", n = 2 },
    { "torch.std_mean(<x>)", n = 2 },
  { "<x>:sum()", kind = "int" }, { "<x>:sum(<d>)", kind = "int" },
    { "<x>:sum(<d>)", kind = "bool" },
  { "<x>:cumsum(<d>)", kind = "int" }, { "<x>:amax(<d>)", kind = "int" },
    { "<x>:max(<d>)", kind = "int", n = 2 },
  { "<x>:prod()", kind = "int" }, { "<x>:all()", kind = "bool" }, { "<x>:sum()", kind = "bool" },
  { "torch.equal(<x>, <s>) and <x> * 1 or <x> * 2", weight = 0.2 },
  { "torch.quantile(<x>, 0.3, <d>)", weight = 0.5,
    when = function(v) return v.x.dtype == "float64" end },
  { "torch._foreach_norm({ <x>, <s> }, 2)", n = "list", weight = 0.5 },
  { "torch.histc(<x>, 4, -1, 1)", weight = 0.3 }, { "torch.bincount(<x>:reshape { -1 }:abs())",
    kind = "int", weight = 0.3 },
} do
  reductions[#reductions + 1] = row
end

-- <w> and <w2> are tensors of sizes that are given as a list: a number is a dimension of <x>, "n" a
-- new size, "3" three.
for _, row in ipairs {
  { "<x>:mm(<w>)", dims = { 2, 2 }, w = { 1, "n" }, weight = 2 },
  { "<w>:mm(<x>)", dims = { 2, 2 }, w = { "n", 0 } },
  { "<x>:matmul(<w>)", w = { -1, "n" }, weight = 2 },
  { "<x>:matmul(<w>:t())", w = { "n", -1 }, weight = 2 },
  { "<x>:mv(<w>)", dims = { 2, 2 }, w = { 1 } },
  { "<x>:bmm(<w>)", dims = { 3, 3 }, w = { 0, 2, "n" }, weight = 2 },
  { "torch.linear(<x>, <w>, <w2>)", w = { "n", -1 }, w2 = { "n" }, weight = 3 },
  { "torch.linear(<x>, <w>)", w = { "n", -1 }, weight = 2 },
  { "torch.linear(<x>:transpose(<d>, -1), <w>):transpose(<d>, -1)", w = { "n", "d" }, weight = 2 },
  { "torch.addmm(<w2>, <x>, <w>)", dims = { 2, 2 }, w = { 1, "n" }, w2 = { "n" }, weight = 2 },
  { "torch.baddbmm(<w2>, <x>, <w>)", dims = { 3, 3 }, w = { 0, 2, "n" }, w2 = { "n" } },
  { "torch.einsum('ij,kj->ik', { <x>, <w> })", dims = { 2, 2 }, w = { "n", 1 } },
  { "torch.einsum('bij,jk->bki', { <x>, <w> })", dims = { 3, 3 }, w = { 2, "n" } },
  { "torch.einsum('bij,bik->jk', { <x>, <w> })", dims = { 3, 3 }, w = { 0, 1, "n" } },
  { "torch.outer(<x>, <w>)", dims = { 1, 1 }, w = { "n" } },
  { "<x>:matmul(<x>:transpose(-1, -2))", dims = { 2 } },
  { "<x>:transpose(-1, -2):matmul(<x>)", dims = { 2 } },
  { "torch.dot(<x>, <s>)", dims = { 1, 1 } },
  { "torch.einsum('i...->...', { <x> })" },
  { "torch.einsum('ij,ij->i', { <x>, <s> })", dims = { 2, 2 } },
  { "torch.cdist(<x>, <s> + 3)", dims = { 2, 2 }, weight = 0.3 },
  { "torch.kron(<x>, torch.ones({ 2 }, { dtype = <x>.dtype }))", dims = { 1, 1 }, weight = 0.3 },
  { "torch.tensordot(<x>, <w>, { <d> }, { 0 })", w = { "d", "n" }, weight = 0.5 },
  { "grouped_linear(<x>, <experts>, { <w>, <w2>, <w> })", dims = { 2, 2 }, w = { "n", -1 },
    w2 = { "n", -1 }, weight = 3 },
  { "quantized_linear(<x>, <w>)", w = { "n", -1 }, weight = 2,
    when = function(v) return v.x.dtype ~= "float16" end },
  { "grouped_quantized_linear(<x>, <experts>, { <w>, <w2>, <w> })", dims = { 2, 2 },
    w = { "n", -1 }, w2 = { "n", -1 }, weight = 2,
    when = function(v) return v.x.dtype ~= "float16" end },
} do
  row.dims = row.dims or { 1 }
  products[#products + 1] = row
end

-- LibTorch's convolutions of 16 bits give NaN beside the places of an infinite input too, which
-- places depends on the number of channels. Of two products, the first may round to 0, which an
-- infinite factor of the second makes NaN.
local function has_no_low_specials(v, draw)
  return not draw.is_special or not v.x.dtype:find "float16"
end
-- As torch.nn.functional requires: of one value per channel, rounding alone decides the result.
local function has_values(v) return v.x.numel ~= v.x.shape[2] end
for _, row in ipairs {
  { "torch.layer_norm(<x>, { <size-1> })", weight = 2 },
  { "torch.layer_norm(<x>, { <size-1> }, <w>, <w2>)", w = { -1 }, w2 = { -1 }, weight = 2 },
  { "torch.layer_norm(<x>, <x>.shape)" },
  { "torch.rms_norm(<x>, { <size-1> }, <w>, 1e-5)", w = { -1 } },
  -- Of two nearly equal numbers the second gradient is all rounding.
  { "torch.group_norm(<x>, <groups>, <w>, <w2>)", dims = { 2 }, w = { 1 }, w2 = { 1 }, weight = 2,
    when = function(v) return v.x.dtype == "float64" or v.x.ndim > 2 end },
  { "torch.batch_norm(<x>, <w>, <w2>, nil, nil, true, 0.1, 1e-5, false)", dims = { 2 }, w = { 1 },
    w2 = { 1 }, weight = 2, when = has_values },
  { "torch.batch_norm(<x>, nil, nil, nil, nil, true, 0.1, 1e-5, false)", dims = { 2 },
    when = has_values },
  { "torch.instance_norm(<x>, nil, nil, nil, nil, true, 0.1, 1e-5, false)", dims = { 3 } },
  { "torch.glu(<x>, <even_d>)" },
  { "with_rng(<seed>, torch.dropout, <x>, 0.4, true)", weight = 2 },
  { "dropout(<x>, <seed>)", weight = 2 },
  { "softmax_dropout(<x>, nil, <seed>)" }, { "softmax_dropout(<x>, <s>:gt(0), <seed>)" },
  { "softmax_dropout(<x>, <s>:narrow(0, 0, 1):gt(-1), <seed>)", dims = { 2 },
    when = function(v) return v.x.numel > 0 end },
  { "with_rng(<seed>, torch.rand_like, <x>)", weight = 0.5 },
  { "with_rng(<seed>, torch.bernoulli, <x>:sigmoid())", weight = 0.5 },
  { "with_rng(<seed>, torch.feature_dropout, <x>, 0.4, true)", dims = { 2 }, weight = 0.5 },
  { "with_rng(<seed>, torch.randn_like, <x>)", weight = 0.5 },
  { "torch.avg_pool1d(<x>, 2, 1)", dims = { 2, 3 } },
  { "torch.max_pool1d(<x>, 2)", dims = { 2, 3 } },
  { "torch.adaptive_avg_pool1d(<x>, 2)", dims = { 2, 3 } },
  { "torch.avg_pool2d(<x>, 2)", dims = { 3, 4 } },
  { "torch.max_pool2d(<x>, 2, 1)", dims = { 3, 4 } },
  { "torch.adaptive_avg_pool2d(<x>, { 1, 2 })", dims = { 3, 4 } },
  { "torch.upsample_nearest1d(<x>, { 5 })", dims = { 3, 3 }, weight = 0.5 },
  { "torch.conv1d(<x>, <w>, nil, 1, 1)", dims = { 3, 3 }, w = { "n", 1, "3" }, weight = 2 },
  { "torch.conv1d(<x>, <w>, <w2>)", dims = { 3, 3 }, w = { "n", 1, "2" }, w2 = { "n" } },
  -- Parts that are long enough for neighbours to exchange their ends.
  { "torch.conv1d(torch.cat({ <x>, <x>, <x> }, 2), <w>, nil, 1, 1)", dims = { 3, 3 },
    w = { "n", 1, "3" } },
  { "torch.conv1d(torch.pad(torch.cat({ <x>, <x>, <x> }, 2), { 2, 0 }), <w>, nil, 2)",
    dims = { 3, 3 }, w = { "n", 1, "3" } },
  { "torch.conv2d(<x>, <w>, nil, <n>, 1)", dims = { 4, 4 }, w = { "n", 1, "2", "2" }, weight = 2 },
  { "torch.conv_transpose1d(<x>, <w>)", dims = { 3, 3 }, w = { 1, "n", "2" }, weight = 0.5 },
  { "torch.conv_transpose2d(<x>, <w>, nil, 2)", dims = { 4, 4 }, w = { 1, "n", "2", "2" },
    weight = 0.5 },
  { "torch.adaptive_max_pool2d(<x>, { 1, 2 })", n = 2, dims = { 3, 4 }, weight = 0.5,
    distinct = true },
  { "torch.igamma(<x>:abs() + 0.5, <x>:detach():abs())", dims = { 1 }, weight = 0.2,
    when = function(v) return v.x.dtype == "float64" end },
  { "torch.scaled_dot_product_attention(<x>, <x>, <w>, { is_causal = <accumulate> })",
    dims = { 3, 3 },
    w = { 0, 1, 2 }, weight = 2 },
  -- LibTorch divides by the number of heads.
  { "torch.scaled_dot_product_attention(<x>, <s>, <x>)", dims = { 3, 4 }, weight = 2,
    when = function(v) return v.x.numel > 0 end },
  { "dropped_attention(<x>, <s>, <x>, <seed>)", dims = { 2, 4 }, weight = 2,
    when = function(v) return v.x.numel > 0 end },
  { "in_segments(<x>, <s>, <x>, <n>)", dims = { 4, 4 }, weight = 2,
    when = function(v) return v.x.numel > 0 end },
  { "torch.prelu(<x>, <w>)", dims = { 2 }, w = { 1 }, weight = 0.5 },
  { "torch.pixel_shuffle(<x>, 2)", dims = { 3, 4 }, weight = 0.2 },
  { "torch.cosine_similarity(<x>, <s>, <d>)" }, { "silu_mul(<x>, <s>)" },
  { "rotary(<x>, <s>, <accumulate>)", weight = 2 }, { "rotary(<x>, <s>, <accumulate>, true)" },
  { "rotary(<x>, <s>:narrow(0, 0, 1), <accumulate>)", dims = { 2 },
    when = function(v) return v.x.numel > 0 end },
  { "(function(h) return h + torch.linear(torch.linear(h, <w>):tanh(), <w2>) end)(<x>:tanh())",
    w = { "n", -1 }, w2 = { -1, "n" }, weight = 2, when = has_no_low_specials },
  { "(function(h) return h + torch.linear(torch.linear(h:transpose(-1, -2), <w>):tanh(), <w2>)"
    .. ":transpose(-1, -2) end)(<x>:tanh())", dims = { 2 }, w = { "n", -2 }, w2 = { -2, "n" },
    weight = 3, when = has_no_low_specials },
} do
  row.dims = row.dims or { 1 }
  if row[1]:find "^torch.conv" then row.when = has_no_low_specials end
  layers[#layers + 1] = row
end

for _, reduction in ipairs { 0, 1, 2 } do  -- none, mean, sum
  for _, text in ipairs { "torch.mse_loss(<x>, <s>, %d)", "torch.smooth_l1_loss(<x>, <s>, %d, 0.7)",
    "torch.l1_loss(<x>, <s>, %d)", "torch.huber_loss(<x>, <s>, %d)",
      "torch.soft_margin_loss(<x>, <s>:detach():tanh(), %d)",
    "torch.binary_cross_entropy_with_logits(<x>, <s>:sigmoid(), nil, nil, %d)",
    "torch.binary_cross_entropy(chance(<x>), chance(<s>), nil, %d)",
    "torch.kl_div(<x>:log_softmax(-1), <s>:softmax(-1), %d)",
    "torch.poisson_nll_loss(<x>, <s>:abs(), true, false, 1e-8, %d)" } do
    losses[#losses + 1] = { text:format(reduction), dims = { 1 } }
  end
  for _, row in ipairs {
    { "torch.cross_entropy_loss(<x>, <classes>, nil, %d, -100, 0)", weight = 2 },
    { "torch.cross_entropy_loss(<x>, <classes>, nil, %d, 1, 0.1)", weight = 2 },
    { "torch.cross_entropy_loss(<x>, <s>:softmax(1), nil, %d)" },
    { "torch.nll_loss(<x>:log_softmax(1), <classes>, nil, %d)", dims = { 2, 2 } },
    { "torch.cross_entropy_loss(<x>, <classes>, <class_weights>, %d)" },
    -- LibTorch's result of no rows is memory that nobody wrote.
    { "torch.multi_margin_loss(<x>, <classes>, 1, 1, nil, %d)", dims = { 2, 2 }, weight = 0.5,
      when = function(v) return v.x.numel > 0 end },
  } do
    losses[#losses + 1] = { row[1]:format(reduction), dims = row.dims or { 2, 3 },
      weight = row.weight, when = row.when }
  end
  losses[#losses + 1] = { ("ctc(<x>, %d)"):format(reduction), dims = { 3, 3 }, when = function(v)
    return v.x.numel > 0 and v.x.shape[3] > 1
      and (v.x.dtype == "float32" or v.x.dtype == "float64")
  end }
end
for _, row in ipairs {
  { "linear_cross_entropy(<x>, <w>, <row_classes>)" },
  { "linear_cross_entropy(<x>, <w>, <row_classes>, { bias = <w2>, ignore_index = 1 })",
    w2 = { "n" } },
  { "linear_cross_entropy(<x>, <w>, <row_classes>, { label_smoothing = 0.1 })" },
  { "linear_logprobs(<x>, <w>, <row_classes>, { bias = <w2>, ignore_index = 1 })", w2 = { "n" } },
} do
  row.dims, row.w, row.weight = { 2, 3 }, { "n", -1 }, 3
  losses[#losses + 1] = row
end
losses[#losses + 1] = { "torch.cosine_embedding_loss(<x>, <s>, torch.ones({ <size0> }, "
  .. "{ dtype = <x>.dtype }))", dims = { 2, 2 } }
losses[#losses + 1] = { "torch.margin_ranking_loss(<x>, <s>, <x>:detach():sign(), 0.2)" }
losses[#losses + 1] = { "torch.triplet_margin_loss(<x>, <s>, <x> * 0.5)", dims = { 2, 2 },
  weight = 0.5 }

-- Functions of one row, for vmap and grad.
for _, f in ipairs { "r:tanh() * 2", "r:softmax(0)", "r:sum(0)", "r - r:mean()",
  "r:transpose(0, -1)", "(r * r):sum()",
  "torch.cat({ r, r }, 0)", "r:cumsum(0)", "r:amax()", "r[0]", "r:reshape { -1 }",
    "r:clone():mul_(2)" } do
  transforms[#transforms + 1] = { ("vmap(function(r) return %s end)(<x>)"):format(f), dims = { 2 } }
  transforms[#transforms + 1] = { weight = 0.5, dims = { 2 },
    ("vmap(function(r) return %s end, { in_dims = <d> })(<x>)"):format(f) }
end
for _, f in ipairs { "p:tanh():sum()", "(p:pow(2) * <s>):mean()", "p:softmax(0):pow(2):sum()",
  "(p - p:mean()):pow(2):sum()",
  "p:logsumexp({ 0 }):sum()", "(p * p:detach()):sum()" } do
  transforms[#transforms + 1] = { ("gradient(function(p) return %s end)(<x>)"):format(f),
    dims = { 1 }, weight = 1.5 }
  if not f:find "<s>" then
    transforms[#transforms + 1] = { ("vmap(gradient(function(p) return %s end))(<x>)"):format(f),
      dims = { 2 } }
  end
end
-- The terms of a sum meet an infinite weight one by one: NaN (0 * inf), where their sum gives an
-- infinity, which tanh makes finite.
local function is_finite(_, draw) return not draw.is_special end
for _, row in ipairs {
  { "vmap(function(r) return torch.linear(r, <w>):tanh() end)(<x>)", w = { "n", -1 }, weight = 2,
    when = is_finite },
  { "vmap(function(r, w) return (r:unsqueeze(0) * w):sum(0) end, "
    .. "{ in_dims = { 0, false } })(<x>, <w>)", w = { "n", -1 } },
  { "vmap(gradient(function(w, r) return torch.linear(r, w):tanh():sum() end), "
    .. "{ in_dims = { false, 0 } })(<w>, <x>)", dims = { 2, 3 }, w = { "n", -1 }, weight = 2,
    when = is_finite },
  { "gradient(function(p) return gradient(function(q) return q:tanh():pow(2):sum() end)(p)"
    .. ":pow(2):sum() end)(<x>)" },
  { "vmap(vmap(function(r) return r:sum() * 2 end))(<x>)", dims = { 3 } },
  { "vmap(function(r, q) return (r * q):sum() end)(<x>, <s>)" },
  { "vmap(function(r) return with_rng(<seed>, torch.dropout, r, 0.5, true) end, "
    .. "{ randomness = 'same' })(<x>)", weight = 0.5 },
  { "checkpoint(function(p) return p:tanh():square() end, <x>)" },
  { "checkpoint(function(p) return p:softmax(0):matmul(p:transpose(-1, -2)) end, <x>)",
    dims = { 2, 3 } },
  { "no_grad(function() return <x> * 2 end)" },
} do
  row.dims = row.dims or { 2 }
  transforms[#transforms + 1] = row
end

-- Computed again in backward: checkpoints always, blocks if the Trainer is told so.
local recomputed = {}
for _, row in ipairs {
  { "h:tanh():square()" }, { "(h * <s>):softmax(-1)" }, { "h:clone():mul_(2):sin()" },
  { "torch.linear(h, <w>):tanh()", w = { "n", -1 } },
  { "torch.linear(h, <w>, <w2>):relu_()", w = { "n", -1 }, w2 = { "n" } },
  { "h + torch.linear(torch.linear(h, <w>):tanh(), <w2>)", w = { "n", -1 }, w2 = { -1, "n" } },
  { "with_rng(<seed>, torch.dropout, h, 0.4, true) * h" }, { "dropout(h, <seed>) * h" },
  { "rotary(h, h, true) * h" },
  { "script(h, <script>)" },
  { "shard(h, <placement>):exp()", when = is_finite },
  { "block(function(q) return q:sin() end, h)" },
  { "h" }, { "h:transpose(0, -1)" }, { "h:unsqueeze(0)" },
} do
  for _, how in ipairs { "block", "checkpoint" } do
    recomputed[#recomputed + 1] = { ("%s(function(h) return %s end, <x>)"):format(how, row[1]),
      dims = { 1 }, w = row.w, w2 = row.w2, when = row.when }
  end
end

local scripts = {
  { "script(<x>, <script>)", dims = { 1 } },
  { "with_rng(<seed>, script, <x>, 3)", dims = { 1 } },
}

return { recomputed = recomputed, scripts = scripts, reductions = reductions, products = products,
  layers = layers, losses = losses, transforms = transforms }
