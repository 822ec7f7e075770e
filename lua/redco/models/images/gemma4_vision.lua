--- The model of images of Gemma 4 (Google, 2026), as Hugging Face's `Gemma4VisionModel`: patches
--- with their rows and columns, of images of any size, whose means over squares are its output.
--- Shapes: n images of at most P patches, of which k x k are a square.
local blocks = require "redco.models.layers.blocks"
local fail = require "redco.fail"
local masks = require "redco.models.layers.masks"
local nn = require "redco.nn"
local norms = require "redco.models.layers.norms"
local rotary = require "redco.models.layers.rotary"
local torch = require "redco.torch"

local vision = {
  model_type = "gemma4_vision",
  prefix = "",
  defaults = {
    hidden_size = 768,
    intermediate_size = 3072,
    num_hidden_layers = 16,
    num_attention_heads = 12,
    num_key_value_heads = 12,
    head_dim = 64,
    hidden_activation = "gelu_pytorch_tanh",
    rms_norm_eps = 1e-6,
    max_position_embeddings = 131072,
    attention_bias = false,
    attention_dropout = 0.0,
    pooling_kernel_size = 3,
    patch_size = 16,
    position_embedding_size = 10240,
    use_clipped_linears = false,
    standardize = false,
    initializer_range = 0.02,
  },
  optional = { "rope_parameters" },
}

local layer_norms = { "input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm",
  "post_feedforward_layernorm" }
local bounds = { "input_min", "input_max", "output_min", "output_max" }

local function theta_of(c) return c.rope_parameters and c.rope_parameters.rope_theta or 100 end

function vision.check(c)
  blocks.check_multiple(c, "num_attention_heads", "num_key_value_heads")
  if c.head_dim % 4 ~= 0 then
    fail("gemma4_vision: head_dim is %d, expected a multiple of 4", c.head_dim)
  end
  local kind = c.rope_parameters and c.rope_parameters.rope_type
  if kind and kind ~= "axial" then
    fail("gemma4_vision: rope_type is '%s', expected 'axial'", kind)
  end
end

--- The names of the tensors that are not trained.
function vision.is_buffer(name)
  local last = name:match "[^.]*$"
  for _, bound in ipairs(bounds) do
    if last == bound then return true end
  end
  return last == "std_bias" or last == "std_scale"
end

function vision.add_parameters(c, add)
  local size, normal = c.hidden_size, blocks.normal(c.initializer_range)
  local function linear(name, n_in, n_out)
    add(name .. ".linear.weight", { n_out, n_in }, normal)
    for i, bound in ipairs(c.use_clipped_linears and bounds or {}) do
      add(name .. "." .. bound, {}, blocks.constant(i % 2 == 1 and -math.huge or math.huge))
    end
  end
  add("patch_embedder.input_proj.weight", { size, 3 * c.patch_size ^ 2 }, normal)
  add("patch_embedder.position_embedding_table", { 2, c.position_embedding_size, size },
    blocks.ones)
  for i = 0, c.num_hidden_layers - 1 do
    local layer = ("encoder.layers.%d."):format(i)
    local attention, mlp = layer .. "self_attn.", layer .. "mlp."
    linear(attention .. "q_proj", size, c.num_attention_heads * c.head_dim)
    linear(attention .. "k_proj", size, c.num_key_value_heads * c.head_dim)
    linear(attention .. "v_proj", size, c.num_key_value_heads * c.head_dim)
    linear(attention .. "o_proj", c.num_attention_heads * c.head_dim, size)
    norms.rms.add(add, attention .. "q_norm", { c.head_dim })
    norms.rms.add(add, attention .. "k_norm", { c.head_dim })
    linear(mlp .. "gate_proj", size, c.intermediate_size)
    linear(mlp .. "up_proj", size, c.intermediate_size)
    linear(mlp .. "down_proj", c.intermediate_size, size)
    for _, name in ipairs(layer_norms) do norms.rms.add(add, layer .. name, { size }) end
  end
  if c.standardize then
    add("std_bias", { size }, blocks.zeros)
    add("std_scale", { size }, blocks.ones)
  end
end

-- Returns cos and sin [n, 1, P, head_dim / 4] for columns and for rows.
local function angles_of(c, places, dtype)
  local angles = rotary.angles_of_two(places:select(-1, 0), places:select(-1, 1), c.head_dim,
    theta_of(c)):unsqueeze(1):chunk(2, -1)
  for axis, turns in ipairs(angles) do
    angles[axis] = { turns:cos():to(dtype), turns:sin():to(dtype) }
  end
  return angles
