-- A model's functions hold none of its parameters: a script that drops `model.params` frees them.
local redco = require "redco"
local testing = require "testing"

local test, expect_equal = testing.test, testing.expect_equal

local configs = {
  llama = { model_type = "llama", vocab_size = 32, hidden_size = 8, intermediate_size = 16,
    num_hidden_layers = 12, num_attention_heads = 2, max_position_embeddings = 16 },
  gpt2 = { model_type = "gpt2", vocab_size = 32, n_embd = 8, n_layer = 12, n_head = 2,
    n_positions = 16 },
  t5 = { model_type = "t5", vocab_size = 32, d_model = 8, d_ff = 16, d_kv = 4, num_heads = 2,
    num_layers = 6, num_decoder_layers = 6, pad_token_id = 0, decoder_start_token_id = 0 },
}

-- Returns functions of models without parameters, and these as keys of a weak table.
local function made(config, n)
  local rng = redco.Deployer({ seed = 1, verbose = false }):gen_rng()
  local held, losses = setmetatable({}, { __mode = "k" }), {}
  for i = 1, n do
    local model = redco.models.from_config(config, { generator = rng })
    for _, param in pairs(model.params) do held[param] = true end
    model.params = nil
    losses[i] = model.loss_fn
  end
  return losses, held
end

-- Values that a function left on the stack count as used until others are written there.
local function overwrite(n) return n == 0 and 0 or 1 + overwrite(n - 1) end

for name, config in pairs(configs) do
  test(name, function()
    local losses, held = made(config, 4)  -- often enough for compiled loops
    overwrite(100)
    for _ = 1, 3 do collectgarbage() end
    local n = 0
    for _ in pairs(held) do n = n + 1 end
    expect_equal(n, 0)
    expect_equal(#losses, 4)
  end)
end

testing.finish()
