--- The transformer layers of CLIP's and SigLIP's models of texts and of images, and what their
--- embeddings share. The names of parameters are those within such a model: "encoder.layers.0...".
local blocks = require "redco.models.layers.blocks"
local fail = require "redco.fail"
local nn = require "redco.nn"
local torch = require "redco.torch"

local layers = {}

local projections = { q = ".q_proj", k = ".k_proj", v = ".v_proj", out = ".out_proj" }

--- Declares the two layers of a feed-forward network. `inits` has fc1, fc2 and optionally fc_bias.
function layers.add_mlp(add, name, c, inits)
  local size, inner = c.hidden_size, c.intermediate_size
  blocks.add_linear(add, name .. ".fc1", size, inner, inits.fc1, inits.fc_bias)
  blocks.add_linear(add, name .. ".fc2", inner, size, inits.fc2, inits.fc_bias)
end

--- Returns function(params, name, x, o), a feed-forward network.
function layers.new_mlp(c)
  local activation = blocks.activation(c.model_type, c.hidden_act)
  return function(params, name, x, o)
    local inner = activation(blocks.linear(params, name .. ".fc1", x, o))
    return blocks.linear(params, name .. ".fc2", inner, o)
  end
end

--- Declares the parameters of all layers. `inits` has initialisers of the weights `projection` (of
--- q, k and v), `out`, `fc1` and `fc2`.
function layers.add_parameters(c, add, inits)
  for i = 0, c.num_hidden_layers - 1 do
    local layer = ("encoder.layers.%d."):format(i)
    for _, part in ipairs { "q", "k", "v", "out" } do
      blocks.add_linear(add, layer .. "self_attn" .. projections[part], c.hidden_size,
        c.hidden_size, part == "out" and inits.out or inits.projection)
    end
    layers.add_mlp(add, layer .. "mlp", c, inits)
    blocks.add_layer_norm(add, layer .. "layer_norm1", c.hidden_size)
    blocks.add_layer_norm(add, layer .. "layer_norm2", c.hidden_size)
  end
end

--- Returns function(params, x, mask, o, kept) -> x. Appends the input of the first layer and the
--- output of each to the list `kept`, if it is given.
function layers.new(c)
  local attention = blocks.new_attention(c.num_attention_heads, projections, c.attention_dropout)
  local mlp = layers.new_mlp(c)
  local function apply_layer(params, layer, x, mask, o)
    local function norm(name)
      return blocks.layer_norm(params, layer .. name, x, c.layer_norm_eps)
    end
    x = x + attention.to_itself(params, layer .. "self_attn", norm "layer_norm1", mask, o)
    return x + mlp(params, layer .. "mlp", norm "layer_norm2", o)
  end

  return function(params, x, mask, o, kept)
    local function keep(hidden) if kept then kept[#kept + 1] = hidden end end
    keep(x)
    for i = 0, c.num_hidden_layers - 1 do
      x = nn.block(apply_layer, params, ("encoder.layers.%d."):format(i), x, mask, o)
      keep(x)
    end
    return x
  end
end

-- Looks up tokens. Those behind the vocabulary are rows of another table, which textual inversion
-- adds (redco.diffusion.add_token).
local function look_up(c, params, ids)
  local added = params["embeddings.added_tokens.weight"]
  if not added then return blocks.embedding(params, "embeddings.token_embedding", ids) end
  local known = blocks.embedding(params, "embeddings.token_embedding",
    ids:clamp(nil, c.vocab_size - 1))
  return torch.where(ids:ge(c.vocab_size):unsqueeze(-1),
    torch.embedding(added, (ids - c.vocab_size):clamp(0)), known)
end

--- Returns the embeddings [B, T, size] of tokens and their learned positions. Positions count
--- padding too, as in transformers.
function layers.embed_tokens(c, params, inputs)
  local ids = inputs.input_ids or fail("%s: inputs.input_ids are missing", c.model_type)
  blocks.check_length(c, "max_position_embeddings", {}, ids)
  local x = look_up(c, params, ids)
  local places = params["embeddings.position_embedding.weight"]
  if inputs.position_ids then return x + torch.embedding(places, inputs.position_ids) end
  return x + places:narrow(0, 0, ids:size(1)):unsqueeze(0)
end

--- Returns inputs.pixel_values, or raises an error if they are not of the size of the images.
function layers.pixels_of(c, inputs)
  local pixels = inputs.pixel_values or fail("%s: inputs.pixel_values are missing", c.model_type)
  local expected = table.concat({ c.num_channels, c.image_size, c.image_size }, ", ")
  local shape = pixels.shape
  if #shape ~= 4 or table.concat(shape, ", ", 2) ~= expected then
    fail("%s: pixel_values are [%s], expected [batch, %s]", c.model_type,
      table.concat(shape, ", "), expected)
  end
  return pixels
end

--- Returns the embeddings [B, patches, size] of the patches of images, without positions.
function layers.embed_patches(c, params, inputs)
  local patches = blocks.patches(params, "embeddings.patch_embedding",
    layers.pixels_of(c, inputs), { stride = c.patch_size })
  return patches:flatten(2):transpose(1, 2)
end

--- The number of patches of an image. As in transformers, what is left at the edges is not seen.
function layers.n_patches(c) return math.floor(c.image_size / c.patch_size) ^ 2 end

return layers
