--- The conditions that a UNet adds to every residual block: the time, and where it has them
--- classes, a guidance scale, and SDXL's features of the text with the sizes of the picture.
local blocks = require "redco.models.layers.blocks"
local fail = require "redco.fail"
local layers = require "redco.diffusion.layers"
local torch = require "redco.torch"

local time = {}

function time.size(c) return c.time_embedding_dim or 4 * c.block_out_channels[1] end

function time.check(c, where)
  local kind = c.addition_embed_type
  if kind == nil then return end
  if kind ~= "text_time" then
    fail("%s: addition_embed_type = '%s' is not supported, only 'text_time' and null", where, kind)
  end
  for _, key in ipairs { "addition_time_embed_dim", "projection_class_embeddings_input_dim" } do
    if not c[key] then fail("%s: %s is missing, which 'text_time' needs", where, key) end
  end
end

--- Returns the size of the embedding.
function time.add_parameters(c, add)
  local first, size = c.block_out_channels[1], time.size(c)
  layers.add_embedding(add, "time_embedding", first, size)
  if c.time_cond_proj_dim then
    layers.add_linear(add, "time_embedding.cond_proj", c.time_cond_proj_dim, first, false)
  end
  if c.num_class_embeds then
    add("class_embedding.weight", { c.num_class_embeds, size }, blocks.normal(1))
  end
  if c.addition_embed_type then
    layers.add_embedding(add, "add_embedding", c.projection_class_embeddings_input_dim, size)
  end
  return size
end

--- Returns sines and cosines [n, size] of the numbers `values` [n], in float32.
function time.sinusoids(values, size, flip_sin_to_cos, freq_shift)
  local half = math.floor(size / 2)
  local exponents = torch.arange(0, half, { dtype = "float32", device = values.device })
    * -math.log(10000) / (half - freq_shift)
  local angles = values:float():unsqueeze(1) * exponents:exp():unsqueeze(0)
  local parts = { angles:sin(), angles:cos() }
  if flip_sin_to_cos then parts = { parts[2], parts[1] } end
  if size % 2 == 1 then parts[3] = torch.zeros_like(angles:narrow(1, 0, 1)) end
  return torch.cat(parts, 1)
end

--- Returns the times as a tensor [1] or [B].
function time.times_of(timesteps, sample)
  if type(timesteps) == "number" then
    return torch.full({ 1 }, timesteps, { dtype = "float32", device = sample.device })
  end
  if torch.is_tensor(timesteps) and timesteps:dim() == 0 then return timesteps:reshape { 1 } end
  if torch.is_tensor(timesteps) and timesteps:dim() == 1
    and (timesteps:size(0) == sample:size(0) or timesteps:size(0) == 1) then
    return timesteps
  end
  fail("timesteps are %s, expected a number or a tensor [%d]", torch.is_tensor(timesteps)
    and "[" .. table.concat(timesteps.shape, ", ") .. "]" or tostring(timesteps), sample:size(0))
end

-- SDXL's condition: features of the text [B, D], and six numbers for the picture [B, 6].
local function added(c, params, sample, o)
  if not o.text_embeds or not o.time_ids then
    fail("unet: %s is missing, which this UNet needs (addition_embed_type = 'text_time')",
      o.text_embeds and "time_ids [batch, 6]" or "text_embeds [batch, size]")
  end
  local ids = o.time_ids
  local numbers = time.sinusoids(ids:reshape { -1 }, c.addition_time_embed_dim, c.flip_sin_to_cos,
    c.freq_shift):reshape { ids:size(0), ids:size(1) * c.addition_time_embed_dim }
  local x = torch.cat({ o.text_embeds:to(sample.dtype), numbers:to(sample.dtype) }, 1)
  if x:size(1) ~= c.projection_class_embeddings_input_dim then
    fail("unet: text_embeds [%s] and time_ids [%s] make %d numbers, expected %d",
      table.concat(o.text_embeds.shape, ", "), table.concat(ids.shape, ", "), x:size(1),
      c.projection_class_embeddings_input_dim)
  end
  return layers.embedding(params, "add_embedding", x, torch.silu, o)
end

--- Returns the embedding [1 or B, E] of the time and the other conditions. `o` are the options of
--- the UNet's call.
function time.embed(c, params, timesteps, sample, o)
  local activation = blocks.activation("unet", c.act_fn)
  local x = time.sinusoids(time.times_of(timesteps, sample), c.block_out_channels[1],
    c.flip_sin_to_cos, c.freq_shift):to(sample.dtype)
  if o.timestep_cond then
    if not c.time_cond_proj_dim then
      fail "unet: timestep_cond is given, but the UNet has no time_cond_proj_dim"
    end
    x = x + blocks.linear(params, "time_embedding.cond_proj", o.timestep_cond:to(sample.dtype), o)
  end
  local embedding = layers.embedding(params, "time_embedding", x, activation, o)
  if c.num_class_embeds then
    if not o.class_labels then fail "unet: class_labels [batch] are missing" end
    embedding = embedding + blocks.embedding(params, "class_embedding", o.class_labels)
  end
  if c.addition_embed_type then embedding = embedding + added(c, params, sample, o) end
  return embedding
end

return time
