--- A check of models that write text.
local fail = require "redco.fail"
local native = require "redco.native"

--- Raises an error unless `model` is a decoder that writes text.
return function(where, model)
  if type(model) ~= "table" or type(model.family) ~= "table" then
    fail("%s: model: expected a model of redco.models, got %s", where, native.describe(model))
  end
  local family = model.family
  if model.is_encoder_decoder or family.task or not model.generate or not model.logits then
    fail("%s: model: expected a decoder that writes text, got a %s%s", where, family.architecture,
      model.is_encoder_decoder and ", which has an encoder" or "")
  end
end
