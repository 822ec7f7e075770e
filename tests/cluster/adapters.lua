--- Adapters on a model of a folder, and its output layer, which is trained whole: the checkpoints
--- of a run name the rest and do not contain it.
local redco = require "redco"

local lora, torch = redco.lora, redco.torch
local source = assert(os.getenv "REDCO_SOURCE")

--- Returns a task for train.lua.
return function(generator, o)
  local model = redco.models.from_pretrained(source .. "/tests/cases/llama", { dtype = o.dtype })
  local params = lora.add(model.params, {
    target_modules = { "q_proj", "down_proj" }, r = 2, lora_dropout = o.dropout,
    modules_to_save = { "lm_head" }, generator = generator,
  })
  local examples = {}
  for i = 1, o.n_examples do
    examples[i] = torch.randint(3, model.config.vocab_size, { 6 }, { generator = generator })
  end
  return {
    params = params, examples = examples, is_frozen = lora.is_frozen,
    collate_fn = function(rows)
      local ids = torch.stack(rows)
      return { input_ids = ids:narrow(1, 0, 5), labels = ids:narrow(1, 1, 5) }
    end,
    loss_fn = function(rng, _, p, batch, is_training)
      return model.loss(p, batch, { train = is_training, rng = rng })
    end,
    pred_fn = function(_, p, batch) return model(p, batch) end,
  }
end
