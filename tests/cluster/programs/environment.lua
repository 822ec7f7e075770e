--- The functions that the lines of a program may call. A program runs on plain tensors with one
--- environment and on sharded ones with another; only shard and terms differ. Two more
--- environments, "exact" and "noisy", run it on plain tensors to find out how far rounding may move
--- a result.
local redco = require "redco"
local native = require "redco.native"
local torch = require "redco.torch"

local environment = {}

--- The largest change by one rounding, relative to the value.
environment.epsilon = { float64 = 2 ^ -52, float32 = 2 ^ -23, float16 = 2 ^ -10, bfloat16 = 2 ^ -7,
  complex128 = 2 ^ -52, complex64 = 2 ^ -23 }

local function is_low(dtype)
  return dtype == "float32" or dtype == "float16" or dtype == "bfloat16"
end

local globals = { torch = torch, unpack = unpack, pairs = pairs, ipairs = ipairs, math = math,
  vmap = redco.vmap, gradient = redco.grad, value_and_grad = redco.value_and_grad,
  checkpoint = redco.checkpoint, block = redco.nn.block, silu_mul = redco.nn.silu_mul,
  no_grad = torch.no_grad, nan = 0 / 0, inf = math.huge }

local functions = torch.jit.load(os.getenv "REDCO_SOURCE" .. "/tests/cluster/script_functions.pt")
--- Rotary positions, by angles that are made of y, and for gradients of them too, if wanted.
function globals.rotary(x, y, interleaved, has_gradients)
  local angles = y:narrow(-1, 0, math.floor(y:size(-1) / 2))
  if not has_gradients then angles = angles:detach() end
  return redco.nn.apply_rotary_emb(x, angles:cos(), angles:sin(), { interleaved = interleaved })
end

--- A function of TorchScript, by its number.
function globals.script(x, number) return functions(nil, x, number) end

--- Calls f with random numbers that depend on the seed and the elements' places alone.
function globals.with_rng(seed, f, ...) return redco.with_rng(redco.Rng(seed), f, ...) end

--- nn.dropout, with numbers as above.
function globals.dropout(x, seed)
  return redco.nn.dropout(x, 0.4, { train = true, rng = redco.Rng(seed) })
end

--- Softmax with dropout, without the elements where `mask` is false, which is broadcast.
function globals.softmax_dropout(x, mask, seed)
  return native.softmax_dropout(x, mask, 0.5, 0.4, redco.Rng(seed))
end

--- Attention with dropout; causal for even seeds.
function globals.dropped_attention(q, k, v, seed)
  return redco.nn.attention(q, k, v,
    { causal = seed % 2 == 0, dropout = 0.4, train = true, rng = redco.Rng(seed) })
end

--- The gradients of `loss` with respect to the list `leaves`; false for one that took no part.
function globals.grads(loss, leaves)
  return unpack(torch.autograd.grad(loss, leaves, { create_graph = true, allow_unused = true }))
end

--- A number that depends on all elements of x, and on the gradient of x if x is one.
function globals.term(x, weight)
  if not x then return 0 end
  if x.dtype:find "^complex" then x = torch.view_as_real(x) end
  return (x:double() * weight):sin():sum()
end

--- The weighted sum of x: its gradient is one expanded number.
function globals.total(x, weight)
  if not x then return 0 end
  if x.dtype:find "^complex" then x = torch.view_as_real(x) end
  return x:double():sum() * weight
end

--- The mean loss of labels with the logits x w^T, which are never held at once.
function globals.linear_cross_entropy(...) return (redco.nn.linear_cross_entropy(...)) end

--- Attention within sequences of n + 1 tokens, and where n is even in a window of two.
function globals.in_segments(q, k, v, n)
  local batch, _, length = unpack(q.shape)
  local ids = torch.arange(length):div(n + 1, { rounding_mode = "floor" }):expand { batch, length }
  return redco.nn.attention(q, k, v,
    { causal = true, segment_ids = ids, window = n % 2 == 0 and 2 or nil })
end

globals.linear_logprobs = redco.nn.linear_logprobs

--- Row i of x [N, in] by each of the weights numbers[i]: [N, k, out].
globals.grouped_linear = native.grouped_linear

--- x [..., n] times a quantized w [out, n], with 32 copies of each element.
function globals.quantized_linear(x, w)
  local blocks = native.quantize(w:detach():repeat_interleave(32, 1), "q8_0")
  return native.quantized_linear(x:repeat_interleave(32, -1), blocks, "q8_0")
end

--- The loss of x [time, rows, classes] with up to two labels a row.
function globals.ctc(x, reduction)
  local length, n_rows, n_classes = unpack(x.shape)
  local labels, lengths, all = {}, {}, {}
  for i = 1, n_rows do
    labels[i] = { 1 + i % (n_classes - 1), 1 + (i + 1) % (n_classes - 1) }
    lengths[i], all[i] = math.min(i % 3, length), length
  end
  return torch.ctc_loss(x:log_softmax(-1), torch.tensor(labels), all, lengths, 0, reduction, true)
end

--- The same for weights chosen for each row, as grouped_linear.
function globals.grouped_quantized_linear(x, numbers, weights)
  local blocks = {}
  for i, w in ipairs(weights) do
    blocks[i] = native.quantize(w:detach():repeat_interleave(32, 1), "q8_0")
  end
  return native.grouped_linear(x:repeat_interleave(32, -1), numbers, blocks, "q8_0")
end

--- A probability. Where LibTorch refuses a number, NaN here, the process that holds it fails alone.
function globals.chance(x) return x:sigmoid():nan_to_num(0.5) end

