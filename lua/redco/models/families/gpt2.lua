--- GPT-2 (Radford et al., 2019), as Hugging Face's `GPT2LMHeadModel`: the matrices of the blocks
--- are [in, out]; the head shares the weight of the embedding.
local blocks = require "redco.models.layers.blocks"
local masks = require "redco.models.layers.masks"
local nn = require "redco.nn"
local tasks = require "redco.models.tasks"

local gpt2 = {
  model_type = "gpt2",
  models = "GPT-2",
  inputs = { "input_ids", "attention_mask", "position_ids", "segment_ids" },
  architecture = "GPT2LMHeadModel",
  tasks = tasks.of_decoder("GPT2",
    { token_classification = "classifier", question_answering = true }),
  base_model_prefix = "transformer",
  defaults = {
    vocab_size = 50257,
    n_positions = 1024,
    n_embd = 768,
    n_layer = 12,
    n_head = 12,
    activation_function = "gelu_new",
    embd_pdrop = 0.1,
    resid_pdrop = 0.1,
    attn_pdrop = 0.1,
    layer_norm_epsilon = 1e-5,
    initializer_range = 0.02,
    add_cross_attention = false,
    scale_attn_weights = true,
    scale_attn_by_inverse_layer_idx = false,
    tie_word_embeddings = true,
    bos_token_id = 50256,
    eos_token_id = 50256,
  },
  -- Other names of the same settings (attribute_map of transformers).
  aliases = { hidden_size = "n_embd", max_position_embeddings = "n_positions",
    num_attention_heads = "n_head", num_hidden_layers = "n_layer" },
  optional = { "n_inner", "is_decoder", "reorder_and_upcast_attn", "summary_activation",
    "summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj" },
  -- Masks that old checkpoints have among the weights.
  ignored = { "%.attn%.bias$", "%.attn%.masked_bias$" },
}

function gpt2.check(c)
  blocks.check_multiple(c, "n_embd", "n_head")
end

function gpt2.add_parameters(c, add)
  local normal = blocks.normal(c.initializer_range)
  -- The output layers of residual branches start smaller, by the root of the number of branches.
  local residual = blocks.normal(c.initializer_range / math.sqrt(2 * c.n_layer))
  local function linear(name, n_in, n_out, init)
    add(name .. ".weight", { n_in, n_out }, init)
    add(name .. ".bias", { n_out }, blocks.zeros)
  end
  local inner = c.n_inner or 4 * c.n_embd
  add("transformer.wte.weight", { c.vocab_size, c.n_embd }, normal, "embedding")
  add("transformer.wpe.weight", { c.n_positions, c.n_embd }, normal)
  for i = 0, c.n_layer - 1 do
    local block = ("transformer.h.%d."):format(i)
    blocks.add_layer_norm(add, block .. "ln_1", c.n_embd)
    linear(block .. "attn.c_attn", c.n_embd, 3 * c.n_embd, normal)
    linear(block .. "attn.c_proj", c.n_embd, c.n_embd, residual)
    if c.add_cross_attention then
      blocks.add_layer_norm(add, block .. "ln_cross_attn", c.n_embd)
      linear(block .. "crossattention.q_attn", c.n_embd, c.n_embd, normal)
      linear(block .. "crossattention.c_attn", c.n_embd, 2 * c.n_embd, normal)
      linear(block .. "crossattention.c_proj", c.n_embd, c.n_embd, residual)
    end
    blocks.add_layer_norm(add, block .. "ln_2", c.n_embd)
    linear(block .. "mlp.c_fc", c.n_embd, inner, normal)
    linear(block .. "mlp.c_proj", inner, c.n_embd, residual)
  end
  blocks.add_layer_norm(add, "transformer.ln_f", c.n_embd)
  if not c.tie_word_embeddings then
    add("lm_head.weight", { c.vocab_size, c.n_embd }, normal, "head")
  end
end

gpt2.head = blocks.tied_head "transformer.wte.weight"

function gpt2.new_forward(c)
  local activation = blocks.activation("gpt2", c.activation_function)

  -- Applies n fused matrices to x: returns n tensors [B, H, T, D].
  local function fused(params, name, x, n, o)
    local y = blocks.transposed_linear(params, name, x, o)
      :view { x:size(0), x:size(1), n, c.n_head, c.n_embd / c.n_head }
    return unpack(y:transpose(1, 3):unbind(2))
  end

  -- The factor of the scores of layer i.
  local function scale(i)
    local by_size = c.scale_attn_weights and math.sqrt(c.n_head / c.n_embd) or 1
    return c.scale_attn_by_inverse_layer_idx and by_size / (i + 1) or by_size
  end

  local function attend(params, name, q, k, v, mask, o)
    local y = blocks.attention(q, k, v, { seen = mask.seen, scale = mask.scale,
      dropout = c.attn_pdrop }, o)
    y = blocks.transposed_linear(params, name .. ".c_proj", y, o)
    return blocks.dropout(y, c.resid_pdrop, o)
  end

  local function attention(params, name, x, mask, o)
    local q, k, v = fused(params, name .. ".c_attn", x, 3, o)
    if o.cache then k, v = o.cache:extend(name, k, v) end
    return attend(params, name, q, k, v, mask, o)
  end

  local function cross_attention(params, name, x, memory, mask, o)
    local q = fused(params, name .. ".q_attn", x, 1, o)
    local k, v = blocks.of_memory(o, name, function()
      return fused(params, name .. ".c_attn", memory, 2, o)
    end)
    return attend(params, name, q, k, v, { scale = mask.scale }, o)
  end

  local function mlp(params, name, x, o)
    local y = activation(blocks.transposed_linear(params, name .. ".c_fc", x, o))
    y = blocks.transposed_linear(params, name .. ".c_proj", y, o)
    return blocks.dropout(y, c.resid_pdrop, o)
  end

  local function layer(params, block, x, mask, memory, o)
    local function norm(name)
      return blocks.layer_norm(params, block .. name, x, c.layer_norm_epsilon)
    end
    x = x + attention(params, block .. "attn", norm "ln_1", mask, o)
    if memory then
      x = x + cross_attention(params, block .. "crossattention", norm "ln_cross_attn", memory,
        mask, o)
    end
    return x + mlp(params, block .. "mlp", norm "ln_2", o)
  end

  return function(params, inputs, o, memory)
    local input_ids = inputs.input_ids
    blocks.check_length(c, "n_positions", o, input_ids)
    local x = blocks.embedding(params, "transformer.wte", input_ids)
      + blocks.position_embedding(params, "transformer.wpe", inputs, o, input_ids)
    local seen = masks.causal(inputs, o, x, { plain_dropout = c.attn_pdrop })
    x = blocks.dropout(x, c.embd_pdrop, o)
    for i = 0, c.n_layer - 1 do
      local mask = { seen = seen, scale = scale(i) }
      x = nn.block(layer, params, ("transformer.h.%d."):format(i), x, mask, memory, o)
    end
    return blocks.layer_norm(params, "transformer.ln_f", x, c.layer_norm_epsilon)
  end
end

return gpt2
