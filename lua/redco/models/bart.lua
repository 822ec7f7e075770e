--- BART (Lewis et al., 2019), as Hugging Face's `BartForConditionalGeneration`: each norm follows
--- its residual addition; both stacks and the head share one embedding.
local blocks = require "redco.models.blocks"
local masks = require "redco.models.masks"

local bart = {
  model_type = "bart",
  architecture = "BartForConditionalGeneration",
  base_model_prefix = "model",
  defaults = {
    vocab_size = 50265,
    max_position_embeddings = 1024,
    d_model = 1024,
    encoder_layers = 12,
    encoder_attention_heads = 16,
    encoder_ffn_dim = 4096,
    decoder_layers = 12,
    decoder_attention_heads = 16,
    decoder_ffn_dim = 4096,
    activation_function = "gelu",
    dropout = 0.1,
    attention_dropout = 0.0,
    activation_dropout = 0.0,
    init_std = 0.02,
    scale_embedding = false,
    is_encoder_decoder = true,
    pad_token_id = 1,
    bos_token_id = 0,
    eos_token_id = 2,
    decoder_start_token_id = 2,
    forced_eos_token_id = 2,
  },
  -- Other names of the same settings (attribute_map of transformers).
  aliases = { hidden_size = "d_model", num_attention_heads = "encoder_attention_heads" },
  optional = { "force_bos_token_to_be_generated", "num_hidden_layers", "classifier_dropout",
    "id2label", "label2id", "num_labels" },
  only = { is_encoder_decoder = true, tie_word_embeddings = true, encoder_layerdrop = 0,
    decoder_layerdrop = 0, normalize_embedding = true, normalize_before = false,
    add_final_layer_norm = false },
  ignored = { "[ed][ne]coder%.embed_tokens%.weight$", "^lm_head%.weight$", "coder%.version$" },
  buffers = { final_logits_bias = true },
  new_if_missing = { final_logits_bias = true },
}

-- Tokens do not use the first two rows of the position table.
local position_offset = 2

function bart.complete(c)
  -- The key that old configurations have instead of forced_bos_token_id.
  if c.force_bos_token_to_be_generated then
    c.forced_bos_token_id = c.forced_bos_token_id or c.bos_token_id
  end
end

function bart.check(c)
  for _, key in ipairs { "encoder_attention_heads", "decoder_attention_heads" } do
    blocks.check_multiple(c, "d_model", key)
  end
end

function bart.add_parameters(c, add)
  local normal = blocks.normal(c.init_std)
  local function linear(name, n_in, n_out) blocks.add_linear(add, name, n_in, n_out, normal) end
  local function norm(name) blocks.add_layer_norm(add, name, c.d_model) end
  local function attention(name)
    for _, part in ipairs { ".k_proj", ".v_proj", ".q_proj", ".out_proj" } do
      linear(name .. part, c.d_model, c.d_model)
    end
    norm(name .. "_layer_norm")
  end
  add("model.shared.weight", { c.vocab_size, c.d_model },
    blocks.normal_but_padding(c, c.init_std))
  for _, side in ipairs { "encoder", "decoder" } do
    local stack, inner = ("model.%s."):format(side), c[side .. "_ffn_dim"]
    add(stack .. "embed_positions.weight",
      { c.max_position_embeddings + position_offset, c.d_model }, normal)
    norm(stack .. "layernorm_embedding")
    for i = 0, c[side .. "_layers"] - 1 do
      local layer = ("%slayers.%d."):format(stack, i)
      attention(layer .. "self_attn")
      if side == "decoder" then attention(layer .. "encoder_attn") end
      linear(layer .. "fc1", c.d_model, inner)
      linear(layer .. "fc2", inner, c.d_model)
      norm(layer .. "final_layer_norm")
    end
  end
  add("final_logits_bias", { 1, c.vocab_size }, blocks.zeros)
end

function bart.head() return "model.shared.weight", "final_logits_bias" end

-- Either stack: function(params, input_ids, o, padding mask of the encoder's tokens, memory,
-- attention_mask of the decoder's tokens).
local function new_stack(c, side)
  local stack = ("model.%s."):format(side)
  local attention = blocks.new_attention(c[side .. "_attention_heads"],
    { q = ".q_proj", k = ".k_proj", v = ".v_proj", out = ".out_proj" }, c.attention_dropout)
  local activation = blocks.activation("bart", c.activation_function)
  local scale = c.scale_embedding and math.sqrt(c.d_model) or 1
  local padding_row = blocks.padding_row(c)

  local function drop(x, o) return blocks.dropout(x, c.dropout, o) end

  local function feed_forward(params, layer, x, o)
    local y = activation(blocks.linear(params, layer .. "fc1", x, o))
    y = blocks.dropout(y, c.activation_dropout, o)
    return drop(blocks.linear(params, layer .. "fc2", y, o), o)
  end

  return function(params, input_ids, o, padding, memory, own_padding)
    blocks.check_length(c, "max_position_embeddings", o, input_ids)
    local function norm(name, x) return blocks.layer_norm(params, name, x, 1e-5) end
    local x = blocks.embedding(params, "model.shared", input_ids, padding_row) * scale
      + blocks.position_embedding(params, stack .. "embed_positions", {}, o, input_ids,
        position_offset)
    local memory_mask = { mask = padding }
    local mask = memory and masks.causal({ attention_mask = own_padding }, o, x)
      or memory_mask
    x = drop(norm(stack .. "layernorm_embedding", x), o)
    for i = 0, c[side .. "_layers"] - 1 do
      local layer = ("%slayers.%d."):format(stack, i)
      x = norm(layer .. "self_attn_layer_norm",
        x + drop(attention.to_itself(params, layer .. "self_attn", x, mask, o), o))
      if memory then
        x = norm(layer .. "encoder_attn_layer_norm",
          x + drop(attention.to_memory(params, layer .. "encoder_attn", x, memory, memory_mask, o),
            o))
      end
      x = norm(layer .. "final_layer_norm", x + feed_forward(params, layer, x, o))
    end
    return x
  end
end

local function padding_mask(params, inputs)
  return masks.padding(inputs.attention_mask, params["model.shared.weight"].dtype)
end

function bart.new_encoder(c)
  local encoder = new_stack(c, "encoder")
  return function(params, inputs, o)
    return encoder(params, inputs.input_ids, o, padding_mask(params, inputs))
  end
end

function bart.new_forward(c)
  local decoder = new_stack(c, "decoder")
  return function(params, inputs, o, memory)
    return decoder(params, inputs.decoder_input_ids, o, padding_mask(params, inputs), memory,
      inputs.decoder_attention_mask)
  end
end

return bart
