--- CodeGen (Nijkamp et al., 2022), as Hugging Face's `CodeGenForCausalLM`: GPT-J with q, v and k in
--- one projection, in four parts.
local blocks = require "redco.models.layers.blocks"
local fail = require "redco.fail"
local new_family = require "redco.models.kinds.gpt_like"
local tasks = require "redco.models.tasks"

local n_parts = 4  -- the shards of the first training

-- Each part of the projection has q, v and k of a quarter of the heads.
local function heads_of(c)
  local width, n_heads = c.n_embd, c.n_head
  return {
    add = function(linear) linear("qkv_proj", width, 3 * width, false) end,
    split = function(linear, x)
      local batch, length = x:size(0), x:size(1)
      local y = linear("qkv_proj", x):view { batch, length, n_parts, 3 * width / n_parts }
      local q, v, k = unpack(y:chunk(3, -1))
      local function heads(part)
        return part:reshape { batch, length, n_heads, width / n_heads }:transpose(1, 2)
      end
      return heads(q), heads(k), heads(v)
    end,
  }
end

return new_family {
  model_type = "codegen",
  models = "CodeGen",
  architecture = "CodeGenForCausalLM",
  tasks = { features = tasks.features "CodeGen" },
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
  optional = { "n_inner", "n_ctx" },
  -- Masks that old checkpoints have among the weights.
  ignored = { "%.attn%.causal_mask$" },
  check = function(c)
    blocks.check_multiple(c, "n_embd", "n_head")
    if c.n_head % n_parts ~= 0 then
      fail("codegen: n_head must be a multiple of %d, got %d", n_parts, c.n_head)
    end
  end,
  facts = function(c)
    return {
      width = c.n_embd, n_layers = c.n_layer, n_heads = c.n_head, inner = c.n_inner,
      positions = "n_positions", rotary_size = c.rotary_dim, is_parallel = true,
      heads = heads_of(c), out_bias = false, head_bias = true, embedding_dropout = c.embd_pdrop,
      attention_dropout = c.attn_pdrop, residual_dropout = c.resid_pdrop,
    }
  end,
}
