--- GPT-J (Wang and Komatsuzaki, 2021), as Hugging Face's `GPTJForCausalLM`: attention and
--- feed-forward layers run in parallel after one norm, rotary positions cover a part of each head,
--- and the head has a bias.
local blocks = require "redco.models.layers.blocks"
local new_family = require "redco.models.kinds.gpt_like"
local tasks = require "redco.models.tasks"

return new_family {
  model_type = "gptj",
  models = "GPT-J",
  architecture = "GPTJForCausalLM",
  tasks = tasks.of_decoder("GPTJ", { question_answering = true }),
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
  check = function(c) blocks.check_multiple(c, "n_embd", "n_head") end,
  facts = function(c)
    return {
      width = c.n_embd, n_layers = c.n_layer, n_heads = c.n_head, inner = c.n_inner,
      positions = "n_positions", rotary_size = c.rotary_dim, is_parallel = true,
      out_bias = false, head_bias = true, embedding_dropout = c.embd_pdrop,
      attention_dropout = c.attn_pdrop, residual_dropout = c.resid_pdrop,
    }
  end,
}
