-- What `redco-lua plan` predicts against what runs measure: the memory of the process with the
-- most, and the time of a step, of four models on 1, 2 and 4 processes in all layouts. Prints the
-- table that tests/bench/README.md shows. Memory can be measured on a busy machine, times cannot:
--     redco-lua tests/bench/plan_accuracy.lua                 # memory
--     redco-lua tests/bench/plan_accuracy.lua --times=true  # on a quiet machine; it calibrates
-- REDCO_LUA may name the program.
local clock = require "clock"
local redco = require "redco"

local o = redco.options { models = "gpt2 llama t5 conv", processes = "1 2 4", times = false,
  rounds = 1, step = "", sequence_parallel = true, recompute = true }
local program = os.getenv "REDCO_LUA" or "redco-lua"
local folder = debug.getinfo(1, "S").source:match "^@(.*)/[^/]*$" or "."
local script = o.step ~= "" and o.step or folder .. "/plan_step.lua"
local MB = 1e6

local function run(command)
  local pipe = assert(io.popen(("LUA_PATH='%s/?.lua;;' OMP_NUM_THREADS=1 '%s' %s 2>&1"):format(
    folder, program, command)))
  local text = pipe:read "*a"
  pipe:close()
  return text
end

local function layouts_of(model, n)
  local list = {}
  for mp = 1, n do
    for zero = 0, (n % mp == 0 and n / mp > 1) and 3 or 0 do
      if n % mp == 0 then list[#list + 1] = { n_model_shards = mp, zero = zero } end
    end
    if n % mp == 0 and mp > 1 and o.sequence_parallel and model ~= "conv" then
      list[#list + 1] = { n_model_shards = mp, zero = 0, sequence_parallel = true }
    end
  end
  if o.recompute and model ~= "conv" then
    list[#list + 1] = { n_model_shards = 1, zero = 0, recompute = "blocks" }
  end
  return list
end

local function options_of(model, layout)
  local words = { "--model=" .. model }
  for name, value in pairs(layout) do
    words[#words + 1] = ("--%s=%s"):format(name, tostring(value))
  end
  table.sort(words)
  return table.concat(words, " ")
end

local function text_of(layout)
  local text = ("mp %d, zero %d"):format(layout.n_model_shards, layout.zero)
  if layout.sequence_parallel then text = text .. ", sequence" end
  if layout.recompute then text = text .. ", recompute" end
  return text
end

local planning = {}

local function planned(model, n, layout)
  local json, start = os.tmpname(), clock.now()
  local text = run(("plan --fit 2 --devices %d --timeout 0 --json '%s' '%s' %s"):format(n, json,
    script, options_of(model, layout)))
  planning[#planning + 1] = clock.now() - start
  local ok, plan = pcall(redco.data.json, json)
  os.remove(json)
  for _, each in ipairs(ok and plan.layouts or {}) do
    if each.is_asked then return each end
  end
  error(text, 0)
end

local function measured(model, n, layout)
  local pss, seconds = {}, {}
  for _ = 1, o.rounds do
    local text = run(("%s '%s' %s"):format(n > 1 and "--nproc " .. n or "", script,
      options_of(model, layout)))
    local bytes, time = text:match '"pss": (%d+), "seconds": ([%d.]+)'
    if not bytes then error(text, 0) end
    pss[#pss + 1], seconds[#seconds + 1] = tonumber(bytes), tonumber(time)
  end
  return clock.median(pss), clock.median(seconds)
end

print("| model | processes | layout | planned MB | measured MB | difference | planned s "
  .. "| measured s |")
print "| --- | --- | --- | --- | --- | --- | --- | --- |"
local n_rows, n_good = 0, 0
for n in o.processes:gmatch "%d+" do
  -- One process has one thread here, as each of several has.
  if o.times then run(("--nproc %s plan --calibrate /dev/null"):format(n)) end
  for model in o.models:gmatch "%S+" do
    for _, layout in ipairs(layouts_of(model, tonumber(n))) do
      local plan = planned(model, tonumber(n), layout)
      local pss, seconds = measured(model, tonumber(n), layout)
      local off = plan.memory.total - pss
      n_rows = n_rows + 1
      if math.abs(off) <= math.max(0.05 * pss, 24 * MB) then n_good = n_good + 1 end
      print(("| %s | %s | %s | %.0f | %.0f | %+.1f %% | %s | %s |"):format(model, n,
        text_of(layout), plan.memory.total / MB, pss / MB, 100 * off / pss,
        o.times and ("%.3f"):format(plan.seconds.total) or "",
        o.times and ("%.3f"):format(seconds) or ""))
      io.stdout:flush()
    end
  end
end
print(("%d of %d within 5 %% or 24 MB; planning took %.1f s, median of one plan"):format(n_good,
  n_rows, clock.median(planning)))
