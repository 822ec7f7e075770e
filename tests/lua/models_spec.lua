-- Every family against transformers on the same weights: logits, loss, gradients, five steps of
-- AdamW, and tokens one at a time with a cache. Bounds are those by which float32 differs from
-- float64 in the reference itself, with some room.
local cases = require "model_cases"
local redco = require "redco"
local testing = require "testing"

local torch = redco.torch
local test, expect_close = testing.test, testing.expect_close

-- Of the last rows, as many as are expected; of them, the positions that are no padding.
local function expect_logits(logits, expected, mask)
  logits = logits:narrow(0, logits:size(0) - expected:size(0), expected:size(0))
  if mask then
    local kept = mask:narrow(0, mask:size(0) - expected:size(0), expected:size(0)):ne(0)
    logits, expected = logits[kept], expected[kept]
  end
  expect_close(logits, expected, 0, 2e-4)
end

local function with_gradients(params)
  local tracked = {}
  for name, tensor in pairs(params) do tracked[name] = tensor:clone():requires_grad_() end
  return tracked
end

for _, folder in ipairs(cases.folders) do
  for _, name in ipairs(cases.found(folder, cases.names)) do
    local case = cases.open(folder, name)
    local expected = case.expected
    local model = redco.models.from_pretrained(case.dir)
    local is_seq2seq, is_ready = model.is_encoder_decoder, not cases.predicts_next(model)
    local function check(what, body) test(("%s/%s: %s"):format(folder, name, what), body) end

    check("logits", function()
      local inputs, logits = cases.forward_inputs(case), case.arrays["fwd.logits"]
      local mask = not is_seq2seq and logits:dim() == 3 and inputs.attention_mask
      if mask and mask:size(1) ~= logits:size(1) then mask = nil end  -- of the frames of a sound
      expect_logits(model(model.params, inputs), logits, mask)
    end)

    if case.arrays["fwd_left.logits"] then
      check("logits with padding on the left", function()
        local inputs = cases.inputs(case, "fwd_left")
        local logits = case.arrays["fwd_left.logits"]
        local mask = logits:dim() == 3 and inputs.attention_mask
        expect_logits(model(model.params, inputs), logits, mask)
        inputs.position_ids = nil  -- they follow from the mask
        expect_logits(model(model.params, inputs), logits, mask)
      end)
    end

    if not model.family.task then
      check("tokens one at a time, then some, by a cache", function()
        local inputs = cases.inputs(case, "fwd_left")
        local mask = inputs.attention_mask
        if is_seq2seq then inputs = cases.inputs(case, "fwd") end
        if not inputs.input_ids and not is_seq2seq then
          inputs = cases.inputs(case, "fwd")
          mask = inputs.attention_mask
        end
        local ids = is_seq2seq and inputs.decoder_input_ids or inputs.input_ids
        torch.no_grad(function()
          local memory = is_seq2seq and model.encode(model.params, inputs) or nil
          local whole = model(model.params, inputs)
          local cache, parts, at = redco.models.new_cache(3), {}, 0
          while at < ids:size(1) do
            local n = at < 4 and 1 or math.min(3, ids:size(1) - at)
            local part = ids:narrow(1, at, n)
            at = at + n
            parts[#parts + 1] = model(model.params, is_seq2seq
              and { decoder_input_ids = part, encoder_hidden_states = memory,
                attention_mask = inputs.attention_mask }
              or { input_ids = part, attention_mask = mask:narrow(1, 0, at) }, { cache = cache })
          end
          assert(cache.length == ids:size(1))
          expect_logits(torch.cat(parts, 1), whole, not is_seq2seq and mask)
        end)
      end)
    end

    check("loss and gradients", function()
      local params = with_gradients(model.params)
      local inputs = cases.training_inputs(case, "batch0", is_ready)
      local loss = cases.loss(model, params, inputs)
      loss:backward()
      cases.expect_near("the loss", loss:item(), expected.training.loss_fp64, 1e-5)
      cases.expect_gradients(case, redco.tree.map(function(tensor)
        return tensor.grad or torch.zeros_like(tensor)
      end, params))
    end)

    check("five steps of AdamW", function()
      local adamw, losses = expected.training.adamw, {}
      local trainer = redco.Trainer {
        deployer = redco.Deployer { seed = 0, verbose = false },
        params = redco.tree.map(function(t) return t:clone() end, model.params),
        collate_fn = function(examples)
          return cases.training_inputs(case, "batch" .. examples[1], is_ready)
        end,
        loss_fn = function(_, _, params, batch)
          local loss, count = cases.loss(model, params, batch)
          losses[#losses + 1] = loss:item()
          return loss, count
        end,
        optimizer = redco.optim.adamw {
          learning_rate = adamw.lr, betas = adamw.betas, eps = adamw.eps,
          weight_decay = adamw.weight_decay,
        },
      }
      for step = 0, adamw.steps - 1 do
        trainer:train { examples = { step }, per_device_batch_size = 1 }
      end
      cases.expect_trained(case, losses, trainer.params)
    end)
  end
end

testing.finish()
