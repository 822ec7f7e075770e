--- The model object, the same for all families: forward call, loss, generation, folder.
local add_losses = require "redco.models.tasks.losses"
local arguments = require "redco.arguments"
local blocks = require "redco.models.layers.blocks"
local check_inputs = require "redco.models.check_inputs"
local fail = require "redco.fail"
local files = require "redco.models.files"
local generate = require "redco.generation"
local new_last_layer = require "redco.models.layers.last_layer"
local resize_token_embeddings = require "redco.models.resize"
local save_gguf = require "redco.models.gguf.save"
local set_features = require "redco.models.tasks.features"
local set_pooled = require "redco.models.tasks.pooled"
local set_texts = require "redco.models.texts"
local torch = require "redco.torch"
local weights = require "redco.quant.weights"

local call_options = arguments("model", { train = false }, { "rng", "cache" })
local pooling_options = arguments("model", { train = false }, { "rng", "cache", "pooling" })

local resize_options = arguments("model.resize_token_embeddings", { mean_resizing = true },
  { "generator", "pad_to_multiple_of", "params" })

local save_options = arguments("model.save_pretrained", { max_shard_size = "5GB" }, { "params" })

local gguf_options = arguments("model.save_gguf", {},
  { "type", "params", "tokenizer", "importance", "name" })

local Model = { __name = "Model" }
Model.__index = Model

-- Shifts the labels right, with padding in place of -100. The last token of a row becomes its
-- first.
local function wrapped_right(c, labels)
  if not c.pad_token_id then
    fail("%s: the configuration has no pad_token_id, which is needed to make decoder_input_ids "
      .. "from labels", c.model_type)
  end
  local filled = labels:masked_fill(labels:eq(-100), c.pad_token_id)
  local last = filled:gather(1, filled:ne(c.pad_token_id):sum({ 1 }, true):sub(1))
  return torch.cat({ last, filled:narrow(1, 0, labels:size(1) - 1) }, 1)
end

-- Shifts the labels [B, T] right: the inputs of a decoder that predicts them.
local function shifted_right(family, c, labels)
  if family.starts_with_last_label then return wrapped_right(c, labels) end
  local start, padding = c.decoder_start_token_id, c.pad_token_id
  if family.shift_tokens then start, padding = family.shift_tokens(c) end
  if not start or not padding then
    fail("%s: the configuration has no %s, which is needed to make decoder_input_ids from labels",
      c.model_type, start and "pad_token_id" or "decoder_start_token_id")
  end
  local first = torch.full_like(labels:narrow(1, 0, 1), start)
  local shifted = torch.cat({ first, labels:narrow(1, 0, labels:size(1) - 1) }, 1)
  return shifted:masked_fill(shifted:eq(-100), padding)
end

local takes_inputs = { encode = true, generate = true, get_audio_features = true,
  get_image_embeddings = true, get_image_features = true,
  get_text_features = true, hidden_states = true, logprobs = true, loss = true, output = true }

-- Returns the inputs with decoder_input_ids added.
local function with_decoder_inputs(family, c, inputs)
  if inputs.decoder_input_ids then return inputs end
  local source = family.decodes_inputs and inputs.input_ids or inputs.labels
  local all = { decoder_input_ids = shifted_right(family, c, source
    or fail("%s: the inputs have neither decoder_input_ids nor labels", c.model_type)) }
  for name, value in pairs(inputs) do all[name] = value end
  return all
end

-- Wraps the functions of a model with checks. A call with a colon would pass the model as the first
-- argument, and inputs must have names that the family reads.
local function add_checks(model, family, has_head)
  for name, f in pairs(model) do
    if type(f) == "function" then
      model[name] = function(first, ...)
        if rawequal(first, model) then
          fail("model.%s is called with a dot, not a colon: model.%s(...)", name, name)
        end
        if takes_inputs[name] and (name ~= "loss" or family.loss or has_head) then
          local inputs, options = ...
          if name == "generate" then options = nil end  -- inputs have all tokens, cached ones too
          check_inputs(name == "output" and "model" or "model." .. name, family, first, inputs,
            options)
        end
        return f(first, ...)
      end
    end
  end
end

