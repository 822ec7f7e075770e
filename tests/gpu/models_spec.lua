-- Every family of models on a GPU, against the figures of Hugging Face's.
local cases = require "model_cases"
local gpu = require "gpu"
local redco = require "redco"
local testing = require "testing"

local torch = redco.torch
local test, expect_near = testing.test, gpu.expect_near
local device = gpu.device

-- The logits of the tokens, not those of padding, and the stored ones: those of the last rows.
local function logits_of(case, model, params, inputs)
  local expected = case.arrays["fwd.logits"]
  local function last_rows(t)
    return t:narrow(0, t:size(0) - expected:size(0), expected:size(0)):cpu()
  end
  local logits = last_rows(model(params, inputs))
  local mask = inputs.attention_mask
  -- Of sound, logits have other positions than the mask.
  local has_mask = mask and mask:size(1) == expected:size(1)
  if model.is_encoder_decoder or expected:dim() < 3 or not has_mask then
    return logits, expected
  end
  local seen = last_rows(mask):ne(0)
  return logits[seen], expected[seen]
end

-- In the batch of this case two experts have the same score; devices choose different ones.
local has_tie = { deepseek_v3 = true }

local function narrowed(t)
  return torch.is_tensor(t) and t.dtype == "float32" and t:bfloat16() or t
end

for _, name in ipairs(cases.found(cases.folders[1], cases.names)) do
  local case = cases.open(cases.folders[1], name)
  local model = redco.models.from_pretrained(case.dir)
  local params = gpu.on(device, model.params)

  test(name .. ": logits in float32 and bfloat16", function()
    local inputs = gpu.on(device, cases.forward_inputs(case))
    local logits, expected = logits_of(case, model, params, inputs)
    expect_near("float32", logits, expected, 2e-5)
    logits, expected = logits_of(case, model, redco.tree.map(narrowed, params),
      redco.tree.map(narrowed, inputs))
    expect_near("bfloat16", logits, expected, 8e-2)
  end)

  test(name .. ": the loss and its gradients", function()
    if has_tie[name] and gpu.is_there then return end
    local tracked = gpu.on(device, model.params, true)
    local inputs = gpu.on(device,
      cases.training_inputs(case, "batch0", not cases.predicts_next(model)))
    local loss = cases.loss(model, tracked, inputs)
    expect_near("the loss", loss:item(), case.expected.training.loss_fp64, 1e-5)
    loss:backward()
    for key, size in pairs(case.expected.training.grad_norms_fp64) do
      if size > 1e-6 then
        expect_near(key, tracked[key].grad:double():norm():item(), size, 1e-3)
      end
    end
  end)

  if case.expected.generation then
    test(name .. ": the same tokens, by every way of searching", function()
      model.generation_config = {}
      local inputs, wrong = gpu.on(device, cases.prompts(case)), {}
      for _, expected in ipairs(case.expected.generation.cases) do
        local sequences = torch.tensor(expected.sequences)
        if model.generate(params, inputs, expected.kwargs) ~= sequences then
          wrong[#wrong + 1] = expected.name
        end
        if not cases.needs_length[model.config.model_type] then
          local options = redco.tree.map(function(v) return v end, expected.kwargs)
          options.cache_implementation = "static"
          if model.generate(params, inputs, options) ~= sequences then
            wrong[#wrong + 1] = expected.name .. " with a static cache"
          end
        end
      end
      assert(#wrong == 0, "other tokens: " .. table.concat(wrong, ", "))
    end)
  end
end

testing.finish()
