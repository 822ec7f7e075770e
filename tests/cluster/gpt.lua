-- A GPT-2 and its task: sequences of tokens, each position's next one.
local redco = require "redco"
local torch = redco.torch

local vocabulary, length = 37, 6  -- neither is a multiple of the shards

return function(generator, options)
  local model = redco.models.from_config({
    model_type = "gpt2", vocab_size = vocabulary, n_positions = length,
    n_embd = 16, n_layer = 2, n_head = 4,
    embd_pdrop = options.dropout, resid_pdrop = options.dropout, attn_pdrop = options.dropout,
    initializer_range = 0.2,
  }, { generator = generator })

  local examples = {}
  for i = 1, options.n_examples do
    examples[i] = torch.randint(vocabulary, { length + 1 }, { generator = generator })
  end

  return {
    params = model.params,
    examples = examples,
    collate_fn = function(batch)
      local tokens = torch.stack(batch)
      return { input_ids = tokens:narrow(1, 0, length), labels = tokens:narrow(1, 1, length) }
    end,
    loss_fn = function(rng, _, params, batch, is_training)
      local function loss() return model.loss(params, batch, { train = is_training, rng = rng }) end
      if options.recomputes then return redco.checkpoint(loss) end
      return loss()
    end,
    pred_fn = function(_, params, batch) return model(params, batch) end,
  }
end
