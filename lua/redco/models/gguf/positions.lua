--- The scaling of rotary positions in a GGUF file.
local fail = require "redco.fail"
local rotary = require "redco.models.layers.rotary"
local torch = require "redco.torch"

local positions = {}

-- Tensors that belong to the configuration: divisors of the rotary frequencies for all texts, for
-- short and for long texts.
local divisors_name = "rope_freqs.weight"
local short_name, long_name = "rope_factors_short.weight", "rope_factors_long.weight"
positions.tensors = { [divisors_name] = true, [short_name] = true, [long_name] = true }

-- Returns the divisors in a tensor, one for each pair, or nil if the file lacks the tensor.
local function divisors_of(file, r, name, n_pairs)
  if not r.has(name) then return nil end
  local list = file:tensor(name):flatten():tolist()
  if #list ~= n_pairs then
    fail("%s: the tensor %s has %d numbers, expected %d, half the size of a head", r.path, name,
      #list, n_pairs)
  end
  return list
end

-- Returns the settings of positions that are scaled for longer texts, linearly or by YaRN, or nil.
local function common_scaling(r, kind)
  if kind ~= "linear" and kind ~= "none" and kind ~= "yarn" then
    fail("%s: %s is '%s', expected linear, none or yarn%s", r.path, r.name "rope.scaling.type",
      kind, kind == "longrope" and (", or the tensors %s and %s beside it"):format(short_name,
        long_name) or "")
  end
  -- The second key is that of older files; 0 means none.
  local factor = r.fraction("rope.scaling.factor", r.number("rope.scale_linear", 0))
  if kind == "none" or factor == 0 or factor == 1 then return nil end
  if kind == "linear" then return { rope_type = kind, factor = factor } end
  return { rope_type = kind, factor = factor,
    original_max_position_embeddings =
      r.count("rope.scaling.original_context_length", r.count "context_length"),
    beta_fast = r.fraction("rope.scaling.yarn_beta_fast", 32),
    beta_slow = r.fraction("rope.scaling.yarn_beta_slow", 1) }
end

-- Sets divisors that depend on the length of the text.
local function set_long(r, c, short, long)
  local factor = r.number("rope.scaling.factor", r.number("rope.scale_linear", 0))
  if factor ~= 0 and factor ~= 1 then
    fail("%s: %s beside the tensor %s is not supported", r.path, r.name "rope.scaling.factor",
      long_name)
  end
  c.original_max_position_embeddings =
    r.count("rope.scaling.original_context_length", r.count "context_length")
  c.rope_scaling = { rope_type = "longrope", short_factor = short, long_factor = long,
    attention_factor = r.fraction("rope.scaling.attn_factor", 1) }
end

--- Sets rope_theta and rope_scaling of the configuration `c` with `size` rotated elements in a
--- head. All that a file says of the scaling applies at once: a factor or YaRN, divisors of each
--- pair, and a factor of cos and sin.
function positions.set(file, r, c, size)
  c.rope_theta = r.fraction("rope.freq_base", 10000)
  local n_pairs = math.floor(size / 2)
  local short = divisors_of(file, r, short_name, n_pairs)
  local long = divisors_of(file, r, long_name, n_pairs)
  if short and long then return set_long(r, c, short, long) end
  local scaling = common_scaling(r, r.value "rope.scaling.type" or "linear")
  local attention_factor = r.fraction("rope.scaling.attn_factor", 1)
  local divisors = divisors_of(file, r, divisors_name, n_pairs)
  c.rope_scaling = scaling
  if not divisors and attention_factor == 1 then return end
  local function frequencies(given)
    return rotary.frequencies(rotary.settings("llama", { rope_theta = c.rope_theta,
      rope_scaling = given, max_position_embeddings = r.count "context_length" }, size), 1)
  end
  local plain = frequencies(nil)
  local scaled, own_factor = frequencies(scaling)
  local all = {}
  for i, frequency in ipairs(plain) do
    all[i] = frequency / scaled[i] * (divisors and divisors[i] or 1)
  end
  -- "longrope" takes any divisors.
  c.rope_scaling = { rope_type = "longrope", short_factor = all, long_factor = all,
    attention_factor = own_factor * attention_factor }
end

-- Returns the frequencies of a configuration for short or long texts, and the factor of cos and
-- sin.
local function frequencies_of(c, scaling, length)
  return rotary.frequencies(rotary.settings(c.model_type, {
    rope_theta = c.rope_theta, rope_scaling = scaling, model_type = c.model_type,
    max_position_embeddings = c.max_position_embeddings,
    original_max_position_embeddings = c.original_max_position_embeddings,
  }, rotary.size(c)), length)
end

local function list_tensor(name, list)
  return { name, "f32", { #list }, torch.tensor(list, { dtype = "float32" }) }
end

-- For each kind, function(w, c, scaling, row): writes the keys and returns tensors, or nil if files
-- of this row cannot express the scaling.
local kinds = {}

function kinds.linear(w, _, scaling)
  w.text("rope.scaling.type", "linear")
  w.fraction("rope.scaling.factor", scaling.factor)
  return {}
end

function kinds.yarn(w, c, scaling)
  w.text("rope.scaling.type", "yarn")
  w.fraction("rope.scaling.factor", scaling.factor)
  w.count("rope.scaling.original_context_length",
    scaling.original_max_position_embeddings or c.max_position_embeddings)
  w.fraction("rope.scaling.yarn_beta_fast", scaling.beta_fast or 32)
  w.fraction("rope.scaling.yarn_beta_slow", scaling.beta_slow or 1)
  local _, factor = frequencies_of(c, scaling, 1)
  local usual = 1 + 0.1 * math.log(math.max(scaling.factor, 1))
  if math.abs(factor / usual - 1) > 1e-6 then
    w.fraction("rope.scaling.attn_factor", factor / usual)
  end
  return {}
end

function kinds.longrope(w, c, scaling, row)
  local _, factor = frequencies_of(c, scaling, 2 ^ 30)
  if row.rotary == "part" then
    w.text("rope.scaling.type", "longrope")
    w.fraction("rope.scaling.attn_factor", factor)
    return { list_tensor(long_name, scaling.long_factor),
      list_tensor(short_name, scaling.short_factor) }
  end
  -- Writes factors that positions.set made of divisors for all texts.
  if not row.divides then return nil end
  if factor ~= 1 then w.fraction("rope.scaling.attn_factor", factor) end
  return { list_tensor(divisors_name, scaling.short_factor) }
end

function kinds.llama3(_, c, scaling, row)
  if not row.divides then return nil end
  local plain, scaled, divisors = frequencies_of(c, nil, 1), frequencies_of(c, scaling, 1), {}
  for i, frequency in ipairs(plain) do divisors[i] = frequency / scaled[i] end
  return { list_tensor(divisors_name, divisors) }
end

--- Writes the keys of the positions. Returns tensors, a list of {name, type, shape, tensor}.
function positions.write(w, c, row)
  w.fraction("rope.freq_base", c.rope_theta)
  local scaling = c.rope_scaling
  local kind = scaling and (scaling.rope_type or scaling.type) or "default"
  if kind == "default" then return {} end
  return kinds[kind] and kinds[kind](w, c, scaling, row)
    or fail("save_gguf: %s in GGUF has no positions of type %s", c.model_type, kind)
end

--- Whether two configurations turn positions alike, in short and in long texts.
function positions.are_same(a, b)
  if rotary.size(a) ~= rotary.size(b) then return false end
  for _, length in ipairs { 1, 2 ^ 30 } do
    local list_a, factor_a = frequencies_of(a, a.rope_scaling, length)
    local list_b, factor_b = frequencies_of(b, b.rope_scaling, length)
    if math.abs(factor_a / factor_b - 1) > 1e-5 then return false end
    for i, frequency in ipairs(list_a) do
      if math.abs(frequency / list_b[i] - 1) > 1e-5 then return false end
    end
  end
  return true
end

return positions
