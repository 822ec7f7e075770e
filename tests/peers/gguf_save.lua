-- gguf_save.lua TYPE FOLDER...: writes FOLDER.own.gguf of each folder, opens it again, and writes
-- its logits of the tokens in FOLDER.safetensors to the folder FOLDER.own. With TYPE f32 it also
-- writes adapters, FOLDER.adapter.gguf, and the logits with them.
local redco = require "redco"
local native = require "redco.native"
local torch = redco.torch

-- Returns the parameters with random adapters on the first layers of attention.
local function adapted(model)
  local targets = { q_proj = true, qkv_proj = true, query_key_value = true, c_attn = true }
  local found = {}
  for name in pairs(model.params) do
    local part = name:match "([%w_]+)%.weight$"
    if part and targets[part] then found[1], targets[part] = part, nil end
  end
  local params = redco.lora.add(model.params, { target_modules = found, r = 2, lora_alpha = 3 })
  for name, matrix in pairs(params) do
    if name:find "%.lora_B%." then
      torch.no_grad(function() matrix:copy_(torch.randn(matrix.shape) * 0.3) end)
    end
  end
  return params
end

local type, n_wrong = arg[1], 0
for i = 2, #arg do
  local folder, case = arg[i], torch.load(arg[i] .. ".safetensors")
  local model = redco.models.from_pretrained(folder)
  model.save_gguf(folder .. ".own.gguf", { type = type, tokenizer = false })
  local opened = redco.models.from_pretrained(folder .. ".own.gguf", { quantize = false })
  local logits = opened(opened.params, { input_ids = case.input_ids })
  local difference = ((logits - case.logits):abs():max() / case.logits:abs():max()):item()
  if type == "f32" and (difference >= 1e-4 or difference ~= difference) then
    n_wrong = n_wrong + 1
    print(("%s: the logits differ by %.1e"):format(folder, difference))
  end
  -- Packed weights are written as they are.
  local packed = redco.models.from_pretrained(folder .. ".own.gguf")
  packed.save_gguf(folder .. ".again.gguf", { type = type, tokenizer = false })
  local again = native.open_gguf(folder .. ".again.gguf")
  local first = native.open_gguf(folder .. ".own.gguf")
  for _, name in ipairs(first:keys()) do
    -- Those of experts and of GPT-2's layers become floats when they are read.
    local is_packed = not name:find "_exps" and model.config.model_type ~= "gpt2"
    if is_packed and not first:tensor(name):equal(again:tensor(name)) then
      n_wrong = n_wrong + 1
      print(("%s: %s changed when it was written again"):format(folder, name))
    end
  end
  local results = { logits = logits }
  if type == "f32" then
    torch.manual_seed(i)
    local params = adapted(opened)
    redco.lora.save_gguf(folder .. ".adapter.gguf", opened, params)
    results.adapted = opened(params, { input_ids = case.input_ids })
  end
  native.save_weights(folder .. ".own", results)
end
os.exit(n_wrong == 0 and 0 or 1)