end

-- Returns means [n, P / k^2, size] of squares of patches. Padding adds zeros to the first square.
local function pooled(c, x, places, is_padding)
  local k = c.pooling_kernel_size
  x = x:masked_fill(is_padding:unsqueeze(-1), 0)
  if k == 1 then return x:float() end
  local known = places:clamp(0)
  local width = known:select(-1, 0):amax({ -1 }, true) + 1
  local squares = known:div(k, { rounding_mode = "floor" })
  local index = squares:select(-1, 0)
    + width:div(k, { rounding_mode = "floor" }) * squares:select(-1, 1)
  local numbers = torch.arange(math.floor(x:size(1) / k ^ 2), { device = x.device })
  local weights = index:unsqueeze(1):eq(numbers:view { 1, -1, 1 }):to "float32" / k ^ 2
  return weights:matmul(x:float())
end

--- Returns function(params, inputs, o) -> means [n, P / k^2, size].
function vision.new_tower(c)
  local activation = blocks.activation("gemma4_vision", c.hidden_activation)
  local n_heads, n_kv = c.num_attention_heads, c.num_key_value_heads

  return function(params, inputs, o)
    local places = inputs.image_position_ids
    local is_padding = places:eq(-1):all(-1)
    local function rms(name, x) return norms.rms.apply(params, name, x, c.rms_norm_eps) end

    local function linear(name, x)
      local function clipped(y, part)
        local least = params[name .. "." .. part .. "_min"]
        if not least then return y end
        return y:clamp(least:detach(), params[name .. "." .. part .. "_max"]:detach())
      end
      return clipped(blocks.linear(params, name .. ".linear", clipped(x, "input"), o), "output")
    end

    local function embedded()
      local pixels = (inputs.pixel_values - 0.5) * 2
      local x = blocks.linear(params, "patch_embedder.input_proj",
        pixels:to(params["patch_embedder.input_proj.weight"].dtype), o)
      local table_of, known = params["patch_embedder.position_embedding_table"], places:clamp(0)
      local y = torch.embedding(table_of:select(0, 0), known:select(-1, 0))
        + torch.embedding(table_of:select(0, 1), known:select(-1, 1))
      return x + y:masked_fill(is_padding:unsqueeze(-1), 0)
    end

    local x = embedded()
    local angles = angles_of(c, places, x.dtype)
    local mask = masks.padding(is_padding:logical_not(), x.dtype)

    local function turned(y)
      local halves = y:chunk(2, -1)
      for axis = 1, 2 do halves[axis] = rotary.turn_halves(halves[axis], unpack(angles[axis])) end
      return torch.cat(halves, -1)
    end

    local function attend(name, y)
      local function heads(part, n)
        return linear(name .. part .. "_proj", y):view { y:size(0), y:size(1), n, c.head_dim }
      end
      local q = turned(rms(name .. "q_norm", heads("q", n_heads)):transpose(1, 2))
      local k = turned(rms(name .. "k_norm", heads("k", n_kv)):transpose(1, 2))
      local v = norms.rms_plain.apply(params, nil, heads("v", n_kv), c.rms_norm_eps)
      local seen = blocks.attention(q, k, v:transpose(1, 2), { mask = mask, scale = 1,
        dropout = c.attention_dropout, enable_gqa = n_kv < n_heads }, o)
      return linear(name .. "o_proj", seen)
    end

    local function feed(name, y)
      return linear(name .. "down_proj",
        activation(linear(name .. "gate_proj", y)) * linear(name .. "up_proj", y))
    end

    local function apply_layer(layer, y)
      y = y + rms(layer .. "post_attention_layernorm",
        attend(layer .. "self_attn.", rms(layer .. "input_layernorm", y)))
      return y + rms(layer .. "post_feedforward_layernorm",
        feed(layer .. "mlp.", rms(layer .. "pre_feedforward_layernorm", y)))
    end

    local dtype = x.dtype
    for i = 0, c.num_hidden_layers - 1 do
      x = nn.block(apply_layer, ("encoder.layers.%d."):format(i), x)
    end
    -- These numbers may be too large for float16.
    local means = pooled(c, x, places, is_padding) * math.sqrt(c.hidden_size)
    if c.standardize then
      means = (means - params.std_bias:detach():float()) * params.std_scale:detach():float()
    end
    return means:to(dtype)
  end
end

return vision
