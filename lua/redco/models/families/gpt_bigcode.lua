--- StarCoder and SantaCoder (Li et al., 2023), as Hugging Face's `GPTBigCodeForCausalLM`: GPT-2
--- with one head of keys and values for all heads of queries.
local blocks = require "redco.models.layers.blocks"
local new_family = require "redco.models.kinds.gpt_like"
local tasks = require "redco.models.tasks"

local function heads_of(c)
  local width, n_heads = c.n_embd, c.n_head
  local size = width / n_heads
  if not c.multi_query then
    return {
      add = function(linear) linear("c_attn", width, 3 * width) end,
      split = function(linear, x) return blocks.split_fused_heads(linear("c_attn", x), n_heads) end,
    }
  end
  return {
    add = function(linear) linear("c_attn", width, width + 2 * size) end,
    split = function(linear, x)
      local q, k, v = unpack(linear("c_attn", x):split({ width, size, size }, -1))
      return blocks.split_heads(q, n_heads), blocks.split_heads(k, 1), blocks.split_heads(v, 1)
    end,
  }
end

return new_family {
  model_type = "gpt_bigcode",
  models = "StarCoder, SantaCoder",
  architecture = "GPTBigCodeForCausalLM",
  tasks = tasks.of_decoder("GPTBigCode", { token_classification = "classifier" }),
  defaults = {
    vocab_size = 50257,
    n_positions = 1024,
    n_embd = 768,
    n_layer = 12,
    n_head = 12,
    activation_function = "gelu_pytorch_tanh",
    resid_pdrop = 0.1,
    embd_pdrop = 0.1,
    attn_pdrop = 0.1,
    layer_norm_epsilon = 1e-5,
    initializer_range = 0.02,
    scale_attn_weights = true,
    multi_query = true,
    tie_word_embeddings = true,
    bos_token_id = 50256,
    eos_token_id = 50256,
  },
  -- Other names of the same settings (attribute_map of transformers).
  aliases = { hidden_size = "n_embd", max_position_embeddings = "n_positions",
    num_attention_heads = "n_head", num_hidden_layers = "n_layer" },
  -- The keys in the second line are about narrow types, whose sums are in float32 here. Model
  -- folders contain the keys below, which transformers does not read.
  optional = { "n_inner",
    "attention_softmax_in_fp32", "scale_attention_softmax_in_fp32",
    "inference_runner", "max_batch_size", "max_sequence_length", "num_key_value_heads",
    "pad_key_length", "pre_allocate_kv_cache", "summary_activation", "summary_first_dropout",
    "summary_proj_to_labels", "summary_type", "summary_use_proj", "validate_runner_input" },
  only = { add_cross_attention = false },
  -- Masks that old checkpoints have among the weights.
  ignored = { "%.attn%.bias$", "%.attn%.masked_bias$" },
  check = function(c) blocks.check_multiple(c, "n_embd", "n_head") end,
  facts = function(c)
    return {
      width = c.n_embd, n_layers = c.n_layer, n_heads = c.n_head, inner = c.n_inner,
      positions = "n_positions", heads = heads_of(c), out = "c_proj", mlp = { "c_fc", "c_proj" },
      attention_scale = not c.scale_attn_weights and 1 or nil,
      residual_init = 1 / math.sqrt(2 * c.n_layer), embedding_dropout = c.embd_pdrop,
      attention_dropout = c.attn_pdrop, residual_dropout = c.resid_pdrop,
    }
  end,
}
