--- The model object, the same for all families: forward call, loss, generation, folder.
local adapter = require "redco.lora.adapter"
local arguments = require "redco.arguments"
local blocks = require "redco.models.blocks"
local check_inputs = require "redco.models.check_inputs"
local experts = require "redco.models.experts"
local fail = require "redco.fail"
local files = require "redco.models.files"
local generate = require "redco.generation"
local nn = require "redco.nn"
local next_labels = require "redco.models.next_labels"
local resize_token_embeddings = require "redco.models.resize"
local save_gguf = require "redco.models.gguf.save"
local set_features = require "redco.models.features"
local set_pooled = require "redco.models.pooled"
local set_texts = require "redco.models.texts"
local torch = require "redco.torch"
local weights = require "redco.quant.weights"
local widened = require "redco.nn.widened"

local call_options = arguments("model", { train = false }, { "rng", "cache" })
local pooling_options = arguments("model", { train = false }, { "rng", "cache", "pooling" })
local loss_options = arguments("model.loss",
  { train = false, ignore_index = -100, label_smoothing = 0, shift = false }, { "rng" })

local logprobs_options = arguments("model.logprobs", { train = false, ignore_index = -100,
  shift = false, temperature = 1, entropy = false, hidden_states = false }, { "rng" })

local resize_options = arguments("model.resize_token_embeddings", { mean_resizing = true },
  { "generator", "pad_to_multiple_of", "params" })

local save_options = arguments("model.save_pretrained", { max_shard_size = "5GB" }, { "params" })

local gguf_options = arguments("model.save_gguf", {},
  { "type", "params", "tokenizer", "importance", "name" })

local Model = { __name = "Model" }
Model.__index = Model

-- Returns the labels with padding in place of -100, and their last token of each row as its first.
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

