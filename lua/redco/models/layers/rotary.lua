--- Rotary positions (Su et al., 2021). The elements of a head form pairs; each pair is rotated by
--- an angle proportional to the token's position, slower from pair to pair. The scalings for longer
--- texts are those of Hugging Face's `rope_type`.
local blocks = require "redco.models.layers.blocks"
local fail = require "redco.fail"
local native = require "redco.native"
local torch = require "redco.torch"

local rotary = {}

local function is_positive(value)
  return type(value) == "number" and value > 0 and value < math.huge
end

-- Returns the radians per position for each pair of a head of `size` elements. In float32, as in
-- transformers: at position 8000, rounding changes an angle by half a thousandth of a radian.
local function frequencies(size, theta)
  local exponents = torch.arange(0, size, 2):float() / size
  return torch.pow(theta, exponents):reciprocal():tolist()
end

-- Returns the frequencies without scaling, computed once.
local function unscaled(r)
  r.unscaled = r.unscaled or frequencies(r.size, r.theta)
  return { unpack(r.unscaled) }
end

local function clamp(x) return math.min(math.max(x, 0), 1) end

-- Blends scaled and unscaled frequencies: `kept(i, frequency)` in [0, 1] is the unscaled share.
local function partly_divided(r, kept)
  local list = unscaled(r)
  for i, frequency in ipairs(list) do
    local share = kept(i, frequency)
    list[i] = share * frequency + (1 - share) * frequency / r.factor
  end
  return list
end

-- For each kind: the settings it needs, and its frequencies for a text of `length` tokens, with an
-- optional factor of cos and sin. If they depend on the length, `same_as` returns the least length
-- with the same frequencies.
local kinds = {}

kinds.default = { needs = {}, frequencies = unscaled }

kinds.linear = { needs = { "factor" }, frequencies = function(r)
  return partly_divided(r, function() return 0 end)
end }

-- The base grows when a text becomes longer than those of the training. For shorter texts, the base
-- may have a `stretch`.
kinds.dynamic = { needs = { "factor" }, same_as = function(r, length)
  return length > r.max_positions and length or 1
end, frequencies = function(r, length)
  if r.stretch and length <= r.max_positions then
    return frequencies(r.size, r.theta * r.stretch ^ (r.size / (r.size - 2)))
  end
  local stretch = r.factor * math.max(length / r.max_positions, 1) - (r.factor - 1)
  return frequencies(r.size, r.theta * stretch ^ (r.size / (r.size - 2)))
end }

-- Slow pairs, which turn less than low_freq_factor times in the old context, are divided; those
-- that turn more than high_freq_factor times stay.
kinds.llama3 = {
  needs = { "factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings" },
  frequencies = function(r)
    return partly_divided(r, function(_, frequency)
      local turns = r.original_max_position_embeddings * frequency / (2 * math.pi)
      return clamp((turns - r.low_freq_factor) / (r.high_freq_factor - r.low_freq_factor))
    end)
  end,
}

-- YaRN (Peng et al., 2023): as llama3, but interpolates by the index of the pair, between the pairs
-- that turn beta_fast and beta_slow times.
kinds.yarn = { needs = { "factor" }, frequencies = function(r)
  local context = r.original_max_position_embeddings or r.max_positions
  local function pair_that_turns(n)
    return r.size * math.log(context / (n * 2 * math.pi)) / (2 * math.log(r.theta))
  end
  local first, last = pair_that_turns(r.beta_fast or 32), pair_that_turns(r.beta_slow or 1)
  if r.truncate ~= false then first, last = math.floor(first), math.ceil(last) end
  first, last = math.max(first, 0), math.min(last, r.size - 1)
  if first == last then last = last + 0.001 end
  local function scale(weight) return 1 + 0.1 * weight * math.log(math.max(r.factor, 1)) end
  local list = partly_divided(r, function(i) return 1 - clamp((i - 1 - first) / (last - first)) end)
  if r.attention_factor then return list, r.attention_factor end
  local both = r.mscale and r.mscale_all_dim and r.mscale * r.mscale_all_dim ~= 0
  return list, both and scale(r.mscale) / scale(r.mscale_all_dim) or scale(1)
end }

-- The factor of cos and sin for a text that is `factor` times longer than those of the training.
local function longrope_scale(factor, context)
  return math.sqrt(1 + math.log(math.max(factor, 1)) / math.log(context))
end

