--- The operators that random programs are made of, by group. A row is a template and what it needs:
---   kind     of <x>: "float" (default), "int", "bool", "complex", "number" (float or int), "any"
---   dims     {least, most} dimensions of <x>
---   n        results (default 1); "list" for a list, 0 for a line that writes
---   writes   <x> is written to: it is no leaf
---   distinct <x> has no two equal elements, for its order decides
---   when     when(v, draw): whether the operator applies to the chosen tensors in this program
---   w, w2    sizes of the tensors <w> and <w2>
--- placeholders.lua has what may stand in <>.
local lists = {}

-- A result may not depend on whether a number was rounded to zero.
local function has_no_small(v, draw)
  return v.x.kind ~= "float" or not draw.env[v.x.name]:detach():abs():lt(0.02):any():item()
end

local function pointwise(list)
  for _, name in ipairs { "neg", "abs", "tanh", "sigmoid", "sin", "cos", "erf", "atan", "relu",
    "gelu",
    "silu", "elu", "softplus", "leaky_relu", "square", "sign", "floor", "round", "ceil",
    "trunc", "clone", "contiguous", "detach", "positive", "expm1", "asinh", "selu", "celu",
    "mish", "logsigmoid", "frac" } do
    list[#list + 1] = { ("<x>:%s()"):format(name == "logsigmoid" and "log_sigmoid" or name) }
  end
  -- At a NaN the gradients of these depend on whether LibTorch's loop is vectorized there.
  for _, name in ipairs { "hardtanh", "relu6", "hardswish", "hardsigmoid", "softshrink" } do
    list[#list + 1] = { ("<x>:%s()"):format(name),
      when = function(_, draw) return not draw.is_special end }
  end
  for _, text in ipairs { "<x>:tanh():exp()", "(<x>:abs() + 0.5):log()", "(<x>:abs() + 0.1):sqrt()",
    "(<x>:square() + 1):rsqrt()", "(<x>:abs() + 0.5):reciprocal()", "<x>:clamp(-0.5, 1.5)",
    "<x>:clamp { min = -0.3 }", "<x>:pow(2)", "<x>:pow(3)", "<x> * <c>", "<x> + <c>", "<c> - <x>",
    "<x> / <c>", "-<x>", "<x>:nan_to_num(0.5, 2, -2)", "<x>:masked_fill(<m>, <c>)",
    "(<x>:abs() + 1):pow(0.5)", "torch.threshold(<x>, 0.1, 0.2)", "<x>:logit(0.1)",
    "<x>:xlogy(<x>:abs() + 1)", "torch.sinc(<x>)", "<x>:gelu { approximate = 'tanh' }" } do
    list[#list + 1] = { text }
  end
  for _, text in ipairs { "<x> + <y>", "<x> - <y>", "<x> * <y>", "<x> / (<y>:abs() + 1)",
    "torch.maximum(<x>, <y>)", "torch.minimum(<x>, <y>)", "torch.where(<m>, <x>, <y>)",
    "<x>:add(<y>, { alpha = <c> })", "torch.hypot(<x>, <y>)", "<x>:lerp(<y>, 0.3)",
    "torch.addcmul(<x>, <y>, <y>, { value = 0.5 })", "torch.addcdiv(<x>, <y>, <y>:abs() + 1)",
    -- A sum does not keep the sign of a zero.
    "torch.atan2(<x> + 0.1, <y>)", "<x>:copysign(<y>:nan_to_num(1) + 0.1)", "torch.fmod(<x>, 0.7)",
    "<x>:remainder(0.9)",
    "torch.where(<x>:gt(<y>), <x>, <c>)", "torch.where(<m>, 0.5, <x>)",
      "<x>:sub(<y>, { alpha = 2 })",
    "torch.logaddexp(<x>, <y>)", "<x>:mul(<y>:sigmoid())", "<x>:xlogy(<y>:abs() + 0.5)",
    "torch.fmax(<x>, <y>)", "torch.fmin(<x>, <y>)", "torch.rsub(<x>, <y>)" } do
    list[#list + 1] = { text, weight = 2 }
  end
  for _, text in ipairs { "<x>:gt(<y>)", "<x>:le(<c>)", "<x>:eq(<y>)", "<x>:ne(0)", "<x>:isnan()",
    "<x>:isfinite()", "<x>:logical_not()", "torch.isclose(<x>, <y>)", "<x>:lt(0.1)",
    -- The sign of a NaN is arbitrary.
    "(<x> + 0.1):nan_to_num():signbit()" } do
    list[#list + 1] = { text, weight = 0.4 }
  end
end

local function other_dtypes(list)
  for _, text in ipairs { "<x> + <y>", "<x> * 2", "<x> - <y>", "-<x>", "<x>:abs()", "<x>:fmod(3)",
    "<x>:bitwise_and(<y>)", "<x>:bitwise_xor(5)", "<x>:double()", "<x>:eq(<y>)", "<x>:clamp(-1, 3)",
    "<x>:float()", "<x>:ne(1)", "torch.maximum(<x>, <y>)", "torch.floor_divide(<x>, 2)",
    "<x> / 2" } do
    list[#list + 1] = { text, kind = "int", weight = 0.6 }
  end
  for _, text in ipairs { "<x>:logical_and(<y>)", "<x>:bitwise_or(<y>)", "<x>:logical_not()",
    "<x>:double()", "<x>:long()", "<x>:logical_xor(<y>)", "torch.where(<x>, 1.5, -0.5)" } do
    list[#list + 1] = { text, kind = "bool", weight = 0.6 }
  end
  for _, text in ipairs { "<x> * <y>", "<x> + <y>", "<x>:abs()", "<x>:conj()",
    "torch.view_as_real(<x>)",
    "torch.real(<x>)", "torch.imag(<x>)", "<x>:sum()", "<x>:angle()", "<x>:sum(<d>)",
      "<x>:conj() * 2",
    "<x>:transpose(<d>, <e>)", "torch.view_as_real(<x>:conj():resolve_conj())", "<x>:mean()",
    "<x>:narrow(<d>, <start>, <length>)", "<x>:reshape { -1 }", "<x>:exp()",
      "<x> * torch.imag(<x>)" } do
    list[#list + 1] = { text, kind = "complex", weight = 1 }
  end
  list[#list + 1] = { "torch.complex(<x>, <s>)", weight = 0.7,
    when = function(v) return v.x.dtype == "float64" or v.x.dtype == "float32" end }
  list[#list + 1] = { "torch.view_as_complex(<x>)", weight = 3,
    dims = { 1 },
    when = function(v) return v.x.shape[v.x.ndim] == 2 end }
  for _, dtype in ipairs { "float32", "float64", "float16", "bfloat16" } do
    list[#list + 1] = { ("cast(<x>, %q)"):format(dtype), weight = 0.3, kind = "number" }
  end
  list[#list + 1] = { "<x>:to(<x>)", weight = 0.3 }
  list[#list + 1] = { "(<x> * 2):long()", weight = 0.3 }
  list[#list + 1] = { "<x>:bool()", weight = 0.2, kind = "number" }
end

local function views(list)
  for _, text in ipairs { "<x>:transpose(<d>, <e>)", "<x>:unsqueeze(<u>)", "<x>:squeeze()",
    "<x>:squeeze(<d>)", "<x>:select(<d>, <i>)", "<x>:narrow(<d>, <start>, <length>)",
      "<x>:flatten()",
    "<x>:slice(<d>, <start>, <stop>, <step>)", "<x>[{ <slice> }]", "<x>[<i0>]",
      "<x>:permute { <order> }",
    "<x>:view { <sizes> }", "<x>:reshape { <sizes> }", "<x>:expand { <expanded> }", "<x>:detach()",
    "<x>:unfold(<d>, <length>, <step>)", "<x>[{ '...', <last> }]", "<x>[{ 'newaxis', <slice> }]",
    "<x>:movedim(<d>, <e>)", "<x>:view_as(<x>)", "<x>:alias()",
      "<x>:as_strided({ <sizes> }, { <strides> })",
    "<x>:swapaxes(<d>, <e>)", "<x>:expand_as(<x>)", "<x>:view { -1 }", "<x>:reshape { -1 }" } do
    list[#list + 1] = { text, kind = "any", weight = 3 }
  end
  for _, row in ipairs {
    { "<x>:diagonal(<o>, <d>, <e>)", dims = { 2 }, when = function(v) return v.d ~= v.e end },
    { "<x>:diagonal()", dims = { 2 } }, { "<x>:t()", dims = { 0, 2 } },
    { "<x>:flatten(<d>, <e>)", when = function(v) return v.d <= v.e end },
    { "<x>:unflatten(<d>, { <factors> })" }, { "torch.adjoint(<x>)", dims = { 2 } },
    { "<x>:split(<part>, <d>)", n = "list" }, { "<x>:chunk(<part>, <d>)", n = "list" },
    { "<x>:unbind(<d>)", n = "list" }, { "<x>:tensor_split(<part>, <d>)", n = "list" },
    { "<x>:split({ <pieces> }, <d>)", n = "list" }, { "torch.unsafe_split(<x>, <part>, <d>)",
      n = "list" },
    { "torch.unsafe_chunk(<x>, <part>, <d>)", n = "list" },
    { "<x>:tensor_split({ <start>, <stop> }, <d>)", n = "list" },
    { "torch._unsafe_view(<x>, { <sizes> })", weight = 0.7 },
    { "<x>:roll(<n>, <d>)" }, { "<x>:flip { <d> }" }, { "<x>:flip { <D> }" },
      { "<x>:rot90()", dims = { 2 } },
    { "<x>['repeat'](<x>, { <tiles> })" }, { "torch.tile(<x>, { 2 })" },
    { "<x>:repeat_interleave(2, <d>)" }, { "torch.broadcast_to(<x>, { <expanded> })" },
    { "<x>:narrow(<even_d>, 0, <half>) + <x>:narrow(<d>, <half>, <half>)", kind = "number" },
    { "<x>:narrow(<even_d>, <half>, <half>)" }, { "<x>:slice(<even_d>, 1, <whole>, 2)" },
    { "<x>:slice(<even_d>, 0, <whole>, 2) * <x>:slice(<d>, 1, <whole>, 2)", kind = "number" },
    { "<x>:tril()", kind = "float", dims = { 2 } }, { "<x>:triu(1)", kind = "float", dims = { 2 } },
    { "torch.diag_embed(<x>)", kind = "float", dims = { 1, 2 } },
    { "torch.diag(<x>)", kind = "float", dims = { 1, 2 } },
    { "torch.pad(<x>, { 1, 2 })", dims = { 1 } }, { "torch.pad(<x>, { 0, -1 })", dims = { 1 } },
    { "torch.constant_pad_nd(<x>, { 0, 0, 1, 1 }, 0.5)", kind = "float", dims = { 2 } },
    { "torch.constant_pad_nd(<x>, { 0, 0, 0, 3 }, 2)", dims = { 2 } },
    { "torch.constant_pad_nd(<x>, { 0, 0, 0, 4 }, 2):narrow(-2, 0, 5)", dims = { 2 } },
    { "<x>:transpose(<d>, <e>):contiguous()", dims = { 2 } },
    { "(<x>:transpose(<d>, <e>) * 1)", kind = "number", dims = { 2 } },
  } do
    row.kind, row.weight = row.kind or "any", row.weight or 1.5
    list[#list + 1] = row
  end
end

local function in_place(list)
  for _, text in ipairs { "<x>:add_(<b>)", "<x>:mul_(<b>)", "<x>:sub_(<b>, { alpha = 0.5 })",
    "<x>:copy_(<b>)",
    "<x>:fill_(<c>)", "<x>:zero_()", "<x>:tanh_()", "<x>:sigmoid_()", "<x>:relu_()", "<x>:neg_()",
    "<x>:clamp_(-1, 1)", "<x>:add_(<c>)", "<x>:mul_(<c>)", "<x>:div_(2)",
      "<x>:masked_fill_(<m>, <c>)",
    "<x>:addcmul_(<b>, <b>, { value = 0.5 })", "<x>:lerp_(<s>, 0.25)", "<x>:sin_()", "<x>:abs_()",
    "no_grad(function() <x>:mul_(<c>) end)", "no_grad(function() <x>:copy_(<b>) end)" } do
    list[#list + 1] = { text }
  end
  -- Through a view that is made for it.
  for _, view in ipairs { "select(<d>, <i>)", "narrow(<d>, <start>, <length>)",
    "transpose(<d>, <e>)",
    "slice(<d>, <start>, <stop>, <step>)", "unsqueeze(<u>)", "diagonal()", "view { -1 }",
      "flatten()",
    "unfold(<d>, <length>, <length>)", "chunk(2, <d>)[1]", "unbind(<d>)[1]", "reshape { -1 }",
    "view { <sizes> }", "squeeze()", "detach()", "permute { <order> }", "contiguous()",
    "expand { <expanded> }" } do
    for _, write in ipairs { "mul_(<c>)", "add_(<c>)", "fill_(<c>)", "tanh_()" } do
      list[#list + 1] = { ("<x>:%s:%s"):format(view, write), weight = 0.35,
        dims = view == "diagonal()" and { 2 } or nil }
    end
  end
  for _, row in ipairs {
    { "<x>[<i0>] = <c>" }, { "<x>[{ <slice> }] = <c>" }, { "<x>[{ '...', <last> }] = <c>" },
    { "<x>[<index0>] = <c>" }, { "<x>[<m>] = <c>" }, { "<x>[{ {}, <index1> }] = <c>",
      dims = { 2 } },
    { "<x>:index_fill_(<d>, <index>, <c>)" }, { "<x>:unsqueeze_(<u>)", weight = 0.4 },
    { "<x>:squeeze_()", weight = 0.4 }, { "<x>:transpose_(<d>, <e>)", weight = 0.6 },
    { "<x>:t_()", dims = { 2, 2 }, weight = 0.4 }, { "<x>:swapaxes_(<d>, <e>)", weight = 0.3 },
    { "<x>:index_add_(<d>, <index>, <rows>)" },
      { "<x>:index_copy_(<d>, <distinct_index>, <rows>)" },
    { "<x>:index_put_({ <index0> }, <rows0>, <accumulate>)" },
    { "<x>:scatter_(<d>, <places>, <c>)" }, { "<x>:scatter_add_(<d>, <places>, <placed>)" },
    { "<x>:masked_scatter_(<m>, <s> * 1)", weight = 0.5 }, { "<x>:cumsum_(<d>)", weight = 0.5 },
    { "<x>:tril_()", dims = { 2 }, weight = 0.5 }, { "<x>:fill_diagonal_(0.5)", dims = { 2, 2 },
      weight = 0.5 },
    { "torch._foreach_mul_({ <x> }, 0.5)", weight = 0.5 },
    { "torch._foreach_add_({ <x> }, { <s> })", weight = 0.5 },
  } do
    list[#list + 1] = row
  end
  for _, row in ipairs(list) do row.n, row.writes = 0, true end
  for _, text in ipairs { "<x>:add_(1)", "<x>:mul_(2)", "<x>:fill_(3)", "<x>[<i0>] = 2",
    "<x>:copy_(<b>)" } do
    list[#list + 1] = { text, kind = "int", n = 0, writes = true, weight = 0.4 }
  end
  list[#list + 1] = { "<x>:logical_not_()", kind = "bool", n = 0, writes = true, weight = 0.4 }
end

local function indexing(list)
  for _, row in ipairs {
    { "<x>[<index0>]" }, { "<x>[{ {}, <index1> }]", dims = { 2 } },
      { "<x>[{ <index0>, <slice1> }]", dims = { 2 } },
    { "<x>[{ '...', <index_last> }]" }, { "<x>[{ <index0>, <index1> }]", dims = { 2 } },
    { "<x>[{ {}, {}, <index2> }]", dims = { 3 } }, { "<x>[{ <index0>, {}, <index2> }]",
      dims = { 3 } },
    { "<x>[<m>]" }, { "<x>[{ <i0>, <index1> }]", dims = { 2 } }, { "<x>[{ 'newaxis', <index0> }]" },
    { "<x>:index_select(<d>, <index>)", weight = 2 }, { "<x>:gather(<d>, <places>)", weight = 2 },
    { "<x>:take_along_dim(<places>, <d>)" }, { "<x>:masked_select(<m>)" },
    { "<x>:scatter(<d>, <places>, <placed>)" }, { "<x>:scatter_add(<d>, <places>, <placed>)" },
    { "<x>:scatter(<d>, <places>, <c>)" }, { "<x>:index_add(<d>, <index>, <rows>)" },
    { "<x>:index_put({ <index0> }, <rows0>, <accumulate>)" },
    { "<x>:index_copy(<d>, <distinct_index>, <rows>)" }, { "<x>:index_fill(<d>, <index>, <c>)" },
    { "<x>:scatter_reduce(<d>, <places>, <placed>, 'amax')" }, { "<x>:take(<flat_index>)" },
    { "<x>:select_scatter(<selected>, <d>, <i>)" },
    { "<x>:nonzero()", kind = "any", weight = 0.3, when = has_no_small },
    { "<x>:count_nonzero()", kind = "any", weight = 0.3, when = has_no_small },
    { "<x>:count_nonzero(<d>)", kind = "any", weight = 0.3, when = has_no_small },
    { "<x>:any()", kind = "any", weight = 0.3, when = has_no_small },
    { "<x>:all(<d>)", kind = "any", weight = 0.3, when = has_no_small },
    { "torch.embedding(<x>, <index0>)", dims = { 2, 2 }, weight = 2 },
    { "torch.one_hot(<x>:abs(), 9)", kind = "int", weight = 0.5 },
      { "torch.argwhere(<x>)", weight = 0.2 },
    { "<x>:slice_scatter(<x>:narrow(<d>, <start>, <length>) * 2, <d>, <start>, "
      .. "<start> + <length>)" },
    { "torch.diagonal_scatter(<x>, <x>:diagonal() * 2)", dims = { 2 } },
    { "<x>:index_reduce(<d>, <index>, <rows>, 'mean')", weight = 0.5 },
    { "<x>:put(<flat_index>, <flat_values>, true)", weight = 0.5 },
  } do
    list[#list + 1] = row
  end
  for _, text in ipairs { "<x>[<index0>]", "<x>:index_select(<d>, <index>)",
    "<x>:gather(<d>, <places>)",
    "<x>[<m>]" } do
    list[#list + 1] = { text, kind = "int", weight = 0.3 }
  end
end

local function joining(list)
  for _, row in ipairs {
    { "torch.cat({ <x>, <s> }, <d>)", weight = 2 }, { "torch.stack({ <x>, <s> }, <u>)",
      weight = 2 },
    { "torch.cat({ <x>, <x>:narrow(<d>, <start>, <length>) }, <d>)", weight = 2 },
    { "torch.cat({ <x>, <other>, <x> }, <d>)", weight = 2 }, { "torch.hstack { <x>, <s> }" },
    { "torch.vstack { <x>, <s> }" }, { "torch.column_stack { <x>, <s> }", dims = { 1 } },
    { "torch.block_diag { <x>, <s> }", dims = { 0, 2 }, weight = 0.5 },
    { "torch.meshgrid({ <x>, <x> }, { indexing = 'ij' })", dims = { 1, 1 }, n = "list",
      weight = 0.5 },
    { "torch.broadcast_tensors { <x>, <y> }", n = "list" },
    { "torch.cat({ torch.empty({ 0 }, { dtype = <x>.dtype }), <x> }, 0)", weight = 0.5 },
    { "torch._foreach_add({ <x>, <s> }, { <s>, <x> })", n = "list" },
    { "torch._foreach_mul({ <x>, <s> }, 0.5)", n = "list" },
    { "torch.cat({ <x>, <s> }, <d>)", kind = "int", weight = 0.3 },
  } do
    list[#list + 1] = row
  end
end

--- Copies with another placement, which the script may write to.
local function placements(list)
  for _, text in ipairs { "shard(<x>, <placement>)", "<x>:full()" } do
    list[#list + 1] = { text, kind = "any", weight = 4 }
    for _, write in ipairs { "mul_(<c>)", "add_(<b>)", "tanh_()", "fill_(<c>)" } do
      list[#list + 1] = { text .. ":" .. write }
    end
  end
  list[#list + 1] = { "shard(<x>, <placement>):full()", kind = "any" }
end

lists.placements = placements
lists.pointwise, lists.other_dtypes = pointwise, other_dtypes
lists.views, lists.in_place = views, in_place
lists.indexing, lists.joining = indexing, joining

local groups = {}
for _, name in ipairs { "pointwise", "other_dtypes", "views", "in_place", "indexing", "joining",
  "placements" } do
  groups[name] = {}
  lists[name](groups[name])
end
for name, group in pairs(require "programs.reducing_operators") do groups[name] = group end
return groups
