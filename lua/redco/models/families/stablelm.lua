--- StableLM (Stability AI, 2023), as Hugging Face's `StableLmForCausalLM`: LLaMA with layer norms
--- and positions in a part of each head; StableLM 2 12B runs attention and feed-forward layers in
--- parallel and has a norm of each head of q and k.
local blocks = require "redco.models.layers.blocks"
local fail = require "redco.fail"
local new_family = require "redco.models.kinds.llama_like"
local norms = require "redco.models.layers.norms"
local tasks = require "redco.models.tasks"
local torch = require "redco.torch"

local stablelm = {
  model_type = "stablelm",
  models = "StableLM, StableLM 2",
  architecture = "StableLmForCausalLM",
  tasks = tasks.of_decoder("StableLm", { token_classification = "score" }),
  defaults = {
    vocab_size = 50304,
    hidden_size = 2560,
    intermediate_size = 6912,
    num_key_value_heads = 32,
    hidden_act = "silu",
    max_position_embeddings = 4096,
    layer_norm_eps = 1e-5,
    use_qkv_bias = false,
    qk_layernorm = false,
    use_parallel_residual = false,
    hidden_dropout = 0,
    partial_rotary_factor = 0.25,
    bos_token_id = 0,
    eos_token_id = 0,
  },
}

function stablelm.check(c)
  local size = math.floor(c.hidden_size / c.num_attention_heads)
  if c.head_dim and c.head_dim ~= size then
    fail("stablelm: head_dim = %d is not supported, only hidden_size / num_attention_heads = %d",
      c.head_dim, size)
  end
end

-- Norms of heads like norms.layer_of_heads, but with one weight per head: norms.0.weight, ...
local norm_of_heads = {}

local function weight_of(name, i) return ("%s.norms.%d.weight"):format(name, i) end

function norm_of_heads.add(add, name, sizes)
  for i = 0, sizes[1] - 1 do add(weight_of(name, i), { sizes[2] }, blocks.ones) end
end

function norm_of_heads.apply(params, name, x, eps)
  local weights = {}
  for i = 0, x:size(-2) - 1 do weights[i + 1] = params[weight_of(name, i)] end
  return norms.layer_of_heads.apply({ [name .. ".weight"] = torch.stack(weights) }, name, x, eps)
end

function stablelm.facts(c)
  return {
    norm = norms.layer, eps = "layer_norm_eps", is_parallel = c.use_parallel_residual,
    norms = { "input_layernorm", nil, not c.use_parallel_residual and "post_attention_layernorm"
      or nil },
    qkv_bias = c.use_qkv_bias, residual_dropouts = { 0, c.hidden_dropout },
    head_norms = c.qk_layernorm and "own" or nil, head_norm = norm_of_heads,
    head_norm_names = { "q_layernorm", "k_layernorm" },
  }
end

return new_family(stablelm)
