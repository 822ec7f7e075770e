-- Table 1 of the paper (RedCoast, arXiv 2310.16355) as a plan: do its models fit on its servers, in
-- which layout, and what does not fit. Run it with `redco-lua tests/plan/table1.lua`; REDCO_LUA may
-- name the program. The weights are not needed. Parameters are float32, with AdamW, one example at
-- a time on a device; the numbers in brackets are the lengths of texts. For BART and GPT-2 the
-- paper's text and its table have them the other way round: both are tried. --models="opt-66b"
-- takes only these; all take some minutes.
local redco = require "redco"

local o = redco.options { models = "", timeout = 600 }
local program = os.getenv "REDCO_LUA" or "redco-lua"
local folder = debug.getinfo(1, "S").source:match "^@(.*)/[^/]*$" or "."
local GB = 1e9

local function tpus(hosts, devices)
  return ([[
hosts = [{ count = %d, devices = %d, device = "TPU-v4-32G", link = "ici-v4" }]
network = { link = "ici-v4" }
]]):format(hosts, devices)
end

local servers = {
  { name = "2 x 1080Ti", text = [[
hosts = [{ devices = 2, device = { like = "1080Ti-11G", memory = "10 GiB" } }]
]] },
  { name = "4 x A100", text = [[hosts = [{ devices = 4, device = "A100-40G" }] ]] },
  { name = "2 x TPU-v4", text = tpus(2, 4) },
  { name = "16 x TPU-v4", text = tpus(16, 4) },
}

local rows = {
  { servers[1], "bart-large", 1024 }, { servers[1], "bart-large", 512 },
  { servers[1], "gpt2-large", 512 }, { servers[1], "gpt2-large", 1024 },
  { servers[2], "llama-7b", 1024 }, { servers[2], "gpt-j-6b", 1024 },
  { servers[3], "t5-xxl", 512 }, { servers[3], "opt-13b", 1024 },
  { servers[4], "opt-66b", 512 },
}

-- Returns the plan of a model, with all layouts.
local function plan(cluster, model, length, ...)
  local toml, json = os.tmpname() .. ".toml", os.tmpname()
  local file = assert(io.open(toml, "w"))
  file:write(cluster)
  file:close()
  local words = { ("'%s' plan --cluster '%s' --json '%s' --layouts 1000 --timeout %d"):format(
    program, toml, json, o.timeout), ... }
  words[#words + 1] = ("'%s/train.lua' --model=%s --length=%d 2>&1"):format(folder, model, length)
  local pipe = assert(io.popen(table.concat(words, " ")))
  local text = pipe:read "*a"
  pipe:close()
  local ok, result = pcall(redco.data.json, json)
  os.remove(toml)
  os.remove(json)
  if not ok then error(text, 0) end
  return result
end

local function layout_text(layout)
  local text = ("%d x %d"):format(layout.n_copies, layout.n_model_shards)
  if layout.zero > 0 then text = text .. ", zero = " .. layout.zero end
  if layout.recompute ~= "none" then text = text .. ", recompute" end
  return text
end

-- Of the layouts that a function selects, the one that needs the fewest bytes.
local function least(result, is_meant)
  local best
  for _, layout in ipairs(result.layouts) do
    local bytes = layout.is_planned and layout.memory.total or layout.states
    if layout.states > 0 and is_meant(layout) and (not best or bytes < best.bytes) then
      best = { layout = layout, bytes = bytes, fits = layout.fits }
    end
  end
  return best
end

local function is_pure_split(layout) return layout.zero == 0 and layout.n_copies == 1 end

print("servers      device   model       length  parameters  states     "
  .. "split over all devices  the fastest that fits")
local function is_chosen(model)
  return o.models == "" or (" " .. o.models .. " "):find(" " .. model .. " ", 1, true)
end

local function print_row(server, model, length)
  local result = plan(server.text, model, length, "--max-mp 64")
  local best, split = result.layouts[1], least(result, is_pure_split)
  print(("%-11s  %5.1f G  %-10s  %6d  %8.2f B  %7.1f GB  %8.1f GB %-12s %s"):format(server.name,
    result.device_memory / 2 ^ 30, model, length, result.n_parameters / 1e9,
    result.n_parameters * 16 / GB, split.bytes / GB, split.fits and "fits" or "does not fit",
    best.fits and ("%s: %.1f GB"):format(layout_text(best), best.memory.total / GB) or "-"))
  -- Why the model is not split over all devices, as the paper does.
  for _, note in ipairs(split.layout.notes) do print("  " .. note) end
end

for _, row in ipairs(rows) do
  if is_chosen(row[2]) then print_row(unpack(row)) end
end

print "\nWhat must not fit:"
local function refuse(what, result, is_meant)
  local best = least(result, is_meant)
  print(("  %s: %s, %s of %s GB"):format(what, best.fits and "FITS" or "does not fit",
    ("%.1f"):format(best.bytes / GB), ("%.1f"):format(result.device_memory / GB)))
  return not best.fits
end
local all_refused = true
for _, case in ipairs {
  { "LLaMA-7B on 2 x A100 40G", servers[2].text, "llama-7b", 1024, "--devices 2",
    function(layout) return layout.zero == 0 end },
  { "OPT-13B on 4 x TPU-v4 32G", tpus(1, 4), "opt-13b", 1024, "",
    function(layout) return layout.zero == 0 end },
  { "OPT-66B on 64 x TPU-v4 32G without ZeRO, up to 8 model shards", servers[4].text, "opt-66b",
    512, "--max-mp 8", function(layout) return layout.zero == 0 end },
} do
  local what, text, model, length, option, is_meant = unpack(case)
  if is_chosen(model) then
    all_refused = refuse(what, plan(text, model, length, option), is_meant) and all_refused
  end
end
os.exit(all_refused and 0 or 1)