--- family: a file of this folder; config: complete; params: a flat table; new_parameters: the names
--- of those that no file has, if the others are from files.
local function new_model(family, config, params, new_parameters)
  local weight, bias
  if family.head then weight, bias = family.head(config) end
  local is_buffer = family.buffers or {}  -- kept with the parameters, not trained
  local model = setmetatable({
    family = family, config = config, params = params, new_parameters = new_parameters or {},
    is_encoder_decoder = family.new_encoder and true or false,
  }, Model)
  local encode = family.new_encoder and family.new_encoder(config)
  local forward = family.new_forward and family.new_forward(config)
  local head_input = weight and family.new_head_input and family.new_head_input(config)

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

  local head_name = weight and weight:gsub("%.weight$", "")
  local function head(p)
    -- Adapters may give a head that is an embedding a weight of its own.
    local name = p["lm_head.weight"] and "lm_head" or head_name
    local b = bias and p[bias]:reshape { -1 }
    return p[name .. ".weight"], b and is_buffer[bias] and b:detach() or b, name
  end

  -- Decoders predict the next token; the labels of others are those of the same place.
  local is_decoder = not encode and not family.task and not family.loss
  model.is_decoder = is_decoder
  local is_checked = false  -- whether labels were compared with the inputs
  local function labels_of(inputs, o)
    if o.shift then
      if not is_decoder then
        fail("model.loss: shift is for decoders, which predict the next token; the labels of a %s "
          .. "are not shifted", family.architecture or config.model_type)
      end
      return next_labels.shifted(inputs, o.ignore_index)
    end
    if not encode and not is_checked then
      is_checked = next_labels.warn_of_copies(inputs, o.ignore_index, is_decoder)
    end
    return inputs.labels
  end

  local router_loss = family.router_loss and family.router_loss(config)
  local cap = family.logits_cap and family.logits_cap(config)
  -- `o` has train and rng, for the dropout of the head's adapter.
  local function last_layer(p, x, o)
    local _, b, name = head(p)
    local logits = adapter.by_name(p, name, x, weights.linear(p, name .. ".", x, b), o, b)
    if family.is_single then logits = logits:squeeze(-1) end
    return cap and torch.tanh(logits / cap) * cap or logits
  end

  function model.logits(p, hidden, inputs, options)
    local o = call_options(options)
    return last_layer(p, head_input and head_input(p, hidden, inputs or {}, o) or hidden, o)
  end

  -- The input of the last layer, and the routers' logits.
  local function head_rows(p, inputs, o)
    local hidden, routers = model.hidden_states(p, inputs, { train = o.train, rng = o.rng })
    return head_input and head_input(p, hidden, inputs, o) or hidden, routers
  end

  -- Calls `fused` with the input of the last layer, or `of_logits` with the logits where that layer
  -- is not only a product. `temperature`, or nil, divides the logits.
  local function with_labels(p, hidden, labels, o, settings, fused, of_logits, temperature)
    local function cooled(t)
      return t and temperature and temperature ~= 1 and t / temperature or t
    end
    local last, b, name = head(p)
    if cap or p[name .. ".lora_A.weight"] or p[name .. ".weight_type"] then
      return of_logits(cooled(last_layer(p, hidden, o)), labels, settings)
    end
    settings.bias = cooled(b)
    return fused(cooled(hidden), last, labels, settings)
  end

  -- The entropies [B, T] of the next tokens, without gradient, from the logits of a few places at a
  -- time.
  local function entropies_of(p, hidden, o)
    local length, vocab_size = hidden:size(1), head(p):size(0)
    local n = math.max(1, math.floor(2 ^ 22 / (hidden:size(0) * vocab_size)))
    local parts = {}
    for first = 0, length - 1, n do
      local x = hidden:narrow(1, first, math.min(n, length - first))
      local logprobs = (widened(last_layer(p, x, o)) / o.temperature):log_softmax(-1)
      parts[#parts + 1] = -(logprobs:exp() * logprobs):sum(-1)
    end
    return torch.cat(parts, 1)
  end

  function model.loss(p, inputs, options)
    local o = loss_options(options)
    if not family.loss and inputs.labels == nil then
      fail "model.loss: inputs.labels is missing; without labels there is model.hidden_states"
    end
    if encode then inputs = with_decoder_inputs(family, config, inputs) end
    local hidden, routers = head_rows(p, inputs, o)
    if family.loss then return family.loss(config, last_layer(p, hidden, o), inputs, o) end
    local loss, count = with_labels(p, hidden, labels_of(inputs, o), o,
      { ignore_index = o.ignore_index, label_smoothing = o.label_smoothing },
      nn.linear_cross_entropy, nn.cross_entropy)
    if not routers or not routers[1] then return loss, count end
    local mask = inputs.attention_mask
    local metrics = torch.is_grad_enabled() and experts.metrics(routers, mask) or nil
    if router_loss then
      local balance, factor = router_loss(routers, mask)
      loss = loss + balance * factor
      if metrics then metrics.router_loss = balance end
    end
    return loss, count, metrics
  end

  function model.logprobs(p, inputs, options)
    local o = logprobs_options(options)
    if family.loss or family.task or not weight then
      fail("model.logprobs: a %s gives tokens no probabilities",
        family.architecture or config.model_type)
    end
    if inputs.labels == nil then fail "model.logprobs: inputs.labels is missing" end
    if encode then inputs = with_decoder_inputs(family, config, inputs) end
    local labels, hidden = labels_of(inputs, o), (head_rows(p, inputs, o))
    local each = with_labels(p, hidden, labels, o, { ignore_index = o.ignore_index },
      nn.linear_logprobs, nn.logprobs, o.temperature)
    return each, labels, o.entropy and torch.no_grad(entropies_of, p, hidden, o) or nil,
      o.hidden_states and hidden or nil
  end

  function model.loss_fn(rng, _, p, batch, is_training)
    return model.loss(p, batch, { train = is_training, rng = rng })
  end

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
  elseif not weight then
    set_pooled(model, pooling_options)
  end

  -- A method call would pass the model as the first argument.
  for name, f in pairs(model) do
    if type(f) == "function" then
      model[name] = function(first, ...)
        if rawequal(first, model) then
          fail("model.%s is called with a dot, not a colon: model.%s(...)", name, name)
        end
        if takes_inputs[name] and (name ~= "loss" or family.loss or weight) then
          local inputs, options = ...
          if name == "generate" then options = nil end  -- its inputs are all tokens
          check_inputs(name == "output" and "model" or "model." .. name, family, first, inputs,
            options)
        end
        return f(first, ...)
      end
    end
  end
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