-- Adds the functions that write the model into files, and model.resize_token_embeddings.
local function add_folder_functions(model)
  function model.save_pretrained(dir, options)
    local o = save_options(options)
    files.save(dir, model, o.params or model.params, o.max_shard_size)
  end

  function model.save_gguf(path, options)
    local o = gguf_options(options)
    save_gguf(path, model, o.params or model.params, o)
  end

  function model.resize_token_embeddings(new_num_tokens, options)
    return resize_token_embeddings(model, new_num_tokens, resize_options(options))
  end
end

--- family: a file of this folder; config: complete; params: a flat table; new_parameters: the names
--- of those that no file has, if the others are from files.
local function new_model(family, config, params, new_parameters)
  local model = setmetatable({
    family = family, config = config, params = params, new_parameters = new_parameters or {},
    is_encoder_decoder = family.new_encoder and true or false,
    is_decoder = not (family.new_encoder or family.task or family.loss),
  }, Model)
  local encode = family.new_encoder and family.new_encoder(config)
  local forward = family.new_forward and family.new_forward(config)
  local last_layer = family.head and new_last_layer(family, config)
  local head_input = last_layer and family.new_head_input and family.new_head_input(config)

  if encode then
    function model.encode(p, inputs, options)
      local o = call_options(options)
      return encode(p, inputs, { train = o.train, rng = o.rng })
    end

    function model.decoder_input_ids(labels) return shifted_right(family, config, labels) end
  end

  -- The encoder's output, to which the decoder attends.
  local function memory_of(p, inputs, o)
    return inputs.encoder_hidden_states or blocks.of_memory(o, "encoder", function()
      return encode(p, inputs, { train = o.train, rng = o.rng })
    end)
  end

  function model.hidden_states(p, inputs, options)
    local o = call_options(options)
    if encode then
      local is_of_encoder = not (inputs.decoder_input_ids or inputs.labels or family.decodes_inputs)
      if is_of_encoder then return encode(p, inputs, { train = o.train, rng = o.rng }) end
      inputs = with_decoder_inputs(family, config, inputs)
    end
    local hidden, routers = forward(p, inputs, o, encode and memory_of(p, inputs, o))
    if o.cache then
      if family.task then fail("%s: a cache is for generation", family.architecture) end
      o.cache:advance(hidden:size(1))
    end
    return hidden, routers
  end

  function model.logits(p, hidden, inputs, options)
    local o = call_options(options)
    return last_layer.logits(p, head_input and head_input(p, hidden, inputs or {}, o) or hidden, o)
  end

  add_losses(model, family, config, last_layer, function(p, inputs, o)
    local hidden, routers = model.hidden_states(p, inputs, { train = o.train, rng = o.rng })
    return head_input and head_input(p, hidden, inputs, o) or hidden, routers
  end, function(inputs)
    return encode and with_decoder_inputs(family, config, inputs) or inputs
  end)
  add_folder_functions(model)

  function model.generate(p, inputs, options)
    if family.task and not family.generate then
      fail("model.generate: a %s writes no text", family.architecture)
    end
    return generate(model, p, inputs, options)
  end

  if family.new_functions then
    set_features(model, function(inputs, options)
      local o = call_options(options)
      if o.cache then fail("%s: a cache is for generation", family.architecture) end
      return { train = o.train, rng = o.rng }
    end)
  elseif not last_layer then
    set_pooled(model, pooling_options)
  end
  add_checks(model, family, last_layer)
  set_texts(model)
  return model
end

function Model:__call(params, inputs, options)
  if self.output then return self.output(params, inputs, options) end
  if self.is_encoder_decoder then
    check_inputs("model", self.family, params, inputs, options)
    inputs = with_decoder_inputs(self.family, self.config, inputs)
  end
  local hidden = self.hidden_states(params, inputs, options)
  return self.logits(params, hidden, inputs, options)
end

function Model:__tostring()
  local n_params, n_tensors = 0, 0
  for name, leaf in pairs(self.params) do
    if torch.is_tensor(leaf) then
      local n = 1
      for _, size in ipairs(weights.shape(leaf, self.params[name .. "_type"])) do n = n * size end
      n_params, n_tensors = n_params + n, n_tensors + 1
    end
  end
  return ("%s: %.0f parameters in %d tensors"):format(self.family.architecture, n_params, n_tensors)
end

return new_model
