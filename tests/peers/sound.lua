-- sound.lua FOLDER: what redco-lua makes of sounds and of texts, for sound_peer.py.
local redco = require "redco"

local folder = arg[1]
local jobs = redco.data.json(folder .. "/jobs.json")
local extract = redco.data.feature_extractor(folder)
local arrays, results = redco.torch.load(folder .. "/sounds.safetensors"), { ids = {}, texts = {} }
if jobs.texts[1] then
  local tokenizer = redco.data.ctc_tokenizer(folder)
  for i, text in ipairs(jobs.texts) do results.ids[i] = tokenizer.encode(text) end
  for i, ids in ipairs(jobs.ids) do results.texts[i] = tokenizer.decode(ids) end
end
local sounds = {}
for i = 1, jobs.n_sounds do sounds[i] = arrays["sound" .. i] end
local values, mask = extract(sounds)
redco.torch.save({ values = values, mask = mask }, folder .. "/found.safetensors")
local file = assert(io.open(folder .. "/found.json", "w"))
file:write(require("redco.native").json_encode("the results", results))
file:close()
