-- Writes a file of each format that the program defines, in the folder of the format's number:
--   REDCO_LUA=/path/to/redco-lua redco-lua tests/tools/make_format_cases.lua
-- A file that exists stays: it tests that later versions open it. tests/engine/formats_test.cpp and
-- tests/lua/formats_spec.lua know the values.
local redco = require "redco"
local torch = redco.torch

local format = 1
local folder = "tests/cases/formats/" .. format
local function new(name)
  local file = io.open(folder .. "/" .. name)
  if file then file:close() end
  return not file and folder .. "/" .. name
end

assert(os.execute("mkdir -p " .. folder) == 0)
local params = { layer = { weight = torch.arange(6):view(2, 3):float() / 4 },
  list = { torch.tensor({ true, false }), torch.arange(3):bfloat16() } }
local opt_state = { step = torch.tensor(7), name = "adam", rate = 0.1, missing = 0 / 0 }

if new "checkpoint/info.json" then
  local deployer = redco.Deployer { seed = 1, verbose = false }
  deployer:save_ckpt { ckpt_dir = folder .. "/checkpoint", params = params, opt_state = opt_state,
    custom_state = { seen = 12 }, info = { epoch = 3 } }
end
local tree = new "tree.safetensors"
if tree then torch.save({ params = params, opt_state = opt_state }, tree) end
for _, dtype in ipairs { "uint16", "uint32" } do
  local tokens = new("tokens_" .. dtype .. ".bin")
  if tokens then redco.data.write_tokens(tokens, torch.arange(100, 110), { dtype = dtype }) end
end

if new "adapter/adapter_config.json" then
  local adapted = redco.lora.add({ layer = redco.nn.Linear(3, 2) },
    { target_modules = { "layer" }, r = 2, lora_alpha = 6 })
  adapted.layer.lora_A.weight = torch.arange(6):view(2, 3):float() / 4
  adapted.layer.lora_B.weight = torch.arange(4):view(2, 2):float() / 4
  redco.lora.save_pretrained(folder .. "/adapter", adapted)
end
local run = new "run/config.toml"
if run then
  local words = "'%s' tests/lua/format_run.lua --workdir=%s/run --n_steps=6 --sizes=4,3 "
    .. "--shuffle=true --optimizer.kind=adamw --optimizer.rate=0.05 && cd %s && "
    .. "mv run/ckpts/step_6 after && rm run/log.txt run/metrics.jsonl && "
    .. "echo step_3 >run/ckpts/last_ckpt.txt"
  assert(os.execute(words:format(os.getenv "REDCO_LUA", folder, folder)) == 0)
end
