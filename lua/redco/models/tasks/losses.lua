--- The losses of a model: model.loss, model.logprobs and model.loss_fn.
local arguments = require "redco.arguments"
local experts = require "redco.models.layers.experts"
local fail = require "redco.fail"
local native = require "redco.native"
local next_labels = require "redco.models.tasks.next_labels"
local nn = require "redco.nn"
local torch = require "redco.torch"
local widened = require "redco.nn.widened"

local loss_options = arguments("model.loss",
  { train = false, ignore_index = -100, label_smoothing = 0, shift = false }, { "rng" })

local logprobs_options = arguments("model.logprobs", { train = false, ignore_index = -100,
  shift = false, temperature = 1, entropy = false, hidden_states = false }, { "rng" })

-- Returns the logits divided by the temperature.
local function cooled(t, temperature)
  return t and temperature ~= 1 and t / temperature or t
end

-- Returns function(inputs, o) -> labels. Decoders predict the next token; the labels of other
-- models are for the same place.
local function new_labels(model, family, config)
  local is_checked = model.is_encoder_decoder  -- whether labels were compared with the inputs
  return function(inputs, o)
    if o.shift then
      if not model.is_decoder then
        fail("model.loss: shift is for decoders, which predict the next token; the labels of a %s "
          .. "are not shifted", family.architecture or config.model_type)
      end
      return next_labels.shifted(inputs, o.ignore_index)
    end
    if not is_checked then
      is_checked = next_labels.warn_of_copies(inputs, o.ignore_index, model.is_decoder)
    end
    return inputs.labels
  end
end

local function loss_of(layer, p, hidden, labels, o)
  local settings = { ignore_index = o.ignore_index, label_smoothing = o.label_smoothing }
  if not layer.is_product(p) then
    return nn.cross_entropy(layer.logits(p, hidden, o), labels, settings)
  end
  local weight, bias = layer.parameters(p)
  settings.bias = bias
  return nn.linear_cross_entropy(hidden, weight, labels, settings)
end

-- Returns f(hidden, labels) [B, T]; `f` computes logits. If there are many, call(f, ...) computes
-- them for a few places at a time, so that memory never holds all logits.
local function by_places(layer, p, hidden, labels, o, f, call)
  local length, vocab_size = hidden:size(1), layer.parameters(p):size(0)
  local n = math.max(1, math.floor(2 ^ 24 / (hidden:size(0) * vocab_size)))
  -- Dropout must not depend on the places.
  if n >= length or o.train and layer.has_dropout(p) then return f(hidden, labels) end
  local parts = {}
  for first = 0, length - 1, n do
    local size = math.min(n, length - first)
    parts[#parts + 1] = call(f, hidden:narrow(1, first, size), labels:narrow(1, first, size))
  end
  return torch.cat(parts, 1)
end

-- Returns the log-probabilities of the labels, for a last layer that is not only a product.
-- Backward computes the logits again if there are many.
local function logprobs_of_logits(layer, p, hidden, labels, o)
  return by_places(layer, p, hidden, labels, o, function(x, y)
    return nn.logprobs(cooled(layer.logits(p, x, o), o.temperature), y,
      { ignore_index = o.ignore_index })
  end, native.checkpoint)
end

-- Returns the entropies [B, T] of the next tokens, without gradient.
local function entropies_of(layer, p, hidden, labels, o)
  return by_places(layer, p, hidden, labels, o, function(x)
    local logprobs = (widened(layer.logits(p, x, o)) / o.temperature):log_softmax(-1)
    return -(logprobs:exp() * logprobs):sum(-1)
  end, torch.no_grad)
end

--- Adds them to a model. layer: of last_layer.lua, or nil; input_of(p, inputs, o): the input of
--- that layer, and the routers' logits; complete(inputs): the inputs, with those of the decoder.
return function(model, family, config, layer, input_of, complete)
  local labels_of = new_labels(model, family, config)
  local router_loss = family.router_loss and family.router_loss(config)

  function model.loss(p, inputs, options)
    local o = loss_options(options)
    if not family.loss and inputs.labels == nil then
      fail "model.loss: inputs.labels is missing; without labels there is model.hidden_states"
    end
    inputs = complete(inputs)
    local hidden, routers = input_of(p, inputs, o)
    if family.loss then return family.loss(config, layer.logits(p, hidden, o), inputs, o) end
    local loss, count = loss_of(layer, p, hidden, labels_of(inputs, o), o)
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
    if family.loss or family.task or not layer then
      fail("model.logprobs: a %s gives tokens no probabilities",
        family.architecture or config.model_type)
    end
    if inputs.labels == nil then fail "model.logprobs: inputs.labels is missing" end
    inputs = complete(inputs)
    local labels, hidden = labels_of(inputs, o), (input_of(p, inputs, o))
    local each
    if layer.is_product(p) then
      local weight, bias = layer.parameters(p)
      each = nn.linear_logprobs(cooled(hidden, o.temperature), weight, labels,
        { ignore_index = o.ignore_index, bias = cooled(bias, o.temperature) })
    else
      each = logprobs_of_logits(layer, p, hidden, labels, o)
    end
    return each, labels, o.entropy and torch.no_grad(entropies_of, layer, p, hidden, labels, o)
      or nil, o.hidden_states and hidden or nil
  end

  function model.loss_fn(rng, _, p, batch, is_training)
    return model.loss(p, batch, { train = is_training, rng = rng })
  end
end
