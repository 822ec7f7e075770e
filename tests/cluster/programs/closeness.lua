--- Whether tensors are near enough to each other for rounding.
local redco = require "redco"
local torch = require "redco.torch"

local closeness = {}

--- How far values may be off where rounding explains no more, relative to the largest one.
local tolerance = { float64 = 1e-9, float32 = 1e-4, float16 = 4e-3, bfloat16 = 3e-2,
  complex128 = 1e-9, complex64 = 1e-4 }

function closeness.words(t) return table.concat(t.shape, ",") .. " " .. t.dtype end

function closeness.placement_words(t)
  local place = t:placement()
  local words = { place.dp, place.mp }
  words[#words + 1] = place.dp_replicate
  words[#words + 1] = place.ep
  words[#words + 1] = place.cp
  return table.concat(words, " ")
end

local function placement_of(word)
  if word == "replicate" then return nil end
  local rank = word:match "^on_rank%((%d+)%)$"
  if rank then return { rank = tonumber(rank) } end
  local dim, rest = word:match "^shard%((%d+)(.*)%)$"
  if not dim or rest == "" then return tonumber(dim) or false end
  local block, lengths = tonumber(rest:match "block = (%d+)"), rest:match "block = {(.-)}"
  if lengths then
    block = {}
    for length in lengths:gmatch "%d+" do block[#block + 1] = tonumber(length) end
  end
  return { dim = tonumber(dim), block = block, grain = tonumber(rest:match "grain = (%d+)") }
end

--- The tolerance of the least precise dtype among the tensors: the others are made of it.
function closeness.tolerance_of(env, names)
  local largest = 0
  for _, name in ipairs(names) do
    if env[name] then largest = math.max(largest, tolerance[env[name].dtype] or 0) end
  end
  return largest
end

--- Two tensors with zeros where neither is finite: the order of additions decides whether an
--- overflow becomes NaN or infinite, and the rounding of a factor near 0 the sign of infinity.
local function without_overflow(a, b)
  local both = a:isfinite():logical_or(b:isfinite()):logical_not()
  return a:masked_fill(both, 0), b:masked_fill(both, 0)
end

--- Equal, or near enough for rounding.
function closeness.is_close(a, b, allowed)
  if closeness.words(a) ~= closeness.words(b) then return false end
  a, b = a:detach(), b:detach()
  if a.dtype:find "complex" then
    if a:is_conj() then a = a:resolve_conj() end
    if b:is_conj() then b = b:resolve_conj() end
    a, b = torch.view_as_real(a), torch.view_as_real(b)
  end
  -- LibTorch's equal fails for some strides.
  a, b = a:contiguous(), b:contiguous()
  if torch.equal(a, b) then return true end
  if not tolerance[a.dtype] then return false end
  a, b = without_overflow(a:double(), b:double())
  local top = b:nan_to_num(0, 0, 0):abs():max():item()
  return torch.allclose(a, b, { rtol = 0, atol = allowed * math.max(top, 1), equal_nan = true })
end

function closeness.is_sum(t) return closeness.placement_words(t):find("partial", 1, true) ~= nil end

--- Whether the own part is that of the plain tensor. A sum to come is made whole for it.
function closeness.is_part_close(actual, plain, allowed)
  if not torch.is_tensor(plain) then return false end
  if closeness.words(actual) ~= closeness.words(plain) then return false end
  if not actual:is_sharded() then return closeness.is_close(actual, plain, allowed) end
  if closeness.is_sum(actual) then
    return closeness.is_close(actual:detach():full(), plain, allowed)
  end
  local place = actual:placement()
  local ok, expected = pcall(redco.shard, plain:detach(),
    { dp = placement_of(place.dp), mp = placement_of(place.mp),
      dp_replicate = place.dp_replicate and placement_of(place.dp_replicate),
      ep = place.ep and placement_of(place.ep), cp = place.cp and placement_of(place.cp) })
  return ok and closeness.is_close(actual:detach():to_local(), expected:to_local(), allowed)
end

--- Numbers of float64 for what is compared by its size.
local function as_numbers(t)
  t = t:detach()
  if t.dtype:find "complex" then t = torch.view_as_real(t:resolve_conj()) end
  return t:double()
end

--- Whether one has NaN where the other is infinite. The terms of a sum meet an infinite factor one
--- by one, and a factor near 0 may round to 0: both give NaN for an infinity.
function closeness.has_other_overflow(a, b)
  a, b = as_numbers(a), as_numbers(b)
  return a:isnan():logical_and(b:isinf()):logical_or(a:isinf():logical_and(b:isnan())):any():item()
end

--- The largest difference; infinite where one alone is NaN or infinite. With `skips_nan`, places
--- where either is NaN do not count.
function closeness.off_by(a, b, skips_nan)
  if a:numel() == 0 then return 0 end
  a, b = without_overflow(as_numbers(a), as_numbers(b))
  if skips_nan then
    local is_nan = a:isnan():logical_or(b:isnan())
    a, b = a:masked_fill(is_nan, 0), b:masked_fill(is_nan, 0)
  end
  local off = torch.where(a:eq(b), 0, (a - b):abs())
  return off:nan_to_num(math.huge, math.huge, math.huge):max():item()
end

return closeness