-- LongRoPE (Ding et al., 2024): a divisor for each pair, with one list for texts up to the length
-- of the training texts and one for longer texts. The factors of cos and sin may be given for both.
kinds.longrope = {
  needs = { "short_factor", "long_factor" },
  same_as = function(r, length)
    local context = r.model_context or r.max_positions
    return length > context and context + 1 or 1
  end,
  frequencies = function(r, length)
    local context = r.model_context or r.max_positions
    local list = unscaled(r)
    for i, divisor in ipairs(length > context and r.long_factor or r.short_factor) do
      list[i] = list[i] / divisor
    end
    if r.factors_of_lengths then return list, r.factors_of_lengths[length > context and 2 or 1] end
    local factor = r.model_context and r.max_positions / context or r.factor
    return list, r.attention_factor or longrope_scale(factor or 1, context)
  end,
}

-- Only the first pairs rotate, a `share` of all, with the same frequencies as if all rotated.
kinds.proportional = {
  families = { gemma4_text = true }, needs = { "share" }, frequencies = function(r)
    local list = unscaled(r)
    local n = math.floor(r.share * r.size / 2)
    for i, frequency in ipairs(list) do list[i] = i <= n and frequency / (r.factor or 1) or 0 end
    return list
  end,
}

-- The base is stretched and all pairs are divided, as the authors of GTE do.
kinds.ntk = { families = { new = true }, needs = { "factor" }, frequencies = function(r)
  local list = frequencies(r.size, r.theta * r.factor)
  for i, frequency in ipairs(list) do list[i] = frequency / r.factor ^ (2 / r.size) end
  return list
end }

--- Converts `rope_parameters`, the format of transformers 5, and the old `type` to the format that
--- versions 4 and 5 read: `rope_theta` and `rope_scaling`. Version 5 has all settings in
--- `rope_parameters`; version 4 keeps some beside `rope_scaling`.
function rotary.complete(c)
  local given = c.rope_parameters or c.rope_scaling
  if not given then return end
  if type(given) ~= "table" then
    fail("%s: %s is %s, expected a table", c.model_type,
      c.rope_parameters and "rope_parameters" or "rope_scaling", given)
  end
  local scaling = {}
  for key, value in pairs(given) do scaling[key] = value end
  if c.rope_parameters then
    c.rope_theta, scaling.rope_theta = scaling.rope_theta or c.rope_theta, nil
    c.partial_rotary_factor = scaling.partial_rotary_factor or c.partial_rotary_factor
    scaling.partial_rotary_factor = nil
    scaling.rope_type, scaling.type = scaling.rope_type or scaling.type or "default", nil
    -- For these kinds, version 5 prefers the key of the whole configuration to that of
    -- rope_parameters.
    local reads_whole = scaling.rope_type == "llama3" or scaling.rope_type == "yarn"
    if reads_whole and c.original_max_position_embeddings then
      scaling.original_max_position_embeddings = c.original_max_position_embeddings
    elseif scaling.rope_type == "longrope" then
      c.original_max_position_embeddings = c.original_max_position_embeddings
        or scaling.original_max_position_embeddings
      scaling.original_max_position_embeddings = nil
      -- Version 5 prefers `factor` to the ratio of the two lengths.
      local context = c.original_max_position_embeddings or c.max_position_embeddings
      if is_positive(scaling.factor) and is_positive(context) then
        scaling.attention_factor = scaling.attention_factor
          or longrope_scale(scaling.factor, context)
      end
    end
  else
    scaling.rope_type, scaling.type = scaling.type or scaling.rope_type or "default", nil
  end
  c.rope_scaling, c.rope_parameters = scaling.rope_type ~= "default" and scaling or nil, nil
end

--- Returns the radians per position for each pair of a head of `size` elements.
rotary.unscaled = frequencies

--- Returns the number of elements of a head.
function rotary.head_dim(c)
  return c.head_dim or math.floor(c.hidden_size / c.num_attention_heads)
end

--- Returns the number of elements of a head that rotate.
function rotary.size(c)
  return math.floor(rotary.head_dim(c) * (c.partial_rotary_factor or 1))
end

