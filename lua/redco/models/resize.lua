--- Gives a model's embeddings, and what else has a row for each token, another number of rows.
local fail = require "redco.fail"
local files = require "redco.models.files"
local is_adapter = require("redco.lora.layers").is_adapter
local nn = require "redco.nn"
local torch = require "redco.torch"

-- The part of the configuration that has the vocabulary of the input.
local function vocabulary_of(c)
  if c.vocab_size then return c end
  return type(c.text_config) == "table" and c.text_config.vocab_size and c.text_config or nil
end

-- Returns the configuration with another number of tokens.
local function with_vocab_size(c, n)
  local changed = {}
  for key, value in pairs(c) do changed[key] = value end
  if c.vocab_size then
    changed.vocab_size = n
  else
    changed.text_config = with_vocab_size(c.text_config, n)
  end
  if c.decoder_vocab_size and c.share_encoder_decoder_embeddings ~= false then
    changed.decoder_vocab_size = n
  end
  return changed
end

-- Returns the parameters of another size, { {name, sizes, init, dim}... }: `dim` is that of tokens.
local function resized_parameters(family, c, n)
  local old, list = {}, {}
  family.add_parameters(c, function(name, sizes) old[name] = sizes end)
  family.add_parameters(with_vocab_size(c, n), function(name, sizes, init)
    for dim, size in ipairs(sizes) do
      if size ~= old[name][dim] then list[#list + 1] = { name, sizes, init, dim - 1 } end
    end
  end)
  return list
end

-- The scale of the noise around the mean, as in transformers.
local epsilon = 1e-9

-- Returns numbers [n, size] from the standard normal distribution.
local function noise_of(n, size, generator)
  return nn.init.normal_(files.new_parameter({ n, size }, "float32"), { generator = generator })
end

-- Draws n rows [n, size] around the mean of the old ones, with a small part of their covariance.
-- Returns the mean itself if the covariance is singular.
local function rows_around_mean(old, n, generator)
  local rows = old:float()
  local mean = rows:mean(0)
  local centered = rows - mean
  local covariance = centered:t():matmul(centered) * (epsilon / rows:size(0))
  local factor, info = torch.linalg_cholesky_ex(covariance)
  mean = mean:unsqueeze(0):expand { n, -1 }
  if info:item() ~= 0 then return mean end
  return mean + noise_of(n, rows:size(1), generator):matmul(factor:t())
end

-- The same for numbers [n].
local function numbers_around_mean(old, n, generator)
  local all = old:float()
  return all:mean() + noise_of(n, 1, generator):squeeze(1) * (all:std() * epsilon)
end

-- Returns the new entries of a parameter as transformers draws them, or nil to use its initialiser.
local function new_entries(model, name, old, n, o)
  local is_buffer = (model.family.buffers or {})[name]
  if not o.mean_resizing or is_buffer then return nil end
  if old:dim() == 2 then return rows_around_mean(old, n, o.generator) end
  -- transformers fills the bias of a tied head with zeros.
  if model.config.tie_word_embeddings then return nil end
  return numbers_around_mean(old, n, o.generator)
end

local function resized(model, old, entry, o)
  local name, sizes, init, dim = unpack(entry)
  return torch.no_grad(function()
    local new = files.new_parameter(sizes, old.dtype)
    local n_old, n_new = old:size(dim), sizes[dim + 1]
    local kept = old:narrow(dim, 0, math.min(n_old, n_new))
    if n_new <= n_old then return new:copy_(kept) end
    local added = new_entries(model, name, old, n_new - n_old, o)
      or init(new, o.generator):narrow(dim, n_old, n_new - n_old)
    return new:copy_(torch.cat({ kept, added:to(old.dtype) }, dim))
  end)
end

-- Returns the number of rows that a call asks for; nil for no change.
local function rows_for(current, n, multiple)
  local where = "model.resize_token_embeddings"
  for name, value in pairs { new_num_tokens = n, pad_to_multiple_of = multiple } do
    if type(value) ~= "number" or value < 1 or value % 1 ~= 0 or value >= 2 ^ 31 then
      fail("%s: %s is %s, expected a whole number from 1", where, name, tostring(value))
    end
  end
  if n == nil and multiple == nil then return nil end
  n = n or current
  return multiple and math.ceil(n / multiple) * multiple or n
end

--- Resizes the parameters o.params or model.params in place, and the configuration. Returns the
--- parameters.
return function(model, new_num_tokens, o)
  local where, family, c = "model.resize_token_embeddings", model.family, model.config
  local vocabulary, params = vocabulary_of(c), o.params or model.params
  if not vocabulary then
    fail("%s: a %s has no vocabulary of its own", where, family.architecture)
  end
  local n = rows_for(vocabulary.vocab_size, new_num_tokens, o.pad_to_multiple_of)
  if not n or n == vocabulary.vocab_size then return params end
  local list = resized_parameters(family, c, n)
  local count = 0
  for _, entry in ipairs(list) do
    local name, sizes = unpack(entry)
    if not torch.is_tensor(params[name]) then
      fail("%s: the parameters have no %s", where, name)
    end
    if params[name .. "_type"] then
      fail("%s: %s is quantized; open the model with quantize = false", where, name)
    end
    count = count + sizes[1] * (sizes[2] or 1)
  end
  for name in pairs(params) do
    local layer = is_adapter(name) and name:match "^(.*)%.lora_"
    for _, entry in ipairs(list) do
      if layer and entry[1] == layer .. ".weight" then
        fail("%s: %s has an adapter; resize the model before redco.lora.add", where, layer)
      end
    end
  end
  files.check_memory(family, count, params[list[1][1]].dtype, "")
  for _, entry in ipairs(list) do
    params[entry[1]] = resized(model, params[entry[1]], entry, o)
  end
  vocabulary.vocab_size = n
  if c.decoder_vocab_size and c.share_encoder_decoder_embeddings ~= false then
    c.decoder_vocab_size = n
  end
  return params
end
