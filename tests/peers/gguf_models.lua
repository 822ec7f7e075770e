-- Opens FOLDER.gguf of each folder: gguf_models.lua KIND FOLDER... The logits must be those that
-- FOLDER.safetensors has, or, of quantized weights, those of the same weights as floats.
local redco = require "redco"
local torch = redco.torch

local function logits_of(folder, input_ids, options)
  local model = redco.models.from_pretrained(folder .. ".gguf", options)
  local n_packed = 0
  for name in pairs(model.params) do
    if name:find "%.weight_type$" then n_packed = n_packed + 1 end
  end
  return model(model.params, { input_ids = input_ids }), n_packed
end

local kind, n_wrong = arg[1], 0
for i = 2, #arg do
  local folder, case = arg[i], torch.load(arg[i] .. ".safetensors")
  local logits, n_packed = logits_of(folder, case.input_ids)
  local expected = kind == "quantized"
    and logits_of(folder, case.input_ids, { quantize = false }) or case.logits
  local difference = ((logits - expected):abs():max() / expected:abs():max()):item()
  -- Rounding of numbers to eight bits; deep layers amplify it.
  local rounding = ((expected - case.logits):abs():max() / case.logits:abs():max()):item()
  local is_packed = (n_packed > 0) == (kind == "quantized")
  if not (difference < 2e-5 and rounding < 1 and is_packed) then
    n_wrong = n_wrong + 1
    print(("%s: the logits differ by %.1e and %.1e, %d weights are packed"):format(folder,
      difference, rounding, n_packed))
  end
end
print(("%d models with %s weights, %d of them differ"):format(#arg - 1, kind, n_wrong))
os.exit(n_wrong == 0 and 0 or 1)
