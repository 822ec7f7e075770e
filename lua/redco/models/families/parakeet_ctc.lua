--- Parakeet with CTC, as Hugging Face's `ParakeetForCTC`: a Fast Conformer that writes a token or a
--- blank for each frame of sound.
local blocks = require "redco.models.layers.blocks"
local complete_config = require "redco.models.config"
local ctc = require "redco.models.tasks.ctc"
local encoder = require "redco.models.families.parakeet_encoder"
local native = require "redco.native"

local parakeet = {
  model_type = "parakeet_ctc",
  models = "Parakeet with CTC",
  architecture = "ParakeetForCTC",
  task = "ctc",
  base_model_prefix = "encoder",
  inputs = encoder.inputs,
  nullable = { "encoder_config" },
  defaults = {
    vocab_size = 1025,
    ctc_loss_reduction = "mean",
    ctc_zero_infinity = true,
    encoder_config = {},
    pad_token_id = 1024,
  },
  optional = { "initializer_range" },  -- only the encoder's has an effect
  ignored = encoder.ignored,
  new_if_missing = { ["ctc_head.weight"] = true, ["ctc_head.bias"] = true },
}
parakeet.variants = { parakeet }

function parakeet.config_parts() return { encoder_config = encoder } end

function parakeet.complete(c, is_file)
  c.encoder_config = complete_config(encoder, c.encoder_config or {}, is_file)
end

function parakeet.check(c) blocks.padding_row(c) end

function parakeet.add_parameters(c, add)
  local own = c.encoder_config
  encoder.add_parameters(own, blocks.add_with_prefix(add, "encoder."))
  add("ctc_head.weight", { c.vocab_size, own.hidden_size, 1 },
    blocks.normal(own.initializer_range))
  add("ctc_head.bias", { c.vocab_size }, blocks.zeros)
end

function parakeet.new_functions(c)
  local encode = encoder.new_encoder(c.encoder_config)
  local function encoded(params, inputs, o, kept)
    return encode(blocks.with_prefix(params, "encoder."), inputs, o, kept)
  end
  return {
    output = function(params, inputs, o)
      return native.linear(encoded(params, inputs, o), params["ctc_head.weight"]:squeeze(-1),
        params["ctc_head.bias"])
    end,
    hidden_states = function(params, inputs, o)
      local kept = {}
      return encoded(params, inputs, o, kept), kept
    end,
  }
end

function parakeet.compare(model, params, inputs, o) return model.output(params, inputs, o) end

ctc.complete(parakeet, function(c, inputs)
  local mask = inputs.attention_mask
  return mask and encoder.n_frames(c.encoder_config, mask:sum(1))
end)

return parakeet