--- A tensor of another dtype, never x itself.
function globals.cast(x, dtype) return x:to(dtype, { copy = true }) end

local function normal(seed, sizes)
  return torch.randn(sizes, { generator = torch.Generator(seed), dtype = "float64" })
end

function globals.randn(seed, sizes, dtype) return normal(seed, sizes):to(dtype or "float64") end

--- With NaN and infinities in about every fifth place.
function globals.special(seed, sizes, dtype)
  local x, place = globals.randn(seed, sizes, dtype), normal(seed + 1, sizes)
  x = x:masked_fill(place:gt(1.4), 0 / 0)
  return x:masked_fill(place:lt(-1.4), math.huge):masked_fill(place:abs():lt(0.1), -math.huge)
end

--- Integers from 0 to high - 1.
function globals.ints(seed, sizes, high)
  return torch.randint(high, sizes, { generator = torch.Generator(seed) })
end

function globals.mask(seed, sizes) return normal(seed, sizes):gt(0) end

local function made(fields)
  return setmetatable(fields, { __index = globals })
end

--- On plain tensors.
function environment.plain()
  return made {
    shard = function(x) return x:clone() end,
    terms = function(x) return x end,
  }
end

--- A placement with one on dp_replicate too, if the mesh has that: that of dp, of mp or none,
--- one on cp: any dimension or none, and one on ep: the same, or a rank. The tensor decides which.
--- Not beside blocks, whose parts cannot all be split again.
local function on_all(mesh, x, placement)
  local dp, mp = placement.dp, placement.mp
  local choice = mesh.dp_replicate > 1 and x:numel() % 3
  local own = choice == 0 and dp or choice == 1 and mp or nil
  local cp = mesh.cp > 1 and x:numel() % (x:dim() + 1)
  if cp == x:dim() then cp = nil end
  local ep = mesh.ep > 1 and (x:numel() + 1) % (x:dim() + 2)
  if ep == x:dim() then ep = nil end
  if ep == x:dim() + 1 then ep = x:dim() > 0 and { rank = x:numel() % mesh.ep } end
  if type(dp) == "table" or type(mp) == "table" then own, cp, ep = nil, nil, nil end
  return { dp = dp, mp = mp, dp_replicate = own, ep = ep or nil, cp = cp or nil }
end

--- On sharded tensors. shard(x, { dp = 0, mp = "partial" }) is redco.shard; terms(x, { mp = "sum",
--- dp = 0 }) is a sum over mp of terms that cancel but for x, split over dp.
function environment.sharded(mesh)
  -- The weights where the rows of their numbers are sent: expert i of n on rank i * ep / n.
  local function at_experts(weights)
    if mesh.ep == 1 then return weights end
    local placed = {}
    for i, w in ipairs(weights) do
      local rank = 0
      while math.floor(#weights * (rank + 1) / mesh.ep) < i do rank = rank + 1 end
      placed[i] = w:is_sharded() and redco.shard(w, { ep = { rank = rank } }) or w
    end
    return placed
  end
  return made {
    grouped_linear = function(x, numbers, weights)
      return globals.grouped_linear(x, numbers, at_experts(weights))
    end,
    grouped_quantized_linear = function(x, numbers, weights)
      return globals.grouped_quantized_linear(x, numbers, at_experts(weights))
    end,
    shard = function(x, placement) return redco.shard(x, on_all(mesh, x, placement)) end,
    terms = function(x, placement)
      local n, whole, rest_of = 1, {}, {}
      for axis, dim in pairs(on_all(mesh, x, placement)) do
        if dim == "sum" then
          n, whole[axis] = n * mesh[axis], 0
        else
          rest_of[axis] = dim
          whole[axis] = type(dim) ~= "table" and dim + 1 or not dim.dim and "replicate"
            or { dim = dim.dim + 1, block = dim.block, grain = dim.grain }
        end
      end
      if n == 1 then return redco.shard(x, rest_of) end
      local list, rest = {}, x
      -- Of 16-bit numbers no multiples: their rounding would be that of larger numbers.
      local up, down = 3, -2
      if x.dtype:find "float16" then up, down = 0.5, -0.25 end
      for i = 2, n do
        list[i] = x * (i % 2 == 0 and up or down)
        rest = rest - list[i]
      end
      list[1] = rest
      return redco.shard(torch.stack(list), whole):sum(0, { dtype = x.dtype })
    end,
  }
end

--- On plain tensors, floating-point ones in float64 with the values of their lower precision.
function environment.exact()
  local env = environment.plain()
  local function raised(x) return is_low(x.dtype) and x:double() or x end
  for _, name in ipairs { "randn", "special" } do
    env[name] = function(...) return raised(globals[name](...)) end
  end
  function env.cast(x, dtype) return globals.cast(x, is_low(dtype) and "float64" or dtype) end
  return env
end

--- On plain tensors whose inputs are each changed by about one rounding (float64: by ten), and
--- those that are sums by that of their terms.
function environment.noisy(seed)
  local env, n_terms = environment.plain(), 0
  local function noisy(x, of, n_roundings)
    local size = environment.epsilon[x.dtype] * (x.dtype == "float64" and 10 or 1) * n_roundings
    return (x:double() * (normal(of + 1000 * seed, x.shape) * size + 1)):to(x.dtype)
  end
  for _, name in ipairs { "randn", "special" } do
    env[name] = function(of, ...) return noisy(globals[name](of, ...), of, 1) end
  end
  function env.terms(x)
    n_terms = n_terms + 1
    return x.dtype:find "float" and noisy(x, n_terms, 4) or x
  end
  return env
end

return environment
