--- Image captioning, as Hugging Face's `VisionEncoderDecoderModel`: the decoder of one model
--- attends to the output of an image encoder of another.
local blocks = require "redco.models.layers.blocks"
local complete_config = require "redco.models.config"
local fail = require "redco.fail"
local gpt2 = require "redco.models.families.gpt2"
local nn = require "redco.nn"
local vit = require "redco.models.families.vit"

local both = {
  model_type = "vision-encoder-decoder",
  models = "ViT with GPT-2",
  remarks = "writes captions",
  architecture = "VisionEncoderDecoderModel",
  base_model_prefix = "",
  inputs = { "pixel_values", "decoder_input_ids", "decoder_attention_mask",
    "encoder_hidden_states" },
  defaults = {
    encoder = { model_type = "vit" },
    decoder = { model_type = "gpt2" },
    is_encoder_decoder = true,
    tie_word_embeddings = false,  -- of the encoder to the decoder
  },
  only = { is_encoder_decoder = true, tie_word_embeddings = false },
  ignored = { "^encoder%.pooler%.", "^decoder%.lm_head%.weight$", "%.attn%.bias$",
    "%.attn%.masked_bias$" },
}

local parts = { encoder = { vit = vit.encoder }, decoder = { gpt2 = gpt2 } }

--- Returns the family of a part, "encoder" or "decoder", from its configuration.
function both.part(kind, config)
  local model_type = type(config) == "table" and config.model_type
  return parts[kind][model_type] or fail("vision-encoder-decoder: its %s has model_type '%s', only "
    .. "'%s' is supported", kind, model_type, next(parts[kind]))
end

function both.config_parts(given)
  return { encoder = both.part("encoder", given.encoder),
    decoder = both.part("decoder", given.decoder) }
end

function both.complete(c, is_file)
  for kind in pairs(parts) do
    c[kind] = complete_config(both.part(kind, c[kind]), c[kind], is_file)
  end
  for _, part in ipairs { c, c.encoder, c.decoder } do
    if part.cross_attention_hidden_size ~= nil then
      fail("%s: cross_attention_hidden_size is not supported", both.model_type)
    end
  end
  c.decoder.is_decoder, c.decoder.add_cross_attention = true, true
  for _, key in ipairs { "eos_token_id", "pad_token_id" } do
    c[key] = c[key] or c.decoder[key] or c.decoder.eos_token_id
  end
  c.decoder_start_token_id = c.decoder_start_token_id or c.decoder.bos_token_id
end

local function is_projected(c) return c.encoder.hidden_size ~= c.decoder.n_embd end

function both.add_parameters(c, add)
  vit.encoder.add_parameters(c.encoder, blocks.add_with_prefix(add, "encoder."))
  gpt2.add_parameters(c.decoder, blocks.add_with_prefix(add, "decoder."))
  if not is_projected(c) then return end
  local n_in, n_out = c.encoder.hidden_size, c.decoder.n_embd
  local function uniform(t, generator)
    return nn.init.uniform_(t, { a = -n_in ^ -0.5, b = n_in ^ -0.5, generator = generator })
  end
  add("enc_to_dec_proj.weight", { n_out, n_in }, uniform)
  add("enc_to_dec_proj.bias", { n_out }, uniform)
end

function both.head(c) return "decoder." .. gpt2.head(c.decoder) end

function both.new_encoder(c)
  local encode = vit.encoder.new_encoder(c.encoder)
  return function(params, inputs, o)
    local x = encode(blocks.with_prefix(params, "encoder."), inputs, o)
    return is_projected(c) and blocks.linear(params, "enc_to_dec_proj", x, o) or x
  end
end

function both.new_forward(c)
  local decode = gpt2.new_forward(c.decoder)
  return function(params, inputs, o, memory)
    local ids, mask = inputs.decoder_input_ids, inputs.decoder_attention_mask
    -- transformers counts padding as positions here.
    local positions = mask and blocks.places(o, ids)
    return decode(blocks.with_prefix(params, "decoder."),
      { input_ids = ids, attention_mask = mask, position_ids = positions }, o, memory)
  end
end

return both