local function check_numbers(family, r, size)
  for _, key in ipairs { "factor", "low_freq_factor", "high_freq_factor", "attention_factor",
    "original_max_position_embeddings", "beta_fast", "beta_slow", "mscale", "mscale_all_dim" } do
    if r[key] and not is_positive(r[key]) and not (key:find "mscale" and r[key] == 0) then
      fail("%s: rope_scaling.%s is %s, expected a positive number", family, key, r[key])
    end
  end
  if r.low_freq_factor and r.high_freq_factor and r.high_freq_factor <= r.low_freq_factor then
    fail("%s: rope_scaling.high_freq_factor is %s, and must be above low_freq_factor, %s", family,
      r.high_freq_factor, r.low_freq_factor)
  end
  if r.model_context and not is_positive(r.model_context) then
    fail("%s: original_max_position_embeddings is %s, expected a positive number", family,
      r.model_context)
  end
  for _, key in ipairs { "short_factor", "long_factor" } do
    local list = r[key] or {}
    if type(list) ~= "table" or (r[key] and #list ~= size / 2) then
      fail("%s: rope_scaling.%s has %s numbers, expected head_dim / 2 = %d", family, key,
        type(list) == "table" and #list or "no", size / 2)
    end
    for i, value in ipairs(list) do
      if not is_positive(value) then
        fail("%s: rope_scaling.%s[%d] is %s, expected a positive number", family, key, i,
          value)
      end
    end
  end
end

--- Reads and checks the settings of a completed configuration, for heads of `size` elements.
function rotary.settings(family, c, size)
  local r = { rope_type = "default" }
  for key, value in pairs(c.rope_scaling or {}) do
    r[key == "type" and "rope_type" or key] = value
  end
  r.size, r.theta, r.max_positions = size, c.rope_theta, c.max_position_embeddings
  r.unscaled = c.rope_frequencies  -- of a file, if they are rounded otherwise
  -- transformers reads the length of the training texts in two places: longrope in the
  -- configuration itself, the other kinds in rope_scaling.
  r.model_context = c.original_max_position_embeddings
  r.on_devices = {}
  local kind = kinds[r.rope_type]
  if not kind or kind.families and not kind.families[family] then
    fail("%s: unknown rope_type '%s'; expected default, dynamic, linear, llama3, longrope or yarn",
      family, r.rope_type)
  end
  for _, key in ipairs(kind.needs) do
    if not r[key] then fail("%s: rope_scaling of type %s has no %s", family, r.rope_type, key) end
  end
  check_numbers(family, r, size)
  if size % 2 ~= 0 then
    fail("%s: rotary positions must turn an even number of elements in a head, got %d", family,
      size)
  end
  return r
end

--- Returns the frequencies for a text of `length` tokens, and the factor of cos and sin.
function rotary.frequencies(r, length)
  local list, factor = kinds[r.rope_type].frequencies(r, length)
  return list, factor or 1
end

-- Returns the least length with the frequencies of this text; nil if they do not depend on it.
-- Reading positions from a GPU waits for all its work, so it reads them only if the sizes leave the
-- length open.
local function length_of(r, inputs, options, x, positions)
  local same_as = kinds[r.rope_type].same_as
  if not same_as then return end
  local is_usual = not inputs.position_ids and not inputs.axis_position_ids
  local longest = is_usual and same_as(r, blocks.past(options) + x:size(1))
  if longest and (longest == 1 or not inputs.attention_mask) then return longest end
  return same_as(r, positions:max():item() + 1)
end

-- Returns the frequencies as a tensor [size / 2], and the factor. They are cached for each device,
-- because copying numbers to a GPU waits for it.
local function on_device(r, device, length)
  local kept = r.on_devices[device]
  if kept and kept.length == length then return kept.steps, kept.factor end
  local list, factor = rotary.frequencies(r, length)
  local steps = torch.tensor(list, { dtype = "float32", device = device })
  r.on_devices[device] = { length = length, steps = steps, factor = factor }
  return steps, factor
end

--- Returns cos and sin of the angles of the new tokens x [B, T, ...], each [B or 1, 1, T, size /
--- 2]. With axis_position_ids [B, T, n] a token has n positions, and r.axes says which of them,
--- from 0, turns each pair.
function rotary.angles(r, inputs, options, x)
  local axes = inputs.axis_position_ids
  local positions = axes or blocks.position_ids(inputs, options, x)
  local steps, factor = on_device(r, positions.device, length_of(r, inputs, options, x, positions))
  positions = axes and positions:index_select(-1, torch.tensor(r.axes, { device = axes.device }))
    or positions:unsqueeze(-1)
  local angles = (positions:float() * steps):unsqueeze(1)
  return (angles:cos() * factor):to(x.dtype), (angles:sin() * factor):to(x.dtype)
end

--- Returns the angles [..., size / 2] of heads whose halves turn with one of two positions [...]
--- each, such as the row and the column of a patch.
function rotary.angles_of_two(first, second, size, theta)
  local half = size / 2
  local steps = torch.pow(theta, torch.arange(0, half, 2, { device = first.device }):float() / half)
    :reciprocal()
  return torch.cat({ first:unsqueeze(-1) * steps, second:unsqueeze(-1) * steps }, -1)
end

--- Rotates LLaMA's pairs of x [B, H, T, D] by the angles of `rotary.angles`: element i of the first
--- half of a head with element i of the second. If a head has more elements, the last ones stay.
function rotary.turn_halves(x, cos, sin) return native.rotary(x, cos, sin, false) end

--- Rotates GPT-J's pairs, of adjacent elements, in the same way.
function rotary.turn_neighbours(x, cos, sin) return native.rotary(x, cos, sin, true) end

return rotary
