--- GPT-J (Wang and Komatsuzaki, 2021), as Hugging Face's `GPTJForCausalLM`: attention and
--- feed-forward layers run in parallel after one norm, rotary positions cover a part of each head,
--- and the head has a bias.
local blocks = require "redco.models.blocks"
local fail = require "redco.fail"
local masks = require "redco.models.masks"
local nn = require "redco.nn"
local rotary = require "redco.models.rotary"
local tasks = require "redco.models.tasks"

local gptj = {
  model_type = "gptj",
  inputs = { "input_ids", "attention_mask", "position_ids", "segment_ids" },
  architecture = "GPTJForCausalLM",
  tasks = tasks.of_decoder("GPTJ", { question_answering = true }),
  base_model_prefix = "transformer",
  defaults = {
    vocab_size = 50400,
    n_positions = 2048,
    n_embd = 4096,
    n_layer = 28,
    n_head = 16,
    rotary_dim = 64,
    activation_function = "gelu_new",
    resid_pdrop = 0,
    embd_pdrop = 0,
    attn_pdrop = 0,
    layer_norm_epsilon = 1e-5,
    initializer_range = 0.02,
    tie_word_embeddings = false,
    bos_token_id = 50256,
    eos_token_id = 50256,
  },
  -- Other names of the same settings (attribute_map of transformers).
  aliases = { hidden_size = "n_embd", max_position_embeddings = "n_positions",
    num_attention_heads = "n_head", num_hidden_layers = "n_layer" },
  optional = { "n_inner" },
  -- Masks that old checkpoints have among the weights.
  ignored = { "%.attn%.bias$", "%.attn%.masked_bias$" },
}

local function rope(c)
  return rotary.settings("gptj",
    { rope_theta = 10000, max_position_embeddings = c.n_positions }, c.rotary_dim)
end

function gptj.check(c)
  blocks.check_multiple(c, "n_embd", "n_head")
  if c.rotary_dim > c.n_embd / c.n_head then
    fail("gptj: rotary_dim (%d) exceeds the size of a head, n_embd / n_head = %d", c.rotary_dim,
      c.n_embd / c.n_head)
  end
  rope(c)
end

function gptj.add_parameters(c, add)
  local normal, width = blocks.normal(c.initializer_range), c.n_embd
  local inner = c.n_inner or 4 * width
  add("transformer.wte.weight", { c.vocab_size, width }, normal)
  for i = 0, c.n_layer - 1 do
    local block = ("transformer.h.%d."):format(i)
    blocks.add_layer_norm(add, block .. "ln_1", width)
    for _, projection in ipairs { "k_proj", "v_proj", "q_proj", "out_proj" } do
      blocks.add_linear(add, block .. "attn." .. projection, width, width, normal, false)
    end
    blocks.add_linear(add, block .. "mlp.fc_in", width, inner, normal)
    blocks.add_linear(add, block .. "mlp.fc_out", inner, width, normal)
  end
  blocks.add_layer_norm(add, "transformer.ln_f", width)
  if not c.tie_word_embeddings then add("lm_head.weight", { c.vocab_size, width }, normal) end
  add("lm_head.bias", { c.vocab_size }, blocks.zeros)
end

local head = blocks.tied_head "transformer.wte.weight"
function gptj.head(c) return head(c), "lm_head.bias" end

function gptj.new_forward(c)
  local mlp = blocks.new_mlp(blocks.activation("gptj", c.activation_function),
    { ".fc_in", ".fc_out" })
  local settings = rope(c)

  local function attention(params, name, x, cos, sin, mask, o)
    local function heads(projection)
      return blocks.split_heads(blocks.linear(params, name .. projection, x, o), c.n_head)
    end
    local q = rotary.turn_neighbours(heads ".q_proj", cos, sin)
    local k, v = rotary.turn_neighbours(heads ".k_proj", cos, sin), heads ".v_proj"
    if o.cache then k, v = o.cache:extend(name, k, v) end
    local y = blocks.attention(q, k, v,
      { mask = mask.mask, causal = mask.causal, dropout = c.attn_pdrop }, o)
    return blocks.dropout(blocks.linear(params, name .. ".out_proj", y, o), c.resid_pdrop, o)
  end

  local function layer(params, block, x, cos, sin, mask, o)
    local y = blocks.layer_norm(params, block .. "ln_1", x, c.layer_norm_epsilon)
    return x + attention(params, block .. "attn", y, cos, sin, mask, o)
      + blocks.dropout(mlp(params, block .. "mlp", y, o), c.resid_pdrop, o)
  end

  return function(params, inputs, o)
    blocks.check_length(c, "n_positions", o, inputs.input_ids)
    local x = blocks.dropout(blocks.embedding(params, "transformer.wte", inputs.input_ids),
      c.embd_pdrop, o)
    local cos, sin = rotary.angles(settings, inputs, o, x)
    local mask = masks.causal(inputs, o, x)
    for i = 0, c.n_layer - 1 do
      x = nn.block(layer, params, ("transformer.h.%d."):format(i), x, cos, sin, mask, o)
    end
    return blocks.layer_norm(params, "transformer.ln_f", x, c.layer_norm_epsilon)
  end
end

return gptj
