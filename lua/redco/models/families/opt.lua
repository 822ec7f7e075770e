--- OPT (Zhang et al., 2022), as Hugging Face's `OPTForCausalLM`. The 350m model has its norms after
--- the layers instead of before them, and embeddings of another size than the layers.
local blocks = require "redco.models.blocks"
local masks = require "redco.models.masks"
local nn = require "redco.nn"
local tasks = require "redco.models.tasks"

local opt = {
  model_type = "opt",
  models = "OPT",
  inputs = { "input_ids", "attention_mask", "position_ids", "segment_ids" },
  architecture = "OPTForCausalLM",
  tasks = tasks.of_decoder("OPT", { question_answering = true }),
  base_model_prefix = "model",
  defaults = {
    vocab_size = 50272,
    hidden_size = 768,
    num_hidden_layers = 12,
    ffn_dim = 3072,
    max_position_embeddings = 2048,
    do_layer_norm_before = true,
    _remove_final_layer_norm = false,
    dropout = 0.1,
    attention_dropout = 0,
    num_attention_heads = 12,
    activation_function = "relu",
    init_std = 0.02,
    enable_bias = true,
    tie_word_embeddings = true,
    pad_token_id = 1,
    bos_token_id = 2,
    eos_token_id = 2,
  },
  optional = { "word_embed_proj_dim" },
  only = { layerdrop = 0, layer_norm_elementwise_affine = true },
}

-- Tokens do not use the first two rows of the position table.
local position_offset = 2

function opt.complete(c)
  c.word_embed_proj_dim = c.word_embed_proj_dim or c.hidden_size
end

function opt.check(c)
  blocks.check_multiple(c, "hidden_size", "num_attention_heads")
end

local function is_projected(c) return c.word_embed_proj_dim ~= c.hidden_size end

local function has_final_norm(c)
  return c.do_layer_norm_before and not c._remove_final_layer_norm
end

function opt.add_parameters(c, add)
  local normal, width, embed = blocks.normal(c.init_std), c.hidden_size, c.word_embed_proj_dim
  add("model.decoder.embed_tokens.weight", { c.vocab_size, embed },
    blocks.normal_but_padding(c, c.init_std))
  add("model.decoder.embed_positions.weight",
    { c.max_position_embeddings + position_offset, width }, normal)
  if is_projected(c) then
    blocks.add_linear(add, "model.decoder.project_in", embed, width, normal, false)
    blocks.add_linear(add, "model.decoder.project_out", width, embed, normal, false)
  end
  for i = 0, c.num_hidden_layers - 1 do
    local layer = ("model.decoder.layers.%d."):format(i)
    for _, projection in ipairs { "k_proj", "v_proj", "q_proj", "out_proj" } do
      blocks.add_linear(add, layer .. "self_attn." .. projection, width, width, normal,
        c.enable_bias)
    end
    blocks.add_layer_norm(add, layer .. "self_attn_layer_norm", width)
    blocks.add_linear(add, layer .. "fc1", width, c.ffn_dim, normal, c.enable_bias)
    blocks.add_linear(add, layer .. "fc2", c.ffn_dim, width, normal, c.enable_bias)
    blocks.add_layer_norm(add, layer .. "final_layer_norm", width)
  end
  if has_final_norm(c) then blocks.add_layer_norm(add, "model.decoder.final_layer_norm", width) end
  if not c.tie_word_embeddings then add("lm_head.weight", { c.vocab_size, embed }, normal) end
end

opt.head = blocks.tied_head "model.decoder.embed_tokens.weight"

function opt.new_forward(c)
  local mlp = blocks.new_mlp(blocks.activation("opt", c.activation_function), { "fc1", "fc2" })
  local eps = 1e-5
  local padding_row = blocks.padding_row(c)
  local attention = blocks.new_attention(c.num_attention_heads,
    { q = ".q_proj", k = ".k_proj", v = ".v_proj", out = ".out_proj" }, c.attention_dropout)

  -- x + f(x), with the norm before f or after the sum.
  local function residual(params, norm, x, o, f)
    if c.do_layer_norm_before then
      return x + blocks.dropout(f(blocks.layer_norm(params, norm, x, eps)), c.dropout, o)
    end
    return blocks.layer_norm(params, norm, x + blocks.dropout(f(x), c.dropout, o), eps)
  end

  local function apply_layer(params, layer, x, mask, o)
    x = residual(params, layer .. "self_attn_layer_norm", x, o, function(y)
      return attention.to_itself(params, layer .. "self_attn", y, mask, o)
    end)
    return residual(params, layer .. "final_layer_norm", x, o, function(y)
      return mlp(params, layer, y, o)
    end)
  end

  return function(params, inputs, o)
    blocks.check_length(c, "max_position_embeddings", o, inputs.input_ids)
    local x = blocks.embedding(params, "model.decoder.embed_tokens", inputs.input_ids, padding_row)
    if is_projected(c) then x = blocks.linear(params, "model.decoder.project_in", x, o) end
    x = x + blocks.position_embedding(params, "model.decoder.embed_positions", inputs, o,
      inputs.input_ids, position_offset)
    local mask = masks.causal(inputs, o, x)
    for i = 0, c.num_hidden_layers - 1 do
      x = nn.block(apply_layer, params, ("model.decoder.layers.%d."):format(i), x, mask, o)
    end
    if has_final_norm(c) then
      x = blocks.layer_norm(params, "model.decoder.final_layer_norm", x, eps)
    end
    if is_projected(c) then x = blocks.linear(params, "model.decoder.project_out", x, o) end
    return x
  end
end

return opt
